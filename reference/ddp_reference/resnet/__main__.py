"""``python -m ddp_reference.resnet``."""

import sys

from ddp_reference.resnet.train import main

if __name__ == "__main__":
    sys.exit(main())
