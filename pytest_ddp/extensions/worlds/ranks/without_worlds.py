"""What the ``ddp`` fixture has in a test without ``worlds``. It imports no torch."""

from __future__ import annotations

from typing import NoReturn

NO_WORLDS = (
    "this test has no worlds: write\n"
    "  @pytest.mark.ddp(worlds={'one': 1, 'ddp': 2}), in place of world_size"
)


class WithoutWorlds:
    """A stand-in for an attribute of the fixture: any use is an error."""

    def __init__(self, name: str) -> None:
        self._name = name

    def _refuse(self, *_: object) -> NoReturn:
        raise RuntimeError(f"{self._name}: {NO_WORLDS}")

    __truediv__ = __fspath__ = __rtruediv__ = _refuse

    def __getattr__(self, name: str) -> NoReturn:
        self._refuse()


def attributes() -> dict[str, object]:
    """Return the attributes of the fixture, by name."""
    return {
        "across_worlds": WithoutWorlds("ddp.across_worlds"),
        "carry": WithoutWorlds("ddp.carry"),
        "world": None,
    }
