"""Options and marks: what is read, which mark wins, and what a user is shown."""

from __future__ import annotations

import json
import sys

import pytest

from pytest_ddp.settings.mark import Mark, check_function, read_mark
from pytest_ddp.settings.options import (
    CheckCollectives,
    Options,
    Output,
    StartMethod,
)
from tests.unit.settings.conftest import OptionsOnly

OPTIONS = Options("auto", 3, 300.0, StartMethod.FORK, False, 0, Output.FAILED)


def options(inner: pytest.Pytester, *args: str) -> Options:
    return Options.from_config(inner.parseconfig(*args))


def items(inner: pytest.Pytester, source: str) -> list[pytest.Item]:
    module = inner.getmodulecol(f"import pytest, unittest\n{source}")
    return inner.genitems([module])


def mark_of(inner: pytest.Pytester, arguments: str) -> Mark | None:
    (item,) = items(inner, f"@pytest.mark.ddp({arguments})\ndef test(): pass")
    return read_mark(item, OPTIONS)


def refusal(inner: pytest.Pytester, arguments: str) -> str:
    with pytest.raises(pytest.UsageError) as caught:
        mark_of(inner, arguments)
    return str(caught.value)


def words(text: str) -> str:
    """Undo the wrapping."""
    return " ".join(text.split())


# --------------------------------------------------------------------- options


def test_defaults(inner: pytest.Pytester) -> None:
    method = StartMethod.FORK if sys.platform == "linux" else StartMethod.SPAWN
    assert options(inner) == Options("auto", 2, 300.0, method, False, 0, Output.FAILED)


def test_every_option_on_the_command_line(inner: pytest.Pytester) -> None:
    flags = (
        "--ddp-backend=nccl --ddp-world-size=4 --ddp-timeout=1.5 --ddp-start-method=spawn "
        "--ddp-isolate --ddp-seed=7 --ddp-output=rank0"
    )
    expected = Options("nccl", 4, 1.5, StartMethod.SPAWN, True, 7, Output.RANK0)
    assert options(inner, *flags.split()) == expected


IN_FILE = {
    "ddp_backend": "gloo",
    "ddp_world_size": 5,
    "ddp_timeout": 20,
    "ddp_start_method": "spawn",
    "ddp_isolate": True,
    "ddp_seed": 9,
    "ddp_output": "all",
}
INI = "\n".join(["[pytest]", *(f"{name} = {value}" for name, value in IN_FILE.items())])
TOML = "\n".join(["[pytest]", *(f"{n} = {json.dumps(value)}" for n, value in IN_FILE.items())])


@pytest.mark.parametrize(("name", "text"), [("pytest.ini", INI), ("pytest.toml", TOML)])
def test_every_option_in_a_file(inner: pytest.Pytester, name: str, text: str) -> None:
    inner.path.joinpath(name).write_text(text)
    assert options(inner) == Options("gloo", 5, 20.0, StartMethod.SPAWN, True, 9, Output.ALL)


def test_command_line_wins_over_the_file(inner: pytest.Pytester) -> None:
    inner.path.joinpath("pytest.ini").write_text(INI)
    read = options(inner, "--ddp-world-size=2", "--ddp-seed=0", "--ddp-output=failed")
    assert (read.world_size, read.seed, read.output) == (2, 0, Output.FAILED)
    assert (read.backend, read.timeout, read.isolate) == ("gloo", 20.0, True)


WRONG_OPTIONS = [
    ("ddp_backend", "mpi", "started by mpirun"),
    ("ddp_backend", "", "a name such as gloo or nccl"),
    ("ddp_device", "gpu", "cpu, cuda, xpu and meta"),
    ("ddp_ranks_per_gpu", "0", "a whole number from 1 to 64"),
    ("ddp_world_size", "0", "at least 1 rank"),
    ("ddp_world_size", "two", "a whole number from 1 to 4096"),
    ("ddp_world_size", "2.0", "a whole number from 1 to 4096"),
    ("ddp_world_size", "1000000", "each rank is a process"),
    ("ddp_timeout", "nan", "seconds above 0"),
    ("ddp_timeout", "5min", "seconds above 0"),
    ("ddp_start_method", "forkserver", "fork and spawn"),
    ("ddp_seed", "-1", "a whole number from 0"),
    ("ddp_output", "rank1", "failed, all and rank0"),
]


@pytest.mark.parametrize(("name", "value", "allowed"), WRONG_OPTIONS)
@pytest.mark.parametrize("by_ini", [False, True])
def test_wrong_value_names_option_value_and_allowed_ones(
    inner: pytest.Pytester, name: str, value: str, allowed: str, by_ini: bool
) -> None:
    flag = f"--{name.replace('_', '-')}={value}"
    with pytest.raises(pytest.UsageError) as caught:
        options(inner, *(("-o", f"{name}={value}") if by_ini else (flag,)))
    text = words(str(caught.value))
    assert text.startswith(f"ini option {name}" if by_ini else f"{flag}: ")
    assert value in text
    assert allowed in text


def test_wrong_switch_in_a_file(inner: pytest.Pytester) -> None:
    with pytest.raises(pytest.UsageError, match=r"ddp_isolate.*'perhaps'"):
        options(inner, "-o", "ddp_isolate=perhaps")


def test_wrong_type_in_toml(inner: pytest.Pytester) -> None:
    inner.path.joinpath("pytest.toml").write_text('[pytest]\nddp_world_size = "two"\n')
    with pytest.raises(pytest.UsageError) as caught:
        options(inner)
    text = words(str(caught.value))
    assert "ini option ddp_world_size" in text
    assert "'two'" in text
    assert "a whole number from 1 to 4096" in text


def test_the_user_sees_a_wrong_option_and_no_traceback(inner: pytest.Pytester) -> None:
    class Reader(OptionsOnly):
        def pytest_configure(self, config: pytest.Config) -> None:
            Options.from_config(config)

    result = inner.runpytest_inprocess("--ddp-timeout=5min", plugins=[Reader()])
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    lines = [line for line in result.errlines if line]
    assert lines[0].startswith("ERROR: --ddp-timeout=5min: a timeout is a number of seconds")
    assert len(lines) == 2
    assert all(len(line) < 80 for line in lines)


# ------------------------------------------------------------------ good marks


def test_no_mark_and_a_bare_one(inner: pytest.Pytester) -> None:
    unmarked, bare = items(inner, "def test(): pass\n@pytest.mark.ddp\ndef test_bare(): pass")
    assert read_mark(unmarked, OPTIONS) is None
    assert read_mark(bare, OPTIONS) == Mark((3,), listed=False)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("", Mark((3,), listed=False)),
        ("world_size=[1, 2, 4]", Mark((1, 2, 4), listed=True)),
        ("world_size=range(1, 4)", Mark((1, 2, 3), listed=True)),
        ("world_size='gpus'", Mark(("gpus",), listed=False)),
        ("world_size=[1, 'gpus']", Mark((1, "gpus"), listed=True)),
        ("backend='nccl'", Mark((3,), listed=False, backend="nccl")),
        ("init=False, isolate=True", Mark((3,), listed=False, init=False, isolate=True)),
        ("timeout=0.5, seed=4", Mark((3,), listed=False, timeout=0.5, seed=4)),
        ("seed='same'", Mark((3,), listed=False, seed="same")),
        ("env={'A': '1', 'B': ''}", Mark((3,), listed=False, env=(("A", "1"), ("B", "")))),
    ],
)
def test_arguments(inner: pytest.Pytester, arguments: str, expected: Mark) -> None:
    assert mark_of(inner, arguments) == expected


def test_nearest_mark_wins_for_each_argument(inner: pytest.Pytester) -> None:
    source = """
pytestmark = [pytest.mark.ddp(world_size=2, timeout=10, env={"A": "module"})]

@pytest.mark.ddp(world_size=4, seed="same")
class TestA:
    @pytest.mark.ddp(world_size=[1, 2], backend="gloo")
    def test_function(self): pass

    def test_class(self): pass

def test_module(): pass
"""
    first, second, third = items(inner, source)
    env = (("A", "module"),)
    assert read_mark(first, OPTIONS) == Mark(
        (1, 2), listed=True, backend="gloo", timeout=10.0, seed="same", env=env
    )
    assert read_mark(second, OPTIONS) == Mark(
        (4,), listed=False, timeout=10.0, seed="same", env=env
    )
    assert read_mark(third, OPTIONS) == Mark((2,), listed=False, timeout=10.0, env=env)


def test_a_class_is_nearer_than_its_base_classes(inner: pytest.Pytester) -> None:
    source = """
@pytest.mark.ddp(world_size=2, timeout=2, seed=2)
class Base:
    def test(self): pass

class Middle(Base):
    pytestmark = pytest.mark.ddp(timeout=3, seed=3)

@pytest.mark.ddp(seed=4)
class TestA(Middle):
    pass
"""
    (item,) = items(inner, source)
    assert read_mark(item, OPTIONS) == Mark((2,), listed=False, timeout=3.0, seed=4)


def test_a_parameter_set_is_nearer_than_its_function(inner: pytest.Pytester) -> None:
    source = """
@pytest.mark.ddp(world_size=2, timeout=20)
@pytest.mark.parametrize("x", [1, pytest.param(2, marks=pytest.mark.ddp(world_size=4))])
def test(x): pass
"""
    plain, marked = items(inner, source)
    assert read_mark(plain, OPTIONS) == Mark((2,), listed=False, timeout=20.0)
    assert read_mark(marked, OPTIONS) == Mark((4,), listed=False, timeout=20.0)


# ----------------------------------------------------------------- wrong marks

WRONG_MARKS = [
    ("world_size=0", "at least 1 rank"),
    ("world_size='four'", '"gpus" for one rank on each GPU'),
    ("world_size=10**6", "each rank is a process"),
    ("world_size=[]", "Name at least one"),
    ("backend='mpi'", "started by mpirun"),
    ("backend='cuda:nccl,'", "cpu:gloo,cuda:nccl"),
    ("device='cuda:1'", "the plugin decides which GPU a rank gets"),
    ("device='gpu'", "cpu, cuda, xpu and meta"),
    ("ranks_per_gpu=0", "a whole number from 1 to 64"),
    ("init=0", "True or False"),
    ("isolate=1", "True or False"),
    ("timeout=0", "seconds above 0"),
    ("seed='differ'", 'or "same"'),
    ("env={'A': 1}", "unlike 'A': 1"),
    ("worldsize=2", "Did you mean world_size?"),
    ("timout=2", "Did you mean timeout?"),
    ("nprocs=2", "Did you mean world_size?"),
    ("rank=2", "isolate, nodes, module_state, timeout, seed and env."),
    ("family='a'", "no such argument. Did you mean module_state?"),
    ("4", "Write world_size=4."),
    ("[1, 2]", "Write world_size=[1, 2]."),
    ("'gloo'", "Write backend='gloo'."),
]


@pytest.mark.parametrize(("arguments", "fix"), WRONG_MARKS)
def test_wrong_mark_names_test_value_and_fix(
    inner: pytest.Pytester, arguments: str, fix: str
) -> None:
    text = refusal(inner, arguments)
    nodeid, *lines = text.splitlines()
    assert nodeid == "test_wrong_mark_names_test_value_and_fix.py::test"
    assert fix in words(text)
    assert f"@pytest.mark.ddp({arguments.replace('10**6', '1000000')})" in words(text)
    assert all(len(line) < 80 for line in lines)


@pytest.mark.parametrize(
    "name", ["world_size", "backend", "init", "timeout", "seed", "env", "nprocs", ""]
)
def test_values_that_fight_back(inner: pytest.Pytester, name: str) -> None:
    source = f"""
class Hostile:
    __hash__ = None
    def __repr__(self): raise RuntimeError("no repr")
    def __eq__(self, other): raise RuntimeError("no equality")

@pytest.mark.ddp({name}{name and "="}Hostile())
def test(): pass
"""
    (item,) = items(inner, source)
    with pytest.raises(pytest.UsageError, match=rf"ddp\({name}=?<Hostile instance"):
        read_mark(item, OPTIONS)


def test_a_wrong_mark_of_the_class_names_both_test_and_class(inner: pytest.Pytester) -> None:
    source = """
@pytest.mark.ddp(world_size=0)
class TestA:
    @pytest.mark.ddp(world_size=2)
    def test(self): pass
"""
    (item,) = items(inner, source)
    with pytest.raises(pytest.UsageError) as caught:
        read_mark(item, OPTIONS)
    text = str(caught.value)
    assert text.startswith(item.nodeid + "\n")
    assert text.endswith("::TestA.)")


TESTCASE = """
@pytest.mark.ddp(world_size={})
class TestA(unittest.TestCase):
    def test(self): pass
"""


def test_a_testcase_runs_at_one_world_size(inner: pytest.Pytester) -> None:
    (item,) = items(inner, TESTCASE.format(2))
    assert read_mark(item, OPTIONS) == Mark((2,), listed=False)


def test_a_list_cannot_parametrize_a_testcase(inner: pytest.Pytester) -> None:
    (item,) = items(inner, TESTCASE.format("[1, 2]"))
    with pytest.raises(pytest.UsageError) as caught:
        read_mark(item, OPTIONS)
    text = words(str(caught.value))
    assert "world_size=[1, 2]" in text
    assert "cannot parametrize a unittest.TestCase" in text


# -------------------------------------------------------- what can be marked


def test_plain_and_async_functions_can_be_marked(inner: pytest.Pytester) -> None:
    source = """
pytestmark = pytest.mark.ddp
def test_plain(): pass
async def test_async(): pass
class TestA(unittest.TestCase):
    def test(self): pass
"""
    for item in items(inner, source):
        check_function(item)


def test_async_generator_is_refused(inner: pytest.Pytester) -> None:
    (item,) = items(inner, "async def test():\n    yield")
    check_function(item)
    item.add_marker("ddp")
    with pytest.raises(pytest.UsageError, match="yield") as caught:
        check_function(item)
    assert str(caught.value).startswith(item.nodeid + "\n")


def test_item_that_is_no_function_is_refused(inner: pytest.Pytester) -> None:
    class Query(pytest.Item):
        def runtest(self) -> None: ...

    module = inner.getmodulecol("")
    item = Query.from_parent(module, name="select")
    check_function(item)
    item.add_marker("ddp")
    with pytest.raises(pytest.UsageError, match="this is a Query"):
        check_function(item)


MARKED_FIXTURES = [
    "@pytest.mark.ddp\n@pytest.fixture\ndef fix(): pass",
    "@pytest.mark.ddp(world_size=2)\n@pytest.fixture\ndef fix(): pass",
    "@pytest.fixture\n@pytest.mark.ddp(world_size=2)\ndef fix(): pass",
]


@pytest.mark.parametrize(
    ("source", "said"),
    [(source, "Marks cannot be applied to fixtures") for source in MARKED_FIXTURES]
    + [("@pytest.mark.ddp\ndef test_a():\n    yield", "not in tests (test_a)")],
)
def test_pytest_itself_refuses_fixtures_and_plain_generators(
    inner: pytest.Pytester, source: str, said: str
) -> None:
    inner.makepyfile(f"import pytest\n{source}\ndef test(): pass")
    result = inner.runpytest_inprocess(plugins=inner.plugins)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines([f"*{said}*"])


def test_marker_help_is_listed(inner: pytest.Pytester) -> None:
    result = inner.runpytest_inprocess("--markers", plugins=inner.plugins)
    result.stdout.fnmatch_lines(["@pytest.mark.ddp(world_size=2, *: run the test on *"])


def test_help_lists_every_option_and_ini_variant(inner: pytest.Pytester) -> None:
    text = inner.runpytest_inprocess("--help", plugins=inner.plugins).stdout.str()
    for name in ("backend", "world-size", "timeout", "start-method", "isolate", "seed", "output"):
        assert f"--ddp-{name}" in text
        assert f"ddp_{name.replace('-', '_')} (" in text


def test_settings_of_a_suite_are_in_the_ini_file_alone(inner: pytest.Pytester) -> None:
    text = inner.runpytest_inprocess("--help", plugins=inner.plugins).stdout.str()
    assert "--ddp-check-collectives" not in text
    assert "ddp_check_collectives (string):" in text
    assert options(inner, "-oddp_check_collectives=off").check_collectives is CheckCollectives.OFF
    with pytest.raises(pytest.UsageError, match="ini option ddp_check_collectives=no: it is one"):
        options(inner, "-oddp_check_collectives=no")
