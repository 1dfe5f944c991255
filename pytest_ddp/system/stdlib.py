"""The standard library as it is before any test, for all code that runs while tests run.

A test may patch ``os.getpid``, ``time.monotonic`` or ``json.loads``, and a fixture may do so for a
whole session: neither a rank nor the pytest process may be affected. ``from time import monotonic``
would not do, since freezegun replaces clocks in every module that has one.
"""

from __future__ import annotations

from importlib import import_module as _import
from os import path as _path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import base64 as base64
    import faulthandler as faulthandler
    import gc as gc
    import inspect as inspect
    import json as json
    import mmap as mmap
    import os as os
    import pickle as pickle
    import queue as queue
    import random as random
    import select as select
    import selectors as selectors
    import shutil as shutil
    import signal as signal
    import socket as socket
    import subprocess as subprocess
    import tempfile as tempfile
    import threading as threading
    import time as time
    import traceback as traceback
    import zlib as zlib
else:
    # Lazily: a suite without ddp tests must not pay for modules that it does not import.
    def __getattr__(name: str) -> ModuleType:
        try:
            globals()[name] = copied = _copy(_import(name))
        except ImportError:
            raise AttributeError(name) from None
        return copied


def _copy(module: ModuleType) -> ModuleType:
    copied = ModuleType(module.__name__, module.__doc__)
    names: dict[str, Any] = vars(copied)
    names.update(vars(module))
    if names.get("path") is _path:
        names["path"] = _copy(_path)
    return copied
