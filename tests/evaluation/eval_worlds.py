"""A benchmark of sums in a file, a generator that answers them, and where public data may be."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiny
from dare.curriculum.arrays import keyed_rng
from dare.curriculum.rollouts import Finish
from dare.evaluation.benchmarks import Benchmark, benchmark
from dare.evaluation.sources import Drawing, Respondent
from dare.policy.generate import Generated, GenerationRequest
from dare_decoder import Sampling

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("DARE_DATA", ROOT.parent / "shared" / "data"))
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the data sets are not here")


def sums(folder: Path, count: int = 10, name: str = "sums") -> Benchmark:
    """A benchmark of one's own: a YAML file beside its rows."""
    rows = [
        {
            "id": f"s{place}",
            "problem": f"{place}+{place + 1}=",
            "answer": str(2 * place + 1),
            "level": f"Level {1 + place % 3}",
            "subject": "odd" if place % 2 else "even",
        }
        for place in range(count)
    ]
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = folder / f"{name}.yaml"
    path.write_text(f"reward: math\ntemplate: none\nrows: {count}\nparts: [{{file: {name}}}]\n")
    return benchmark(str(path))


class Oracle:
    """A Generator that adds, and gets it right with a chance; it notes what it was asked."""

    def __init__(self, chance: float = 0.5, fail_after: int | None = None) -> None:
        self.chance, self.fail_after = chance, fail_after
        self.asked: Counter[tuple[str, int]] = Counter()
        self.calls = 0

    def generate(self, request: GenerationRequest, sampling: Sampling) -> Generated:
        if self.fail_after is not None and self.calls >= self.fail_after:
            raise KeyboardInterrupt
        self.calls += 1
        tokens, finish = [], []
        for row, noise in zip(request.prompt_R.tolist(), request.noise_R.tolist(), strict=True):
            text = _text(request.prompts[row])
            first, second = text.partition("u:")[2].partition("=")[0].split("+")
            draw = keyed_rng(request.seed, request.step, f"{request.purpose} {noise}").random()
            right = self.chance > draw if sampling.temperature else int(first) % 2 == 0
            self.asked[text, noise] += 1
            answer = int(first) + int(second) + (not right)
            ids = [tiny.VOCABULARY[char] for char in rf"so \boxed{{{answer}}}"]
            tokens.append(np.array([*ids, tiny.END][: request.max_tokens_R[len(tokens)]]))
            finish.append(Finish.STOP if tokens[-1][-1] == tiny.END else Finish.LENGTH)
        return Generated(tokens, np.array(finish, dtype=np.int64))


def _text(prompt: Any) -> str:
    known = {place: char for char, place in tiny.VOCABULARY.items()}
    return "".join(known[int(token)] for token in prompt)


def respondent(generator: Oracle, **choices: Any) -> Respondent:
    """It, with the tiny tokenizer."""
    drawing = Drawing(**{"max_tokens": 32, **choices})
    return Respondent(generator, tiny.tokenizer(), tiny.CONTEXT, drawing)


def lines(path: Path) -> list[dict[str, Any]]:
    return tiny.lines(path)
