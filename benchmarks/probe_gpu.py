"""What a model does on many problems, and its states on their prompts: for work without a GPU.

    python benchmarks/probe_gpu.py --model FOLDER --data mixture.jsonl --out probe \
        [--rollouts 8] [--longest 768] [--layers 16,20]

Rows hold `problem`, `answer` and `source`. Each problem is rolled out, and the hidden state of its
last prompt token is kept after each of the layers. `probe/rates.npz` has right or wrong and the
length of every rollout, prompt length, mean log-prob of the prompt and entropy of the first
response token; `probe/layerNN.npy` the states in float16. Ends with one JSON line.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from dare.policy.generate import GenerationRequest, TransformersGenerator
from dare.rewards import math_reward
from dare_decoder import Sampling

PROMPT = "{problem}\nPlease reason step by step, and put your final answer within \\boxed{{}}."


def main() -> None:
    """States, rollouts, verdicts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rollouts", type=int, default=8)
    parser.add_argument("--longest", type=int, default=768)
    parser.add_argument("--temperature", type=float, default=0.6)
    parser.add_argument("--top-p", type=float, default=0.95)
    parser.add_argument("--layers", default="16,20")
    parser.add_argument("--problems", type=int)
    parser.add_argument("--keep-texts", action="store_true")
    options = parser.parse_args()
    opened = gzip.open if options.data.suffix == ".gz" else open
    with opened(options.data, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines][: options.problems]
    options.out.mkdir(parents=True, exist_ok=True)
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    model: Any = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.bfloat16)
    model.to("cuda").eval()
    prompts = [encoded(tokenizer, PROMPT.format(problem=row["problem"])) for row in rows]
    began = time.perf_counter()
    layers = [int(layer) for layer in options.layers.split(",")]
    states, statistics = read(model, prompts, layers)
    for layer, kept in states.items():
        np.save(options.out / f"layer{layer}.npy", kept)
    read_s = time.perf_counter() - began
    began = time.perf_counter()
    ends = model.generation_config.eos_token_id
    generator = TransformersGenerator(
        lambda: model,
        pad_id=tokenizer.pad_token_id or 0,
        end_ids=ends if isinstance(ends, list) else [ends],
        max_rows=1024,
    )
    total = len(rows) * options.rollouts
    owner = np.repeat(np.arange(len(rows)), options.rollouts)
    request = GenerationRequest(
        prompts, owner, np.full(total, options.longest), np.arange(total), 0, 0
    )
    made = generator.generate(request, Sampling(options.temperature, options.top_p))
    generate_s = time.perf_counter() - began
    length = np.array([len(one) for one in made.tokens])
    texts = tokenizer.batch_decode([one.tolist() for one in made.tokens], skip_special_tokens=True)
    began = time.perf_counter()
    found = math_reward(texts, answer=[rows[place]["answer"] for place in owner])
    right = np.array([np.nan if one is None else one for one in found])
    shape = len(rows), options.rollouts
    np.savez_compressed(
        options.out / "rates.npz",
        right=right.reshape(shape).astype(np.float32),
        length=length.reshape(shape).astype(np.int32),
        prompt_length=np.array([len(one) for one in prompts]),
        allow_pickle=False,
        **statistics,
    )
    (options.out / "ids.json").write_text(json.dumps([row["id"] for row in rows]))
    if options.keep_texts:
        with gzip.open(options.out / "texts.jsonl.gz", "wt", encoding="utf-8") as file:
            for text in texts:
                file.write(json.dumps(text) + "\n")
    rate = np.nanmean(right.reshape(shape), axis=1)
    figures = {
        "problems": len(rows),
        "rate": round(float(rate.mean()), 4),
        "all_wrong": round(float((rate == 0).mean()), 3),
        "all_right": round(float((rate == 1).mean()), 3),
        "length": round(float(length.mean()), 1),
        "cut": round(float((length >= options.longest).mean()), 3),
        "unscored": round(float(np.isnan(right).mean()), 4),
        "read_s": round(read_s, 1),
        "generate_s": round(generate_s, 1),
        "tok_s": round(length.sum() / generate_s),
        "verify_s": round(time.perf_counter() - began, 1),
    }
    for source in sorted({str(row.get("source", "")) for row in rows}):
        chosen = np.array([str(row.get("source", "")) == source for row in rows])
        figures[f"rate_{source}"] = round(float(rate[chosen].mean()), 4)
    print(json.dumps(figures))


def encoded(tokenizer: Any, text: str) -> np.ndarray:
    """The prompt as the chat template writes it."""
    turns = [{"role": "user", "content": text}]
    whole = tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
    return np.array(tokenizer(whole, add_special_tokens=False)["input_ids"], dtype=np.int64)


@torch.no_grad()
def read(
    model: Any, prompts: list[np.ndarray], layers: list[int]
) -> tuple[dict[int, np.ndarray], dict[str, Any]]:
    """The last token's state after each layer, mean log-prob of the prompt, next entropy."""
    width = model.config.hidden_size
    states = {layer: np.empty((len(prompts), width), np.float16) for layer in layers}
    likelihood, entropy = np.empty(len(prompts)), np.empty(len(prompts))
    order = np.argsort([len(one) for one in prompts], kind="stable")
    for start in range(0, len(order), 16):
        places = order[start : start + 16]
        most = max(len(prompts[place]) for place in places)
        ids = torch.zeros(len(places), most, dtype=torch.long, device="cuda")
        for row, place in enumerate(places):  # padded on the right: no token looks there
            ids[row, : len(prompts[place])] = torch.from_numpy(prompts[place])
        answer = model(input_ids=ids, output_hidden_states=True)
        logs = answer.logits.float().log_softmax(-1)
        for row, place in enumerate(places):
            size = len(prompts[place])
            for layer in layers:
                states[layer][place] = answer.hidden_states[layer][row, size - 1].half().cpu()
            told = logs[row, : size - 1].gather(1, ids[row, 1:size, None])
            likelihood[place] = float(told.mean())
            last = logs[row, size - 1]
            entropy[place] = float(-(last.exp() * last).sum())
    return states, {"prompt_logprob": likelihood, "entropy": entropy}


if __name__ == "__main__":
    main()
