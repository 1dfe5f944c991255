"""ddp marks of collected items: wrong ones are collection errors, right ones are kept."""

from __future__ import annotations

import pytest

from pytest_ddp.settings.marked_items import MARK, check_items, read_marks
from pytest_ddp.settings.options import Options


def warned(item: pytest.Item, text: str) -> None:
    raise AssertionError(f"{item.nodeid}: {text}")


def collected(inner: pytest.Pytester, source: str) -> tuple[pytest.CollectReport, Options]:
    """The report of a module's collection, before anybody has looked at its marks."""
    module = inner.getmodulecol(f"import pytest\n{source}")
    report = pytest.CollectReport(module.nodeid, "passed", None, list(module.collect()))
    return report, Options.from_config(module.config)


WRONG = """
@pytest.mark.ddp(world_size=0)
def test_none(): pass

def test_plain(): pass

@pytest.mark.ddp(world_size="four")
def test_word(): pass
"""
RIGHT = """
@pytest.mark.ddp(world_size=3, isolate=True)
def test_three(): pass

def test_plain(): pass
"""


def test_all_wrong_marks_of_a_module_are_reported_at_once(inner: pytest.Pytester) -> None:
    report, options = collected(inner, WRONG)
    assert check_items(report, options, warned).failed
    assert report.result == []
    text = str(report.longrepr)
    assert "test_none" in text
    assert "test_word" in text
    assert "test_plain" not in text


def test_each_error_has_on_its_first_line_what_is_wrong(inner: pytest.Pytester) -> None:
    report, options = collected(inner, WRONG)
    first = str(check_items(report, options, warned).longrepr).splitlines()[0]
    assert "test_none" in first
    assert "world_size" in first


def test_right_marks_change_nothing(inner: pytest.Pytester) -> None:
    report, options = collected(inner, RIGHT)
    items = list(report.result)
    assert check_items(report, options, warned).passed
    assert report.result == items


def test_a_module_that_was_not_collected_stays_as_it_is(inner: pytest.Pytester) -> None:
    report, options = collected(inner, RIGHT)
    report.outcome, report.longrepr, report.result = "failed", "SyntaxError", []
    assert check_items(report, options, warned).longrepr == "SyntaxError"


def test_items_keep_their_marks(inner: pytest.Pytester) -> None:
    report, options = collected(inner, RIGHT)
    three, plain = (node for node in report.result if isinstance(node, pytest.Item))
    read_marks([three, plain], options)
    assert three.stash[MARK].world_sizes == (3,)
    assert three.stash[MARK].isolate is True
    assert MARK not in plain.stash


def test_a_wrong_mark_that_came_late_is_a_usage_error(inner: pytest.Pytester) -> None:
    report, options = collected(inner, RIGHT)
    plain = next(node for node in report.result if node.name == "test_plain")
    assert isinstance(plain, pytest.Item)
    plain.add_marker(pytest.mark.ddp(world_size=-1))
    with pytest.raises(pytest.UsageError, match="test_plain"):
        read_marks([plain], options)


SIZES = 'sizes = pytest.mark.parametrize("world_size", [2, 3])\nddp = pytest.mark.ddp\n'
MISTAKEN = """
@ddp
@sizes
def test_it(ddp, world_size): pass
"""


def test_a_parameter_beside_a_bare_mark_is_warned_of_once(inner: pytest.Pytester) -> None:
    report, options = collected(inner, SIZES + MISTAKEN)
    shown: list[str] = []
    assert check_items(report, options, lambda _, text: shown.append(text)).passed
    (text,) = shown
    assert "test_it: a parameter world_size does not set the number of ranks" in text
    assert "@pytest.mark.ddp(world_size=[2, 3])" in text


def test_such_a_warning_may_be_an_error_by_a_filter(inner: pytest.Pytester) -> None:
    def warn(_: pytest.Item, text: str) -> None:
        raise pytest.PytestWarning(text)

    report, options = collected(inner, SIZES + MISTAKEN)
    assert check_items(report, options, warn).failed
    assert "does not set the number of ranks" in str(report.longrepr)


@pytest.mark.parametrize(
    "source",
    [
        "@sizes\ndef test_arithmetic(world_size): pass",
        "@ddp(world_size=2)\n@sizes\ndef test_it(ddp, world_size): pass",
        "pytestmark = ddp(world_size=2)\n@ddp(seed=1)\n@sizes\ndef test_it(world_size): pass",
        "@ddp\n@pytest.mark.parametrize('world_size', ['small'])\ndef test_it(world_size): pass",
        "@ddp\n@pytest.mark.parametrize('size', [2])\ndef test_it(size): pass",
    ],
)
def test_parameters_of_that_name_are_legal_elsewhere(inner: pytest.Pytester, source: str) -> None:
    report, options = collected(inner, SIZES + source)
    assert check_items(report, options, warned).passed
