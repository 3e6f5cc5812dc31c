"""A sequence classifier as a reward function: its one logit on prompt and completion."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from dare.errors import InvalidInput, require
from dare.rewards.builtin import reward_named
from dare.rewards.calling import RewardFunction


class RewardModel:
    """Called like any reward function; the model is never trained and stays in eval mode."""

    def __init__(
        self, model: Any, tokenizer: Any = None, *, device: Any, batch_tokens: int
    ) -> None:
        config = model.config
        self.__name__ = str(getattr(config, "_name_or_path", "") or type(model).__name__)
        self.__name__ = self.__name__.rstrip("/").rpartition("/")[2]
        if tokenizer is None:
            tokenizer = _loaded(AutoTokenizer, config._name_or_path)
        if tokenizer.pad_token_id is None:
            tokenizer.pad_token = tokenizer.eos_token
        # Its classifiers read the state at the last token that is no padding.
        config.get_text_config().pad_token_id = tokenizer.pad_token_id
        self._model, self._tokenizer = model.to(device).eval(), tokenizer
        self._device, self._batch_tokens = device, batch_tokens

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **_: Any) -> list[float]:
        """One logit a completion."""
        texts = [self._text(*pair) for pair in zip(prompts, completions, strict=True)]
        rows = self._tokenizer(texts, add_special_tokens=False)["input_ids"]
        order = sorted(range(len(rows)), key=lambda row: len(rows[row]))
        found = [0.0] * len(rows)
        while order:  # the longest first, so that running out of memory is not a late surprise
            size = max(1, self._batch_tokens // max(1, len(rows[order[-1]])))
            part, order = order[-size:], order[:-size]
            padded = self._tokenizer.pad(
                {"input_ids": [rows[row] for row in part]},
                padding_side="right",
                return_tensors="pt",
            )
            with torch.inference_mode():
                logits = self._model(**padded.to(self._device)).logits[:, 0].float().tolist()
            for row, logit in zip(part, logits, strict=True):
                found[row] = logit
        return found

    def _text(self, prompt: Any, completion: Any) -> str:
        if isinstance(prompt, str):
            return prompt + str(completion)
        return str(self._tokenizer.apply_chat_template([*prompt, *completion], tokenize=False))


def named_functions(given: Any, field: str = "reward_funcs") -> list[Any]:
    """The entries as a list, names of functions imported; those of models have a slash or are
    folders, and stay."""
    fix = "must be a function, a name, or a list of these"
    one = callable(given) or isinstance(given, str)
    several = isinstance(given, Iterable) and not isinstance(given, Mapping)
    require(one or given is None or several, field, given, fix)
    entries = [given] if one else list(given or [])
    return [
        reward_named(entry, field)
        if isinstance(entry, str) and "/" not in entry and not os.path.isdir(entry)
        else entry
        for entry in entries
    ]


def reward_functions(given: Any, tokenizers: Any, **options: Any) -> list[RewardFunction]:
    """Functions as they are; sequence classifiers, and their names or folders, as functions.

    `tokenizers` has one for each entry, None where the model's own is meant or it is a function.
    """
    entries = named_functions(given)
    tokenizers = list(tokenizers) if isinstance(tokenizers, (list, tuple)) else [tokenizers]
    if tokenizers == [None]:
        tokenizers *= len(entries)
    fix = f"must have one entry for each of {len(entries)} reward functions"
    require(len(tokenizers) == len(entries), "reward_processing_classes", len(tokenizers), fix)
    functions: list[RewardFunction] = []
    for entry, tokenizer in zip(entries, tokenizers, strict=True):
        model = entry
        if isinstance(entry, str):
            model = _loaded(AutoModelForSequenceClassification, entry, num_labels=1)
        if isinstance(model, torch.nn.Module):
            functions.append(RewardModel(model, tokenizer, **options))
        else:
            functions.append(model)
    return functions


def _loaded(kind: Any, name: str, **options: Any) -> Any:
    try:
        return kind.from_pretrained(name, **options)
    except (OSError, ValueError) as error:
        line = str(error).partition("\n")[0]
        fix = f"is read as a sequence classifier's name or folder, and does not load: {line}"
        raise InvalidInput("reward_funcs", name, fix) from error
