"""Decoding with a growing cache, with CUDA graphs, and with transformers' generate.

    python benchmarks/generate.py --rows 64 --layers 24 --hidden 896

A Llama with random weights (no download); every row has its own token budget, as rollouts of mixed
lengths do. Tokens per second are those of the better of two calls after a first one,
whose time is given apart. Ends with one JSON line.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from dare.policy.generate import GenerationRequest, TransformersGenerator
from dare.policy.model import peak_memory_mb
from dare.policy.score import Sampling

VOCABULARY = 32000


def timed(function: Any) -> float:
    """Seconds until the device has finished."""
    start = time.perf_counter()
    function()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


def main() -> None:
    """Measure each way in turn, in one process."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--longest", type=int, default=256)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--hidden", type=int, default=896)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=options.hidden,
        intermediate_size=4 * options.hidden,
        num_hidden_layers=options.layers,
        num_attention_heads=options.hidden // 64,
        num_key_value_heads=max(1, options.hidden // 448),
        max_position_embeddings=options.prompt + options.longest + 256,
    )
    torch.manual_seed(0)
    model: Any = LlamaForCausalLM(config).eval()
    model.to(device, dtype=torch.bfloat16 if device == "cuda" else torch.float32)
    rng = np.random.default_rng(0)
    prompts = [
        rng.integers(5, VOCABULARY, options.prompt) for _ in range(options.rows // options.group)
    ]
    budgets = rng.integers(options.longest // 8, options.longest + 1, options.rows)
    request = GenerationRequest(
        prompts,
        np.repeat(np.arange(len(prompts)), options.group),
        budgets,
        np.arange(options.rows),
        0,
        0,
    )
    sampling = Sampling(1.0, 1.0)
    figures: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "parameters": sum(p.numel() for p in model.parameters()),
        "tokens": int(budgets.sum()),
    }
    for name, graphs in (("growing", False), ("graphs", True)):
        generator = TransformersGenerator(
            lambda: model, pad_id=0, end_ids=[VOCABULARY + 1], graphs=graphs
        )
        first = timed(lambda g=generator: g.generate(request, sampling))
        best = min(timed(lambda g=generator: g.generate(request, sampling)) for _ in range(2))
        figures[name] = {"first_s": round(first, 2), "tokens_per_s": round(budgets.sum() / best)}
        print(name, figures[name], flush=True)
    ids = torch.from_numpy(np.stack(prompts)[request.prompt_R]).to(device)

    def library() -> None:
        # One budget for all: what rows would have left early is computed and thrown away.
        model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            do_sample=True,
            top_k=0,
            max_new_tokens=options.longest,
            min_new_tokens=options.longest,
            pad_token_id=0,
        )

    first = timed(library)
    best = min(first, timed(library))
    figures["library"] = {"first_s": round(first, 2), "tokens_per_s": round(budgets.sum() / best)}
    graph_rate = figures["graphs"]["tokens_per_s"]
    figures["graphs_vs_growing"] = round(graph_rate / figures["growing"]["tokens_per_s"], 2)
    figures["graphs_vs_library"] = round(graph_rate / figures["library"]["tokens_per_s"], 2)
    figures["peak_mb"] = round(peak_memory_mb())
    if options.out:
        options.out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
