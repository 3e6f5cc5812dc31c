"""A transformers model under its wrappers, and what its passes need to know of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

# Settings of models that change their logits after the output layer.
_AFTER_HEAD = (
    "final_logit_softcapping",
    "logit_scale",
    "output_multiplier",
    "lm_head_multiplier",
    "logits_scaling",
)


def bare(model: Any) -> Any:
    """The model inside wrappers that hand calls through, such as DDP's."""
    while hasattr(model, "module"):
        model = model.module
    return model


def without_adapters(model: Any) -> Any:
    """The transformers model inside PEFT's wrapper."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def has_plain_head(model: Any) -> bool:
    """Whether logits are what a linear layer gives, with nothing added or scaled after it."""
    model = bare(model)
    config = model.config.get_text_config()
    changed = any(getattr(config, name, None) not in (None, 1.0) for name in _AFTER_HEAD)
    return type(model.get_output_embeddings()) is nn.Linear and not changed


@contextmanager
def reading(model: Any) -> Iterator[torch.device]:
    """For passes that learn nothing: eval mode, no gradients. Yields where the model is."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield next(model.parameters()).device
    finally:
        model.train(was_training)
