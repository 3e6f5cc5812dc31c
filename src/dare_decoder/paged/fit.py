"""Whether the paged decoder computes what the model does, and how much of it memory holds."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch

from dare_decoder.of_triton import of_triton
from dare_decoder.paged.pages import pages_for
from dare_decoder.paged.prefill import prefill
from dare_decoder.paged.state import Outputs, Slots
from dare_decoder.paged.step import Cache, Step
from dare_decoder.paged.weights import DoesNotFit, Weights, rotary_angles
from dare_decoder.request import Request
from dare_decoder.sampling import Sampling

_PROBE = 24  # tokens of the text that both read
_PAGE = 16  # small, so that the probe spans two pages
_USE = 0.85  # share of the free memory that a call may take
_SPARE = 1 << 29  # bytes for the prompts' own pass


def check_numbers(
    model: Any, weights: Weights, autocast: Callable[[], AbstractContextManager[Any]]
) -> None:
    """DoesNotFit where the decoder's logits are not the model's, up to rounding, or where its
    kernels cannot be compiled.

    Layers of a known shape may still be put together in an unknown way (scaled embeddings, other
    norms): one short text tells.
    """
    device = weights.head.device
    count = len(weights.embedding)
    ids = np.random.default_rng(0).integers(0, count, (2, _PROBE))
    with autocast():
        wanted = model(input_ids=torch.from_numpy(ids).to(device), use_cache=False).logits[:, -1]
    pages = pages_for(_PROBE, _PAGE)
    store = weights.head.new_zeros(
        len(weights.layers), 2, 2 * pages + 3, weights.shared, _PAGE, weights.depth
    )
    cache = Cache(store, rotary_angles(model, _PROBE, device))
    slots = Slots.empty(2, pages + 2, device)
    held = [[1 + row * (pages + 1) + place for place in range(pages + 1)] for row in range(2)]
    with autocast():
        prefill(model, [row[:-1] for row in ids], held, store)
    slots.table[:, : pages + 1] = torch.tensor(held, dtype=torch.int32)
    slots.token[:] = torch.from_numpy(ids[:, -1])
    slots.prefix[:] = _PROBE - 1
    slots.alive[:] = 1
    none = torch.zeros(0, device=device)
    outputs = Outputs(none, none, none, none, none)
    try:  # the first use of the kernels
        found = Step(weights, cache, slots, outputs, Sampling()).logits()
    except Exception as error:  # of Triton and of its compiler, which have many kinds
        reason = of_triton(error)
        if reason is None:
            raise
        raise DoesNotFit(reason) from error
    gap = (found.float() - wanted.float()).norm() / wanted.float().norm().clamp(min=1e-9)
    limit = 0.01 if weights.dtype == torch.float32 else 0.1
    if not bool(gap <= limit):
        raise DoesNotFit(f"its logits differ from the paged decoder's by {float(gap):.1%}")


def room_for(weights: Weights, request: Request, *, most: int, page: int) -> tuple[int, int]:
    """Slots and pages for these rollouts: what they could use at the most, or what memory holds.

    Rollouts mostly end before their budget, so more slots are opened than full budgets would fit;
    if all of them run long after all, some have to wait (see `Engine`).
    """
    rows = min(most, len(request.prompt_R))
    own = np.sort([pages_for(int(size), page) for size in request.max_tokens_R.tolist()])[::-1]
    lengths = [len(request.prompts[prompt]) for prompt in np.unique(request.prompt_R).tolist()]
    shared = sum(pages_for(length - 1, page) for length in lengths)
    wanted = int(own[:rows].sum()) + shared + 1
    device = weights.head.device
    if device.type != "cuda":
        return rows, wanted
    free, _ = torch.cuda.mem_get_info(device)
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    one = 2 * len(weights.layers) * weights.shared * page * weights.depth * weights.dtype.itemsize
    row = 3 * len(weights.head) * weights.dtype.itemsize  # its logits, and the rest of a step
    usable = int(_USE * free) - _SPARE
    rows = max(1, min(rows, usable // 4 // row))
    held = (usable - rows * row) // one
    if torch.cuda.mem_get_info(device)[0] < rows * row + _SPARE:
        torch.cuda.empty_cache()  # what torch holds in reserve is not given to a graph's capture
    least = int(own[0]) + pages_for(max(lengths), page) + 1
    if held < least:
        raise torch.OutOfMemoryError(f"{free / 1e9:.1f} GB free do not hold one rollout")
    return rows, min(wanted, held)
