"""Prompts into pages: one pass of the model itself over many of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache

from dare_decoder.batching import IntArray, bucket
from dare_decoder.paged.weights import decoder_of

_TOKENS = 16384  # padded tokens of one pass


def prefill(model: Any, prompts: list[IntArray], pages: list[list[int]], store: Tensor) -> None:
    """Keys and values of these prompts, each into its own pages of the store.

    Padded on the right without a mask: nothing attends to what comes later.
    """
    core = decoder_of(model)
    device, page = store.device, store.shape[4]
    lengths = np.array([len(prompt) for prompt in prompts], dtype=np.int64)
    for rows in bucket(lengths, _TOKENS):
        rows = rows[lengths[rows] > 0]
        if not len(rows):
            continue
        width = int(lengths[rows].max())
        ids = np.zeros((len(rows), width), dtype=np.int64)
        for place, row in enumerate(rows.tolist()):
            ids[place, : lengths[row]] = prompts[row]
        cache: Any = DynamicCache(config=model.config)
        core(input_ids=torch.from_numpy(ids).to(device), past_key_values=cache, use_cache=True)
        # Where each real token is in the pass, and where it goes.
        line = np.repeat(np.arange(len(rows)), lengths[rows])
        column = np.concatenate([np.arange(lengths[row]) for row in rows])
        target = np.concatenate(
            [np.asarray(pages[row])[np.arange(lengths[row]) // page] for row in rows]
        )
        moved = torch.from_numpy(np.stack([line, column, target, column % page])).to(device)
        line_N, column_N, page_N, spot_N = moved
        for layer, (keys, values) in zip(cache.layers, store, strict=True):
            keys[page_N, :, spot_N] = layer.keys[line_N, :, column_N].to(store.dtype)
            values[page_N, :, spot_N] = layer.values[line_N, :, column_N].to(store.dtype)
