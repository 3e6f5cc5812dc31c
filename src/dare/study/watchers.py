"""The estimators that only watch: what each is made of, and how much of the buffer it sees."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from dare.config import CurriculumConfig
from dare.curriculum.arrays import Array
from dare.curriculum.curriculum import Curriculum
from dare.curriculum.estimators.base import Estimator
from dare.curriculum.estimators.baselines import (
    PosteriorEstimator,
    PreviousEstimator,
    UniformEstimator,
)
from dare.curriculum.estimators.build import build_estimator
from dare.curriculum.estimators.dare import LiveEstimator
from dare.curriculum.estimators.paper import PaperEstimator
from dare.errors import InvalidInput
from dare.study.constants import MeanOfSeen
from dare.study.cost import Cost
from dare.study.views import NewestView

WATCHING = {
    "dare": "a regression on the policy's states, on solutions where there are some, and on groups"
    " of the prompt itself",
    "dare-no-solutions": "the same without solutions",
    "dare-no-states": "the same without states and solutions: the prompt's length and groups",
    "paper": "SNIS over the last group, all of it rescored; the cold start below the ESS threshold",
    "paper-budget": "the same, with the scores that the refresh budget of a run pays for",
    "previous-fr": "mean of the buffered rollouts",
    "posterior": "MoPPS: discounted Beta posterior",
    "mean-of-seen": "mean of the groups seen so far, for every prompt",
    "uniform": "0.5 for every prompt",
}


@dataclass
class Watcher:
    """One estimator, its view of the run's buffer and what it has cost."""

    estimator: Estimator
    view: NewestView
    temperature: float | Literal["auto", "paper"] = "auto"
    """Of its cold start."""
    own: bool = False
    """Whether it is the run's own estimator, which hears everything anyway."""
    aligned: bool = False
    """Whether it lives on rescored rollouts."""
    rescored: bool = False
    """Whether all of its rollouts are rescored where it is asked, not only what the run did."""
    clip: float = 4.0
    """c of its log-ratios."""
    prior_P: Array | None = None
    """Its cold start, once the references are in."""
    cost: Cost = field(default_factory=Cost)


def build_watcher(
    name: str, curriculum: Curriculum, changes: Mapping[str, Any] | None = None
) -> Watcher:
    """The estimator of that name over the curriculum's prompts and buffer.

    With `changes` (settings by dotted name) it is the run's own with those, whatever the name.
    """
    run, count = curriculum.config, len(curriculum.prompts)
    buffer, services = curriculum.buffer, curriculum.services
    if changes is not None:
        config = run.replace(changes)
        view = NewestView(buffer, config.buffer.rollouts_per_prompt)
        estimator = build_estimator(config, count, view, services)
        temperature, clip = config.cold_start.temperature, config.estimator.clip
        return Watcher(estimator, view, temperature, aligned=estimator.rescores, clip=clip)
    if name.startswith("dare"):
        view = NewestView(buffer, run.buffer.rollouts_per_prompt)
        if name == "dare" and isinstance(curriculum.estimator, LiveEstimator):
            return Watcher(curriculum.estimator, view, own=True)
        states = None if name == "dare-no-states" else services.states
        solutions = services.solutions if name == "dare" else None
        return Watcher(LiveEstimator(count, states, solutions, services.lengths), view)
    if name in ("paper", "paper-budget"):
        config = CurriculumConfig.preset("paper")
        view = NewestView(buffer, run.medium.group_size)  # the latest group only: K = G
        return Watcher(
            PaperEstimator(count, view, config.estimator),
            view,
            config.cold_start.temperature,
            aligned=True,
            rescored=name == "paper",
            clip=config.estimator.clip,
        )
    if name == "previous-fr":
        config = CurriculumConfig.preset("previous-fr")
        view = NewestView(buffer, config.buffer.rollouts_per_prompt)
        return Watcher(PreviousEstimator(count, view), view)
    view = NewestView(buffer, run.buffer.rollouts_per_prompt)
    if name == "posterior":
        config = CurriculumConfig.preset("mopps")
        return Watcher(PosteriorEstimator(count, config.estimator.posterior_discount), view)
    if name == "mean-of-seen":
        return Watcher(MeanOfSeen(count), view)
    if name == "uniform":
        return Watcher(UniformEstimator(count), view)
    raise InvalidInput("estimator", name, f"choose one of {', '.join(WATCHING)}")
