"""A model's layers as the decoder wants them: few large matrices, in the dtype of a step.

Read off the modules that Llama, Qwen, Mistral, SmolLM and their kin share; a model that has others
is refused with the reason. That the reading is right is checked by numbers (see `engine`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dare_decoder.model import has_plain_head, without_adapters

_ROPE = ("default", "linear", "llama3", "yarn")  # angles that depend on the position alone


class DoesNotFit(Exception):
    """Why this model cannot be decoded here."""


@dataclass(frozen=True)
class Layer:
    """One decoder layer; projections that read the same input are one matrix."""

    norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    head_norms: tuple[Tensor, Tensor] | None
    out: Tensor
    out_bias: Tensor | None
    mlp_norm: Tensor
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None


@dataclass(frozen=True)
class Weights:
    """All that a step reads of a model."""

    layers: list[Layer]
    embedding: Tensor
    """The model's own, no copy: a step reads one row of it for each slot."""
    norm: Tensor
    head: Tensor
    head_bias: Tensor | None
    heads: int
    shared: int
    depth: int
    scale: float
    eps: float

    @property
    def dtype(self) -> torch.dtype:
        """Of the matrix products; the sums between layers have the embedding's, as the model's."""
        return self.head.dtype

    @property
    def kind(self) -> tuple[Any, ...]:
        """What kernels are compiled for: two models of one kind share them."""
        first = self.layers[0]
        shapes = (self.head.shape, first.qkv.shape, first.gate_up.shape, len(self.layers))
        parts = (first.qkv_bias is None, first.head_norms is None, self.head_bias is None)
        sizes = (self.heads, self.shared, self.depth)
        return (*shapes, *parts, *sizes, self.dtype, self.embedding.dtype)


def read_weights(model: Any, dtype: torch.dtype) -> Weights:
    """Copies of the weights in `dtype` (adapters merged), or DoesNotFit with the reason."""
    core = decoder_of(model)
    layers = [_layer(layer, dtype, place) for place, layer in enumerate(core.layers)]
    first = core.layers[0].self_attn
    depth = int(first.head_dim)
    embedding = core.embed_tokens.weight.detach()
    head = without_adapters(model).get_output_embeddings()
    return Weights(
        layers=layers,
        embedding=embedding,
        norm=_norm(core.norm, embedding.dtype),
        head=weight_of(head, dtype, copy=True),
        head_bias=_bias(head, dtype),
        heads=layers[0].out.shape[1] // depth,
        shared=len(_base(first.k_proj).weight) // depth,
        depth=depth,
        scale=float(first.scaling),
        eps=float(core.norm.variance_epsilon),
    )


def decoder_of(model: Any) -> Any:
    """The stack of layers under the language-model head, if it is of the shape known here."""
    plain = without_adapters(model)
    config = plain.config.get_text_config()
    core: Any = getattr(plain, "model", None)
    _need(isinstance(getattr(core, "layers", None), nn.ModuleList), "its layers are not a list")
    _need(type(getattr(core, "embed_tokens", None)) is nn.Embedding, "its embedding is special")
    _need(has_plain_head(plain), "its logits are not those of a plain linear layer")
    _need(hasattr(core, "norm") and hasattr(core, "rotary_emb"), "it has no norm or rotary angles")
    rope = getattr(core.rotary_emb, "rope_type", None)
    _need(rope in _ROPE, f"its rotary angles are of type {rope}")
    _need(getattr(config, "hidden_act", None) in ("silu", "swish"), "its activation is not silu")
    for layer in core.layers:
        _check(layer)
    return core


def rotary_angles(model: Any, positions: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """cos and sin of every position, [positions, depth / 2], as the model itself makes them."""
    core = decoder_of(model)
    kind = core.embed_tokens.weight.dtype
    place = torch.arange(positions, device=device)[None]
    like = torch.zeros(1, 1, dtype=kind, device=device)
    with torch.autocast(device.type, enabled=False):
        cosine, sine = (table[0].float() for table in core.rotary_emb(like, place))
    half = int(core.layers[0].self_attn.head_dim) // 2
    same = cosine.shape[-1] == 2 * half and torch.equal(cosine[:, :half], cosine[:, half:])
    _need(same, "it rotates only a part of each head")
    return cosine[:, :half].contiguous(), sine[:, :half].contiguous()


_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
_MLP = ("gate_proj", "up_proj", "down_proj")
_PARTS = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}


def _check(layer: Any) -> None:
    names = {name for name, _ in layer.named_children()}
    _need(names == _PARTS, f"a layer has the parts {sorted(names)}")
    attention, mlp = layer.self_attn, layer.mlp
    inner = {name for name, _ in attention.named_children()} - {"q_norm", "k_norm"}
    _need(inner - {"rotary_emb", "rotary_fn"} == set(_ATTENTION), f"attention has {sorted(inner)}")
    inner = {name for name, _ in mlp.named_children()} - {"act_fn"}
    _need(inner == set(_MLP), f"the MLP has the parts {sorted(inner)}")
    _need(getattr(attention, "sliding_window", None) is None, "it attends in a sliding window")
    _need(hasattr(attention, "scaling") and hasattr(attention, "head_dim"), "attention is special")
    for owner, wanted in ((attention, _ATTENTION), (mlp, _MLP)):
        for name in wanted:
            part = getattr(owner, name)
            _need(
                type(part) is nn.Linear or is_plain_lora(part), f"{name} is a {type(part).__name__}"
            )
    for norm in (layer.input_layernorm, layer.post_attention_layernorm):
        _need(hasattr(norm, "variance_epsilon"), "its norms are not RMS norms")


def is_plain_lora(part: Any) -> bool:
    """Plain LoRA on a plain layer: what it adds is one matrix. Magnitudes (DoRA) and biases of
    adapters are not, and start out as if they were not there, so that numbers would not tell."""
    if not (hasattr(part, "lora_A") and type(part.get_base_layer()) is nn.Linear):
        return False
    variants = getattr(part, "lora_variant", {})
    biased = getattr(part, "lora_bias", {})
    dora = getattr(part, "use_dora", {})
    return not any(variants.get(n) or biased.get(n) or dora.get(n) for n in part.active_adapters)


def _layer(layer: Any, dtype: torch.dtype, place: int) -> Layer:
    attention, mlp = layer.self_attn, layer.mlp
    three = [attention.q_proj, attention.k_proj, attention.v_proj]
    two = [mlp.gate_proj, mlp.up_proj]
    norms = None
    if hasattr(attention, "q_norm"):
        norms = (_norm(attention.q_norm, dtype), _norm(attention.k_norm, dtype))
    kind = layer.input_layernorm.weight.dtype
    return Layer(
        norm=_norm(layer.input_layernorm, kind),
        qkv=torch.cat([weight_of(part, dtype) for part in three]),
        qkv_bias=_joined([_bias(part, dtype) for part in three], f"layer {place}"),
        head_norms=norms,
        out=weight_of(attention.o_proj, dtype, copy=True),
        out_bias=_bias(attention.o_proj, dtype),
        mlp_norm=_norm(layer.post_attention_layernorm, kind),
        gate_up=torch.cat([weight_of(part, dtype) for part in two]),
        gate_up_bias=_joined([_bias(part, dtype) for part in two], f"layer {place}"),
        down=weight_of(mlp.down_proj, dtype, copy=True),
        down_bias=_bias(mlp.down_proj, dtype),
    )


def weight_of(part: Any, dtype: torch.dtype, copy: bool = False) -> Tensor:
    """The matrix of a linear layer, with its active adapters added."""
    base = _base(part)
    whole: Tensor = base.weight.detach()
    if base is not part and not (part.disable_adapters or part.merged):
        # Added in float32: a small adapter's share would be lost in 16 bits.
        for name in part.active_adapters:
            if name in part.lora_A:
                whole = whole.float() + part.get_delta_weight(name).detach().float()
    return whole.to(dtype, copy=copy)


def _bias(part: Any, dtype: torch.dtype) -> Tensor | None:
    bias = _base(part).bias
    return None if bias is None else bias.detach().to(dtype, copy=True)


def _base(part: Any) -> Any:
    """The linear layer itself, also under an adapter."""
    return part.get_base_layer() if hasattr(part, "get_delta_weight") else part


def _joined(biases: list[Tensor | None], where: str) -> Tensor | None:
    there = [bias for bias in biases if bias is not None]
    _need(len(there) in (0, len(biases)), f"{where} has a bias in some projections only")
    return torch.cat(there) if there else None


def _norm(norm: Any, dtype: torch.dtype) -> Tensor:
    weight: Tensor = norm.weight.detach().to(dtype, copy=True)
    return weight


def _need(holds: bool, why: str) -> None:
    if not holds:
        raise DoesNotFit(why)
