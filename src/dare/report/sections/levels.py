"""Tiers and levels: what was drawn, and how right and how long the answers are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dare.curriculum.arrays import Array
from dare.report.blocks import (
    Axes,
    Block,
    binned,
    layers,
    line,
    note,
    percent,
    plot,
    section,
    table,
    thinned,
)
from dare.runs import difficulty
from dare.runs.difficulty import TIERS
from dare.runs.reader import RunData, inner_keys, values
from dare.text import legible, natural

_COLUMNS = 200
_LEVELS = 12


def levels(runs: Sequence[RunData], axes: Axes) -> dict[str, Any]:
    """By tier during training, by level in training and evaluation, for each run."""
    intro = (
        "Tiers are the curriculum's own grouping by estimated difficulty; levels are what the data "
        "says about a problem. The curriculum never sees levels."
    )
    by_run = [
        [*_tiers(run, place, axes), *_levels(run, place, axes)] for place, run in enumerate(runs)
    ]
    return section("levels", "Tiers and levels", intro, by_run=by_run)


def by_number(names: Sequence[str]) -> list[str]:
    """Levels in order of number, words after them."""
    return sorted(names, key=natural)


def level_name(name: str) -> str:
    """As it is written out; problems without a level are in the one without a name."""
    return legible(name, 60) if name else "none"


def level_colours(count: int) -> list[str]:
    """From one end of the theme's scale to the other."""
    return [f"scale:{place / max(count - 1, 1):.3f}" for place in range(count)]


def _tiers(run: RunData, place: int, axes: Axes) -> list[Block]:
    if run.curriculum("tiers") is False:
        return [note("Tiers are off in this run (tiers: false): all prompts are treated alike.")]
    blocks: list[Block] = []
    counts = np.stack([np.nan_to_num(values(run.metrics, f"tier_{name}")) for name in TIERS])
    if counts.any():
        share = counts / np.maximum(counts.sum(axis=0), 1.0)
        parts = {name: axes.thin(place, share[code]) for code, name in enumerate(TIERS)}
        caption = "Share of the drawn prompts in each tier."
        blocks.append(
            plot(
                "tier-mix",
                "Tier mix of a step",
                caption,
                layers(parts, axes.of(place), TIERS),
                legend=True,
                share=True,
            )
        )
    else:
        blocks.append(note("No tier mix yet: metrics.jsonl holds no tier counts."))
    drawn = run.selections
    if not len(drawn):
        return blocks
    for name, title, caption, weight, count in (
        (
            "tier-success",
            "Success by tier",
            "Share of right rollouts of the bare prompt. Tiers that "
            "are told apart well stay apart.",
            1.0 - drawn.failure_D,
            np.ones(len(drawn)),
        ),
        (
            "tier-tokens",
            "Length by tier",
            "Mean tokens of a rollout, of hints and longer thinking too.",
            drawn.tokens_D,
            drawn.group_size_D,
        ),
    ):
        traces = []
        for code, tier in enumerate(TIERS):
            part = (drawn.tier_D == code) & np.isfinite(weight) & (count > 0)
            step, y = _over_steps(drawn.step_D[part], weight[part], count[part])
            if len(step):
                axis = axes.at(f"{name}{place}{tier}", run, step)
                traces.append(line(y, axis, tier, tier, smooth=True))
        if traces:
            blocks.append(
                plot(name, title, caption, traces, legend=True, share=name == "tier-success")
            )
    return blocks


def _over_steps(step: Array, weight: Array, count: Array) -> tuple[Array, Array]:
    """Sum of weight over sum of count, in at most _COLUMNS bins of steps."""
    known, inverse = np.unique(step, return_inverse=True)
    edges = thinned(len(known), _COLUMNS)
    total = np.bincount(inverse, weights=weight, minlength=len(known))
    size = np.bincount(inverse, weights=count, minlength=len(known))
    if not len(known):
        return known, total
    middle = binned(known.astype(np.float64), edges)
    return middle, binned(total, edges) / np.maximum(binned(size, edges), 1e-12)


def _levels(run: RunData, place: int, axes: Axes) -> list[Block]:
    names = by_number(inner_keys(run.evaluations, "by_level"))
    blocks: list[Block] = []
    if len(names) > 1 or (names and names[0]):
        axis = axes.at(f"levels{place}", run, values(run.evaluations, "step"), done=True)
        shown, left = _busiest(run, names)
        for key, title, caption in (
            ("accuracy", "Accuracy by level", "Held-out problems, at each evaluation."),
            ("tokens", "Tokens by level", "Mean tokens of a response, at each evaluation."),
        ):
            traces = [
                line(
                    values(run.evaluations, "by_level", name, key),
                    axis,
                    colour,
                    f"level {level_name(name)}",
                    mode="lines+markers" if len(run.evaluations) <= 50 else "lines",
                )
                for name, colour in zip(shown, level_colours(len(shown)), strict=True)
            ]
            blocks.append(
                plot(
                    f"level-{key}",
                    title,
                    caption + left,
                    traces,
                    legend=True,
                    share=key == "accuracy",
                    height=340,
                )
            )
    else:
        blocks.append(note("No accuracy by level: no evaluation of problems with levels."))
    return [*blocks, *_training_levels(run, place, axes)]


def _busiest(run: RunData, names: list[str]) -> tuple[list[str], str]:
    if len(names) <= _LEVELS:
        return names, ""
    count = {
        name: np.nansum(values(run.evaluations, "by_level", name, "responses")) for name in names
    }
    kept = sorted(names, key=lambda name: -count[name])[:_LEVELS]
    return by_number(kept), f" The {_LEVELS} most common of {len(names)} levels."


def _training_levels(run: RunData, place: int, axes: Axes) -> list[Block]:
    """Levels of the drawn prompts, and the difficulty of each level now."""
    if run.table is None or "level" not in run.table.column_names:
        return []
    level = difficulty.column(run.table, "level").astype(str)
    known, code, count = np.unique(level, return_inverse=True, return_counts=True)
    if len(known) < 2:
        return []
    kept = by_number(known[np.argsort(-count)[:_LEVELS]].tolist())
    rank = {name: index for index, name in enumerate(kept)}
    place_of = np.array([rank.get(name, len(kept)) for name in known.tolist()])[code]
    return [*_drawn_levels(run, place, axes, kept, place_of), _level_table(run, kept, level)]


def _drawn_levels(
    run: RunData, place: int, axes: Axes, kept: list[str], place_P: Array
) -> list[Block]:
    drawn, assert_table = run.selections, run.table
    if not len(drawn) or assert_table is None:
        return []
    ids = difficulty.column(assert_table, "id").astype(str)
    order = np.argsort(ids)
    at = np.minimum(np.searchsorted(ids[order], drawn.prompt_D), len(ids) - 1)
    found = ids[order][at] == drawn.prompt_D
    level = np.where(found, place_P[order][at], len(kept))
    step, inverse = np.unique(drawn.step_D, return_inverse=True)
    edges = thinned(len(step), min(60, max(10, len(step) // 3)))  # a step alone is too few
    size = np.bincount(inverse)
    parts = {
        f"level {level_name(name)}": binned(
            np.bincount(inverse, weights=level == index) / size, edges
        )
        for index, name in enumerate(kept)
    }
    axis = axes.at(f"drawn-levels{place}", run, binned(step.astype(np.float64), edges))
    caption = "Share of the drawn prompts. A curriculum climbs: low levels give way to high ones."
    traces = layers(parts, axis, level_colours(len(kept)))
    return [
        plot("level-mix", "Levels of a step", caption, traces, legend=True, share=True, height=340)
    ]


def _level_table(run: RunData, kept: list[str], level_P: Array) -> Block:
    assert run.table is not None
    value, tier = difficulty.column(run.table, "difficulty"), difficulty.column(run.table, "tier")
    visits = difficulty.column(run.table, "visits")
    tiers = () if run.curriculum("tiers") is False else TIERS
    rows = []
    for name in kept:
        part = level_P == name
        mix = [percent(float((tier[part] == one).mean())) for one in tiers]
        mean = f"{value[part].mean():.3f}"
        rows.append(
            [
                level_name(name),
                f"{int(part.sum()):,}",
                percent(float((visits[part] > 0).mean())),
                mean,
                *mix,
            ]
        )
    caption = "Training prompts as the latest difficulty table sees them."
    return table(
        "level-table",
        "Levels now",
        caption,
        ["level", "prompts", "seen", "difficulty", *tiers],
        rows,
    )
