"""The switches of the method combine: every pair of settings trains in some run of the trainer."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import torch

import tiny
from dare.config import ESTIMATORS, SelectionConfig, acting_changes

SELECTIONS = get_args(get_type_hints(SelectionConfig)["name"])
BUDGET = 32


def combinations() -> list[dict[str, Any]]:
    """Each estimator with each selection; the bits of the two set the other switches.

    Every switch is the parity of another mix of an estimator's bits and a selection's, so that any
    two of the seven settings meet in all their values.
    """
    rows = []
    for (e, estimator), (s, selection) in itertools.product(
        enumerate(ESTIMATORS), enumerate(SELECTIONS)
    ):
        bit = [e & 1, e >> 1 & 1, e >> 2 & 1, s & 1, s >> 1 & 1]
        rows.append(
            {
                "estimator.name": estimator,
                "selection.name": selection,
                "easy.use": bool(bit[3] ^ bit[0]),
                "hard.use": bool(bit[4] ^ bit[1]),
                "advantage.shape_alone": bool(bit[3] ^ bit[1]),
                "tiers": bool(bit[3] ^ bit[4] ^ bit[2]),
                "fresh_share": 0.5 if bit[4] ^ bit[0] else 1.0,
            }
        )
    return rows


COMBINATIONS = combinations()


def named(row: dict[str, Any]) -> str:
    on = [name for name in ("easy.use", "hard.use", "advantage.shape_alone", "tiers") if row[name]]
    parts = [row["estimator.name"], row["selection.name"], *on, f"{row['fresh_share']}"]
    return " ".join(parts)


def test_every_pair_of_values_is_there() -> None:
    values = {name: {row[name] for row in COMBINATIONS} for name in COMBINATIONS[0]}
    for first, second in itertools.combinations(values, 2):
        met = {(row[first], row[second]) for row in COMBINATIONS}
        assert met == set(itertools.product(values[first], values[second]))


@pytest.mark.parametrize("row", COMBINATIONS, ids=named)
def test_a_combination_trains(row: dict[str, Any], tmp_path: Path) -> None:
    few = {"estimator.references": 4, "estimator.max_probes": 2, "estimator.candidates": 6}
    few |= {"cold_start.references": 6, "cold_start.group_size": 4, "hard.group_size": 12}
    curriculum = acting_changes("dare", {**few, **row})
    replays = row["fresh_share"] < 1
    steps = 2 if replays else 1  # there is nothing to replay in the first one
    settings = {"max_steps": steps, "rollout_budget": BUDGET, "curriculum": curriculum}
    trainer = tiny.trainer(tmp_path, **settings)
    trainer.train()
    metrics, selections = (
        tiny.lines(tmp_path / name) for name in ("metrics.jsonl", "selections.jsonl")
    )
    assert len(metrics) == len(selections) == steps
    for line in metrics:
        assert line["rollouts"] + line["replayed_rollouts"] == BUDGET
        if not row["tiers"]:
            assert line["tier_easy"] == line["tier_hard"] == 0
        if not (row["tiers"] and row["hard.use"]):
            assert line["rollouts_think_longer"] == line["rollouts_hinted"] == 0
    if row["estimator.name"] not in ("current-fr", "dynamic", "greso"):  # they train on probes too
        assert (metrics[-1]["replayed_rollouts"] > 0) == replays
    for before, after in zip(tiny.policy().parameters(), trainer.model.parameters(), strict=True):
        assert torch.isfinite(after).all()
        assert not torch.equal(before, after)
