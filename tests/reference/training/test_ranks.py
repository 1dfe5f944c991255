"""The lifecycle on 2 and 4 real ranks under torchrun, held against a single process.

One launch per number of ranks trains every job of JOBS in turn, in one process per rank.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from ddp_reference.cache.format import digest_tensor
from ddp_reference.training import lifecycle
from ddp_reference.training.config import TrainConfig
from ddp_reference.training.lifecycle import run
from ddp_reference.training.loop import Event, Stepped
from ddp_reference.training.stages import STAGES

from tests.reference.launching import launch

# 49 training samples, steps of 16: the last step has one sample, of one rank.
BASE: dict[str, Any] = {
    "samples": 56,
    "batch_size": 16,
    "epochs": 2,
    "width": 16,
    "min_num_params": 1000,
    "learning_rate": 5e-3,
}
STEPS = 8
HALFWAY = 6  # in the second epoch

Job = dict[str, Any]
Result = dict[str, Any]


def job(name: str, *, skew: bool = False, tracks: bool = False, **config: Any) -> Job:
    config = {**BASE, "data": "data.pt", **config}
    return {"name": name, "skew": skew, "tracks": tracks, "config": config}


def jobs_of(strategy: str, backend: str) -> list[Job]:
    """What every strategy must be able to do."""
    kept = f"{strategy}.ckpt"
    return [
        job(strategy, strategy=strategy),
        job(f"{strategy} bf16", strategy=strategy, precision="bf16"),
        job(f"{strategy} accumulate", strategy=strategy, accumulate=4),
        job(f"{strategy} skew", strategy=strategy, skew=True),
        job(f"{strategy} before", strategy=strategy, compile="before", compile_backend=backend),
        job(f"{strategy} after", strategy=strategy, compile="after", compile_backend=backend),
        job(f"{strategy} stop", strategy=strategy, max_steps=HALFWAY, checkpoint=kept, workers=1),
        job(f"{strategy} resume", strategy=strategy, resume=kept),
        job(
            f"{strategy} buffers",
            strategy=strategy,
            tracks=True,
            max_steps=HALFWAY,
            checkpoint=f"{strategy} buffers.ckpt",
        ),
    ]


JOIN = [job("join", uneven="join"), job("join accumulate", uneven="join", accumulate=2)]
JOBS = {
    # Meshes last: DTensor's caches keep the group of the first one, and that group's threads.
    2: [
        *jobs_of("ddp", "aot_eager"),
        *JOIN,
        *jobs_of("fsdp1", "eager"),
        *jobs_of("fsdp2", "eager"),
        *jobs_of("tp", "eager"),
    ],
    4: [
        job("ddp"),
        JOIN[1],
        job("fsdp2", strategy="fsdp2", accumulate=2),
        *jobs_of("fsdp2_tp", "eager"),
    ],
}
NAMED = [(ranks, entry["name"]) for ranks, entries in JOBS.items() for entry in entries]
OTHER = ("bf16", "stop", "resume", "buffers")
WHOLE = [(r, name) for r, name in NAMED if name.split()[-1] not in OTHER]
ALL_JOBS = pytest.mark.parametrize(("ranks", "name"), NAMED)
WHOLE_JOBS = pytest.mark.parametrize(("ranks", "name"), WHOLE)
STRATEGIES = pytest.mark.parametrize(
    ("ranks", "strategy"), [(2, "ddp"), (2, "fsdp1"), (2, "fsdp2"), (2, "tp"), (4, "fsdp2_tp")]
)

Results = Callable[[int, str], list[Result]]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("training")


def train_on(ranks: int, directory: Path) -> list[dict[str, Result]]:
    listed = directory / f"jobs{ranks}.json"
    listed.write_text(json.dumps(JOBS[ranks]))
    script = str(Path(__file__).with_name("ranks.py"))
    done = launch(script, listed, directory, ranks=ranks)
    assert done.returncode == 0, done.stderr
    files = [directory / f"rank{rank}of{ranks}.json" for rank in range(ranks)]
    return [json.loads(file.read_text()) for file in files]


@pytest.fixture(scope="module")
def results(directory: Path) -> Results:
    """Results of a job on each rank; the ranks are launched once."""
    launched: dict[int, list[dict[str, Result]]] = {}

    def look_up(ranks: int, name: str) -> list[Result]:
        if ranks not in launched:
            launched[ranks] = train_on(ranks, directory)
        found = [rank[name] for rank in launched[ranks]]
        assert all("error" not in result for result in found), found
        return found

    return look_up


@pytest.fixture(scope="module")
def single(directory: Path, results: Results) -> Result:
    """The results of the same training in one process, without a wrapper."""
    results(2, "ddp")  # makes the data
    return train_alone(TrainConfig(**BASE, data=directory / "data.pt"))


def train_alone(config: TrainConfig) -> Result:
    norms: list[float] = []

    def observe(event: Event) -> None:
        if isinstance(event, Stepped):
            norms.append(event.norm)

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    summary = run(STAGES["operator"], config, observe)
    torch.set_num_threads(threads)
    return {
        "losses": [report.loss for report in summary.epochs],
        "validation": [report.validation_loss for report in summary.epochs],
        "norms": norms,
        "digest": summary.digest,
    }


def losses(result: Result, kind: str = "loss") -> list[float]:
    return [epoch[kind] for epoch in result["epochs"]]


@ALL_JOBS
def test_ranks_end_with_bit_equal_parameters(results: Results, ranks: int, name: str) -> None:
    digests = [result["digest"] for result in results(ranks, name)]
    assert len(digests[0]) == 17 + name.endswith("buffers")
    assert all(digest == digests[0] for digest in digests)


@WHOLE_JOBS
def test_training_is_that_of_one_process(
    results: Results, single: Result, ranks: int, name: str
) -> None:
    """Equal losses, and equal gradient norms in each step, the one of a single sample too."""
    for result in results(ranks, name):
        assert losses(result) == pytest.approx(single["losses"], rel=1e-4)
        assert losses(result, "validation_loss") == pytest.approx(single["validation"], rel=1e-4)
        # Under Join a rank without samples in the last step has no norm to report.
        norms = result["norms"] if len(result["norms"]) == STEPS else None
        assert norms is None or norms == pytest.approx(single["norms"], rel=1e-3)
    assert len(results(ranks, name)[0]["norms"]) == STEPS


@STRATEGIES
def test_bf16_is_near_and_not_the_same(
    results: Results, single: Result, ranks: int, strategy: str
) -> None:
    found = losses(results(ranks, f"{strategy} bf16")[0])
    assert found == pytest.approx(single["losses"], rel=0.05)
    assert found != pytest.approx(single["losses"], rel=1e-4)


@pytest.mark.parametrize(("ranks", "strategy"), [(2, "fsdp2"), (4, "fsdp2"), (2, "fsdp1")])
def test_fsdp_leaves_each_rank_its_share_of_the_parameters(
    results: Results, ranks: int, strategy: str
) -> None:
    fresh = lifecycle.build_model(STAGES["operator"], TrainConfig(**BASE))
    whole = sum(parameter.numel() for parameter in fresh.parameters())
    shares = [result["local_parameters"] for result in results(ranks, strategy)]
    assert sum(shares) == whole
    assert max(shares) <= 1.25 * whole / ranks


@pytest.mark.parametrize(("ranks", "strategy"), [(2, "tp"), (4, "fsdp2_tp")])
def test_tensor_parallelism_splits_the_layers_of_blocks(
    results: Results, ranks: int, strategy: str
) -> None:
    """Two layers of each block by 2, and the bias of one; FSDP2 divides all by 2 again."""
    fresh = lifecycle.build_model(STAGES["operator"], TrainConfig(**BASE))
    names = ("wide.weight", "wide.bias", "narrow.weight")
    sizes = [(name.endswith(names), p.numel()) for name, p in fresh.named_parameters()]
    share = sum(size // 2 if split else size for split, size in sizes) * 2 // ranks
    assert share < sum(size for _, size in sizes) * 1.5 / ranks
    assert [result["local_parameters"] for result in results(ranks, strategy)] == [share] * ranks


@STRATEGIES
@pytest.mark.parametrize("order", ["before", "after"])
def test_what_was_to_be_compiled_is(
    results: Results, ranks: int, strategy: str, order: str
) -> None:
    """A wrapper that keeps dynamo out altogether would train just as well."""
    assert results(ranks, strategy)[0]["graphs"] == 0
    assert results(ranks, f"{strategy} {order}")[0]["graphs"] > 0


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_graph_is_static_unless_gradients_accumulate(results: Results, ranks: int) -> None:
    assert [result["static_graph"] for result in results(ranks, "ddp")] == [True] * ranks
    accumulating = results(ranks, "ddp accumulate" if ranks == 2 else "join accumulate")
    assert [result["static_graph"] for result in accumulating] == [False] * ranks


@pytest.mark.parametrize(
    ("ranks", "name"), [n for n in NAMED if n[1].split()[0] in ("tp", "fsdp2_tp")]
)
def test_ranks_that_split_a_layer_see_the_same_samples(
    results: Results, ranks: int, name: str
) -> None:
    seen = [result["deliveries"] for result in results(ranks, name)]
    assert seen[::2] == seen[1::2]
    assert ranks == 2 or seen[0] != seen[2]


@STRATEGIES
def test_ranks_evaluate_and_save_with_the_buffers_of_rank_0(
    results: Results, directory: Path, ranks: int, strategy: str
) -> None:
    """Ranks train with buffers of their own. That these are equal in the end is tested with all
    jobs."""
    found = results(ranks, f"{strategy} buffers")
    first, *others = (result["evaluated_with"] for result in found)
    assert others == [first] * (ranks - 1)
    assert any(first[0])
    saved = torch.load(directory / f"{strategy} buffers.ckpt", weights_only=True)["model"]
    digest = found[1]["digest"]["mean"]
    assert digest_tensor(saved["mean"]) == digest


def test_under_join_ranks_deliver_unequally_and_without_padding(results: Results) -> None:
    first, second = ([d for d in r["deliveries"] if d[0]] for r in results(2, "join"))
    assert (len(first), len(second)) == (8, 6)
    assert {weight for d in (*first, *second) for weight in d[4]} == {1.0}


def training_order(result: Result) -> list[tuple[int, int, list[int]]]:
    return [(epoch, batch, ids) for kind, epoch, batch, ids, _ in result["deliveries"] if kind]


@STRATEGIES
def test_a_resumed_run_is_the_uninterrupted_one(
    results: Results, ranks: int, strategy: str
) -> None:
    """Bit for bit, on each rank: the order of the samples and the parameters."""
    names = (strategy, f"{strategy} stop", f"{strategy} resume")
    for whole, stop, rest in zip(*(results(ranks, name) for name in names), strict=True):
        assert not stop["finished"]
        assert rest["finished"]
        assert training_order(stop) + training_order(rest) == training_order(whole)
        assert rest["digest"] == whole["digest"]
        assert losses(rest) == pytest.approx(losses(whole)[1:], rel=1e-12)


@STRATEGIES
def test_one_process_goes_on_from_the_checkpoint_of_several_ranks(
    results: Results, single: Result, directory: Path, ranks: int, strategy: str
) -> None:
    results(ranks, f"{strategy} stop")
    path = directory / f"{strategy}.ckpt"
    bare = lifecycle.build_model(STAGES["operator"], TrainConfig(**BASE))
    bare.load_state_dict(torch.load(path, weights_only=True)["model"])
    config = replace(TrainConfig(**BASE), data=directory / "data.pt", resume=path)
    rest = train_alone(config)
    assert rest["losses"] == pytest.approx(single["losses"][1:], rel=1e-4)
    assert rest["norms"] == pytest.approx(single["norms"][HALFWAY:], rel=1e-3)


@ALL_JOBS
def test_a_finished_run_leaves_nothing_in_its_process(
    results: Results, ranks: int, name: str
) -> None:
    for result in results(ranks, name):
        left = result["left"]
        threads = left.pop("gloo")
        assert left == {"group": False, "children": [], "threads": [], "segments": []}
        assert name.startswith(("fsdp2", "tp")) or threads == []
