"""Values by name: names without wrappers, and what may be in a value."""

from __future__ import annotations

import pytest
import torch

from pytest_ddp.extensions.worlds.ranks.whole import whole_values


class Wrapper(torch.nn.Module):
    def __init__(self, module: torch.nn.Module, name: str) -> None:
        super().__init__()
        self.add_module(name, module)


@pytest.mark.parametrize(
    "name", ["module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"]
)
def test_names_are_those_of_the_plain_model(name: str) -> None:
    plain = torch.nn.Sequential(torch.nn.Linear(2, 2))
    wrapped = Wrapper(torch.nn.Sequential(Wrapper(torch.nn.Linear(2, 2), name)), name)
    assert [*whole_values(wrapped)] == [*whole_values(plain)] == ["0.weight", "0.bias"]


def test_a_tied_parameter_has_all_its_names() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    model[1].weight = model[0].weight
    assert "1.weight" in whole_values(model)


def test_values_may_be_nested() -> None:
    value = {"step": 3, "state": {"exp": torch.ones(2)}, "none": None, "on": True, "lr": 0.1}
    found = whole_values(value)
    assert [*found] == ["step", "state.exp", "none", "on", "lr"]
    assert found["none"] is None
    assert [found[name].dtype for name in ("step", "on", "lr")] == [  # type: ignore[union-attr]
        torch.int64,
        torch.bool,
        torch.float64,
    ]


def test_a_sparse_gradient_is_the_dense_one() -> None:
    layer = torch.nn.Embedding(4, 2, sparse=True)
    layer(torch.tensor([1, 3, 1])).sum().backward()
    (found,) = whole_values({"weight": layer.weight.grad}).values()
    assert torch.equal(found, torch.tensor([[0.0, 0], [2, 2], [0, 0], [1, 1]]))  # type: ignore[arg-type]


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(TypeError, match=r"groups is a list, and not a module, a tensor, a number"):
        whole_values({"groups": [1.0]})
    with pytest.raises(ValueError, match="two values have the name 'w'"):
        whole_values({"w": 1.0, "module.w": 2.0})
