"""Attention of sequences that lie one behind another in one row, each blind to the others.

The model is told where they end by transformers' own flash-attention arguments (`cu_seq_lens_q`
and so on), which models that dispatch attention by name hand through to the function here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface

from dare_decoder.model import bare

PACKED = "dare_packed"
"""The name under which transformers knows `attend_packed`. It has no masks: none are built."""

# What models pass along that changes nothing in causal attention over whole sequences.
_WITHOUT_EFFECT = {"cu_seq_lens_k", "max_length_k", "position_ids", "use_cache", "deterministic"}
# What sdpa cannot do either, and in some versions of transformers leaves out without a word.
_NOT_BY_SDPA = ("softcap", "s_aux")
# Before torch 2.12 the kernel takes shared heads without being told.
_TELL_SHARED = "enable_gqa" in signature(varlen_attn).parameters


def attend_packed(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    cu_seq_lens_q: Tensor | None = None,
    max_length_q: int | None = None,
    **rest: Any,
) -> tuple[Tensor, None]:
    """[1, heads, N, D] over [1, shared, N, D] -> [1, N, heads, D], sequence by sequence.

    By torch's kernel for sequences of any length in 16 bits on a GPU, padded for the length of
    this one call elsewhere. What cannot be answered is an error, never another attention.
    """
    if cu_seq_lens_q is None or max_length_q is None or attention_mask is not None:
        raise RuntimeError(f"{type(module).__name__} does not say where packed sequences end")
    if rest.pop("is_causal", None) is False or not getattr(module, "is_causal", True):
        raise RuntimeError(f"{type(module).__name__} is not causal: pad its sequences")
    window = rest.pop("sliding_window", None)
    if window is not None and window < max_length_q:
        raise RuntimeError(f"{type(module).__name__} has a sliding window: pad its sequences")
    for name in _NOT_BY_SDPA:
        if rest.pop(name, None) is not None:
            raise RuntimeError(f"{type(module).__name__} attends with {name}: pad its sequences")
    if torch.is_autocast_enabled(query.device.type):
        # Rotation by float32 angles leaves queries and keys in float32.
        dtype = torch.get_autocast_dtype(query.device.type)
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    if dropout == 0.0 and _kernel_takes(query, key, value) and _plain(rest):
        found = _by_kernel(query, key, value, cu_seq_lens_q, max_length_q, scaling)
    else:
        found = _by_padding(
            module, query, key, value, cu_seq_lens_q, max_length_q, dropout, scaling, rest
        )
    return found, None


def _kernel_takes(query: Tensor, key: Tensor, value: Tensor) -> bool:
    depth = query.shape[-1]
    return bool(
        query.is_cuda
        and query.dtype in (torch.bfloat16, torch.float16)
        and query.dtype == key.dtype == value.dtype
        and value.shape[-1] == depth <= 256
        and depth % 8 == 0
        and torch.cuda.get_device_capability(query.device) >= (8, 0)
    )


def _plain(rest: dict[str, Any]) -> bool:
    """Whether nothing is asked for that could change the result, known here or not."""
    return all(
        asked is None or asked is False or name in _WITHOUT_EFFECT for name, asked in rest.items()
    )


def _by_kernel(
    query: Tensor, key: Tensor, value: Tensor, edges: Tensor, longest: int, scale: float | None
) -> Tensor:
    more: dict[str, Any] = {"enable_gqa": True} if _TELL_SHARED else {}
    rows: list[Any] = [states[0].transpose(0, 1) for states in (query, key, value)]
    # A window of any size to the left and none to the right is how it is told to be causal.
    given = (*rows, edges, edges, longest, longest)
    found = varlen_attn(*given, scale=scale, window_size=(-1, 0), **more)
    assert isinstance(found, Tensor)
    return found[None]


def _by_padding(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    edges: Tensor,
    longest: int,
    dropout: float,
    scale: float | None,
    rest: dict[str, Any],
) -> Tensor:
    """Transformers' sdpa over the sequences as rows padded on the right, and packed again."""
    token = torch.arange(query.shape[2], device=query.device)
    row = torch.bucketize(token, edges[1:], right=True)
    place = token + row * longest - edges[row]
    count = len(edges) - 1

    def padded(states: Tensor) -> Tensor:
        heads, depth = states.shape[1], states.shape[3]
        flat = states[0].transpose(0, 1).reshape(-1, heads * depth)
        wide = flat.new_zeros(count * longest, heads * depth).index_copy(0, place, flat)
        return wide.view(count, longest, heads, depth).transpose(1, 2)

    sdpa = AttentionInterface()["sdpa"]
    found, _ = sdpa(
        module,
        padded(query),
        padded(key),
        padded(value),
        None,  # causal: nothing looks at the padding behind it
        dropout=dropout,
        scaling=scale,
        **{name: asked for name, asked in rest.items() if name not in _WITHOUT_EFFECT},
    )
    return found.flatten(0, 1).index_select(0, place)[None]


AttentionInterface.register(PACKED, attend_packed)


def can_pack(model: Any) -> bool:
    """Whether sequences in one row would not see each other, and nothing else would change.

    That needs attention that is looked up by name and gets all arguments, in every layer causal
    over the whole sequence; no state that runs on from token to token; no virtual tokens in front.
    """
    model = bare(model)
    config = getattr(model, "config", None)
    if config is None or not hasattr(model, "set_attn_implementation"):
        return False
    peft = getattr(model, "active_peft_config", None)
    named = str(getattr(config, "_attn_implementation", None))
    return bool(
        model.is_backend_compatible()
        and config.get_text_config() is config
        and (named in ("sdpa", PACKED) or named.startswith("flash_attention"))
        and not model._is_stateful
        and not getattr(peft, "is_prompt_learning", False)
        and _attends_to_all(config)
        and _is_causal(model)
    )


# Settings of kinds of attention that are not the plain one, over all or in some layers.
_OTHER_ATTENTION = (
    "attention_chunk_size",
    "attn_logit_softcapping",
    "index_topk",
    "layers_block_type",
)


def _attends_to_all(config: Any) -> bool:
    kinds = getattr(config, "layer_types", None)
    if kinds is None and getattr(config, "sliding_window", None) is not None:
        return False
    whole = all(kind == "full_attention" for kind in kinds or ())
    return whole and all(getattr(config, name, None) is None for name in _OTHER_ATTENTION)


def _is_causal(model: Any) -> bool:
    said = [part.is_causal for part in model.modules() if hasattr(part, "is_causal")]
    return bool(said) and all(said)


@contextmanager
def packed_attention(model: Any) -> Iterator[None]:
    """Inside, the model attends by `attend_packed`; it gets back what it had."""
    before = _switch(model)
    try:
        yield
    finally:
        _put_back(model, before)


def through_backward(output: Tensor, model: Any) -> Tensor:
    """`output` of a packed pass, whose backward pass attends by `attend_packed` too.

    Checkpointed layers run again there, long after `packed_attention` around the pass has ended,
    and look their attention up by name once more.
    """
    if not output.requires_grad:
        return output
    result: Tensor = _SwitchedBackward.apply(output, bare(model))
    return result


class _SwitchedBackward(torch.autograd.Function):
    """Nothing but a node that the backward pass reaches before any layer of the model."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, model: Any) -> Tensor:
        ctx.model = model
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor, None]:
        model, before = ctx.model, _switch(ctx.model)
        if before != PACKED:
            engine = torch.autograd.Variable._execution_engine
            engine.queue_callback(lambda: _put_back(model, before))  # when the pass is over
        return outputs[0], None


def _switch(model: Any) -> str:
    model = bare(model)
    before = str(model.config._attn_implementation)
    if before != PACKED:
        model.set_attn_implementation(PACKED)
    return before


def _put_back(model: Any, before: str) -> None:
    if before != PACKED:
        bare(model).set_attn_implementation(before)
