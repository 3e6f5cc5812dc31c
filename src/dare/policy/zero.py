"""DeepSpeed's ZeRO-2 and ZeRO-3: weights and the optimiser's state whole, and put back.

The weights that are trained are the optimiser's own copy, in float32 and in parts. DeepSpeed has
calls to read and write them; only that a state is there to write to, before the first step, is left
to us, and how its optimisers hold the parts (`_flats`).
"""

from __future__ import annotations

import copy
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn


def gathered(weight: Any, *, changed: bool = False) -> Any:
    """A context in which a weight of ZeRO-3 is whole; where it is `changed` in it, all processes
    must make the same of it."""
    rank = 0 if changed else None
    return import_module("deepspeed").zero.GatheredParameters([weight], modifier_rank=rank)


def whole_weights(model: nn.Module, *, keep: bool) -> dict[str, Tensor]:
    """The weights as they are trained, on the CPU of each process that is to `keep` them."""
    utils, found = import_module("deepspeed.utils"), dict[str, Tensor]()
    for name, weight in model.state_dict(keep_vars=True).items():
        trained = isinstance(weight, nn.Parameter) and weight.requires_grad
        if trained:
            value = utils.safe_get_full_fp32_param(weight)
        elif hasattr(weight, "ds_id"):
            with gathered(weight):
                value = weight.detach().clone()
        else:
            value = weight.detach()
        if keep:
            found[name] = value.cpu()
    return found


@torch.no_grad()
def take_weights(model: nn.Module) -> None:
    """Train on with the weights that the model has now."""
    for weight in model.parameters():
        if not weight.requires_grad:
            continue
        if hasattr(weight, "ds_id"):
            with gathered(weight):
                value = weight.detach().float()
            _set(weight, value)
        else:
            _set(weight, weight.detach().float())


def whole_state(optimizer: Any, groups: list[list[Any]], *, keep: bool) -> dict[str, Any]:
    """The optimiser's state as one process has it, on the CPU of each process that is to `keep` it.
    `groups` are the weights that it was made of."""
    utils, (inner, flats) = import_module("deepspeed.utils"), _flats(optimizer)
    _link(optimizer)
    parted, shared = set[str](), dict[str, Any]()
    for flat in flats:
        for name, value in inner.state[flat].items():
            if isinstance(value, Tensor) and value.shape == flat.shape:
                parted.add(name)
            else:
                shared[name] = value
    of_each: dict[int, dict[str, Any]] = {}
    options, index = list[dict[str, Any]](), 0
    for weights, group in zip(groups, inner.param_groups, strict=True):
        kept = {name: value for name, value in group.items() if name != "params"}
        options.append({**kept, "params": list(range(index, index + len(weights)))})
        for weight in weights:
            # Each weight counts its own steps, so that none may share the tensor of another.
            own = copy.deepcopy(shared)
            for name in sorted(parted):
                full = utils.safe_get_full_optimizer_state(weight, name)
                if keep:
                    own[name] = full.cpu()
            if keep and own:
                of_each[index] = own
            index += 1
    return {"state": of_each, "param_groups": options}


@torch.no_grad()
def put_state(state: dict[str, Any], optimizer: Any, groups: list[list[Any]]) -> None:
    """A whole state into this process's part of the optimiser."""
    inner, flats = _flats(optimizer)
    for group, saved in zip(inner.param_groups, state["param_groups"], strict=True):
        group.update({name: value for name, value in saved.items() if name != "params"})
    if not state["state"]:
        return
    weights = [weight for group in groups for weight in group]
    first = state["state"][0]
    parted = [n for n, one in first.items() if isinstance(one, Tensor) and one.dim()]
    # As torch has it: a step is counted on the CPU, but by these on the weights' device.
    on_device = any(group.get("fused") or group.get("capturable") for group in inner.param_groups)
    for flat in flats:
        inner.state[flat] = {
            name: torch.zeros_like(flat)
            if name in parted
            else _copied(value, "cpu" if name == "step" and not on_device else flat.device)
            for name, value in first.items()
        }
    _link(optimizer)
    for index, weight in enumerate(weights):
        for name in parted:
            _set(weight, state["state"][index][name].to(flats[0].device), name)


def _copied(value: Any, device: Any) -> Any:
    return value.to(device, copy=True) if isinstance(value, Tensor) else value


def _flats(optimizer: Any) -> tuple[Any, list[Any]]:
    """The optimiser under DeepSpeed's, and the parts of weights that it has on this process."""
    zero = optimizer.optimizer  # under accelerate's
    if hasattr(zero, "fp32_partitioned_groups_flat"):  # of stage 3
        return zero.optimizer, list(zero.fp32_partitioned_groups_flat)
    return zero.optimizer, list(zero.single_partition_of_fp32_groups)


def _link(optimizer: Any) -> None:
    """Let stage 2 find the states of all weights: by itself it looks after the step of the first
    group, when the others have none yet."""
    zero, (inner, flats) = optimizer.optimizer, _flats(optimizer)
    if hasattr(zero, "bit16_groups"):
        link = import_module("deepspeed.utils").lazy_init_hp_params_optimizer_state
        for group, flat in zip(zero.bit16_groups, flats, strict=True):
            link(group, flat, inner.state)


def _set(weight: Any, value: Tensor, name: str | None = None) -> None:
    """This process's part of a whole value: of the weight, or of a state of it by name."""
    utils = import_module("deepspeed.utils")
    what = "fp32_param" if name is None else "optimizer_state"
    key = () if name is None else (name,)
    if not hasattr(weight, "ds_id"):
        getattr(utils, f"safe_set_full_{what}")(weight, value, *key)
        return
    size, flat = weight.ds_tensor.numel(), value.flatten()
    start = size * torch.distributed.get_rank()
    mine = flat[start : start + size]
    part = flat.new_zeros(size)  # the last part may reach behind the end
    part[: len(mine)] = mine
    getattr(utils, f"safe_set_local_{what}")(weight, part, *key)
