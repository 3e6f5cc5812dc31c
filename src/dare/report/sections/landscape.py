"""The difficulty landscape over time: how hard the prompts are, and which became easier."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dare.curriculum.arrays import Array
from dare.curriculum.landscape import BINS, tiers_of
from dare.report.blocks import (
    Block,
    View,
    layers,
    note,
    numbers,
    of_each_run,
    plot,
    spread,
    thinned,
)
from dare.runs.difficulty import TIERS
from dare.runs.reader import RunData, broken

_COLUMNS = 200
_FRAMES = 11
UNSEEN = len(TIERS)
"""The tier of a prompt that was not drawn yet, where only drawn prompts are known."""


@of_each_run(
    "landscape",
    "Difficulty landscape",
    "Difficulty is the estimated failure rate of the policy as it is at that step: 0 is always "
    "solved, 1 never. Mass that moves down is learning.",
)
def landscape(view: View) -> list[Block]:
    """Heatmap, tiers over time and moves between tiers."""
    if view.run.landscape:
        return _whole(view)
    if len(view.run.selections):
        return _drawn(view)
    return [note("No difficulty yet: the run has written neither landscape nor selections.")]


def _whole(view: View) -> list[Block]:
    """From landscape.jsonl: all prompts."""
    run, path = view.run, view.run.folder / "landscape.jsonl"
    picked = spread(len(run.landscape), _COLUMNS)
    counts, tiers = [], []
    for index in picked.tolist():
        record = run.landscape[index]
        histogram = np.array(record.get("histogram"), dtype=object)
        whole = histogram.shape == (BINS,) and all(isinstance(n, int) for n in histogram)
        if not whole or not 0 <= sum(histogram) < 2**53:
            raise broken(path, index + 1, f"has no histogram of {BINS} counts")
        counts.append(histogram.astype(np.float64))
        try:
            tiers.append(tiers_of(record))
        except ValueError as error:
            raise broken(path, index + 1, f": {error}") from None
    # A run that is resumed with other data follows other prompts: moves are of the last ones.
    same = [index for index, one in enumerate(tiers) if len(one) == len(tiers[-1])]
    step = np.array([run.landscape[index]["step"] for index in picked.tolist()])
    name = view.at("land", step)
    share = np.stack([np.bincount(one, minlength=4)[:3] / max(len(one), 1) for one in tiers])
    total, followed = int(counts[-1].sum()), len(tiers[-1])
    of = f"All {total:,} prompts" if followed == total else f"{followed:,} of {total:,} prompts"
    frames = [same[index] for index in spread(len(same), _FRAMES).tolist()]
    heatmap = _heatmap(run, np.stack(counts), name, "All prompts by estimated difficulty.")
    if run.curriculum("tiers") is False:
        return [heatmap]  # every prompt is called medium: there is nothing to see
    return [
        heatmap,
        _tier_shares(share, name, f"{of}, by tier, after each step."),
        _moves(
            [tiers[index] for index in frames],
            step[frames].tolist(),
            f"{of}. Each column is a step, each ribbon the prompts that went from one tier to "
            "another until the next.",
        ),
    ]


def _drawn(view: View) -> list[Block]:
    """From selections.jsonl, for runs without a landscape: the prompts that were drawn."""
    run, drawn = view.run, view.run.selections
    text = (
        "This run has no landscape.jsonl (it is of an earlier version), so what follows is about "
        "drawn prompts only, each with the difficulty it had when it was last drawn."
    )
    steps = np.unique(drawn.step_D)
    picked = thinned(len(steps), _COLUMNS)
    column = np.searchsorted(picked[1:], np.searchsorted(steps, drawn.step_D), side="right")
    bins = np.clip((np.nan_to_num(drawn.difficulty_D) * BINS).astype(int), 0, BINS - 1)
    shape = (len(picked) - 1, BINS)
    counts = np.bincount(column * BINS + bins, minlength=shape[0] * BINS).reshape(shape)
    name = view.at("land", steps[np.minimum(picked[:-1], len(steps) - 1)])
    frames = steps[spread(len(steps), _FRAMES)].tolist()
    return [
        note(text),
        _heatmap(run, counts.astype(np.float64), name, "Drawn prompts by predicted difficulty."),
        _moves(
            _known_tiers(run, frames),
            frames,
            "Drawn prompts. Each ribbon is the prompts that went from one tier to another between "
            "two steps; those not drawn yet wait at the end.",
        ),
    ]


def _known_tiers(run: RunData, steps: Sequence[int]) -> list[Array]:
    """Tier of every prompt that is ever drawn, as last known at each of these steps."""
    drawn = run.selections
    _, prompt = np.unique(drawn.prompt_D, return_inverse=True)
    tier = np.full(int(prompt.max()) + 1, UNSEEN)
    order = np.argsort(drawn.step_D, kind="stable")
    ends = np.searchsorted(drawn.step_D[order], steps, side="right")
    found, begin = [], 0
    for end in ends.tolist():
        part = order[begin:end]
        tier[prompt[part]] = drawn.tier_D[part]  # of equal places the last one stays
        found.append(tier.copy())
        begin = end
    return found


def _heatmap(run: RunData, counts: Array, axis: str, what: str) -> Block:
    """Columns are steps, rows bins of difficulty, brightness the share of prompts."""
    share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1.0)
    edges = np.linspace(0, 1, BINS + 1)
    trace = {
        "type": "heatmap",
        "axis": axis,
        "y": numbers((edges[:-1] + edges[1:]) / 2),
        "z": [numbers(row, 4) for row in share.T],
        "zmin": 0,
        "zmax": float(f"{max(np.quantile(share, 0.99), 1e-6):.3g}"),
        "colour": "heat",
        "hovertemplate": "%{x}: %{z:.1%} of prompts near difficulty %{y:.3f}<extra></extra>",
    }
    limits = [run.curriculum("easy", "below"), run.curriculum("hard", "above")]
    across = {"type": "line", "xref": "paper", "x0": 0, "x1": 1}
    lines = [
        {**across, "y0": limit, "y1": limit, "line": {"dash": "dot", "width": 1.5}}
        for limit in limits
        if run.curriculum("tiers") and isinstance(limit, (int, float))
    ]
    dotted = " Dotted: where easy ends and hard begins." if lines else ""
    caption = f"{what} The darker (in the dark theme: brighter) a cell, the more prompts.{dotted}"
    look: dict[str, Any] = {"y": "difficulty", "height": 380, "wide": True}
    look["layout"] = {"yaxis": {"range": [0, 1]}, "shapes": lines}
    return plot("heatmap", "Difficulty over time", caption, [trace], **look)


def _tier_shares(share: Array, axis: str, what: str) -> Block:
    traces = layers(dict(zip(TIERS, share.T, strict=True)), axis, TIERS)
    words = "tiers-over-time", "Tiers of all prompts", what
    return plot(*words, traces, legend=True, share=True, wide=True)


def _moves(tiers: Sequence[Array], steps: Sequence[int], caption: str) -> Block:
    """Counts of prompts by tier at one step and at another, for every pair of steps."""
    if len(tiers) < 2:
        return note("Moves between tiers need two steps; there is one so far.")
    states = [*TIERS, "not drawn yet"] if any((one == UNSEEN).any() for one in tiers) else TIERS
    size = len(states)
    counts = {
        f"{a}-{b}": np.bincount(tiers[a] * size + tiers[b], minlength=size * size).tolist()
        for a in range(len(tiers))
        for b in range(a + 1, len(tiers))
    }
    return {
        "kind": "moves",
        "id": "moves",
        "title": "Where prompts moved",
        "caption": caption,
        "steps": [step + 1 for step in steps],
        "states": list(states),
        "counts": counts,
    }
