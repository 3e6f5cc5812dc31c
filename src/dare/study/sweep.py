"""Sweeps: one arm a value of a setting, or a pair of values of two (the paper, appendix H)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from dare.errors import InvalidInput, require
from dare.study.arms import Arm

SYMBOLS = {
    "lambda_easy": "easy.length_penalty",
    "lambda_hard": "hard.length_bonus",
    "kappa": "selection.kappa",
    "eta": "selection.eta",
    "c": "estimator.clip",
    "K": "buffer.rollouts_per_prompt",
    "sigma": "fresh_share",
    "tau_ESS": "estimator.ess_threshold",
}
"""The paper's letters, accepted as names of settings."""


def grid(
    preset: str, fields: Sequence[str], values: Sequence[str], options: Sequence[str] = ()
) -> list[Arm]:
    """Arms of every combination, the last field running fastest.

    `values` holds one comma-separated list a field. An arm is named after what it sets, so that
    a later sweep in the same folder reuses the runs they share. tau_ESS only acts in
    the estimator `paper`, which is then set.
    """
    require(fields, "--field", list(fields), "name a setting, e.g. --field selection.sharpness")
    fix = f"give one --values list for each of the {len(fields)} fields"
    require(len(values) == len(fields), "--values", list(values), fix)
    full = [SYMBOLS.get(name, name) for name in fields]
    for name in full:
        require(full.count(name) == 1, "--field", name, "is named twice")
    lists = []
    for name, text in zip(full, values, strict=True):
        found = [value.strip() for value in text.split(",") if value.strip()]
        if len(found) != len(set(found)) or not found:
            raise InvalidInput(f"--values of {name}", text, "give different values: 8,16,32")
        lists.append(found)
    extra = list(options)
    if "estimator.ess_threshold" in full and "--estimator.name" not in extra:
        extra += ["--estimator.name", "paper"]
    arms = []
    for combination in itertools.product(*lists):
        pairs = list(zip(full, combination, strict=True))
        name = ",".join(f"{field}={value}" for field, value in pairs)
        words = [word for field, value in pairs for word in (f"--{field}", value)]
        arms.append(Arm(name, preset, (*extra, *words)))
    return arms
