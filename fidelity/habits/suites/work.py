"""What the tests are about."""

import logging
import warnings

VALUE = 0


def covered():
    total = 0
    total += 1
    return total


def say(words):
    print(words)


def log(words):
    logging.getLogger("work").warning(words)


def warn():
    warnings.warn("from the work", UserWarning, stacklevel=2)
