"""``python -m ddp_conformance``."""

import sys

from ddp_conformance.frontend.command import main

if __name__ == "__main__":
    sys.exit(main())
