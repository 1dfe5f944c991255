"""Whole runs of one rank: loss, files, TensorBoard, resume."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from ddp_reference.resnet.agreement import ConfigError
from ddp_reference.resnet.config import Settings, parse
from ddp_reference.resnet.images import Batch
from ddp_reference.resnet.module import ResNetModule
from ddp_reference.resnet.run_logger import RunLogger, claim_version
from ddp_reference.resnet.train import build_datamodule, build_module, build_trainer, main
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from tensorboard.backend.event_processing.event_file_loader import (  # type: ignore[import-untyped]
    EventFileLoader,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.*"),
    pytest.mark.filterwarnings("ignore:The dirpath has changed"),
    pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`"),
]

SMALL = (
    "--accelerator=cpu",
    "--width=4",
    "--batch-size=6",
    "--workers=0",
    "--no-progress",
    "--schedule=0:16,1:24,2:32",
    "--val-resolution=24",
)


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """``seed_everything`` writes to the environment."""
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def run(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log directory of a run of 4 epochs."""
    logs = tmp_path_factory.mktemp("runs")
    assert main([f"--data={dataset}", f"--log-dir={logs}", "--epochs=4", *SMALL]) == 0
    return logs / "local" / "version_0"


def test_the_loss_goes_down(run: Path) -> None:
    records = json.loads((run / "metrics.json").read_text())
    losses = [record["train_loss"] for record in records if record["event"] == "epoch"]
    assert len(losses) == 4
    assert losses[-1] < 0.9 * losses[0]


def test_one_event_file_holds_one_graph_and_all_scalars(run: Path) -> None:
    (path,) = run.glob("events.out.tfevents.*")
    events = list(EventFileLoader(str(path)).Load())
    assert sum(event.HasField("graph_def") for event in events) == 1
    tags = [value.tag for event in events for value in event.summary.value]
    assert tags.count("train_loss") == tags.count("val_accuracy") == 4
    assert tags.count("learning_rate") == 4
    assert tags.count("test_loss") == 1


def test_best_and_last_checkpoint_are_kept(run: Path) -> None:
    names = sorted(path.name for path in (run / "checkpoints").iterdir())
    assert len(names) == 2
    assert names[0].startswith("epoch=00")
    assert names[1] == "last.ckpt"


class Batches(Callback):
    """Keeps epoch, learning rate, indices and pixels of every training batch."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, float, list[int], torch.Tensor]] = []

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Batch, batch_idx: int
    ) -> None:
        rate = trainer.optimizers[0].param_groups[0]["lr"]
        self.seen.append((trainer.current_epoch, rate, batch.indices.tolist(), batch.images))


def fit(settings: Settings, *extra: Callback) -> tuple[Batches, dict[str, Any]]:
    """Train as the program does; the batches and the model's final state."""
    batches, logger = Batches(), RunLogger(settings.log_dir, settings.name)
    trainer = build_trainer(settings, logger)
    trainer.callbacks.extend([batches, *extra])  # type: ignore[attr-defined]
    torch.manual_seed(1)
    module = build_module(settings)
    trainer.fit(module, build_datamodule(settings), ckpt_path=settings.resume)
    logger.close()
    return batches, module.state_dict()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
# The resumed run only closes the epoch whose validation the checkpoint has seen.
@pytest.mark.filterwarnings("ignore:.*could not find the monitored key")
@pytest.mark.parametrize("at_epoch_end", [True, False], ids=["epoch-end", "validation-end"])
def test_a_resumed_run_repeats_an_uninterrupted_one(
    dataset: Path, tmp_path: Path, at_epoch_end: bool
) -> None:
    arguments = [f"--data={dataset}", f"--log-dir={tmp_path / 'runs'}", "--epochs=3", *SMALL]
    every = ModelCheckpoint(
        tmp_path / "every", filename="{epoch}", save_top_k=-1, save_on_train_epoch_end=at_epoch_end
    )
    whole, whole_state = fit(parse(arguments), every)
    resumed = parse([*arguments, f"--resume={tmp_path / 'every' / 'epoch=0.ckpt'}", "--workers=1"])
    rest, rest_state = fit(resumed)
    expected = [batch for batch in whole.seen if batch[0] > 0]
    assert [batch[:3] for batch in rest.seen] == [batch[:3] for batch in expected]
    for here, there in zip(rest.seen, expected, strict=True):
        assert torch.equal(here[3], there[3])
    assert [name for name, v in whole_state.items() if not torch.equal(v, rest_state[name])] == []


def test_a_version_that_appears_meanwhile_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim_version(tmp_path)
    monkeypatch.setattr(Path, "iterdir", lambda self: iter(()))
    assert claim_version(tmp_path) == 1
    assert (tmp_path / "version_1" / "checkpoints").is_dir()


def test_a_log_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ConfigError, match=r"cannot make a log directory in .*file .*--log-dir"):
        claim_version(tmp_path / "file")


def test_a_run_that_stops_has_the_reason_in_its_log(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: ResNetModule, batch: Batch, batch_idx: int) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(ResNetModule, "training_step", fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        main([f"--data={dataset}", f"--log-dir={tmp_path}", *SMALL])
    text = (tmp_path / "local" / "version_0" / "training.log").read_text()
    assert text.endswith("stopped: RuntimeError: out of memory\n")


def test_a_workers_traceback_is_left_out_of_the_message(
    dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = shutil.copytree(dataset, tmp_path / "data")
    image = root / "train" / "stripes00.0" / "00003.jpg"
    image.write_bytes(b"no image")
    arguments = [f"--data={root}", f"--log-dir={tmp_path}", "--no-check"]
    assert main([*arguments, *SMALL, "--workers=1"]) == 1
    message = capsys.readouterr().err.strip().splitlines()[-1]
    assert message.startswith(f"error: rank 0: {image} cannot be decoded (")
