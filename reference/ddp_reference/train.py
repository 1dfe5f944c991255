"""``python -m ddp_reference.train --stage operator``, alone or under torchrun.

An error on any rank ends the whole run with a code that is not 0. Nothing here calls
``os._exit`` or catches an exception but that of a wrong configuration, which one rank says and
all end with code 2: the interpreter's own exit code is the honest one.
"""

import logging
import sys
from collections.abc import Sequence

from torch.distributed.elastic.multiprocessing.errors import record

from ddp_reference.saying import say_once
from ddp_reference.training.config import parse_config
from ddp_reference.training.distributed import ConfigError, announced_world
from ddp_reference.training.lifecycle import check, run
from ddp_reference.training.stages import STAGES


def main(argv: Sequence[str] | None = None) -> int:
    """Train as the options say; returns 0 once every rank got through, 2 for wrong options."""
    try:
        config = parse_config(argv)
        check(config, announced_world())
        run(STAGES[config.stage], config)
    except ConfigError as error:
        text = f"error: {error}"
        is_first = announced_world().rank == 0
        say_once(lambda: print(text, file=sys.stderr, flush=True), is_first=is_first)
        return 2
    return 0


@record  # torchrun's own report then names the first rank that failed, with its traceback
def _command() -> int:
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    return main()


if __name__ == "__main__":
    sys.exit(_command())
