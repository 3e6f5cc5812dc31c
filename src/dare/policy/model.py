"""What a run needs to know of a model and its tokenizer, checked before anything is generated."""

from __future__ import annotations

import copy
import os
import re
import resource
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from numbers import Integral
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from dare.errors import InvalidInput, first_line, require, suggest

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def check_dtype(name: str, device: torch.device, field: str) -> torch.dtype | str:
    """The dtype of this name, if the device can compute in it; `auto` is the checkpoint's own."""
    if name == "auto":
        return name
    if name not in _DTYPES:
        raise InvalidInput(field, name, f"choose one of auto, {', '.join(_DTYPES)}")
    old = device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False)
    if name == "bfloat16" and old:
        raise InvalidInput(field, name, "this GPU cannot compute in it; choose float16 or float32")
    return _DTYPES[name]


def check_device(model: nn.Module, device: torch.device, field: str) -> None:
    """Refuse weights of a dtype that the device cannot compute in, whoever chose it."""
    if any(weight.dtype == torch.bfloat16 for weight in model.parameters()):
        check_dtype("bfloat16", device, field)


def check_trained(model: nn.Module, field: str) -> None:
    """Refuse weights that are trained in float16; frozen ones may be.

    AdamW divides by the root of a mean square plus 1e-8. In float16 both may be 0, and one step
    throws the weights away.
    """
    trained = {weight.dtype for weight in model.parameters() if weight.requires_grad}
    fix = "trained weights need float32 (`fp16: true` computes in float16) or bfloat16"
    require(torch.float16 not in trained, field, "float16", fix)


def load(
    model: Any,
    tokenizer: Any,
    peft_config: Any = None,
    seed: int = 0,
    dtype: torch.dtype | str = "auto",
    trust_remote_code: bool = False,
    **options: Any,
) -> tuple[Any, Any]:
    """The model and tokenizer behind a name, a folder or ready objects; adapters added if asked.

    `dtype` and `options` (as `from_pretrained` takes them) are of use where a name is given.
    """
    trust = {"trust_remote_code": True} if trust_remote_code else {}
    fix = "must be a causal language model of transformers, or the name or folder of one"
    own = isinstance(model, nn.Module) and hasattr(model, "config")
    require(own or isinstance(model, (str, Path)), "model", model, fix)
    fix = "must be a tokenizer of transformers, or None for the model's own"
    own = isinstance(tokenizer, PreTrainedTokenizerBase)
    require(own or tokenizer is None, "processing_class", tokenizer, fix)
    own = peft_config is None or hasattr(peft_config, "peft_type")
    require(own, "peft_config", peft_config, "must be a configuration of peft, as LoraConfig")
    name = model if isinstance(model, (str, Path)) else model.config.name_or_path
    place = Path(os.path.expanduser(name))
    if model is name and (str(name).startswith((".", "/", "~")) or len(place.parts) > 2):
        require(os.path.isdir(place), "model", str(name), "there is no such folder")
    try:
        if tokenizer is None:
            tokenizer = AutoTokenizer.from_pretrained(name, **trust)
        if model is name:
            model = AutoModelForCausalLM.from_pretrained(name, dtype=dtype, **trust, **options)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # no such folder or id, damaged files, options it does not know
        given = f" with {options}" if options else ""
        fix = f"cannot be loaded{given}: {first_line(error, 200)}"
        raise InvalidInput("model", str(name), fix) from error
    if tokenizer.pad_token_id is None:
        if tokenizer.eos_token_id is None:
            fix = "set tokenizer.pad_token (or an eos token) before training"
            raise InvalidInput("processing_class.pad_token", None, fix)
        tokenizer.pad_token = tokenizer.eos_token
    rows = model.get_input_embeddings().weight.shape[0]
    if len(tokenizer) > rows:  # the other way round is common: vocabularies are padded
        fix = f"has {len(tokenizer)} tokens, the model only {rows}; is it another model's?"
        raise InvalidInput("processing_class", type(tokenizer).__name__, fix)
    if peft_config is not None:
        model = _with_adapters(model, peft_config, seed)
    return model, tokenizer


def _with_adapters(model: Any, peft_config: Any, seed: int) -> Any:
    from peft import get_peft_model

    given = changed(peft_config)
    names = {name.rpartition(".")[2] for name, _ in model.named_modules()}
    names = {name for name in names if name and not name.isdigit()}
    for name in given.get("modules_to_save") or ():
        require(name in names, "peft.modules_to_save", name, suggest(name, names))
    # peft would train without the one, or fail in the first step for the other.
    whole = [name for name, _ in model.named_parameters()]
    for name in given.get("target_parameters") or ():
        fits = any(f".{one}".endswith(f".{name}") for one in whole)
        known = {".".join(one.split(".")[-2:]) for one in whole}
        require(fits, "peft.target_parameters", name, suggest(name, known))
    chosen = given.get("trainable_token_indices") or {}
    rows = len(model.get_input_embeddings().weight)
    for tokens in chosen.values() if isinstance(chosen, Mapping) else [chosen]:
        for token in tokens:
            fits = isinstance(token, Integral) and 0 <= int(token) < rows
            fix = f"must be ids of tokens, 0 to {rows - 1}"
            require(fits, "peft.trainable_token_indices", token, fix)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        try:
            made = get_peft_model(model, peft_config)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # what it cannot put into this model, in errors of many kinds
            raise refused_by_peft(error, given) from error
    trained = any(one.requires_grad for one in made.parameters())
    require(trained, "peft", given, "leaves nothing to train")
    return made


def changed(peft_config: Any) -> dict[str, Any]:
    """The fields of an adapter's configuration that somebody has set."""
    usual = type(peft_config)()
    return {
        name: value
        for name, value in vars(peft_config).items()
        if value != getattr(usual, name, None) and name not in ("task_type", "peft_type")
    }


def refused_by_peft(error: Exception, given: Mapping[str, Any]) -> InvalidInput:
    """One line that names the field which peft's error speaks of."""
    said = first_line(error, 160)
    spoken = said.lower().replace("_", " ")
    for name, value in given.items():
        if re.search(rf"\b{name.removeprefix('lora_').replace('_', ' ')}\b", spoken):
            return InvalidInput(f"peft.{name}", value, f"peft refuses it: {said}")
    return InvalidInput("peft", dict(given), f"peft refuses it: {said}")


def without_dropout(model: Any) -> None:
    """Set every dropout of the model to 0, that of attention too."""
    for part in model.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
        if hasattr(part, "attention_dropout"):
            part.attention_dropout = 0.0
    model.config.get_text_config().attention_dropout = 0.0


def end_ids(model: Any, tokenizer: Any) -> list[int]:
    """Tokens that end a response: the tokenizer's and the generation config's."""
    more = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    ends = {tokenizer.eos_token_id, *(more if isinstance(more, (list, tuple)) else [more])}
    found = sorted(end for end in ends if end is not None)
    if not found:
        fix = "set tokenizer.eos_token, or responses would never end"
        raise InvalidInput("processing_class.eos_token", None, fix)
    return found


def context_of(model: Any) -> int:
    """Positions that the model can see."""
    config = model.config.get_text_config()
    return int(getattr(config, "max_position_embeddings", None) or 1 << 30)


class ReferencePolicy:
    """The policy as it starts: the same weights with adapters off, or a frozen copy."""

    def __init__(self, model: Any) -> None:
        adapters = hasattr(model, "disable_adapter")
        self._frozen = None if adapters else copy.deepcopy(model).eval().requires_grad_(False)

    @contextmanager
    def active(self, policy: Any) -> Iterator[Any]:
        """The reference, which may be the `policy` with its adapters off while inside."""
        with nullcontext() if self._frozen is not None else policy.disable_adapter():
            yield policy if self._frozen is None else self._frozen


def peak_memory_mb() -> float:
    """Peak memory: of the device where there is one, of the process otherwise."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 1e6
    scale = 1e6 if sys.platform == "darwin" else 1e3
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / scale
