"""Training curves: what was logged at every step, and the evaluations between."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dare.evaluation.intervals import wilson
from dare.report.blocks import DASHES, Axes, Block, Trace, line, note, numbers, plot, section
from dare.runs.difficulty import TIERS
from dare.runs.reader import RunData, values
from dare.text import legible


class Curve(NamedTuple):
    """A metric: its key, what it is called, and how to read it."""

    key: str
    title: str
    caption: str
    share: bool = False


CURVES = (
    Curve(
        "reward",
        "Reward in training",
        "Mean over the rollouts of a step. The curriculum draws what is neither solved nor "
        "hopeless, so a reward of 0 or 1 tends to stay near one half.",
    ),
    Curve(
        "loss",
        "Loss",
        "Of the clipped objective. It hovers around 0 by construction; look for "
        "jumps, not for a trend.",
    ),
    Curve("length", "Response length", "Mean tokens of a rollout."),
    Curve("truncated", "Cut off", "Share of rollouts that hit their token budget.", True),
    Curve(
        "varied_groups",
        "Groups that teach",
        "Share of prompts with both right and wrong rollouts. All others have no gradient.",
        True,
    ),
    Curve("objective_clipped", "Clipped", "Share of tokens held back by the clip range.", True),
    Curve(
        "objective_ratio",
        "Ratio",
        "Mean of the policy's probability over that at sampling. 1 where every update is on fresh "
        "rollouts; far from it, clipping does the work.",
    ),
    Curve(
        "objective_kl", "KL to the reference", "How far the policy has moved from where it began."
    ),
    Curve(
        "objective_entropy",
        "Entropy",
        "Of the policy's next token, in nats, told from the tokens that were drawn and trained on. "
        "A fall to 0 means it stopped exploring.",
    ),
    Curve("grad_norm", "Gradient norm", "Before clipping. Spikes mark unstable steps."),
    Curve("learning_rate", "Learning rate", "As the schedule set it."),
    Curve(
        "unscored", "Unscored rollouts", "Responses the reward could not judge; they train nothing."
    ),
)
_BANDS = 3
_MARKED = 50
_ZERO_IS_NOTHING = ("objective_kl", "unscored", "truncated", "objective_clipped")
_SHOWN_ELSEWHERE = {
    *("step", "time", "probe", "prompts", "rollouts", "memory_mb", "coverage", "ess"),
    *("ess_accepted", "prediction_error", "tier_easy", "tier_medium", "tier_hard"),
    "generated_tokens_total",
}


_TREATMENTS = (
    *("rollouts_plain", "rollouts_think_longer", "rollouts_hinted", "shaping_share"),
    *("reward_plain", "reward_think_longer", "reward_hinted"),
)


def curves(runs: Sequence[RunData], colours: Sequence[str], axes: Axes) -> dict[str, Any]:
    """A plot a metric, a line a run; runs of one colour differ in their dashes."""
    intro = (
        "Along x: steps, generated tokens or training time, chosen above. "
        "Faint lines are the values themselves, strong ones a moving average."
    )
    blocks = [_evaluation(runs, colours, axes)]
    for curve in CURVES:
        blocks += _curve(curve, runs, colours, axes)
    if not any(run.metrics for run in runs):
        blocks.append(note("No training step has been written to metrics.jsonl yet."))
    known = {curve.key for curve in CURVES} | _SHOWN_ELSEWHERE
    others = {key: None for run in runs for record in run.metrics for key in record}
    rest = []
    for key in others:
        if key not in known:
            rest += _curve(
                Curve(key, legible(key.replace("_", " "), 60), "As logged."), runs, colours, axes
            )
    return {**section("curves", "Training", intro, blocks), "rest": rest}


def _curve(
    curve: Curve, runs: Sequence[RunData], colours: Sequence[str], axes: Axes
) -> list[Block]:
    """No plot where nothing was logged, or where it never was anything but 0."""
    traces: list[Trace] = []
    for place, (run, colour) in enumerate(zip(runs, colours, strict=True)):
        found = values(run.metrics, curve.key)
        known = found[np.isfinite(found)]
        if not len(known) or (curve.key in _ZERO_IS_NOTHING and not known.any()):
            continue
        of_tiers = curve.key in _TREATMENTS or curve.key.endswith(tuple(f"_{t}" for t in TIERS))
        if of_tiers and run.curriculum("tiers") is False:  # the same as over all, or nothing
            continue
        y = axes.thin(place, found)
        smooth = curve.key != "learning_rate"
        dash = {"dash": dashes(colours)[place]}
        traces.append(
            line(y, axes.of(place), colour, run.name, run=place, smooth=smooth, line=dash)
        )
    if not traces:
        return []
    return [plot(f"curve-{curve.key}", curve.title, curve.caption, traces, share=curve.share)]


def _evaluation(runs: Sequence[RunData], colours: Sequence[str], axes: Axes) -> Block:
    traces: list[Trace] = []
    for place, (run, colour) in enumerate(zip(runs, colours, strict=True)):
        scored = [one for one in run.evaluations if np.isfinite(values([one], "accuracy")[0])]
        if not scored:
            continue
        accuracy = values(scored, "accuracy")
        name = axes.at(f"eval{place}", run, values(scored, "step"), done=True)
        trials = values(scored, "responses") - np.nan_to_num(values(scored, "unscored"))
        shares = (accuracy >= 0).all() and (accuracy <= 1).all()
        if shares and np.isfinite(trials).all() and len(runs) <= _BANDS:
            ends = [wilson(a, t) for a, t in zip(accuracy.tolist(), trials.tolist(), strict=True)]
            low, high = (np.array(side) for side in zip(*ends, strict=True))
            traces.append(band(low, high, name, colour, place))
        dash = {"dash": dashes(colours)[place]}
        mode = "lines+markers" if len(scored) <= _MARKED else "lines"
        traces.append(line(accuracy, name, colour, run.name, run=place, mode=mode, line=dash))
    if not traces:
        text = "No accuracy to show: the run has not been evaluated (eval.jsonl is empty)."
        return note(text)
    caption = "Held-out problems, the policy as it is then."
    if any("fill" in trace for trace in traces):
        caption += " The band is the 95 % Wilson interval: what this many problems can tell."
    return plot("accuracy", "Accuracy", caption, traces, wide=True, height=320, share=True)


def dashes(colours: Sequence[str]) -> list[str]:
    """Solid for the first run of a colour, broken for its next ones."""
    seen: dict[str, int] = {}
    found = []
    for colour in colours:
        found.append(DASHES[seen.get(colour, 0) % len(DASHES)])
        seen[colour] = seen.get(colour, 0) + 1
    return found


def band(low: Any, high: Any, axis: str, colour: str, run: int) -> Trace:
    """The area between two curves; the page folds x forth and back around it."""
    return {
        "type": "scatter",
        "mode": "lines",
        "y": [*numbers(high), *numbers(low)[::-1]],
        "axis": axis,
        "colour": colour,
        "fill": "toself",
        "run": run,
        "there_and_back": True,
        "hoverinfo": "skip",
        "showlegend": False,
    }
