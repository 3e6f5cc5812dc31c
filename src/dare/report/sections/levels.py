"""Tiers and levels: what was drawn, and how right and how long the answers are."""

from __future__ import annotations

from typing import Any

import numpy as np

from dare.curriculum.arrays import Array
from dare.report.blocks import (
    Block,
    View,
    binned,
    layers,
    line,
    note,
    of_each_run,
    percent,
    plot,
    table,
    thinned,
)
from dare.runs import difficulty
from dare.runs.difficulty import TIERS
from dare.runs.reader import RunData, inner_keys, values
from dare.text import legible, natural

_COLUMNS = 200
_LEVELS = 12


@of_each_run(
    "levels",
    "Tiers and levels",
    "Tiers are the curriculum's own grouping by estimated difficulty; levels are what the data "
    "says about a problem. The curriculum never sees levels.",
)
def levels(view: View) -> list[Block]:
    """By tier during training, by level in training and evaluation."""
    return [*_tiers(view), *_levels(view), *_training_levels(view)]


def level_name(name: str) -> str:
    """As it is written out; problems without a level are in the one without a name."""
    return legible(name, 60) if name else "none"


def level_colours(count: int) -> list[str]:
    """From one end of the theme's scale to the other."""
    return [f"scale:{place / max(count - 1, 1):.3f}" for place in range(count)]


def _tiers(view: View) -> list[Block]:
    run, drawn = view.run, view.run.selections
    if run.curriculum("tiers") is False:
        return [note("Tiers are off in this run (tiers: false): all prompts are treated alike.")]
    blocks: list[Block] = []
    counts = np.stack([np.nan_to_num(values(run.metrics, f"tier_{name}")) for name in TIERS])
    if counts.any():
        share = counts / np.maximum(counts.sum(axis=0), 1.0)
        traces = view.layers(dict(zip(TIERS, share, strict=True)), TIERS)
        caption = "Share of the drawn prompts in each tier."
        blocks.append(
            plot("tier-mix", "Tier mix of a step", caption, traces, legend=True, share=True)
        )
    else:
        blocks.append(note("No tier mix yet: metrics.jsonl holds no tier counts."))
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
                traces.append(line(y, view.at(f"{name}-{tier}", step), tier, tier, smooth=True))
        if traces:
            share = name == "tier-success"
            blocks.append(plot(name, title, caption, traces, legend=True, share=share))
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


def _levels(view: View) -> list[Block]:
    evaluations = view.run.evaluations
    names = sorted(inner_keys(evaluations, "by_level"), key=natural)
    if not any(names):
        return [note("No accuracy by level: no evaluation of problems with levels.")]
    axis = view.at("levels", values(evaluations, "step"), done=True)
    shown, left = _busiest(view.run, names)
    mode = "lines+markers" if len(evaluations) <= 50 else "lines"
    blocks = []
    for key, title, caption in (
        ("accuracy", "Accuracy by level", "Held-out problems, at each evaluation."),
        ("tokens", "Tokens by level", "Mean tokens of a response, at each evaluation."),
    ):
        traces = []
        for name, colour in zip(shown, level_colours(len(shown)), strict=True):
            y = values(evaluations, "by_level", name, key)
            traces.append(line(y, axis, colour, f"level {level_name(name)}", mode=mode))
        share = key == "accuracy"
        words = f"level-{key}", title, caption + left
        blocks.append(plot(*words, traces, legend=True, share=share, height=340))
    return blocks


def _busiest(run: RunData, names: list[str]) -> tuple[list[str], str]:
    if len(names) <= _LEVELS:
        return names, ""
    count = {
        name: np.nansum(values(run.evaluations, "by_level", name, "responses")) for name in names
    }
    kept = sorted(names, key=lambda name: -count[name])[:_LEVELS]
    return sorted(kept, key=natural), f" The {_LEVELS} most common of {len(names)} levels."


def _training_levels(view: View) -> list[Block]:
    """Levels of the drawn prompts, and the difficulty of each level now."""
    known = view.run.table
    if known is None or "level" not in known.column_names:
        return []
    level = difficulty.column(known, "level").astype(str)
    names, count = np.unique(level, return_counts=True)
    if len(names) < 2:
        return []
    kept = sorted(names[np.argsort(-count)[:_LEVELS]].tolist(), key=natural)
    return [*_drawn_levels(view, known, kept, level), _level_table(view.run, known, kept, level)]


def _drawn_levels(view: View, known: Any, kept: list[str], level_P: Array) -> list[Block]:
    drawn = view.run.selections
    if not len(drawn):
        return []
    ids = difficulty.column(known, "id").astype(str)
    order = np.argsort(ids)
    at = np.minimum(np.searchsorted(ids[order], drawn.prompt_D), len(ids) - 1)
    found, level = ids[order][at] == drawn.prompt_D, level_P[order][at]
    step, inverse = np.unique(drawn.step_D, return_inverse=True)
    edges = thinned(len(step), min(60, max(10, len(step) // 3)))  # a step alone is too few
    size = np.bincount(inverse)
    parts = {}
    for name in kept:
        share = np.bincount(inverse, weights=found & (level == name)) / size
        parts[f"level {level_name(name)}"] = binned(share, edges)
    axis = view.at("drawn-levels", binned(step.astype(np.float64), edges))
    caption = "Share of the drawn prompts. A curriculum climbs: low levels give way to high ones."
    traces = layers(parts, axis, level_colours(len(kept)))
    words = "level-mix", "Levels of a step", caption
    return [plot(*words, traces, legend=True, share=True, height=340)]


def _level_table(run: RunData, known: Any, kept: list[str], level_P: Array) -> Block:
    value, tier, visits = (
        difficulty.column(known, name) for name in ("difficulty", "tier", "visits")
    )
    tiers = () if run.curriculum("tiers") is False else TIERS
    rows = []
    for name in kept:
        part = level_P == name
        mix = [percent(float((tier[part] == one).mean())) for one in tiers]
        seen, mean = percent(float((visits[part] > 0).mean())), f"{value[part].mean():.3f}"
        rows.append([level_name(name), f"{int(part.sum()):,}", seen, mean, *mix])
    caption = "Training prompts as the latest difficulty table sees them."
    head = ["level", "prompts", "seen", "difficulty", *tiers]
    return table("level-table", "Levels now", caption, head, rows)
