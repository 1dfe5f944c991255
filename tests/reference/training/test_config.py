"""Options over file over defaults; what cannot work is an error before a run begins."""

from pathlib import Path
from typing import Any

import pytest
from ddp_reference.training.config import TrainConfig, local_batch_size, parse_config
from ddp_reference.training.distributed import ConfigError


def test_options_win_over_the_file_and_the_file_over_defaults(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('stage = "diffusion"\nepochs = 7\nlearning_rate = 1\ndata = "x.pt"\n')
    config = parse_config(["--config", str(path), "--epochs", "2", "--min-num-params", "5"])
    assert (config.stage, config.epochs, config.min_num_params) == ("diffusion", 2, 5)
    assert (config.learning_rate, config.data) == (1, Path("x.pt"))
    assert config.batch_size == TrainConfig().batch_size


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epoch = 3", "no option 'epoch'; there are accumulate"),
        ('epochs = "3"', "epochs is '3', not one of int"),
        ("epochs = true", "epochs is True"),
        ('strategy = "dp"', "strategy is 'dp', not one of .*'fsdp2'"),
        ("data = 3", "data is 3, not one of Path"),
    ],
)
def test_a_wrong_file_is_a_usage_error(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "run.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=f"^{path}: .*{message}"):
        parse_config(["--config", str(path)])


@pytest.mark.parametrize("text", ["epochs = ", None])
def test_a_file_that_cannot_be_read_is_one_too(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "run.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=r"^--config: "):
        parse_config(["--config", str(path)])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, "epochs must be positive, not 0"),
        ({"learning_rate": float("nan")}, "learning_rate must be positive, not nan"),
        ({"workers": -1}, "workers must be at least 0, not -1"),
        ({"uneven": "join", "strategy": "fsdp2"}, "Join is DDP's; with fsdp2 use uneven='pad'"),
        ({"tensor_parallel": 0}, "tensor_parallel must be positive, not 0"),
        ({"uneven": "join", "max_steps": 3, "checkpoint": Path("c")}, "in mid-epoch"),
        ({"max_steps": 3}, "write a checkpoint: say where"),
    ],
)
def test_choices_that_cannot_work_together_are_refused(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        TrainConfig(**options)


def test_a_global_batch_is_divided_evenly_or_not_at_all() -> None:
    config = TrainConfig(batch_size=24, accumulate=2)
    assert local_batch_size(config, 4) == 3
    with pytest.raises(ConfigError, match=r"24 .* 5 ranks x 2 micro-batches; .* multiple of 10"):
        local_batch_size(config, 5)


def test_the_data_file_is_the_same_for_all_ranks_of_a_run() -> None:
    assert TrainConfig(samples=5, seed=2).data_path == Path("runs/burgers-5-2.pt")
    assert TrainConfig(data=Path("mine.pt")).data_path == Path("mine.pt")
