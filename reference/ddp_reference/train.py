"""``python -m ddp_reference.train --stage operator``, alone or under torchrun.

An error on any rank ends the whole run with a code that is not 0. Nothing here catches
an exception or calls ``os._exit``: the interpreter's own exit code is the honest one.
"""

import logging
import sys
from collections.abc import Sequence

from torch.distributed.elastic.multiprocessing.errors import record

from ddp_reference.training.config import parse_config
from ddp_reference.training.lifecycle import run
from ddp_reference.training.stages import STAGES


def main(argv: Sequence[str] | None = None) -> int:
    """Train as the options say; returns 0 once every rank got through."""
    config = parse_config(argv)
    run(STAGES[config.stage], config)
    return 0


@record  # torchrun's own report then names the first rank that failed, with its traceback
def _command() -> int:
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    return main()


if __name__ == "__main__":
    sys.exit(_command())
