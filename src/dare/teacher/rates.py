"""Pass rates from JSON lines (also gzipped), CSV or Parquet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dare.curriculum.arrays import Array
from dare.data.load import files_of, read_rows
from dare.data.row import no_column, where_is
from dare.errors import InvalidInput, require


@dataclass(frozen=True)
class Columns:
    """What the columns are called; the last two may be missing."""

    prompt: str = "prompt"
    pass_rate: str = "pass_rate"
    trials: str = "trials"
    policy: str = "policy"


@dataclass(frozen=True)
class Rates:
    """One row a prompt and policy."""

    prompts: list[Any]
    """Strings or lists of messages."""
    rate_P: Array
    trials_P: Array
    """Rollouts behind each rate; 1 where the file does not say."""
    policy_P: Array
    """Label of the policy: its column, or else the name of the file."""

    def __len__(self) -> int:
        return len(self.prompts)

    def take(self, rows: Array) -> Rates:
        """These rows."""
        prompts = [self.prompts[row] for row in rows.tolist()]
        return Rates(prompts, self.rate_P[rows], self.trials_P[rows], self.policy_P[rows])


def read_rates(paths: Sequence[str | Path], columns: Columns | None = None) -> Rates:
    """All rows of the files, in their order."""
    names = columns or Columns()
    found: list[tuple[Any, float, float, str]] = []
    for path in paths:
        for file in files_of(path):
            label = file.name.split(".")[0]
            found += [_row(raw, names, label) for raw in read_rows(file)]
    prompts, rates, trials, policies = zip(*found, strict=True)
    label_P = np.array(policies, dtype=object)
    return Rates(list(prompts), np.array(rates), np.array(trials), label_P)


def _row(raw: Mapping[str, Any], names: Columns, label: str) -> tuple[Any, float, float, str]:
    for field in ("prompt", "pass_rate"):
        if getattr(names, field) not in raw:
            option = f"--{field.replace('_', '-')}-column"
            error = no_column(raw, getattr(names, field), option)
            raise InvalidInput(option, error.value, error.fix)
    where = where_is(raw)
    prompt = raw[names.prompt]
    good = isinstance(prompt, str) and bool(prompt.strip())
    if isinstance(prompt, list) and prompt:
        good = all(isinstance(turn, dict) and {"role", "content"} <= set(turn) for turn in prompt)
    fix = "must be a string or a list of messages with 'role' and 'content'"
    require(good, f"{where}: {names.prompt}", prompt, fix)
    rate = _number(raw[names.pass_rate], f"{where}: {names.pass_rate}")
    require(0 <= rate <= 1, f"{where}: {names.pass_rate}", rate, "must be in [0, 1]")
    trials = 1.0
    if raw.get(names.trials) is not None:
        trials = _number(raw[names.trials], f"{where}: {names.trials}")
        require(trials >= 1, f"{where}: {names.trials}", trials, "must be at least 1")
    policy = raw.get(names.policy)
    return prompt, rate, trials, label if policy is None else str(policy)


def _number(value: Any, field: str) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise InvalidInput(field, value, "must be a number") from None
