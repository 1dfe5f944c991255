"""Each rank writes down that it began a test, and that it came to the end of its function.

By an append to a file, past pytest's reports and the plugin's channels: a verdict that no rank has
earned is found out by it.
"""

import json
import os

import pytest


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item):
    note(item, "began")
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem):
    result = yield
    note(pyfuncitem, "ended")
    return result


def note(item, what):
    places = {name: os.environ.get(name.upper(), "") for name in ("rank", "world_size")}
    line = json.dumps({"test": item.name, "what": what, **places, "pid": os.getpid()}) + "\n"
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    descriptor = os.open(os.environ["DDP_BATTERY_PRESENCE"], flags)
    os.write(descriptor, line.encode())
    os.close(descriptor)
