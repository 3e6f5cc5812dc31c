"""The optimiser's state under ZeRO, with DeepSpeed's calls played: make test-deepspeed has them."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from dare.policy.zero import put_state, whole_state


def optimizer(weights: list[Any], device: str = "cpu") -> tuple[Any, Any, Any]:
    """Adam on one flat part of the weights, as accelerate and DeepSpeed wrap it; with the two."""
    flat = torch.zeros(sum(one.numel() for one in weights), device=device)
    inner = torch.optim.AdamW([flat])
    zero = SimpleNamespace(optimizer=inner, fp32_partitioned_groups_flat=[flat])
    return SimpleNamespace(optimizer=zero), inner, flat


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is gathered, name by name."""
    names: list[str] = []

    def full(weight: Any, name: str) -> torch.Tensor:
        names.append(name)
        return torch.ones_like(weight.detach())

    played = SimpleNamespace(
        safe_get_full_optimizer_state=full, safe_set_full_optimizer_state=lambda *_: None
    )
    monkeypatch.setitem(sys.modules, "deepspeed.utils", played)
    return names


@pytest.mark.parametrize("keep", [True, False])
def test_all_gather_and_who_writes_keeps(keep: bool, asked: list[str]) -> None:
    weights = [nn.Parameter(torch.ones(2, 3)), nn.Parameter(torch.ones(4))]
    made, inner, flat = optimizer(weights)
    flat.grad = torch.ones_like(flat)
    inner.step()
    found = whole_state(made, [weights], keep=keep)
    assert asked == ["exp_avg", "exp_avg_sq"] * 2
    kept = found["state"]
    assert list(kept) == ([0, 1] if keep else [])
    assert all(set(one) == {"step", "exp_avg", "exp_avg_sq"} for one in kept.values())
    assert found["param_groups"][0]["params"] == [0, 1]


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize(("fused", "device"), [(True, "meta"), (False, "cpu")])
def test_a_step_is_counted_where_torch_counts_it(fused: bool, device: str) -> None:
    """A state comes from a file on the CPU, and a fused step wants all of it beside the weights."""
    weights = [nn.Parameter(torch.ones(2, 3))]
    moments = {name: torch.ones(2, 3) for name in ("exp_avg", "exp_avg_sq")}
    group = {**torch.optim.AdamW(weights).state_dict()["param_groups"][0], "fused": fused}
    saved = {"state": {0: {"step": torch.tensor(3.0), **moments}}, "param_groups": [group]}
    made, inner, flat = optimizer(weights, "meta")
    put_state(saved, made, [weights])
    assert inner.state[flat]["step"].device.type == device
    assert inner.state[flat]["exp_avg"].device.type == "meta"
