"""Every estimator against the truth on a real language model: `dare study estimators`, on a GPU.

    python benchmarks/estimators_gpu.py --gguf qwen2.5-coder-1.5b-instruct-q4_k_m.gguf \
        --data gsm8k/train.jsonl.gz --out runs/estimators_gpu

Takes a GGUF file (needs the package `gguf`) or a folder of weights, GSM8K as published (`question`
and `answer`, or `problem`, `solution` and `answer`), trains with the preset `dare` at the paper's
temperature 0.6 and top-p 0.95, and at the chosen steps rolls out held-out prompts 64 times each.
A model that solves almost nothing yet can be warmed up on reference solutions first (`--warm-up`);
those problems are then left out of what follows. The last line is the figures as JSON.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from dare.study.estimator_runs import run_estimators
from dare.study.estimators import Measurement

PROMPT = "{question}\nReason step by step and end with a line '#### ' and the final number."
_NUMBER = re.compile(r"####\s*\$?\s*(-?[\d,]*\.?\d+)")


def number_reward(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    """1 where the number after the last #### is the answer. GSM8K's answers are plain numbers."""
    texts = [text if isinstance(text, str) else text[-1]["content"] for text in completions]
    return [float(_last(text) == _plain(gold)) for text, gold in zip(texts, answer, strict=True)]


def _last(text: str) -> float | None:
    found = _NUMBER.findall(text)
    return _plain(found[-1]) if found else None


def _plain(text: str) -> float:
    return float(text.replace(",", ""))


def rows_of(path: Path, limit: int) -> list[dict[str, Any]]:
    """GSM8K problems with prompt, answer and worked solution; calculator notes are taken out."""
    opened = gzip.open if path.suffix == ".gz" else open
    rows = []
    with opened(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            raw = json.loads(line)
            text = str(raw.get("solution") or raw["answer"])
            text = re.sub(r"<<.*?>>", "", text).strip()
            answer = text.split("####")[-1].strip() if "####" in text else str(raw["answer"])
            if "####" not in text:
                text = f"{text}\n#### {answer}"
            question = raw.get("problem") or raw["question"]
            prompt = PROMPT.format(question=question)
            rows.append({"prompt": prompt, "answer": answer, "solution": text, "source": "gsm8k"})
            if len(rows) == limit:
                break
    return rows


def unpacked(gguf: Path, folder: Path) -> Path:
    """The weights of a GGUF file as safetensors, float32, with its tokenizer."""
    if (folder / "config.json").is_file():
        return folder
    tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    loaded = AutoModelForCausalLM.from_pretrained(
        str(gguf.parent), gguf_file=gguf.name, dtype=torch.float32
    )
    # A model that was read from GGUF refuses to be saved: its weights go into a plain one.
    values = loaded.config.to_dict()
    values.pop("quantization_config", None)
    config = type(loaded.config).from_dict(values)
    plain = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    plain.load_state_dict(loaded.state_dict())
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    if end is not None and end != tokenizer.unk_token_id:
        tokenizer.eos_token = "<|im_end|>"  # some GGUF files name the start token here
        plain.generation_config.eos_token_id = plain.config.eos_token_id = end
    plain.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def warm_up(folder: Path, rows: list[dict[str, Any]], steps: int, out: Path) -> Path:
    """A short supervised pass over reference solutions; the loss is on the solution alone."""
    if (out / "config.json").is_file():
        return out
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.to(device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=5e-5, weight_decay=0.0)
    order = torch.Generator().manual_seed(0)
    for step in range(steps):
        picked = torch.randint(len(rows), (32,), generator=order).tolist()
        texts, heads = [], []
        for row in (rows[index] for index in picked):
            turns = [{"role": "user", "content": row["prompt"]}]
            head = tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
            heads.append(len(tokenizer(head, add_special_tokens=False)["input_ids"]))
            texts.append(head + row["solution"] + tokenizer.eos_token)
        batch = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
        batch = {name: value.to(device) for name, value in batch.items()}
        place = torch.arange(batch["input_ids"].shape[1], device=device)
        start = torch.tensor(heads, device=device)[:, None]
        if tokenizer.padding_side == "left":
            start = start + (batch["attention_mask"] == 0).sum(1, keepdim=True)
        kept = (place >= start) & batch["attention_mask"].bool()
        labels = batch["input_ids"].masked_fill(~kept, -100)
        for group in optimiser.param_groups:
            group["lr"] = 5e-5 * min(1.0, (step + 1) / 20, (steps - step) / max(1, steps // 3))
        loss = model(**batch, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
        if step % 50 == 0:
            print(f"warm-up {step}: loss {loss.item():.3f}", flush=True)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    return out


def main() -> None:
    """Weights, warm-up, study, figures."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--gguf", type=Path, help="weights in one GGUF file")
    source.add_argument("--model", type=Path, help="a folder of weights")
    parser.add_argument("--data", type=Path, required=True, help="GSM8K problems with solutions")
    parser.add_argument("--out", type=Path, default=Path("runs/estimators_gpu"))
    parser.add_argument("--problems", type=int, default=4096, help="problems trained on")
    parser.add_argument("--warm-up", type=int, default=0, metavar="STEPS")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--at", default="10,20,30")
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--rollouts", type=int, default=64)
    parser.add_argument("--budget", type=int, default=256, help="rollouts a step trains on")
    parser.add_argument("--tokens", type=int, default=320, help="longest response")
    parser.add_argument("--rows", type=int, default=16, help="rollouts a training forward pass")
    parser.add_argument("--references", type=int, default=128, help="of cold start and teacher")
    parser.add_argument("--learning-rate", type=float, default=2e-6)
    parser.add_argument("--seeds", type=int, default=1)
    chosen = parser.parse_args()
    torch.set_float32_matmul_precision("high")  # TF32: weights and sums stay in float32
    began = time.perf_counter()
    chosen.out.mkdir(parents=True, exist_ok=True)
    model = chosen.model or unpacked(chosen.gguf, chosen.out / "weights")
    rows = rows_of(chosen.data, 1 << 30)
    if chosen.warm_up:
        half = len(rows) // 2
        model = warm_up(model, rows[half:], chosen.warm_up, chosen.out / "warm")
        rows = rows[:half]
    problems = chosen.out / "problems.jsonl"
    lines = [json.dumps(row) for row in rows[: chosen.problems]]
    problems.write_text("\n".join(lines) + "\n", encoding="utf-8")
    recipe = {
        "model": str(model),
        "data": str(problems),
        "reward": "estimators_gpu:number_reward",
        "preset": "dare",
        "training": {
            "max_steps": chosen.steps,
            "rollout_budget": chosen.budget,
            "per_device_train_batch_size": chosen.rows,
            "max_completion_length": chosen.tokens,
            "temperature": 0.6,
            "top_p": 0.95,
            "learning_rate": chosen.learning_rate,
            "gradient_checkpointing": False,
            "use_cpu": not torch.cuda.is_available(),
        },
        "curriculum": {
            "cold_start.references": chosen.references,
            "estimator.references": chosen.references,
            "easy.max_tokens_ratio": 1.0,  # a response that is cut off would count as a failure
        },
    }
    wanted = Measurement(
        at=tuple(int(step) for step in chosen.at.split(",")),
        prompts=chosen.prompts,
        rollouts=chosen.rollouts,
    )
    figures = run_estimators(recipe, chosen.out / "study", wanted, chosen.seeds)
    figures["device"] = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    figures["minutes"] = round((time.perf_counter() - began) / 60, 1)
    figures["settings"] = {k: str(v) if isinstance(v, Path) else v for k, v in vars(chosen).items()}
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
