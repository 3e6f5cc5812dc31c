"""What a run needs to know of a model and its tokenizer, checked before anything is generated."""

from __future__ import annotations

import copy
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from dare.errors import InvalidInput, first_line, require

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
    name = model if isinstance(model, (str, Path)) else model.config.name_or_path
    place = Path(name).expanduser()
    if model is name and (str(name).startswith((".", "/", "~")) or len(place.parts) > 2):
        require(place.is_dir(), "model", str(name), "there is no such folder")
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
        from peft import get_peft_model

        with torch.random.fork_rng():
            torch.manual_seed(seed)
            try:
                model = get_peft_model(model, peft_config)
            except (ValueError, TypeError, KeyError) as error:
                fix = first_line(error, 200)
                raise InvalidInput("peft", type(peft_config).__name__, fix) from error
    return model, tokenizer


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
