"""One training run that every estimator watches, and the true failure rates at chosen steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from transformers import TrainerCallback

from dare.config import CurriculumConfig, nest
from dare.config.nested import merge
from dare.curriculum.arrays import Array, compact, keyed_rng
from dare.curriculum.buffer import RolloutBuffer
from dare.curriculum.coldstart import check_embeddings, choose_references
from dare.curriculum.curriculum import Curriculum
from dare.curriculum.estimators import Estimator, estimator_class
from dare.curriculum.estimators.baselines import (
    EntropyEstimator,
    JudgeEstimator,
    Teacher,
    TeacherEstimator,
)
from dare.curriculum.estimators.paper import effective_sample_size, snis_difficulty, weights
from dare.curriculum.rollouts import Outcome
from dare.errors import InvalidInput, require, suggest
from dare.study.shadows import Shadows
from dare.study.single import fresh_rollouts
from dare.study.watchers import WATCHING, Cost
from dare.teacher.head import TeacherHead

if TYPE_CHECKING:
    from dare.training.trainer import DareTrainer

ASKED = {
    "teacher": "DOTS: a head over embeddings and fresh rollouts of reference prompts",
    "entropy": "EDCO: token entropy of a prefix, from the lowest to the highest measured",
    "judge": "LLM-judge: the policy's own word",
    "current-fr": "a fresh group of rollouts",
}


class Asked:
    """Measures each at a chosen step; its tokens count under its own name, never in the run."""

    def __init__(
        self, trainer: DareTrainer, embeddings: Array | None, teacher: Teacher | None = None
    ) -> None:
        self._trainer, self._embeddings, self._teacher = trainer, embeddings, teacher
        self.costs: dict[str, Cost] = {}

    def estimate(self, name: str, rows: Array) -> Array:
        """Failure rates of these prompts by the estimator of that name."""
        cost = self.costs.setdefault(name, Cost())
        measure = {"teacher": self._by_teacher, "current-fr": self._by_rollouts}
        with cost.measure():
            found = measure.get(name, self._by_asking)(name, rows, cost)
        # The teacher's references serve every prompt; the others answer for those asked about.
        cost.estimates += len(self._trainer.store) if name == "teacher" else len(rows)
        return found

    def _by_rollouts(self, _: str, rows: Array, cost: Cost) -> Array:
        group = self._trainer.settings.medium.group_size
        fresh = fresh_rollouts(self._trainer, rows, group, "study current-fr")
        cost.generated += fresh.tokens
        return np.where(fresh.trials_Q > 0, fresh.rate_Q, 0.5)

    def _by_asking(self, name: str, rows: Array, cost: Cost) -> Array:
        """The policy about these prompts alone: the entropy of a prefix of it, or its word."""
        assert self._trainer.curriculum is not None, "the run has begun"
        services = self._trainer.curriculum.services
        ask: Any = services.entropy if name == "entropy" else services.ask
        kind: Any = EntropyEstimator if name == "entropy" else JudgeEstimator
        estimator: Estimator = kind(len(rows), lambda places: ask(rows[places]))
        tokens = estimator.refresh(self._step, self._rng(name))
        cost.generated += tokens
        cost.scored += tokens if name == "entropy" else 0
        return estimator.difficulty()

    def _by_teacher(self, _: str, rows: Array, cost: Cost) -> Array:
        """References are drawn from the other prompts: none of those asked about is measured."""
        assert self._embeddings is not None, "prompts are embedded where the teacher takes part"
        count = len(self._embeddings)
        others = np.setdiff1d(np.arange(count), rows)
        wanted = CurriculumConfig.preset("dots").estimator.references
        references = others[choose_references(len(others), wanted, self._rng("references"))]
        group = self._trainer.settings.medium.group_size
        fresh = fresh_rollouts(self._trainer, references, group, "study references")
        cost.generated += fresh.tokens
        head = self._teacher or TeacherHead.init(self._embeddings.shape[1])
        estimator = TeacherEstimator(count, head, self._embeddings, wanted)
        scored = fresh.trials_Q > 0
        trials, failures = fresh.trials_Q[scored], fresh.failures_Q[scored]
        estimator.observe(Outcome(self._step, references[scored], trials, failures))
        return estimator.difficulty()[rows]

    @property
    def _step(self) -> int:
        return int(self._trainer.state.global_step)

    def _rng(self, purpose: str) -> np.random.Generator:
        return keyed_rng(self._trainer.args.seed, self._step, f"study {purpose}")


ESTIMATORS = {**WATCHING, **ASKED}
Save = Callable[[list[dict[str, Any]]], None]


@dataclass(frozen=True)
class Measurement:
    """When the truth is measured, on how many prompts, and which estimators are held against it."""

    at: tuple[int, ...]
    prompts: int = 200
    rollouts: int = 64
    estimators: tuple[str, ...] = tuple(ESTIMATORS)
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The run's own estimator with other settings, by name: what they do to its error."""

    def __post_init__(self) -> None:
        require(self.at and min(self.at) >= 1, "--at", self.at, "name steps from 1 on")
        require(self.prompts >= 2, "--prompts", self.prompts, "needs at least 2")
        fits = 2 <= self.rollouts <= 1_000_000
        require(fits, "--rollouts", self.rollouts, "needs 2 to 1,000,000")
        for name in self.estimators:
            if name not in ESTIMATORS:
                raise InvalidInput("--estimators", name, suggest(name, ESTIMATORS))
        for name, changes in self.variants.items():
            fix = "is the name of an estimator; choose another"
            require(name not in ESTIMATORS, "--variant", name, fix)
            # An unknown setting is told before anything runs; what acts depends on the run.
            CurriculumConfig.from_dict(merge(CurriculumConfig().to_dict(), nest(changes)))


def choose_prompts(seen_P: Array, count: int, rng: np.random.Generator) -> Array:
    """Half of `count` from the seen prompts, half from the others; where one is short, the other.

    Both come from one random order: as long as a prompt's side does not change, it stays.
    """
    order = rng.permutation(len(seen_P))
    seen, unseen = order[seen_P[order]], order[~seen_P[order]]
    half = min(len(seen), max(count - count // 2, count - len(unseen)))
    return np.sort(np.concatenate([seen[:half], unseen[: count - half]]))


class EstimatorStudy(TrainerCallback):
    """Attach with `watch`; after training, `result()` has everything that was measured."""

    shadows: Shadows  # these three from the begin of training on
    _asked: Asked
    _curriculum: Curriculum

    def __init__(
        self,
        trainer: DareTrainer,
        wanted: Measurement,
        teacher: TeacherHead | None = None,
        save: Save | None = None,
    ) -> None:
        self._trainer, self._wanted, self._teacher, self._save = trainer, wanted, teacher, save
        self._watching: dict[str, Mapping[str, Any] | None] = dict.fromkeys(
            name for name in WATCHING if name in wanted.estimators
        )
        self._watching |= wanted.variants
        for name, changes in wanted.variants.items():
            fix = "has prompts rolled out for its estimate, so it cannot only watch; leave it out"
            kind = estimator_class(trainer.settings.replace(changes))
            require(kind.probe is Estimator.probe, "--variant", name, fix)
        last, steps = max(wanted.at), int(trainer.args.max_steps)
        require(last <= steps, "--at", last, f"the run ends after {steps} steps")
        if "teacher" in wanted.estimators:
            rest = len(trainer.store) - wanted.prompts
            fix = f"leave 2 of {len(trainer.store)} prompts as the teacher's references, or drop it"
            require(rest >= 2, "--prompts", wanted.prompts, fix)
        self.points: list[dict[str, Any]] = []
        self._embedding: Array | None = None
        self._embedded = 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The curriculum exists now: let the shadows listen."""
        curriculum = self._trainer.curriculum
        assert curriculum is not None, "train() has built it"
        self._curriculum = curriculum
        scorer = self._trainer.collector.rescore
        self.shadows = Shadows(curriculum, self._watching, scorer, self._embeddings)
        teacher = self._teacher or curriculum.services.teacher
        embeddings = self._embeddings() if "teacher" in self._wanted.estimators else None
        self._asked = Asked(self._trainer, embeddings, teacher)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Estimates have been realigned with the updated policy: measure where wanted."""
        step, within = divmod(state.global_step, args.updates_per_generation)
        if not within and step in self._wanted.at:
            self.points.append(self._measure())
            if self._save is not None:
                self._save(self.points)

    def _measure(self) -> dict[str, Any]:
        trainer, wanted, curriculum = self._trainer, self._wanted, self._curriculum
        seen = curriculum.visits_P > 0
        rng = keyed_rng(trainer.args.seed, 0, "study prompts")
        rows = choose_prompts(seen, min(wanted.prompts, len(seen)), rng)
        found = self.shadows.estimates(rows, curriculum.step)
        for name in ASKED:  # the fresh group is always taken: it is the intrinsic error
            if name in wanted.estimators or name == "current-fr":
                found[name] = self._asked.estimate(name, rows)
        truth = fresh_rollouts(trainer, rows, wanted.rollouts, "study truth")
        return {
            "step": int(trainer.state.global_step),
            "prompt": curriculum.prompts.ids(rows),
            "seen": seen[rows].tolist(),
            "truth": np.where(truth.trials_Q > 0, truth.rate_Q, 0.5).tolist(),
            "trials": truth.trials_Q.tolist(),
            "truth_tokens": truth.tokens,
            "truth_seconds": round(truth.seconds, 3),
            "estimates": {name: values.tolist() for name, values in found.items()},
            "sweep": self._sweep(rows),
        }

    def _sweep(self, rows: Array) -> dict[str, list[float]] | None:
        """ESS, SNIS and cold start behind the paper's estimate, as it was just rescored."""
        watcher = self.shadows.watchers.get("paper")
        if watcher is None:
            return None
        ess, difficulty = aligned(watcher.view, rows, watcher.config.estimator.clip)
        prior = np.full(len(rows), 0.5) if watcher.prior_P is None else watcher.prior_P[rows]
        return {"ess": ess.tolist(), "aligned": difficulty.tolist(), "prior": prior.tolist()}

    def result(self, metrics: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Points and costs; `metrics` are the lines of the run's metrics.jsonl."""
        trainer = self._trainer
        seconds = sum(float(line["seconds"].get("refresh", 0.0)) for line in metrics)
        costs = self.shadows.costs(seconds, len(metrics), self._embedded)
        costs.update(self._asked.costs)
        if "teacher" in costs:
            costs["teacher"].start(0, self._embedded)
        return {
            "seed": int(trainer.args.seed),
            "group": trainer.settings.medium.group_size,
            "prompts_in_all": len(trainer.store),
            "run_generated_tokens": trainer.generated_tokens,
            "solutions": trainer.store.has_solutions,
            "points": self.points,
            "cost": {name: cost.to_dict() for name, cost in costs.items()},
        }

    def _embeddings(self) -> Array:
        """The run's own, or new ones of the same policy where the run needs none."""
        if self._embedding is None:
            trainer = self._trainer
            prompts = [trainer.store.tokens(row) for row in range(len(trainer.store))]
            given = self._curriculum.services.embeddings
            given = trainer.policy.embed(prompts) if given is None else given
            self._embedding = check_embeddings(given, len(prompts))
            self._embedded = sum(len(tokens) for tokens in prompts)
        return self._embedding


def aligned(buffer: RolloutBuffer, rows: Array, clip: float) -> tuple[Array, Array]:
    """ESS and SNIS estimate of these prompts; 0 and 0.5 where the buffer has nothing of them."""
    plain = buffer.plain
    prompts, index = compact(buffer["prompt"][plain])
    weight = weights(buffer.log_ratio[plain], clip)
    reward = buffer["success"][plain].astype(np.float64)
    ess, difficulty = np.zeros(len(rows)), np.full(len(rows), 0.5)
    if len(prompts):
        place = np.minimum(np.searchsorted(prompts, rows), len(prompts) - 1)
        held = prompts[place] == rows
        ess[held] = effective_sample_size(weight, index, len(prompts))[place[held]]
        difficulty[held] = snis_difficulty(weight, reward, index, len(prompts))[place[held]]
    return ess, difficulty


def watch(
    trainer: DareTrainer,
    wanted: Measurement,
    teacher: TeacherHead | None = None,
    save: Save | None = None,
) -> EstimatorStudy:
    """Let the estimators watch a trainer's run. It trains, selects and counts as without them,
    but that it scores every rollout where one of them reads all log-probs, as the paper's does.

    `save` is given all points so far whenever one has been measured.
    """
    study = EstimatorStudy(trainer, wanted, teacher, save)
    # Added last, so that it measures after the trainer's own end of a step.
    trainer.add_callback(study)
    return study
