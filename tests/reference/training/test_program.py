"""The command, alone and under torchrun, and how a run ends when one rank fails."""

import json
import re
from pathlib import Path

import pytest
from ddp_reference.train import main

from tests.reference.launching import Finished, launch

TRAIN = ["-m", "ddp_reference.train", "--samples", "320", "--batch-size", "8", "--epochs", "3"]
FAILURES = str(Path(__file__).with_name("failures.py"))
SECONDS = re.compile(r" [0-9.]+ s$", re.MULTILINE)


def run(directory: Path, *arguments: str | Path, ranks: int | None = None) -> Finished:
    # Of its own: a run that is killed while it compiles leaves a half-written library
    # in the cache that all runs of a user share, and the next one fails on it.
    cache = {"TORCHINDUCTOR_CACHE_DIR": str(directory / "inductor")}
    return launch(*arguments, ranks=ranks, cwd=directory, env=cache)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("program")


@pytest.fixture
def alone(
    directory: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> str:
    """What the command prints in a single process, less the times."""
    monkeypatch.chdir(directory)
    assert main(TRAIN[2:]) == 0
    return SECONDS.sub("", capfd.readouterr().out)


def test_progress_shows_a_falling_loss(alone: str) -> None:
    found = re.findall(
        r"^epoch (\d)/3 step (\d+) loss ([0-9.]+) validation ([0-9.]+)$", alone, re.M
    )
    assert [(epoch, step) for epoch, step, _, _ in found] == [
        ("1", "35"),
        ("2", "70"),
        ("3", "105"),
    ]
    losses = [float(loss) for _, _, loss, _ in found]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.5 * losses[0]


def test_two_ranks_print_the_same_progress_once(alone: str, directory: Path) -> None:
    done = run(directory, *TRAIN, "--strategy", "fsdp2", ranks=2)
    assert done.returncode == 0, done.stderr
    assert numbers(done.stdout) == pytest.approx(numbers(alone), rel=1e-3)
    assert "rank 1 of 2: gloo on cpu" in done.stderr


def test_four_ranks_take_their_options_from_a_file(alone: str, directory: Path) -> None:
    options = directory / "options.toml"
    options.write_text("samples = 320\nbatch_size = 8\nepochs = 3\nprecision = 'fp32'\n")
    command = ["-m", "ddp_reference.train", "--stage", "operator", "--config", options]
    done = run(directory, *command, ranks=4)
    assert done.returncode == 0, done.stderr
    assert numbers(done.stdout) == pytest.approx(numbers(alone), rel=1e-3)
    assert "rank 3 of 4: gloo on cpu" in done.stderr


def test_one_rank_with_inductor_prints_the_same_progress(alone: str, directory: Path) -> None:
    done = run(directory, *TRAIN, "--compile", "after", ranks=1)
    assert done.returncode == 0, done.stderr
    assert numbers(done.stdout) == pytest.approx(numbers(alone), rel=1e-3)
    assert list((directory / "inductor").rglob("*.so")) != []


def numbers(progress: str) -> list[float]:
    text = SECONDS.sub("", progress)
    return [float(number) for number in re.findall(r"[0-9.]+", text)]


def test_torchrun_reports_the_rank_that_failed_and_why(directory: Path) -> None:
    done = run(directory, FAILURES, str(directory), "raises", ranks=2)
    assert done.returncode != 0
    # Its clock has whole seconds: rank 0, which fails in the same second, may come first in
    # the report. Either way the cause is in it.
    cause = r"Root Cause.*ArithmeticError: rank 1 stumbles"
    assert re.search(cause, done.stderr, re.DOTALL), done.stderr


WRONG = {
    "unknown": (("--stage", "nothing"), "invalid choice: 'nothing'"),
    "for these ranks": (("--batch-size", "7"), "batch_size 7 cannot be divided by 2 ranks"),
    "strategy": (("--strategy", "none"), "strategy none would train 2 models"),
    "checkpoint": (("--resume", "nowhere.ckpt"), "nowhere.ckpt is no checkpoint of a run: File"),
    "no checkpoint": (("--resume", "bad.pt"), "bad.pt is no checkpoint of a run: Unpickling"),
    "no data": (("--data", "bad.pt"), "cache bad.pt: not readable as a torch archive"),
    "data": (("--samples", "2"), "1 training samples for 2 ranks"),
}
"""Options of wrong configurations and the error: the first are seen when the configuration is read,
the last in the run."""


@pytest.mark.parametrize(("options", "said"), WRONG.values(), ids=WRONG)
def test_one_rank_prints_what_is_wrong_with_a_configuration(
    directory: Path, options: tuple[str, ...], said: str
) -> None:
    (directory / "bad.pt").write_text("garbage")
    done = run(directory, *TRAIN, *options, ranks=2)
    # torchrun stops the other rank when one has ended; its report begins with such a line.
    ours = re.split(r"^[EW]\d{4} ", done.stderr, maxsplit=1, flags=re.MULTILINE)[0].splitlines()
    errors = [line for line in ours if not line.startswith("INFO ")]
    assert len(errors) == 1, done.stderr
    assert errors[0].startswith("error: ")
    assert said in errors[0]
    assert len(ours) <= 5, done.stderr
    assert re.search(r"exitcode +: 2 ", done.stderr), done.stderr
    # Its own, of an error that it raises where a rank has failed.
    assert done.stderr.count("Traceback (most recent call last)") == 1
    assert "ConfigError" not in done.stderr


def test_alone_it_is_the_same(directory: Path) -> None:
    done = run(directory, *TRAIN, "--batch-size", "0")
    assert done.returncode == 2
    assert done.stderr == "error: batch_size must be positive, not 0\n"


@pytest.fixture(scope="module")
def endings(directory: Path) -> dict[str, list[int]]:
    """Exit codes of ranks 0 and 1, by what rank 1 did."""
    done = run(directory, FAILURES, str(directory))
    assert done.returncode == 0, done.stderr
    codes: dict[str, list[int]] = json.loads(done.stdout)
    return codes


@pytest.mark.parametrize("deed", ["raises", "raises late", "leaves with 0"])
def test_rank_0_fails_with_rank_1_and_names_the_cause(
    endings: dict[str, list[int]], directory: Path, deed: str
) -> None:
    """And not only the broken connection."""
    assert endings[deed] == [1, 1]
    words = (directory / f"{deed}.0").read_text()
    cause = "SystemExit: 0" if deed == "leaves with 0" else "ArithmeticError: rank 1 stumbles"
    assert f"PeerFailureError: rank 1 failed: {cause}" in words
