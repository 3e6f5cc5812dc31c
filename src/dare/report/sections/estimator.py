"""Is the estimate right? Predicted difficulty against what happened, and how well it is fed."""

from __future__ import annotations

from typing import Any

import numpy as np

from dare.curriculum.arrays import Array
from dare.curriculum.tiers import Tier
from dare.evaluation.calibration import calibration
from dare.report.blocks import (
    Block,
    Trace,
    View,
    binned,
    curve,
    line,
    note,
    numbers,
    of_each_run,
    plot,
    short,
    thinned,
)
from dare.runs.reader import RunData, number, values

_LEAST = 20
_COLUMNS = 200
_MANY = 100_000
_DOTTED = {"line": {"dash": "dot", "width": 1.5}, "hoverinfo": "skip", "showlegend": False}
_PERFECT = curve([0, 1], [0, 1], "soft", "perfect", **_DOTTED)
_RATES = {"range": [-0.03, 1.03], "tickformat": ".0%"}
_SQUARE: dict[str, Any] = {"height": 380, "layout": {"xaxis": _RATES, "yaxis": _RATES}}


@of_each_run(
    "estimator",
    "Estimate",
    "Before each step the curriculum predicts how often the policy will fail on the prompts it "
    "drew. Here is how that turned out.",
)
def estimator(view: View) -> list[Block]:
    """Calibration, error over time, effective sample size and coverage."""
    return [*_calibration(view.run), *_truth(view.run), *_error(view), *_supply(view)]


def _outcomes(run: RunData) -> Array:
    """Which drawn prompts have a prediction and an outcome."""
    drawn = run.selections
    known = np.isfinite(drawn.failure_D) & np.isfinite(drawn.difficulty_D)
    return known & (drawn.group_size_D > 0)


def _calibration(run: RunData) -> list[Block]:
    drawn, known = run.selections, _outcomes(run)
    if known.sum() < _LEAST:
        text = (
            f"No calibration yet: it needs {_LEAST} drawn prompts with an outcome in "
            f"selections.jsonl, there are {int(known.sum())}."
        )
        return [note(text)]
    early = drawn.step_D <= float(np.median(drawn.step_D[known]))
    traces: list[Trace] = [_PERFECT]
    trials = plain_trials(run)
    for name, part, colour in (
        ("first half", known & early, "series:1"),
        ("second half", known & ~early, "main"),
    ):
        if part.any():
            predicted = np.clip(drawn.difficulty_D[part], 0, 1)
            bins = calibration(predicted, drawn.failure_D[part], trials[part])
            traces.append(_points(bins, name, colour))
    caption = (
        "Drawn prompts grouped by predicted failure rate; points on the dotted line are right on "
        "average, points above it are harder than thought. Whiskers: 95 % intervals."
    )
    look = {"x": "predicted failure rate", "y": "realised failure rate", "legend": True, **_SQUARE}
    return [plot("calibration", "Calibration", caption, traces, **look)]


def _points(bins: list[dict[str, Any]], name: str, colour: str) -> Trace:
    predicted, realised, low, high = (
        np.array([one[key] for one in bins]) for key in ("predicted", "realised", "low", "high")
    )
    ends = {"array": numbers(high - realised), "arrayminus": numbers(realised - low)}
    return curve(
        numbers(predicted),
        numbers(realised),
        colour,
        name,
        mode="lines+markers",
        error_y={"type": "data", **ends, "thickness": 1.2, "width": 3},
        customdata=[one["prompts"] for one in bins],
        hovertemplate="predicted %{x:.1%}, realised %{y:.1%}<br>%{customdata} prompts",
    )


def _truth(run: RunData) -> list[Block]:
    """Estimates at the end against many fresh rollouts, where these were taken."""
    held = run.estimation if isinstance(run.estimation, dict) else {}
    sides = [held.get(key) for key in ("estimate", "truth")]
    lists = [side for side in sides if isinstance(side, list)]
    if len(lists) < 2 or len({len(side) for side in lists}) > 1:
        return []
    x, y = (numbers(np.array([number(value) for value in side])) for side in lists)
    errors = [short(number(held.get(key))) for key in ("mae", "mae_fresh")]
    caption = (
        f"{len(x)} training prompts at the end of the run, against many fresh rollouts of each. "
        f"Mean distance {errors[0]}; that of a fresh group is {errors[1]}."
    )
    traces = [_PERFECT, curve(x, y, "main", "prompts", mode="markers")]
    look = {"x": "estimated failure rate", "y": "true failure rate", **_SQUARE}
    return [plot("truth", "Estimate and truth", caption, traces, **look)]


def plain_trials(run: RunData) -> Array:
    """Rollouts of the bare prompt behind each failure rate: hard groups add helped ones."""
    drawn, most = run.selections, run.curriculum("hard", "plain")
    used = run.curriculum("tiers") and run.curriculum("hard", "use")
    if not used or not isinstance(most, int):
        return drawn.group_size_D
    hard = drawn.tier_D == Tier.HARD
    return np.where(hard, np.minimum(drawn.group_size_D, most), drawn.group_size_D)


def _error(view: View) -> list[Block]:
    """Distance of prediction and outcome, beside what luck alone would make of a perfect one."""
    drawn, known = view.run.selections, _outcomes(view.run)
    if not known.any():
        return []
    step, inverse = np.unique(drawn.step_D[known], return_inverse=True)
    count = np.bincount(inverse)
    predicted, trials = np.clip(drawn.difficulty_D[known], 0, 1), plain_trials(view.run)[known]
    away = np.abs(predicted - drawn.failure_D[known])
    edges = thinned(len(step), _COLUMNS)
    mean, luck = (
        binned(np.bincount(inverse, weights=part) / count, edges)
        for part in (away, binomial_deviation(predicted, trials))
    )
    name = view.at("drawn", binned(step.astype(np.float64), edges))
    caption = (
        "Mean |predicted - realised| over the prompts of a step. A few rollouts are a noisy "
        "outcome: the dotted line is what a perfect prediction would show."
    )
    traces = [
        line(mean, name, "main", "measured", smooth=True),
        line(luck, name, "soft", "luck alone", line={"dash": "dot"}),
    ]
    return [plot("error", "Error of the prediction", caption, traces, legend=True)]


def binomial_deviation(rate: Array, trials: Array) -> Array:
    """E|X/n - p| of X ~ Binomial(n, p), by De Moivre's closed form."""
    size = np.clip(np.round(trials), 1, _MANY).astype(np.int64)
    inner = np.clip(rate, 1e-9, 1 - 1e-9)
    above = np.minimum(np.floor(size * inner).astype(np.int64) + 1, size)
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, size.max() + 1)))])
    choose = log_factorial[size] - log_factorial[above] - log_factorial[size - above]
    log_term = choose + above * np.log(inner) + (size - above + 1) * np.log1p(-inner)
    return 2.0 * above * np.exp(log_term) / size


# Key, title, caption, and whether it is a share.
_SUPPLY = (
    (
        "ess",
        "Effective sample size",
        "Rollouts that the reweighted buffer of a prompt is worth, "
        "on average. It falls when the policy moves away from those who wrote the buffer.",
        False,
    ),
    (
        "ess_accepted",
        "Estimates with support",
        "Share of buffered prompts whose effective sample size passes the threshold.",
        True,
    ),
    (
        "coverage",
        "Coverage",
        "Share of all prompts that were rolled out at least once. All "
        "others rest on what the estimator says of untried prompts.",
        True,
    ),
)


def _supply(view: View) -> list[Block]:
    """Coverage, and the effective sample size where the estimator has one."""
    run, blocks = view.run, []
    for key, title, caption, share in _SUPPLY:
        found = values(run.metrics, key)
        if np.isfinite(found).any():
            trace = view.line(found, "main", title, smooth=not share)
            whole = {"yaxis": {"range": [0, 1.03]}} if key == "ess_accepted" else {}
            blocks.append(plot(key, title, caption, [trace], share=share, layout=whole))
    if run.metrics and not np.isfinite(values(run.metrics, "ess")).any():
        name = run.curriculum("estimator", "name") or "of this run"
        blocks.append(note(f"The estimator {name} does not reweight, so it has no sample size."))
    return blocks
