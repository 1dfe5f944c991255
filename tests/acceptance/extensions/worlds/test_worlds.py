"""Worlds of one test: which runs there are, what they find, and what each selection shows."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.acceptance.extensions.machines.test_refusals import NODE_0
from tests.acceptance.plugins.test_reruns import CONFTEST as RERUNNER
from tests.acceptance.suite import LOADFILE, UNDER_XDIST, Finished, Suite

PREFACE = """
    from pathlib import Path

    import pytest
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    HERE = Path(__file__).parent
    WORLDS = {"one": 1, "ddp": 2}
    SAMPLES = torch.linspace(-1, 1, 8 * 6).reshape(8, 6)

    def train(ddp, model, scale=1.0, steps=2):
        \"\"\"SGD on the mean of all samples, by gradients that are reduced here.\"\"\"
        for parameter in model.parameters():
            dist.broadcast(parameter.data, 0)
        mine = SAMPLES[ddp.rank :: ddp.world_size].to(torch.get_default_dtype())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(steps):
            optimizer.zero_grad()
            model(mine).square().mean().backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad *= scale / ddp.world_size
            optimizer.step()

    def note(name, text):
        with (HERE / f"{name}.txt").open("a") as file:
            file.write(f"{text} ")
"""
SELECTED = """
    @pytest.fixture(scope="module")
    def wide(ddp):
        return f"wide {ddp.world_size}"

    class TestIn:
        @pytest.mark.parametrize("width", [1, 3])
        @pytest.mark.ddp(worlds={**WORLDS, "wrong": 2})
        def test_train(self, ddp, width, wide, tmp_path):
            assert not [*tmp_path.iterdir()] and wide == f"wide {ddp.world_size}"
            ddp.barrier()
            (tmp_path / str(ddp.rank)).touch()
            model = torch.nn.Linear(6, width)  # not seeded by the test
            train(ddp, model, 1.001 if ddp.world == "wrong" else 1.0)
            ddp.across_worlds.assert_close("model", model)
"""


def flat(text: str) -> str:
    """A text on one line, without the marks of an error's lines."""
    return " ".join(re.sub("^E ", "", text, flags=re.MULTILINE).split())


BOTH = {"one": "passed", "ddp": "passed", "wrong": "failed"}


@pytest.fixture(scope="module")
def selected(new_suite: Callable[[], Suite]) -> Suite:
    suite = new_suite()
    suite.write("test_it.py", PREFACE + SELECTED)
    return suite


def _verdicts(run: Finished) -> dict[str, str]:
    return {
        re.split(r"[\[\]-]", nodeid)[1]: result.verdict for nodeid, result in run.results.items()
    }


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("-k", "ddp and 3"),
        ("test_it.py::TestIn::test_train[wrong-1]",),
        ("-n", "2", "--dist", "load"),
        ("-p", "randomly"),
    ],
    ids=lambda arguments: " ".join(arguments) or "all",
)
def test_each_selection_has_the_same_verdicts(selected: Suite, arguments: tuple[str, ...]) -> None:
    if "randomly" in arguments:
        arguments = ("test_it.py::TestIn::test_train[ddp-3]", "test_it.py")  # ddp first
    if UNDER_XDIST and "-n" in arguments:
        pytest.skip("it has workers already")
    found = _verdicts(selected.run(*arguments, timeout=90))
    assert found
    assert found == {world: BOTH[world] for world in found}


CACHE = ("-p", "cacheprovider")
AGAIN = """
    @pytest.fixture
    def own(request, ddp):
        assert request.node.name.endswith(f"[{ddp.world}]")
        name = request.node.originalname.removeprefix("test_")
        if ddp.rank == 0:
            note(name, ddp.world)
        ddp.barrier()
        return (HERE / f"{name}.txt").read_text().split().count(ddp.world)

    @pytest.mark.again
    @pytest.mark.ddp(worlds=WORLDS)
    def test_world(ddp, own):
        assert ddp.world == "one" or own > 1, "the first attempt fails"
        ddp.across_worlds.assert_close("x", 1, exact=True)

    @pytest.mark.again
    @pytest.mark.ddp(worlds=WORLDS)
    def test_reference(ddp, own):
        ddp.across_worlds.assert_close("x", own + ddp.world_size, exact=True)
        assert ddp.world == "ddp" or own > 1, "the first attempt fails"

    @pytest.mark.ddp(worlds={**WORLDS, "wrong": 2})
    def test_last(ddp, own, tmp_path):
        assert not [*tmp_path.iterdir()]
        ddp.barrier()
        (tmp_path / str(ddp.rank)).touch()
        attempt = own if ddp.world == "one" else 1
        ddp.across_worlds.assert_close("x", attempt + (ddp.world == "wrong"), exact=True)
"""


@pytest.fixture(scope="module")
def reruns(new_suite: Callable[[], Suite]) -> Suite:
    suite = new_suite()
    suite.write("conftest.py", RERUNNER)
    suite.write("test_it.py", PREFACE + AGAIN)
    return suite


@pytest.fixture(scope="module")
def again(reruns: Suite) -> Finished:
    """The first run, of which pytest knows what has failed."""
    return reruns.run(*CACHE, *LOADFILE, timeout=90)


def _ran(run: Finished, test: str) -> list[str]:
    return (run.directory / f"{test}.txt").read_text().split()


def test_a_rerun_is_held_against_the_reference_that_there_is(again: Finished) -> None:
    assert again["test_world[one]"].verdict == "passed"
    assert again["test_world[ddp]"].verdict == "rerun+passed"
    assert _ran(again, "world") == ["one", "ddp", "ddp"]


def test_a_reference_that_passes_when_it_runs_again_is_one(again: Finished) -> None:
    assert again["test_reference[one]"].verdict == "rerun+passed"
    assert again["test_reference[ddp]"].verdict == "passed"
    assert _ran(again, "reference") == ["one", "one", "ddp"]


LAST = "test_it.py::test_last"


@pytest.mark.parametrize(
    ("arguments", "verdicts", "ran"),
    [
        (("--lf",), {"wrong": "failed"}, ["one", "wrong"]),
        (("--ff", "-k", "last", "-x"), {"wrong": "failed"}, ["one", "wrong"]),
        (
            (f"--deselect={LAST}[one]", "-k", "last"),
            {"ddp": "passed", "wrong": "failed"},
            ["one", "ddp", "wrong"],
        ),
        # The reference runs again for its own report, and others are held against the first one.
        (
            (f"{LAST}[ddp]", f"{LAST}[one]", f"{LAST}[wrong]"),
            {"ddp": "passed", "one": "passed", "wrong": "failed"},
            ["one", "ddp", "one", "wrong"],
        ),
    ],
    ids=["--lf", "--ff -x", "--deselect", "reference second"],
)
@pytest.mark.skipif(UNDER_XDIST, reason="workers share the tests")
@pytest.mark.usefixtures("again")
def test_the_reference_of_a_selection_runs_once_unreported(
    reruns: Suite, arguments: tuple[str, ...], verdicts: dict[str, str], ran: list[str]
) -> None:
    (reruns.directory / "last.txt").unlink(missing_ok=True)
    run = reruns.run(*CACHE, *arguments)
    assert _verdicts(run) == verdicts
    assert _ran(run, "last") == ran


def test_a_failure_names_the_tensor_and_how_far_it_is(selected: Suite) -> None:
    run = selected.run("-k", "wrong and 3", timeout=90)
    text = flat(run["TestIn::test_train[wrong-3]"].text)
    assert re.search("model: (weight|bias) in world wrong is not that of world one", text)
    assert "10 more runs, half of them with four times that rounding, reach " in text
    assert "times what rounding does there" in text
    assert "in float64 it stays: " in text
    assert "2 of 2 tensors are beyond the limit" in text
    assert 'ddp.across_worlds.assert_close("model", model)' in text


STATES = """
    @pytest.mark.ddp(worlds={"two": 2, "one": 1, "four": {"world_size": 4, "seed": "same"}})
    def test_what_a_world_has(ddp):
        assert ddp.world in ("two", "one", "four")
        note(f"carried-{ddp.world}", sorted(path.name for path in ddp.carry.iterdir()))
        ddp.barrier()
        (ddp.carry / f"{ddp.world}{ddp.rank}").touch()
        ddp.across_worlds.assert_close("draw", ddp.gather(torch.rand(1).item())[0])
        ddp.across_worlds.assert_close("nothing", {"none": None, "empty": torch.ones(0)})
        ddp.across_worlds.assert_close("count", {"int": 3, "bool": True, "nan": float("nan")})

    @pytest.mark.ddp(world_size=2)
    def test_without_worlds(ddp):
        assert ddp.world is None
        with pytest.raises(RuntimeError, match="this test has no worlds"):
            ddp.across_worlds.assert_close("x", 1)
        with pytest.raises(RuntimeError, match="this test has no worlds"):
            ddp.carry / "c"

    @pytest.mark.ddp(worlds=WORLDS)
    def test_skipped_reference(ddp):
        if ddp.world == "one":
            pytest.skip("not here")

    @pytest.mark.ddp(worlds=WORLDS)
    def test_failing_reference(ddp):
        assert ddp.world != "one", "the reference is wrong"

    @pytest.mark.ddp(worlds={"one": {"world_size": 2, "timeout": 120}, "ddp": 2})
    def test_hanging_reference(ddp):
        if ddp.world == "one" and ddp.rank:
            dist.barrier()

    @pytest.mark.xfail(strict=True)
    @pytest.mark.ddp(worlds=WORLDS)
    def test_expected(ddp):
        value = torch.ones(2)
        if ddp.world == "ddp":
            value += 1
        ddp.across_worlds.assert_close("value", value)
        assert ddp.world != "one" or False

    RUNS = []

    @pytest.mark.ddp(worlds=WORLDS)
    def test_not_repeatable(ddp):
        RUNS.append(1)
        model = torch.nn.Linear(6, 1)
        train(ddp, model, steps=len(RUNS) if ddp.world == "one" else 1)
        ddp.across_worlds.assert_close("model", {n: p * 1.001 ** ddp.world_size
                                                 for n, p in model.named_parameters()})

    KEPT = []

    @pytest.mark.ddp(worlds=WORLDS)
    def test_trained_again(ddp):
        if not KEPT:
            KEPT.append(torch.nn.Linear(6, 1, dtype=torch.float32))
        train(ddp, KEPT[0])  # not in float64
        with torch.no_grad():
            KEPT[0].bias += 0.001 * (ddp.world == "ddp")
        ddp.across_worlds.assert_close("model", KEPT[0])

    @pytest.mark.ddp(worlds=WORLDS)
    def test_asks_for_limits(ddp):
        note("limits", ddp.world)
        value = torch.ones(3) if ddp.world == "one" else torch.full((3,), 1.01)
        ddp.across_worlds.assert_close("value", value, rtol=0.1, atol=0)
        ddp.across_worlds.assert_close("same", torch.ones(3), exact=True)

    def test_files_of_others_are_gone(tmp_path_factory):
        # Those of tests whose worlds have all run, but the last one.
        (folder,) = tmp_path_factory.getbasetemp().glob("ddp-worlds0")
        assert len([*folder.iterdir()]) == 1

    @pytest.fixture
    def late(ddp, request):
        dtype = torch.get_default_dtype()
        yield
        if "fewer" not in request.node.name or ddp.world == "one":
            ddp.across_worlds.assert_close("late", 2.0)
        assert torch.get_default_dtype() == dtype

    @pytest.mark.ddp(worlds=WORLDS)
    def test_compares_in_teardown(ddp, late):
        ddp.across_worlds.assert_close("x", 1.0)

    @pytest.mark.ddp(worlds=WORLDS)
    def test_compares_fewer_in_teardown(ddp, late):
        ddp.across_worlds.assert_close("x", 1.0)

    @pytest.mark.ddp(worlds=WORLDS)
    def test_skips_a_world(ddp, late):
        if ddp.world == "ddp":
            pytest.skip("only one")
        ddp.across_worlds.assert_close("x", 1.0)

    @pytest.fixture(scope="module")
    def dtypes(ddp):
        return [torch.get_default_dtype()]

    @pytest.mark.ddp(worlds=WORLDS)
    def test_keeps_a_fixture(ddp, dtypes):
        note("dtypes", f"{torch.get_default_dtype()} {dtypes[0]}")
        ddp.across_worlds.assert_close("x", torch.ones(3) @ torch.ones(3, 2) * ddp.world_size)

    @pytest.mark.ddp(worlds=WORLDS)
    def test_unlike_models(ddp):
        ddp.across_worlds.assert_close("x", torch.full((3,), 1.0 + ddp.rank))

    @pytest.mark.ddp(worlds=WORLDS)
    def test_local_loss(ddp):
        ddp.across_worlds.assert_close("loss", 1.0 + ddp.rank)

    @pytest.mark.ddp(worlds={"all": 2, "stages": 2})
    def test_stages(ddp):
        values = {f"stage{n}": torch.full((3,), float(n)) for n in range(2)}
        mine = values if ddp.world == "all" else {f"stage{ddp.rank}": values[f"stage{ddp.rank}"]}
        ddp.across_worlds.assert_close("values", mine, exact=True)
        ddp.across_worlds.assert_close("module", mine)
"""
WRONG = {
    "exact": (
        'ddp.across_worlds.assert_close("x", torch.tensor([1.0, 2.0 + (ddp.world == "ddp")]), '
        "exact=True)",
        "x is not exactly that of world one: it differs by 1, and the largest value is 2",
    ),
    "limits": (
        'ddp.across_worlds.assert_close("x", 1.0 + ddp.world_size, rtol=0.1, atol=0.0)',
        "x is not within limits that of world one: it differs by 1,",
    ),
    "integer": (
        'ddp.across_worlds.assert_close("x", {"n": ddp.world_size, "f": 1.0})',
        "x: n is not exactly that of world one: it differs by 1,",
    ),
    "nan": (
        'ddp.across_worlds.assert_close("x", float("nan") if ddp.world == "ddp" else 1.0, '
        "exact=True)",
        "x is not exactly that of world one: it differs in values that are not finite",
    ),
    "measured_nan": (
        'ddp.across_worlds.assert_close("x", float("nan") if ddp.world == "ddp" else 1.0)',
        "it differs in values that are not finite; the largest value is 1",
    ),
    "gradient_missing": (
        'ddp.across_worlds.assert_close("x", {"w": None if ddp.world == "ddp" else SAMPLES}, '
        "exact=True)",
        "x: w is not exactly that of world one: it differs by 1,",
    ),
    "more": (
        'for _ in range(ddp.world_size): ddp.across_worlds.assert_close("x", 1.0)',
        "world ddp compares 'x' for the second time, and the reference world one has compared it "
        "once",
    ),
    "fewer": (
        'for _ in range(3 - ddp.world_size): ddp.across_worlds.assert_close("x", 1.0)',
        "world ddp has compared 'x' once, and the reference world one 2 times",
    ),
    "names": (
        'ddp.across_worlds.assert_close("x", {f"{ddp.world}.w": 1.0})',
        "x: world ddp has no one.w; the reference world one has no ddp.w",
    ),
    "shapes": (
        'ddp.across_worlds.assert_close("x", torch.ones(ddp.world_size))',
        "x: unlike the reference world one: the value is float32 [2], not float32 [1]",
    ),
    "dtypes": (
        'ddp.across_worlds.assert_close("x", torch.ones(1, dtype=[torch.int, torch.half]'
        "[ddp.world_size - 1]))",
        "the value is float16 [1], not int32 [1]",
    ),
    "object": (
        'ddp.across_worlds.assert_close("x", {"a": [1.0]})',
        "a is a list, and not a module, a tensor, a number, or a dict of these",
    ),
    "both": (
        'ddp.across_worlds.assert_close("x", 1.0, rtol=1e-3)',
        "give both rtol and atol, or neither",
    ),
    "flat": (
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP; "
        'ddp.across_worlds.assert_close("x", FSDP(torch.nn.Linear(2, 2), device_id=ddp.device))',
        "FSDP1 holds parameters flat and in parts: use FSDP2 (fully_shard), or give "
        "get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))",
    ),
    "no_operator": (
        'ddp.across_worlds.assert_close("x", SAMPLES * ddp.world_size)',
        "no operator of torch was seen (compiled code, own kernels): give rtol= and atol=",
    ),
}


@pytest.fixture(scope="module")
def states(new_suite: Callable[[], Suite]) -> Finished:
    suite = new_suite()
    wrong = [
        f"""
    @pytest.mark.ddp(worlds=WORLDS)
    def test_wrong_{name}(ddp):
        {line}
"""
        for name, (line, _) in WRONG.items()
    ]
    suite.write("test_it.py", PREFACE + STATES + "".join(wrong))
    return suite.run(*LOADFILE, timeout=180)


@pytest.mark.parametrize("world", ["two", "one", "four"])
def test_a_world_has_its_name_the_seed_and_what_the_reference_left(
    states: Finished, world: str
) -> None:
    assert states[f"test_what_a_world_has[{world}]"].verdict == "passed"
    carried = (states.directory / f"carried-{world}.txt").read_text()
    left = [] if world == "two" else ["two0", "two1"]
    assert {*carried.strip().split("] ")} <= {f"{left}", f"{left}"[:-1]}


def test_a_test_without_worlds_has_none(states: Finished) -> None:
    assert states["test_without_worlds"].verdict == "passed"


def test_other_worlds_follow_a_reference_that_cannot_be_one(states: Finished) -> None:
    skipped = states["test_skipped_reference[ddp]"]
    assert skipped.verdict == "skipped"
    assert "world one: not here" in skipped.text
    assert states["test_failing_reference[one]"].verdict == "failed"
    failed = states["test_failing_reference[ddp]"]
    assert failed.verdict == "error"
    assert flat(failed.text).startswith(
        "world one is the reference, and test_it.py::test_failing_reference[one] failed: rank 0"
    )
    assert "the reference is wrong" in failed.text
    hung = states["test_hanging_reference[ddp]"]
    assert hung.verdict == "error"
    assert "failed: deadlock: rank 1 waits in barrier #1" in flat(hung.text)


def test_an_expected_failure_stays_one(states: Finished) -> None:
    assert states["test_expected[ddp]"].verdict == "error"  # its reference failed as expected
    assert states["test_expected[one]"].verdict == "xfailed"


@pytest.mark.parametrize("name", ["not_repeatable", "trained_again"])
def test_a_reference_that_does_not_repeat_itself_is_none(states: Finished, name: str) -> None:
    text = flat(states[f"test_{name}[ddp]"].text)
    assert states[f"test_{name}[ddp]"].verdict == "error"
    assert "world one differs from itself: model " in text


def test_further_runs_are_left_out_where_nothing_needs_them(states: Finished) -> None:
    assert states["test_asks_for_limits[ddp]"].verdict == "passed"
    assert (states.directory / "limits.txt").read_text().split() == ["one", "ddp", "ddp"]


def test_ranks_that_differ_are_shown_how_to_reduce(states: Finished) -> None:
    text = flat(states["test_local_loss[ddp]"].text)
    assert "loss differs between ranks 0 and 1 of this world: 1, 2 " in text
    assert "sum(ddp.gather(loss.item())) / ddp.world_size" in text


def test_ranks_that_differ_in_a_tensor_are_shown_how_far(states: Finished) -> None:
    text = flat(states["test_unlike_models[ddp]"].text)
    assert "x differs between ranks 0 and 1 of this world: float32 [3] with norm 1.7320508," in text
    assert "compare gradients after they were reduced" in text


def test_comparisons_in_teardown_count(states: Finished) -> None:
    assert states["test_compares_in_teardown[ddp]"].verdict == "passed"
    fewer = states["test_compares_fewer_in_teardown[ddp]"]
    assert fewer.verdict == "passed+error"
    assert "world ddp has compared 'late' never" in flat(fewer.text)
    assert states["test_skips_a_world[ddp]"].verdict == "skipped"


def test_a_reference_is_kept_while_it_is_needed(states: Finished) -> None:
    assert states["test_files_of_others_are_gone"].verdict == "passed"


def test_a_wider_fixture_is_not_made_in_float64(states: Finished) -> None:
    """A wider fixture is for other runs, too."""
    lines = (states.directory / "dtypes.txt").read_text().split()
    assert "torch.float64" in lines[::2]
    assert {*lines[1::2]} == {"torch.float32"}


def test_what_only_some_ranks_hold_is_taken_from_them(states: Finished) -> None:
    assert states["test_stages[stages]"].verdict == "passed"


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_in_the_text(states: Finished, name: str) -> None:
    world = "one" if name in ("object", "both", "flat") else "ddp"
    result = states[f"test_wrong_{name}[{world}]"]
    assert result.verdict == "failed"
    assert WRONG[name][1] in flat(result.text)


REFUSED = {
    "worlds={'one': 1}": "it is a dict of two worlds or more",
    "worlds=2": "it is a dict of two worlds or more",
    "worlds={'one': 1, 2: 2}": "the name of a world is a string, not 2",
    "worlds={'one': 1, 'two': '2'}": "world 'two' is a number of ranks, or a dict of the mark's",
    "worlds={'one': 1, 'two': {'seed': 1}}": "world 'two' is a number of ranks, or a dict",
    "worlds={'one': 1, 'two': {'world_size': 2, 'nodes': 2}}": "world 'two' cannot have nodes",
    "worlds={'one': 1, 'two': 2}, world_size=2": "each world has a world size of its own",
}


def test_wrong_worlds_are_errors_of_the_collection(suite: Suite) -> None:
    for number, arguments in enumerate(REFUSED):
        source = f"import pytest\n\n@pytest.mark.ddp({arguments})\ndef test_it(ddp): pass\n"
        suite.write(f"test_{number}.py", source)
    suite.write(
        "test_case.py",
        """
        import unittest
        import pytest

        class TestCase(unittest.TestCase):
            @pytest.mark.ddp(worlds={"one": 1, "two": 2})
            def test_it(self): pass
        """,
    )
    suite.write(
        "test_nearer.py",
        """
        import pytest

        @pytest.mark.ddp(worlds={"one": 1, "two": 2})
        class TestIt:
            @pytest.mark.ddp(world_size=2)
            def test_it(self, ddp): pass
        """,
    )
    run = suite.run(*LOADFILE)
    for number, words in enumerate(REFUSED.values()):
        assert words in flat(run.collect_errors[f"test_{number}.py"])
    case = flat("\n".join(text for node, text in run.collect_errors.items() if "case" in node))
    assert "a unittest.TestCase has no worlds" in case
    nearer = flat(run.collect_errors["test_nearer.py::TestIt"])
    assert "each world has a world size of its own" in nearer


def test_ranks_on_several_machines_are_an_error_of_the_collection(suite: Suite) -> None:
    suite.write(
        "test_it.py",
        "import pytest\n\n@pytest.mark.ddp(worlds={'one': 1, 'two': 2})\ndef test_it(ddp): pass\n",
    )
    run = suite.run("--ddp-machines=torchrun", env=NODE_0, extra=())
    text = flat(run.collect_errors["test_it.py"])
    assert "test_it.py::test_it: @pytest.mark.ddp(worlds=...): the reference's values" in text
    assert "are files of one machine. Run it without several machines." in text


def test_worlds_that_come_after_the_collection_are_errors(suite: Suite) -> None:
    suite.write(
        "conftest.py",
        """
        import pytest

        def pytest_collection_modifyitems(items):
            for item in items:
                item.add_marker(pytest.mark.ddp(worlds={"one": 1, "two": 2}))
        """,
    )
    suite.write("test_it.py", "def test_it(ddp): pass")
    run = suite.run()
    assert run["test_it"].verdict == "error"
    assert "pytest cannot parametrize it" in flat(run["test_it"].text)
