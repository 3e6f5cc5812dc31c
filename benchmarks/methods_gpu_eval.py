"""Greedy answers to fixed sets of problems, and the policy's own before any training.

Right and wrong are kept problem by problem, so that methods can be compared in pairs.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dare import DareTrainer
from dare.curriculum.rollouts import Finish
from dare.policy.generate import GenerationRequest
from dare.rewards.calling import RewardFunction, Rewards
from dare_decoder import Sampling

Row = dict[str, Any]


@dataclass(frozen=True)
class EvalSet:
    """Problems (`prompt` and the columns of the reward), and how long an answer may be."""

    name: str
    rows: list[Row]
    reward: RewardFunction
    tokens: int

    @property
    def digest(self) -> str:
        """Changes with any problem, gold or limit."""
        text = json.dumps([self.name, self.tokens, self.rows], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Answered:
    """Figures of each set, with right or wrong as a string of 1 and 0, and the texts."""

    figures: dict[str, dict[str, Any]]
    texts: dict[str, list[str]]


def answered(trainer: DareTrainer, sets: Sequence[EvalSet]) -> Answered:
    """Answer all sets greedily in one go. What cannot be scored counts as wrong and is counted."""
    began = time.perf_counter()
    policy = trainer.policy
    rows = [(chosen, row) for chosen in sets for row in chosen.rows]
    prompts = [trainer.store.encode_prompt(row["prompt"]) for _, row in rows]
    most = [
        max(1, min(chosen.tokens, policy.room(prompt)))
        for (chosen, _), prompt in zip(rows, prompts, strict=True)
    ]
    everyone = np.arange(len(rows))
    request = GenerationRequest(prompts, everyone, np.array(most), everyone, 0, 0, "evaluate")
    made = policy.generate(request, Sampling(0.0, 1.0))
    generated_s = time.perf_counter() - began
    texts = policy.tokenizer.batch_decode(made.tokens, skip_special_tokens=True)
    figures, kept, first = {}, {}, 0
    for chosen in sets:
        part = slice(first, first + len(chosen.rows))
        first = part.stop
        began = time.perf_counter()
        names = [name for name in chosen.rows[0] if name != "prompt"]
        values = Rewards(chosen.reward, None)(
            [row["prompt"] for row in chosen.rows],
            texts[part],
            [tokens.tolist() for tokens in made.tokens[part]],
            {name: [row.get(name) for row in chosen.rows] for name in names},
        ).success
        right = [value == 1.0 for value in values]
        figures[chosen.name] = {
            "accuracy": round(float(np.mean(right)), 4),
            "right": "".join("01"[one] for one in right),
            "unscored": sum(value is None for value in values),
            "length": round(float(np.mean([len(tokens) for tokens in made.tokens[part]])), 1),
            "truncated": round(float(np.mean(made.finish_R[part] == Finish.LENGTH)), 4),
            "generate_s": round(generated_s * len(chosen.rows) / len(rows), 2),
            "reward_s": round(time.perf_counter() - began, 2),
        }
        kept[chosen.name] = texts[part]
    return Answered(figures, kept)


def answered_at_start(
    trainer: DareTrainer, sets: Sequence[EvalSet], model: str, folder: Path
) -> dict[str, dict[str, Any]]:
    """The untrained policy's answers, found once for each set; its texts are kept to be read."""
    found: dict[str, dict[str, Any]] = {}
    missing = []
    for chosen in sets:
        file = folder / f"{chosen.name}-{_key(chosen, model, trainer)}.json"
        if file.is_file():
            found[chosen.name] = json.loads(file.read_text(encoding="utf-8"))
        else:
            missing.append((chosen, file))
    if missing:
        made = answered(trainer, [chosen for chosen, _ in missing])
        folder.mkdir(parents=True, exist_ok=True)
        for chosen, file in missing:
            found[chosen.name] = made.figures[chosen.name]
            with gzip.open(file.with_suffix(".texts.jsonl.gz"), "wt", encoding="utf-8") as lines:
                lines.writelines(json.dumps(text) + "\n" for text in made.texts[chosen.name])
            file.write_text(json.dumps(found[chosen.name]) + "\n", encoding="utf-8")
    return {chosen.name: found[chosen.name] for chosen in sets}


def _key(chosen: EvalSet, model: str, trainer: DareTrainer) -> str:
    system = str(trainer.args.system_prompt)
    return hashlib.sha256(f"{chosen.digest} {model} {system}".encode()).hexdigest()[:12]


def model_digest(folder: Path) -> str:
    """Tells models apart by their configuration and the ends of their weight files."""
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    for path in sorted(folder.glob("*.safetensors")):
        digest.update(f"{path.name} {path.stat().st_size}".encode())
        with path.open("rb") as file:
            digest.update(file.read(1 << 20))
            file.seek(-min(1 << 20, path.stat().st_size), 2)
            digest.update(file.read())
    return digest.hexdigest()[:16]
