"""The sizes of a model, from its config.json alone: parameters are counted, weights never read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dare.errors import InvalidInput, first_line


@dataclass(frozen=True)
class ModelShape:
    """What memory depends on.

    `parameters` are the model's own, adapters not among them; `trained` have gradients (all of
    them, or the adapters). Both come in bytes too, since adapters are float32 over any model.
    """

    parameters: int
    trained: int
    weight_bytes: int
    trained_bytes: int
    matrix_parameters: int
    """In matrix products: what mixed precision copies to 16 bits."""
    weight_size: int
    """Bytes of one of the model's own weights: 4, or 2 where they are loaded in a 16-bit type."""
    hidden: int
    intermediate: int
    """Width of the feed-forward part that one token passes through."""
    layers: int
    heads: int
    key_value_heads: int
    head_dim: int
    vocabulary: int
    adapters: bool = False
    plain_head: bool = True
    """False: logits are changed after the last layer, so those of a whole batch exist at once."""
    paged: bool = True
    """Whether the paged decoder can read it; others are sampled by their own forward pass."""
    quantised: bool = False


def shape_of(
    model: str | Path, peft: Mapping[str, Any] | None = None, dtype: str = "auto"
) -> ModelShape:
    """The shape of `pocket`, a folder with a config.json, or a hub id; with adapters if asked.

    `dtype` is that of the weights; `auto` takes the one that config.json names, if any.
    """
    return shape_of_config(read_config(model), peft, dtype=dtype, name=str(model))


def read_config(model: str | Path) -> Any:
    """transformers' configuration; of a hub id only this one file is fetched."""
    from transformers import AutoConfig

    if model == "pocket":
        from dare import pocket

        model = pocket.path()
    name, folder = str(model), Path(os.path.expanduser(model))
    if os.path.isdir(folder) and not os.path.isfile(folder / "config.json"):
        raise InvalidInput("model", name, "is a folder without a config.json")
    local = name.startswith(("/", "./", "../", "~")) or name.count("/") > 1
    if local and not os.path.isdir(folder):
        raise InvalidInput("model", name, "there is no such folder")
    try:
        return AutoConfig.from_pretrained(str(folder) if os.path.isdir(folder) else name)
    except (OSError, ValueError) as error:
        fix = "name a folder with a config.json, a hub id that can be reached, or pocket "
        raise InvalidInput("model", name, f"{fix}({first_line(error)})") from None


def shape_of_config(
    config: Any, peft: Mapping[str, Any] | None = None, *, dtype: str = "auto", name: str = "config"
) -> ModelShape:
    """Counts on a model without storage, built and refused as training would."""
    import torch
    from transformers import AutoModelForCausalLM

    from dare.policy.model import check_dtype, check_trained
    from dare_decoder.model import has_plain_head

    found = check_dtype(dtype, torch.device("meta"), "model_init_kwargs.dtype")
    kind = (config.dtype or torch.float32) if isinstance(found, str) else found
    text = config.get_text_config()
    layers, hidden, heads = (
        _number(text, field, name)
        for field in ("num_hidden_layers", "hidden_size", "num_attention_heads")
    )
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, dtype=kind)
    except ValueError as error:
        fix = f"is no causal language model that transformers knows ({first_line(error)})"
        raise InvalidInput("model", name, fix) from None
    own = list(model.parameters())
    # Looking a token up is no product; the head is one, with the same weights where they are tied.
    table, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    looked_up = table if table is not head else None
    matrices = [weight for weight in own if weight.dim() > 1 and weight is not looked_up]
    size = own[0].element_size()
    if peft:
        model = _with_adapters(model, peft)
    check_trained(model, "model_init_kwargs.dtype")
    every = list(model.parameters())
    trained = [weight for weight in every if weight.requires_grad]
    return ModelShape(
        parameters=sum(weight.numel() for weight in own),
        trained=sum(weight.numel() for weight in trained),
        weight_bytes=sum(weight.numel() * weight.element_size() for weight in every),
        trained_bytes=sum(weight.numel() * weight.element_size() for weight in trained),
        matrix_parameters=sum(weight.numel() for weight in matrices),
        weight_size=size,
        hidden=hidden,
        intermediate=_intermediate(text, hidden),
        layers=layers,
        heads=heads,
        key_value_heads=int(getattr(text, "num_key_value_heads", None) or heads),
        head_dim=int(getattr(text, "head_dim", None) or hidden // heads),
        vocabulary=head.shape[0],
        adapters=bool(peft),
        plain_head=has_plain_head(model),
        paged=_can_page(model),
        quantised=getattr(config, "quantization_config", None) is not None,
    )


def _can_page(model: Any) -> bool:
    from dare_decoder.paged.weights import DoesNotFit, decoder_of

    try:
        decoder_of(model)
    except DoesNotFit:
        return False
    return True


def _with_adapters(model: Any, peft: Mapping[str, Any]) -> Any:
    import torch
    from peft import LoraConfig, get_peft_model

    try:
        with torch.device("meta"):
            return get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **peft))
    except (TypeError, ValueError) as error:
        fix = f"makes no adapters ({first_line(error)})"
        raise InvalidInput("peft", dict(peft), fix) from None


def _number(text: Any, field: str, name: str) -> int:
    value = getattr(text, field, None)
    if not isinstance(value, int) or value < 1:
        fix = f"its config.json has no {field}: only transformers with layers and heads are planned"
        raise InvalidInput("model", name, fix)
    return value


def _intermediate(text: Any, hidden: int) -> int:
    """Of a mixture of experts, the experts that one token passes through together."""
    plain = getattr(text, "intermediate_size", None) or getattr(text, "n_inner", None) or 4 * hidden
    experts = getattr(text, "num_experts_per_tok", None)
    if not isinstance(experts, int):
        return int(plain)
    shared = getattr(text, "shared_expert_intermediate_size", None) or 0
    return experts * int(getattr(text, "moe_intermediate_size", None) or plain) + int(shared)
