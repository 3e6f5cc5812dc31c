"""Training curves: what was logged at every step, and the evaluations between."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dare.evaluation.intervals import wilson
from dare.report.blocks import DASHES, Block, Trace, View, area, line, note, plot, section
from dare.runs.difficulty import TIERS
from dare.runs.reader import values
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


def curves(views: Sequence[View], colours: Sequence[str]) -> dict[str, Any]:
    """A plot a metric, a line a run; runs of one colour differ in their dashes."""
    intro = (
        "Along x: steps, generated tokens or training time, chosen above. "
        "Faint lines are the values themselves, strong ones a moving average."
    )
    blocks = [_evaluation(views, colours)]
    logged = dict.fromkeys(key for view in views for record in view.run.metrics for key in record)
    parts = [_of_function(key) for key in logged if _FUNCTION.fullmatch(key)]
    parts = parts if len(parts) > 1 else []  # the mean of one is the reward itself
    named = (CURVES[0], *parts, *CURVES[1:])
    for curve in named:
        blocks += _curve(curve, views, colours)
    if not any(view.run.metrics for view in views):
        blocks.append(note("No training step has been written to metrics.jsonl yet."))
    shown = {curve.key for curve in named} | _SHOWN_ELSEWHERE
    others = [Curve(k, legible(k.replace("_", " "), 60), "As logged.") for k in logged]
    rest = [b for curve in others if curve.key not in shown for b in _curve(curve, views, colours)]
    return {**section("curves", "Training", intro, blocks), "rest": rest}


_FUNCTION = re.compile("rewards/(.+)/mean")


def _of_function(key: str) -> Curve:
    name = legible(key.removeprefix("rewards/").removesuffix("/mean"), 60)
    return Curve(key, f"Reward of {name}", "Of this reward function alone, before its weight.")


def _curve(curve: Curve, views: Sequence[View], colours: Sequence[str]) -> list[Block]:
    """No plot where nothing was logged, or where it never was anything but 0."""
    of_tiers = curve.key in _TREATMENTS or curve.key.endswith(tuple(f"_{t}" for t in TIERS))
    traces: list[Trace] = []
    for view, colour, dash in zip(views, colours, dashes(colours), strict=True):
        found = values(view.run.metrics, curve.key)
        known = found[np.isfinite(found)]
        if not len(known) or (curve.key in _ZERO_IS_NOTHING and not known.any()):
            continue
        if of_tiers and view.run.curriculum("tiers") is False:  # the same as over all, or nothing
            continue
        look = {"run": view.place, "smooth": curve.key != "learning_rate", "line": {"dash": dash}}
        traces.append(view.line(found, colour, view.run.name, **look))
    if not traces:
        return []
    return [plot(f"curve-{curve.key}", curve.title, curve.caption, traces, share=curve.share)]


def _evaluation(views: Sequence[View], colours: Sequence[str]) -> Block:
    traces: list[Trace] = []
    for view, colour, dash in zip(views, colours, dashes(colours), strict=True):
        scored = [one for one in view.run.evaluations if np.isfinite(values([one], "accuracy")[0])]
        if not scored:
            continue
        accuracy = values(scored, "accuracy")
        axis = view.at("eval", values(scored, "step"), done=True)
        trials = values(scored, "responses") - np.nan_to_num(values(scored, "unscored"))
        shares = (accuracy >= 0).all() and (accuracy <= 1).all()
        if shares and np.isfinite(trials).all() and len(views) <= _BANDS:
            ends = [wilson(a, t) for a, t in zip(accuracy.tolist(), trials.tolist(), strict=True)]
            low, high = (np.array(side) for side in zip(*ends, strict=True))
            # The page folds x forth and back around it.
            fold = {"axis": axis, "run": view.place, "there_and_back": True}
            traces.insert(0, area(low, high, colour, **fold))  # below all lines
        look = {"run": view.place, "line": {"dash": dash}}
        mode = "lines+markers" if len(scored) <= _MARKED else "lines"
        traces.append(line(accuracy, axis, colour, view.run.name, mode=mode, **look))
    if not traces:
        return note("No accuracy to show: the run has not been evaluated (eval.jsonl is empty).")
    caption = "Held-out problems, the policy as it is then."
    if any("fill" in trace for trace in traces):
        caption += " The band is the 95 % Wilson interval: what this many problems can tell."
    return plot("accuracy", "Accuracy", caption, traces, wide=True, height=320, share=True)


def dashes(colours: Sequence[str]) -> list[str]:
    """Solid for the first run of a colour, broken for its next ones."""
    return [DASHES[colours[:n].count(one) % len(DASHES)] for n, one in enumerate(colours)]
