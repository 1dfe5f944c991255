"""The audit distinguishes harmless work in place from writes that part the ranks' models."""

from pathlib import Path

import pytest
import torch
from ddp_reference.diagnosis import Finding, audit_in_place
from torch import nn

from tests.reference.diagnosis import models
from tests.warm import interpreter

HERE = Path(__file__).parent
INPUT = torch.arange(8.0).reshape(2, 4)


def found(module: nn.Module) -> dict[str, list[Finding]]:
    findings: dict[str, list[Finding]] = {}
    for finding in audit_in_place(module, INPUT):
        findings.setdefault(finding.target, []).append(finding)
    return findings


def test_work_on_activations_and_buffers_is_harmless() -> None:
    findings = found(models.InPlace())
    assert set(findings) == {"activation", "buffer"}
    assert all(one.harmless for kind in findings.values() for one in kind)
    operators = {finding.operator for finding in findings["activation"]}
    assert operators >= {"aten.relu_", "aten.fill_", "aten.add_"}
    buffers = {finding.name for finding in findings["buffer"]}
    assert {"calls", "norm.running_mean"} <= buffers


def test_a_write_that_depends_on_the_rank_is_not() -> None:
    (finding,) = found(models.WritesByRank())["parameter"]
    assert (finding.name, finding.operator) == ("scale", "aten.mul_")
    assert finding.rank_dependent
    assert not finding.harmless
    assert "models.py:" in finding.place
    assert "the ranks' models part ways" in str(finding)


def test_a_write_that_is_alike_on_all_ranks_is_distinguished() -> None:
    (finding,) = found(models.WritesAlike())["parameter"]
    assert (finding.operator, finding.rank_dependent) == ("aten.clamp_", False)
    assert not finding.harmless


def test_a_write_past_torchs_operators_is_seen_by_its_effect() -> None:
    (finding,) = found(models.WritesUnseen())["parameter"]
    assert (finding.name, finding.operator) == ("scale", "")


def test_an_input_that_is_changed_is_named() -> None:
    (finding,) = found(nn.ReLU(inplace=True))["input"]
    assert finding.name == "input 0"
    assert finding.harmless


def test_the_module_and_the_random_state_are_left_alone() -> None:
    module = models.WritesByRank()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    state = torch.get_rng_state()
    audit_in_place(module, INPUT)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(("factory", "code"), [("by_rank", 1), ("harmless", 0)])
def test_the_command_exits_with_its_verdict(factory: str, code: int) -> None:
    command = ["-m", "ddp_reference.diagnosis", "audit", f"models:{factory}"]
    done = interpreter.run(command, cwd=HERE, timeout=60)
    assert done.returncode == code, done.stderr
    assert done.stdout.startswith("HARMFUL:  parameter scale" if code else "harmless: ")
