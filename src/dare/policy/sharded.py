"""Weights that lie in parts on several processes (FSDP2, ZeRO-3): read whole, and put back.

A sharded model's own passes gather each layer on all processes, so that every process must make
the same passes. Responses differ in length: whatever learns nothing reads a whole copy instead,
gathered once an update, in which passes are the affair of one process.
"""

from __future__ import annotations

import copy
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from dare.policy.zero import gathered


class WholeModel:
    """The model without the hooks of whatever shards it, its weights filled in when asked for."""

    def __init__(self, model: nn.Module) -> None:
        held = [*model.parameters(), *model.buffers()]
        self._model = copy.deepcopy(model, {id(one): one for one in held}).eval()
        self._slots = [
            (part, name, f"{path}.{name}" if path else name)
            for path, part in self._model.named_modules()
            for name, held in part._parameters.items()
            if held is not None
        ]
        self._full = False
        self.drop()

    def of(self, sharded: nn.Module, dtype: torch.dtype | None = None) -> Any:
        """The model with the weights of now, as they were gathered since the last `drop`.

        Every process takes part. `dtype` is that of their passes where it is not their own.
        """
        if not self._full:
            weights = _named(sharded)
            once: dict[int, nn.Parameter] = {}  # weights that several layers share stay shared
            for part, name, path in self._slots:
                given = weights[path]
                if id(given) not in once:
                    whole = nn.Parameter(_whole(given, dtype), requires_grad=False)
                    once[id(given)] = whole
                part._parameters[name] = once[id(given)]
            self._full = True
        return self._model

    def drop(self) -> None:
        """Give the memory back; the weights have changed, or are about to."""
        for part, name, _ in self._slots:
            part._parameters[name] = None
        self._full = False

    @torch.no_grad()
    def spread(self, sharded: nn.Module) -> None:
        """What is filled in, back into the parts; each process keeps its own."""
        weights = _named(sharded)
        for part, name, path in self._slots:
            value = part._parameters[name]
            assert value is not None, "filled in before"
            weight = weights[path]
            of_zero = hasattr(weight, "ds_id")
            with gathered(weight, changed=True) if of_zero else nullcontext():
                weight.copy_(_like(value, weight))


def whole_state(optimizer: Any, *, keep: bool) -> dict[str, Any]:
    """An optimiser's state as one process has it; every process takes part, and those that are to
    `keep` it have it on their CPU."""
    state: dict[str, Any] = optimizer.state_dict()
    of_each: dict[Any, dict[str, Any]] = {}
    for index, values in state["state"].items():
        kept: dict[str, Any] = {}
        for name, value in values.items():
            found = _whole(value) if isinstance(value, Tensor) else value
            if keep:
                kept[name] = found.cpu() if isinstance(found, Tensor) else found
        if keep:
            of_each[index] = kept
    return {**state, "state": of_each}


def parted_state(state: dict[str, Any], optimizer: Any) -> dict[str, Any]:
    """A whole state as this process's optimiser takes it. It may be mapped from a file, and none
    of that is kept."""
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    of_each = {
        index: {
            name: _part(value, weights[index]) if isinstance(value, Tensor) else value
            for name, value in values.items()
        }
        for index, values in state["state"].items()
    }
    return {**state, "state": of_each}


def _named(model: nn.Module) -> dict[str, Any]:
    """Its weights by the names they had before it was wrapped."""
    found = model.named_parameters(remove_duplicate=False)
    wrappers = ("_checkpoint_wrapped_module.", "_orig_mod.")
    return {name.replace(wrappers[0], "").replace(wrappers[1], ""): one for name, one in found}


@torch.no_grad()
def _whole(value: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    value = value.detach() if isinstance(value, DTensor) else value
    with gathered(value) if hasattr(value, "ds_id") else nullcontext():  # of ZeRO-3
        found = value if dtype is None or not value.is_floating_point() else value.to(dtype)
        if isinstance(found, DTensor):
            return found.full_tensor()
        return found.detach().clone() if hasattr(value, "ds_id") else found.detach()


def _part(value: Tensor, weight: Any) -> Tensor:
    """This process's own copy of its part of a value; of one that is not of a weight, all."""
    part = _like(value, weight) if value.shape == weight.shape else value
    return part.clone() if part is value else part


def _like(value: Tensor, weight: Any) -> Tensor:
    if not isinstance(weight, DTensor):
        return value.to(weight.device)
    value = value.to(weight.device, weight.dtype)
    # Every process has all of it: none need be sent.
    return distribute_tensor(value, weight.device_mesh, weight.placements, src_data_rank=None)
