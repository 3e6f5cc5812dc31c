"""A tiny policy, its tokenizer, problems of chosen difficulty, and a trainer around them."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from dare.config import acting_changes, preset_names
from dare.training import DareConfig, DareTrainer

PAD, END = 0, 1
CONTEXT = 768
TEMPLATE = (
    "{% for m in messages %}{{ m['role'][0] }}:{{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}a:{% endif %}"
)
_CHARS = "0123456789+-*=()[]{}<>/\\ \n.,:;?!'\"_#$%&@|~^`" + "".join(
    chr(c) for first in "aA" for c in range(ord(first), ord(first) + 26)
)
VOCABULARY = {"<pad>": PAD, "<end>": END, "<unk>": 2} | {c: i + 3 for i, c in enumerate(_CHARS)}


def tokenizer(*, chat: bool = True, pad: bool = True, end: bool = True) -> PreTrainedTokenizerFast:
    """One token a character; chat template, padding and end token can each be left out."""
    inner = Tokenizer(models.WordLevel(VOCABULARY, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    inner.decoder = decoders.Fuse()
    special = {"pad_token": "<pad>"} if pad else {}
    special |= {"eos_token": "<end>"} if end else {}
    made = PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>", **special)
    made.chat_template = TEMPLATE if chat else None
    return made


def encode(*contents: str) -> np.ndarray:
    """Token ids of a conversation of user turns, up to where the answer begins."""
    text = "".join(f"u:{content}\n" for content in contents) + "a:"
    return np.array([VOCABULARY.get(char, 2) for char in text], dtype=np.int64)


def blank(**changes: Any) -> LlamaForCausalLM:
    """Two layers of 32, random weights that are always the same."""
    settings: dict[str, Any] = {
        "vocab_size": len(VOCABULARY),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_position_embeddings": CONTEXT,
        "eos_token_id": END,
        "pad_token_id": PAD,
        "bos_token_id": None,
        "initializer_range": 0.08,
    }
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return LlamaForCausalLM(LlamaConfig(**{**settings, **changes})).eval()


@functools.cache
def _taught() -> dict[str, torch.Tensor]:
    """Weights after a few supervised steps on answers of one to eight digits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    model = blank().train()
    rng = np.random.default_rng(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(40):
        rows, marks = [], []
        for _ in range(16):
            prompt = encode(f"{rng.integers(10)}+{rng.integers(10)}=")
            size = rng.integers(1, 9)
            answer = [*rng.integers(VOCABULARY["0"], VOCABULARY["0"] + 10, size), END]
            blanks = [PAD] * (9 - len(answer))
            rows.append([*prompt, *answer, *blanks])
            marks.append([-100] * len(prompt) + answer + [-100] * len(blanks))
        loss = model(input_ids=torch.tensor(rows), labels=torch.tensor(np.array(marks))).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.set_num_threads(threads)
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def policy(dtype: torch.dtype = torch.float32) -> LlamaForCausalLM:
    """A fresh copy of the policy that answers with a few random digits."""
    model = blank()
    model.load_state_dict(_taught())
    return model.to(dtype)


def problems(*chances: float, each: int = 4) -> list[dict[str, Any]]:
    """Sums, `each` of them for every chance of a response to be right (see `lottery`)."""
    pairs = [(place // 10, place % 10) for place in range(each * len(chances))]
    return [
        {
            "prompt": f"{a}+{b}=",
            "answer": str(a + b),
            "solution": f"{a}+{b}={a + b}",
            "level": str(chance),
            "chance": chance,
        }
        for (a, b), chance in zip(pairs, [c for c in chances for _ in range(each)], strict=True)
    ]


def luck(prompt: Any, completion: Any) -> float:
    """A number in [0, 1) that depends on the two texts alone."""
    return zlib.crc32(f"{prompt}|{completion}".encode()) / 2**32


def lottery(
    prompts: list[Any], completions: list[Any], chance: list[float], **_: Any
) -> list[float | None]:
    """Right with the chance that the prompt's row names: difficulty as the test wants it."""
    rows = zip(prompts, completions, chance, strict=True)
    return [float(luck(prompt, text) < share) for prompt, text, share in rows]


def patchy(
    prompts: list[Any], completions: list[Any], chance: list[float], **_: Any
) -> list[float | None]:
    """The lottery, but one response in five cannot be scored."""
    values = lottery(prompts, completions, chance)
    rows = zip(values, prompts, completions, strict=True)
    return [None if luck(text, prompt) < 0.2 else value for value, prompt, text in rows]


CLASSIC: dict[str, Any] = {
    "tiers": True,
    "estimator.name": "paper",
    "estimator.below_threshold": "raw",
    "estimator.refresh_share": 0.1,
    "selection.name": "beta",
    "selection.eta": 0.2,
    "advantage.thin_below": 0.0,
}
"""Every part of the machinery at once: tiers, help, cold start, scores, the Beta draw."""


def config(folder: str | Path, **changes: Any) -> DareConfig:
    """Settings of a run that takes a fraction of a second a step."""
    few: dict[str, Any] = {"cold_start.references": 8, "cold_start.group_size": 4}
    if changes.get("preset", "dare") == "dare":
        few["fresh_share"] = 0.5  # a quarter of these few rollouts would not hold a group
    own = changes.pop("curriculum", {})
    curriculum = own
    preset = changes.get("preset", "dare")
    if isinstance(own, dict) and preset in preset_names():  # of these few, what the method reads
        acts = acting_changes(preset, {**few, **own})
        curriculum = {**{name: value for name, value in few.items() if name in acts}, **own}
    settings: dict[str, Any] = {
        "output_dir": str(folder),
        "max_steps": 3,
        "learning_rate": 1e-3,
        "per_device_train_batch_size": 32,
        "rollout_budget": 32,
        "max_completion_length": 8,
        "temperature": 1.0,
        "top_p": 0.95,  # log-probs must know of the nucleus
        "save_strategy": "no",
        "use_cpu": True,
        "disable_tqdm": True,
        "report_to": "none",
    }
    return DareConfig(curriculum=curriculum, **{**settings, **changes})


def trainer(
    folder: str | Path,
    *,
    model: Any = None,
    reward: Any = lottery,
    data: Any = None,
    eval_data: Any = None,
    tokens: Any = None,
    callbacks: Any = None,
    peft_config: Any = None,
    services: Any = None,
    reward_processing_classes: Any = None,
    **changes: Any,
) -> DareTrainer:
    """A trainer on the tiny policy; `changes` are settings of DareConfig."""
    return DareTrainer(
        policy() if model is None else model,
        reward,
        config(folder, **changes),
        problems(0.95, 0.5, 0.05) if data is None else data,
        eval_data,
        tokenizer() if tokens is None else tokens,
        callbacks=callbacks,
        peft_config=peft_config,
        services=services,
        reward_processing_classes=reward_processing_classes,
    )


def torchrun(
    *words: str, folder: Path | None = None, timeout: float = 1500, **variables: str
) -> subprocess.CompletedProcess[str]:
    """A script, or -m and a module, on two processes of this machine's CPU."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2"]
    command += ["--master_port", "0", "--rdzv_backend", "c10d", "--rdzv_endpoint", "localhost:0"]
    given = {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", **variables}
    return subprocess.run(
        [*command, *words],
        cwd=folder,
        env={**os.environ, **given},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def lines(path: str | Path) -> list[dict[str, Any]]:
    """The objects of a file of JSON lines."""
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]


def without(record: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """A record less some of its entries."""
    return {name: value for name, value in record.items() if name not in names}


def close(first: Any, second: Any, tolerance: float) -> bool:
    """Equal in shape and words, and in numbers up to the tolerance."""
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(
            close(first[name], second[name], tolerance) for name in first
        )
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(
            close(a, b, tolerance) for a, b in zip(first, second, strict=True)
        )
    if isinstance(first, float) or isinstance(second, float):
        return abs(first - second) <= tolerance
    return bool(first == second)
