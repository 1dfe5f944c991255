"""``python -m ddp_conformance``."""

import sys

from ddp_conformance.front.command import main

if __name__ == "__main__":
    sys.exit(main())
