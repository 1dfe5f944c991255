"""Replaces a function of C in the calls that one shared library makes of it.

The loader fills in a table for each library, with the address of each function that it calls:
elf(5) has the formats. Other libraries, and with them all timeouts of C, are left as they are.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

_LINK_MAP = 2
"""``RTLD_DI_LINKMAP``."""
_STRINGS, _SYMBOLS, _RELOCATIONS = 5, 6, ((23, 2), (7, 8))
"""``DT_STRTAB`` and ``DT_SYMTAB``; tables of relocations with their lengths: of calls, of all."""
_ENTRY = 24
"""Bytes of a symbol, and of a relocation."""
_READ_AND_WRITE = 3


@contextmanager
def replaced(symbol: str, function: Any, *, library: str) -> Iterator[None]:
    """A block in which calls of ``symbol`` by the library, a file, go to a ctypes function.

    Where the library does not call it, or is not of 64 bits, nothing is replaced.
    """
    before = [(place, _word(place)) for place in _places(symbol, library)]
    try:
        for place, _ in before:
            _write(place, ctypes.cast(function, ctypes.c_void_p).value or 0)
        yield
    finally:
        for place, address in before:
            _write(place, address)


@cache
def _places(symbol: str, library: str) -> tuple[int, ...]:
    """The addresses at which the library keeps the address of the function."""
    if ctypes.sizeof(ctypes.c_void_p) != 8:
        return ()
    loaded = ctypes.CDLL(library)
    link = ctypes.c_void_p()
    ctypes.CDLL(None).dlinfo(ctypes.c_void_p(loaded._handle), _LINK_MAP, ctypes.byref(link))
    base, _, dynamic = (ctypes.c_uint64 * 3).from_address(link.value or 0)
    tags: dict[int, int] = {}
    while tag := _word(dynamic):
        tags[tag] = _word(dynamic + 8)
        dynamic += 16

    def start(tag: int) -> int:
        """The start of a table: glibc has its address, other loaders how far behind the library it
        is.
        """
        return tags[tag] if tags[tag] > base else base + tags[tag]

    def name(relocation: int) -> str:
        of_symbol = start(_SYMBOLS) + _ENTRY * (_word(relocation + 8) >> 32)
        in_strings = _word(of_symbol) & 0xFFFFFFFF
        return ctypes.string_at(start(_STRINGS) + in_strings).decode()

    for table, length in _RELOCATIONS:
        if table in tags:
            relocations = range(start(table), start(table) + tags[length], _ENTRY)
            if found := [_word(one) + base for one in relocations if name(one) == symbol]:
                return tuple(found)
    return ()


def _word(address: int) -> int:
    return ctypes.c_uint64.from_address(address).value


def _write(place: int, address: int) -> None:
    page = ctypes.c_void_p(place - place % mmap.PAGESIZE)
    ctypes.CDLL(None).mprotect(page, ctypes.c_size_t(mmap.PAGESIZE), _READ_AND_WRITE)
    ctypes.c_uint64.from_address(place).value = address
