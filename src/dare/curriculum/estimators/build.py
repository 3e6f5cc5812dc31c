"""From a configuration to an estimator, and what a model has to supply for some of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dare.config import CurriculumConfig
from dare.config.named import imported, raised_by
from dare.curriculum.arrays import Array
from dare.curriculum.buffer import RolloutBuffer
from dare.curriculum.estimators.base import Estimator, Measure, Wanted
from dare.curriculum.estimators.baselines import (
    CurrentEstimator,
    EntropyEstimator,
    JudgeEstimator,
    PosteriorEstimator,
    PreviousEstimator,
    Replies,
    Teacher,
    TeacherEstimator,
    UniformEstimator,
)
from dare.curriculum.estimators.dare import LiveEstimator, RescoredEstimator
from dare.curriculum.estimators.dynamic import DynamicEstimator, GresoEstimator
from dare.curriculum.estimators.paper import PaperEstimator
from dare.errors import InvalidInput, require


@dataclass(frozen=True)
class Services:
    """What the curriculum cannot do without a model; give those that your settings use.

    entropy(rows)   mean token entropy of a short prefix a prompt
    ask(rows)       the policy's replies to the judge's question
    decode(tokens)  text of a buffered response, for hints
    hint(text, answer, prompt)  what may be shown of it: `dare_hints.hint`
    teacher         predicts success from that of references: `dare.teacher.head.TeacherHead`
    embeddings      one row a prompt (cold start, teacher)
    solutions(rows) `solution_statistics` of each reference solution, NaN where there is none
    states(rows)    the policy's state on each prompt, a row each
    lengths         tokens of every prompt
    """

    entropy: Measure | None = None
    ask: Callable[[Array], Replies] | None = None
    decode: Callable[[Array], str] | None = None
    hint: Callable[[str, str | None, str], list[str]] | None = None
    teacher: Teacher | None = None
    embeddings: Array | None = None
    solutions: Measure | None = None
    states: Measure | None = None
    lengths: Array | None = None


_SHIPPED: dict[str, type[Estimator]] = {
    "dare": LiveEstimator,
    "dare-rescored": RescoredEstimator,
    "paper": PaperEstimator,
    "previous-fr": PreviousEstimator,
    "posterior": PosteriorEstimator,
    "current-fr": CurrentEstimator,
    "dynamic": DynamicEstimator,
    "greso": GresoEstimator,
    "entropy": EntropyEstimator,
    "judge": JudgeEstimator,
    "teacher": TeacherEstimator,
    "uniform": UniformEstimator,
}


def estimator_class(config: CurriculumConfig) -> type[Estimator]:
    """The class behind `estimator.name`; it says what it needs before anything is built."""
    name = config.estimator.name
    if name in _SHIPPED:
        return _SHIPPED[name]
    found = imported("estimator.name", name)
    own = isinstance(found, type) and issubclass(found, Estimator)
    require(own, "estimator.name", name, "must be a subclass of dare.curriculum.Estimator")
    return found


def wanted_scores(config: CurriculumConfig) -> Wanted:
    """Which behaviour log-probs a run with these settings reads, before anything is built."""
    return with_replay(estimator_class(config).scores, config)


def with_replay(scores: Wanted, config: CurriculumConfig) -> Wanted:
    """What an estimator wants, and with replay at least what is trained on, for the ratios."""
    return "trained" if scores == "none" and config.replays else scores


def build_estimator(
    config: CurriculumConfig, count: int, buffer: RolloutBuffer, services: Services
) -> Estimator:
    """The estimator that `estimator.name` names, over `count` prompts."""
    kind: Any = estimator_class(config)
    settings, name, given = config.estimator, config.estimator.name, services
    required = name in _SHIPPED and not issubclass(kind, LiveEstimator)  # they take what there is
    for service in sorted(kind.needs) if required else ():
        fix = f"pass Services({service}=...): the estimator {name!r} needs it"
        require(getattr(given, service) is not None, f"services.{service}", None, fix)
    wanted = _groups_of_a_step(config)
    readings = given.states, given.solutions, given.lengths
    arguments: dict[str, Callable[[], tuple[Any, ...]]] = {
        "dare": lambda: readings,
        "dare-rescored": lambda: (buffer, *readings),
        "paper": lambda: (buffer, settings),
        "previous-fr": lambda: (buffer,),
        "posterior": lambda: (settings.posterior_discount,),
        "current-fr": lambda: (
            *(settings.target_low, settings.target_high),
            *(wanted, settings.max_probes),
        ),
        "dynamic": lambda: (wanted, settings),
        "greso": lambda: (wanted, settings),
        "entropy": lambda: (given.entropy, settings.candidates),
        "judge": lambda: (given.ask, settings.candidates),
        "teacher": lambda: (given.teacher, given.embeddings, settings.references),
        "uniform": lambda: (),
    }
    # One of your own: the buffer and all settings, where it has a constructor for them.
    plain = kind.__init__ is Estimator.__init__
    own = arguments.get(name, lambda: () if plain else (buffer, config))
    try:
        estimator: Estimator = kind(count, *own())
    except InvalidInput:
        raise
    except Exception as error:  # of the constructor of an own one
        where = raised_by(kind, error) or "takes (count), or (count, buffer, config)"
        raise InvalidInput(f"estimator {name}", error, where) from error
    estimator.probe_group = config.medium.group_size
    return estimator


def _groups_of_a_step(config: CurriculumConfig) -> int:
    """Medium groups that fill what a step generates, for estimators that train on their probes."""
    fit = max(1, int(config.fresh_share * config.rollout_budget) // config.medium.group_size)
    return min(fit, config.prompts_per_step or fit)
