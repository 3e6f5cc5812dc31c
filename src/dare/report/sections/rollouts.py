"""Rollouts to read: a fair choice of samples.jsonl that keeps the page small."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from dare.report.blocks import Block, View, note, of_each_run, spread
from dare.runs.difficulty import TIERS
from dare.runs.reader import Line, known, values
from dare.text import LONGEST, legible, prompt_text

CHARACTERS = 3_000_000
"""Of all samples of a page together."""
_FRAGMENTS = 6
_KINDS = ("plain", "think_longer", "hinted")


@of_each_run(
    "rollouts", "Rollouts", "What the policy wrote, a few rollouts a step. Select one to read it."
)
def rollouts(view: View) -> list[Block]:
    """A browser of the run's samples."""
    run = view.run
    if not run.samples:
        text = "No rollouts to read: samples.jsonl is empty (sample_rows is 0, or no step is done)."
        return [note(text)]
    chosen = choose(run.samples, CHARACTERS // view.axes.runs)
    lengths = values(chosen, "tokens")
    tier = np.array([str(line.get("tier")) for line in chosen])
    middle = {
        name: float(np.nanmedian(lengths[tier == name]))
        for name in TIERS
        if np.isfinite(lengths[tier == name]).any()
    }
    caption = f"{len(chosen):,} of {len(run.samples):,} samples, evenly over steps."
    if len(chosen) == len(run.samples):
        caption = f"All {len(chosen):,} samples of the run."
    tiers = run.curriculum("tiers") is not False
    of_tier = " of the tier" if tiers else ""
    return [
        {
            "kind": "samples",
            "id": "samples",
            "caption": caption + f" Long and short are held against the median{of_tier}.",
            "tiers": tiers,
            "median": middle,
            "rows": [_row(line) for line in chosen],
        }
    ]


def choose(samples: Sequence[Line], room: int) -> list[Line]:
    """Evenly over steps from every mix of tier, kind and outcome, as many as there is room for."""
    sizes = np.array([_size(line) for line in samples])
    if sizes.sum() <= room:
        return list(samples)
    groups: dict[tuple[str, str, bool], list[int]] = {}
    for place, line in enumerate(samples):
        key = (str(line.get("tier")), str(line.get("conditioning")), line.get("reward") == 1)
        groups.setdefault(key, []).append(place)
    fair = room / len(groups)
    kept: list[int] = []
    for places in groups.values():
        count = max(1, int(fair / sizes[places].mean()))
        kept += [places[index] for index in spread(len(places), count).tolist()]
    return [samples[place] for place in sorted(kept)]


def _size(line: Line) -> int:
    """Characters of the page: what is not ASCII takes six, what is too long is cut."""
    texts = (str(line.get(key, "")) for key in ("prompt", "response", "hint"))
    kept = (text if len(text) <= LONGEST else text[:LONGEST] for text in texts)
    return 200 + sum(len(text) if text.isascii() else len(json.dumps(text)) for text in kept)


def _row(line: Line) -> dict[str, Any]:
    def number(key: str) -> float | None:
        value = known(line.get(key))
        return None if value is None else float(f"{value:.4g}")

    kind = str(line.get("conditioning"))
    hints = line.get("hint")
    fragments = hints if isinstance(hints, list) else [hints] if hints else []
    return {
        "step": line["step"] + 1,
        "id": legible(str(line.get("id", "")), 80),
        "tier": legible(str(line.get("tier", "")), 20),
        "difficulty": number("difficulty"),
        "kind": kind if kind in _KINDS else "plain",
        "hint": [legible(str(part), 1000) for part in fragments[:_FRAGMENTS]],
        "prompt": legible(prompt_text(line.get("prompt"))),
        "response": legible(str(line.get("response", ""))),
        "answer": None if line.get("answer") is None else legible(str(line["answer"]), 1000),
        "reward": number("reward"),
        "tokens": number("tokens"),
        "cut": line.get("finish") == "length",
    }
