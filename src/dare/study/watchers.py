"""The estimators that only watch: what each is made of, and how much of the buffer it sees."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from dare.config import CurriculumConfig
from dare.curriculum.arrays import Array
from dare.curriculum.curriculum import Curriculum
from dare.curriculum.estimators.base import Estimator
from dare.curriculum.estimators.build import wanted_scores
from dare.curriculum.estimators.paper import PaperEstimator
from dare.curriculum.estimators.posterior import PosteriorEstimator
from dare.curriculum.estimators.previous import PreviousEstimator
from dare.curriculum.estimators.snis import SnisEstimator
from dare.curriculum.estimators.uniform import UniformEstimator
from dare.errors import InvalidInput
from dare.study.constants import MeanOfSeen
from dare.study.cost import Cost
from dare.study.views import NewestView

WATCHING = {
    "dare": "SNIS, shrunk toward the history, with foresight where the data has solutions",
    "dare-no-foresight": "the same without foresight",
    "paper": "SNIS over the last group, all of it rescored; the cold start below the ESS threshold",
    "paper-budget": "the same, with the scores that the run's refresh budget pays for",
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
    foresight: bool = False
    """Whether it hears the run's forecasts."""
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

    With `changes` (settings by dotted name) it is `dare` with those, whatever the name.
    """
    run, count = curriculum.config, len(curriculum.prompts)
    buffer = curriculum.buffer
    if name in ("dare", "dare-no-foresight") or changes is not None:
        own = run.estimator.name == "snis"
        config = (run if own else CurriculumConfig.preset("dare")).replace(changes or {})
        view = NewestView(buffer, config.buffer.rollouts_per_prompt)
        return Watcher(
            SnisEstimator(count, view, config.estimator),
            view,
            config.cold_start.temperature,
            foresight=config.foresight.use and name != "dare-no-foresight",
            aligned=True,
            clip=config.estimator.clip,
        )
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


def check_scores(names: Iterable[str], config: CurriculumConfig) -> None:
    """SNIS needs the log-probs of every rollout; some presets never compute them."""
    blind = [name for name in names if name.startswith(("dare", "paper"))]
    if blind and wanted_scores(config) == "none" and not config.helps:
        fix = (
            "this run keeps no log-probs of its rollouts; take a preset that does (dare, paper), "
            f"or leave {', '.join(blind)} out of --estimators"
        )
        raise InvalidInput("preset", config.estimator.name, fix)
