"""Tokens a second of vLLM on given work: prompts as tokens, and a length for every response.

    python benchmarks/gpu_vllm.py --model FOLDER --work FILE.json --rows 256,1024

FILE.json is {"prompts": [[token, ...], ...], "group": 8, "max_tokens": [60, 400, ...]}: row r is a
response to prompt r // group and has exactly max_tokens[r] tokens, because the end-of-sequence
token does not end it. Any other generator can therefore do the same work. A row count n takes the
first n rows. --max-new cuts longer budgets.

One engine, built once (its seconds are reported apart), then for every row count one call that is
not counted and as many as --repeats says that are; the cache of prompts is emptied before each.
Counted are generated tokens over the whole call, prompts included in the time. Every response is
checked for its length. Ends with one JSON line.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import time
from pathlib import Path
from typing import Any

# Before vLLM is imported. One process: the call is timed where the engine runs.
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")


def capture_sizes(most: int) -> list[int]:
    """Batch sizes with a CUDA graph of their own: dense below 256, every 32 rows above."""
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, most + 1, 32)]
    return sorted({size for size in sizes if size < most} | {most})


def engine_settings(options: argparse.Namespace, rows: int, longest: int) -> dict[str, Any]:
    """What LLM() is given; graphs for decoding without compiling, FlashAttention."""
    settings: dict[str, Any] = {
        "model": str(options.model),
        "dtype": "bfloat16",
        "max_model_len": longest,
        "max_num_seqs": rows,
        "gpu_memory_utilization": options.gpu_memory_utilization,
        "attention_config": {"backend": "FLASH_ATTN"},
        "seed": 0,
        "disable_log_stats": True,
    }
    if options.compile == "none":
        settings["compilation_config"] = {
            "mode": 0,
            "cudagraph_mode": "FULL_DECODE_ONLY",
            "cudagraph_capture_sizes": capture_sizes(min(rows, 1024)),
        }
    return settings


def measure(
    engine: Any, sampling: Any, work: dict[str, Any], rows: int, options: argparse.Namespace
) -> dict[str, Any]:
    """One row count: seconds and tokens a second of every counted call."""
    group = int(work["group"])
    budgets = [min(int(length), options.max_new) for length in work["max_tokens"][:rows]]
    requests = [{"prompt_token_ids": work["prompts"][row // group]} for row in range(rows)]
    parameters = [
        sampling(
            temperature=options.temperature,
            top_p=options.top_p,
            max_tokens=budget,
            ignore_eos=True,
            detokenize=False,
            logprobs=0 if options.logprobs else None,
        )
        for budget in budgets
    ]
    seconds = []
    for _ in range(1 + options.repeats):
        engine.reset_prefix_cache()
        start = time.perf_counter()
        answers = engine.generate(requests, parameters, use_tqdm=False)
        seconds.append(time.perf_counter() - start)
        lengths = [len(answer.outputs[0].token_ids) for answer in answers]
        if lengths != budgets:
            raise SystemExit("vLLM did not keep to the lengths asked for")
    tokens = sum(budgets)
    return {
        "rows": rows,
        "tokens": tokens,
        "mean_tokens": round(tokens / rows, 1),
        "prompt_tokens": sum(len(request["prompt_token_ids"]) for request in requests),
        "first_s": round(seconds[0], 3),
        "seconds": [round(value, 3) for value in seconds[1:]],
        "tokens_per_s": round(tokens / min(seconds[1:])),
        "tokens_per_s_all": [round(tokens / value) for value in seconds[1:]],
    }


def main() -> None:
    """Build the engine, then measure each row count."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--rows", default="256,1024")
    parser.add_argument("--max-new", type=int, default=400)
    parser.add_argument("--temperature", type=float, default=0.6)
    parser.add_argument("--top-p", type=float, default=0.95)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--logprobs", action="store_true", help="ask for those of sampled tokens")
    parser.add_argument("--gpu-memory-utilization", type=float, default=0.6)
    parser.add_argument(
        "--compile",
        choices=("none", "default"),
        default="none",
        help="none: CUDA graphs of the plain layers; default: as vLLM decides (starts slowly)",
    )
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    work = json.loads(options.work.read_text(encoding="utf-8"))
    counts = [int(count) for count in options.rows.split(",")]
    there = min(len(work["max_tokens"]), len(work["prompts"]) * int(work["group"]))
    if max(counts) > there:
        raise SystemExit(f"--rows {max(counts)}: {options.work} has only {there} rows")
    longest = max(len(prompt) for prompt in work["prompts"]) + options.max_new + 1

    start = time.perf_counter()
    vllm = importlib.import_module("vllm")
    imported = time.perf_counter()
    engine = vllm.LLM(**engine_settings(options, max(counts), longest))
    started = time.perf_counter()
    torch = importlib.import_module("torch")
    figures: dict[str, Any] = {
        "engine": "vllm",
        "version": vllm.__version__,
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(),
        "model": str(options.model),
        "dtype": "bfloat16",
        "temperature": options.temperature,
        "top_p": options.top_p,
        "logprobs": options.logprobs,
        "compile": options.compile,
        "import_s": round(imported - start, 1),
        "start_s": round(started - imported, 1),
        "runs": [],
    }
    for count in counts:
        run = measure(engine, vllm.SamplingParams, work, count, options)
        figures["runs"].append(run)
        print(json.dumps(run), flush=True)
    figures["tokens_per_s"] = {str(run["rows"]): run["tokens_per_s"] for run in figures["runs"]}
    figures["peak_reserved_gb"] = round(torch.cuda.max_memory_reserved() / 1e9, 2)
    line = json.dumps(figures)
    if options.out:
        options.out.write_text(line + "\n", encoding="utf-8")
    print(line, flush=True)


if __name__ == "__main__":
    main()
