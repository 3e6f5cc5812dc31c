"""Curriculum: plan a step, learn from its outcome, keep difficulty live."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from dare.config import CurriculumConfig
from dare.curriculum.arrays import Array, keyed_rng, to_numpy
from dare.curriculum.batch import TrainBatch, build_batch
from dare.curriculum.buffer import RolloutBuffer, Scorer, choose_stale
from dare.curriculum.coldstart import ColdStart, check_embeddings
from dare.curriculum.estimators.base import Wanted, check_rates
from dare.curriculum.estimators.build import Services, build_estimator, with_replay
from dare.curriculum.metrics import step_metrics
from dare.curriculum.plan import StepPlan
from dare.curriculum.planner import Planner
from dare.curriculum.prompts import PromptTable
from dare.curriculum.rollouts import Outcome, RolloutBatch
from dare.curriculum.selection import Selector
from dare.curriculum.snapshot import FORMAT, fitting
from dare.curriculum.tiers import TierPolicy
from dare.errors import InvalidInput, require

_RESTING = 50.0  # in log: one that rests comes after others of its kind,
_POOREST = 20.0  # but before those whose chance is so many times lower


class Curriculum:
    """The engine-free heart of DARE. One step of training is

        plan = curriculum.plan()                  # probe plans come first where needed
        batch = curriculum.observe(rollouts)      # rollouts of that plan, with rewards
        ... update the policy on batch; its own pass gives the log-probs of now ...
        curriculum.record_behaviour(...)          # of fresh rollouts, where they came without
        curriculum.record_scores(...)             # of replayed ones
        curriculum.refresh(scorer, token_budget)  # realign the estimates with it

    Every draw is keyed by (seed, step, purpose): the same calls give the same plans on every
    process and after a resume.
    """

    def __init__(
        self,
        prompts: PromptTable,
        config: CurriculumConfig | None = None,
        services: Services | None = None,
    ) -> None:
        require(len(prompts), "prompts", len(prompts), "give at least one prompt")
        self.prompts, self.config = prompts, config or CurriculumConfig()
        self.services = services or Services()
        self.buffer = RolloutBuffer(
            self.config.buffer.rollouts_per_prompt, self.config.buffer.groups
        )
        count = len(prompts)
        self.estimator = build_estimator(self.config, count, self.buffer, self.services)
        self.tiers = TierPolicy(self.config)
        self.selector = Selector(self.config.selection, self.config.buffer.rollouts_per_prompt)
        self._planner = Planner(self.config, prompts, self.buffer, self.tiers, self.services)
        self.step = 0
        self.visits_P = np.zeros(count, np.int64)
        self.last_step_P = np.full(count, -1, np.int64)
        self.cold_start = self._build_cold_start()
        self._probes = 0
        self._pending: StepPlan | None = None
        self._metrics: dict[str, float] = {}

    def plan(self) -> StepPlan:
        """What to roll out now. Asking again before `observe` gives the same plan."""
        if self._pending is None:
            self._pending = self._next_plan()
        return self._pending

    def observe(self, rollouts: RolloutBatch) -> TrainBatch | None:
        """Learn from the rollouts of the plan; returns what to train on (None after a probe).

        Rollouts may be missing (a lost worker), unscored or without log-probs (`record_behaviour`),
        but none may be of a prompt that the plan does not have. A bad batch changes nothing.
        """
        plan = self.plan()
        self.prompts.check_rows(rollouts.prompt_R)
        strangers = ~np.isin(rollouts.prompt_R, plan.prompt_P)
        if strangers.any():
            name = self.prompts.ids(rollouts.prompt_R[strangers][:1])[0]
            raise InvalidInput("prompt id", name, "is not in the current plan; observe() its plan")
        if plan.train:
            position = self.buffer.members(plan.replay)
            batch = build_batch(
                rollouts,
                plan,
                self.buffer,
                position,
                self.estimator.difficulty(),
                self.tiers,
                self.config.advantage,
                keyed_rng(self.config.seed, self.step, "thin"),
            )
        else:
            batch = None
        predicted = self.estimator.difficulty()
        outcome = Outcome.of(rollouts, self.step)
        errors = np.abs(predicted[outcome.prompt_Q] - outcome.failures_Q / outcome.trials_Q)
        self.buffer.count_replay(plan.replay, self.step)
        self.buffer.add(rollouts, self.step)
        visited = np.unique(rollouts.prompt_R[rollouts.plain_R & rollouts.scored_R])
        self.visits_P[visited] += 1
        self.last_step_P[plan.prompt_P] = self.step  # drawn, whether or not it was scored
        if not self.cold_start.finished:
            self._learn_cold_start(plan, outcome)
        self.estimator.observe(outcome)
        self._metrics = {
            **step_metrics(plan, rollouts, batch, errors),
            "coverage": self.coverage,
            "buffered_rollouts": len(self.buffer),
            **self.estimator.metrics(),
        }
        self._pending = None
        self._probes = 0 if plan.train else self._probes + 1
        self.step += plan.train
        return batch

    def refresh(self, scorer: Scorer | None = None, token_budget: int = 0) -> int:
        """Realign estimates with the policy of now; returns the tokens that this cost.

        Within `token_budget` the estimator reads what the policy says of prompts; rescoring has
        what is left: `scorer` gives total log-probs of buffered rollouts under the current policy.
        Call it after the policy was updated.
        """
        rng = keyed_rng(self.config.seed, self.step, "read")
        spent = self.estimator.read(self.step, rng, token_budget)
        if scorer is not None and self.estimator.rescores:
            request = choose_stale(self.buffer, self._chance, self.step, token_budget - spent)
            if len(request.uid_R):
                self.buffer.rescore(request.uid_R, scorer(request), self.step)
                spent += int(request.rollouts.offsets[-1])
        rng = keyed_rng(self.config.seed, self.step, "refresh")
        spent += self.estimator.refresh(self.step, rng)
        self._pending = None
        return spent

    @property
    def wants_scores(self) -> Wanted:
        """Whose behaviour log-probs are read, by the estimator or for replay.

        "trained" ones come with the update; for "all" the loop scores the other plain rollouts too.
        Helped rollouts (`config.helps`) that are trained on without their help are a case of their
        own: the update reads them under another prompt than they were sampled from.
        """
        return with_replay(self.estimator.scores, self.config)

    def record_behaviour(
        self, uid_R: Array, logprobs: Any, total_logprob_R: Any, offsets: Any = None
    ) -> None:
        """Log-probs of fresh rollouts, found after `observe` by a pass of the policy that sampled.

        `logprobs` is a list with one array a rollout, or flat with `offsets` (R + 1 of them). Call
        it before `refresh`. Rollouts that have left the buffer are ignored, as are those that have
        log-probs already. A bad list changes nothing.
        """
        if offsets is not None:
            flat, ends = to_numpy(logprobs, np.float32, "logprobs"), np.asarray(offsets)
            fix = f"must begin at 0 and end at {len(flat)}, the number of log-probs"
            good = len(ends) > 0 and ends[0] == 0 and ends[-1] == len(flat)
            require(good, "offsets", ends.tolist()[:1] + ends.tolist()[-1:], fix)
            logprobs = [flat[a:b] for a, b in pairwise(ends.tolist())]
        self.buffer.record_behaviour(uid_R, logprobs, total_logprob_R)
        self._pending = None

    def record_scores(self, uid_R: Array, total_logprob_R: Array, step: int | None = None) -> None:
        """Free scores: log-probs of replayed rollouts that the training forward pass gave anyway.

        `step` is the plan's: the policy that was scored is the one before that step's update. Of
        rollouts sampled in that step there is nothing to learn: they are skipped.
        """
        at = self.step if step is None else step
        uid, total = np.asarray(uid_R), np.asarray(total_logprob_R)
        place = self.buffer.position(uid)
        require(len(total) == len(uid), "scores", len(total), f"must have {len(uid)} entries")
        older = np.flatnonzero(place >= 0)
        older = older[self.buffer["step"][place[older]] < at]
        self.buffer.rescore(uid[older], total[older], at)

    def difficulty(self) -> Array:
        """Estimated failure rate of every prompt for the policy as it is now (a copy).

        The estimate nearest to the truth; draws and tiers use the estimator's own `difficulty`,
        which may be another read-out of the same belief.
        """
        return self.estimator.median().copy()

    @property
    def coverage(self) -> float:
        """Share of the prompts that have been rolled out at least once."""
        return float(np.count_nonzero(self.visits_P)) / len(self.prompts)

    def metrics(self) -> dict[str, float]:
        """Figures of the last observed step."""
        return dict(self._metrics)

    def table(self) -> dict[str, Any]:
        """The difficulty table as columns, one row a prompt."""
        prompts = self.prompts
        difficulty = self.estimator.difficulty()
        untried = "cold-start" if self.estimator.uses_prior else "forecast"
        return {
            "id": prompts.ids(),
            "source": [prompts.sources[code] for code in prompts.source_P.tolist()],
            "level": [prompts.levels[code] for code in prompts.level_P.tolist()],
            "difficulty": self.difficulty(),
            "tier": self.tiers.assign(difficulty),
            "evidence": self.estimator.evidence(),
            "estimate": np.where(self.visits_P > 0, self.config.estimator.name, untried),
            "visits": self.visits_P.copy(),
            "last_step": self.last_step_P.copy(),
        }

    def state_dict(self) -> dict[str, Any]:
        """{'arrays': name -> array, 'meta': JSON-able}: all that a resume needs, no pickle."""
        buffer, estimator = self.buffer.state_dict(), self.estimator.state_dict()
        cold = self.cold_start
        arrays = {
            "prompts/key": self.prompts.key_P,
            "prompts/visits": self.visits_P.copy(),
            "prompts/last_step": self.last_step_P.copy(),
            **{f"buffer/{name}": array for name, array in buffer["arrays"].items()},
            **{f"estimator/{name}": array.copy() for name, array in estimator["arrays"].items()},
            **{f"cold/{name}": array.copy() for name, array in cold.arrays.items()},
        }
        meta = {
            "format": FORMAT,
            "step": self.step,
            "cold": not cold.finished,
            "references": cold.planned,
            "probes": self._probes,
            "config": self.config.to_dict(),
            "buffer": buffer["next"],
            "estimator": estimator["scalars"],
            "metrics": self.metrics(),
        }
        return {"arrays": arrays, "meta": meta}

    def load_state_dict(self, state: Mapping[str, Any], *, new_data: bool = False) -> None:
        """Continue where `state` was taken. Other prompts or settings are refused.

        With `new_data`, prompts may have been added or removed: what is known is kept by id.
        """
        before = self.state_dict()
        arrays = fitting(state, before, new_data=new_data)
        try:
            self._apply(arrays, state["meta"])
        except (InvalidInput, KeyError, ValueError):
            self._apply(before["arrays"], before["meta"])
            raise
        self._pending = None

    def _apply(self, arrays: Mapping[str, Array], meta: Mapping[str, Any]) -> None:
        def part(prefix: str) -> dict[str, Array]:
            return {n.removeprefix(prefix): a for n, a in arrays.items() if n.startswith(prefix)}

        self.buffer.load_state_dict({"arrays": part("buffer/"), "next": meta["buffer"]})
        scalars = {"arrays": part("estimator/"), "scalars": meta["estimator"]}
        self.estimator.load_state_dict(scalars)
        planned, finished = int(meta["references"]), not meta["cold"]
        self.cold_start.load(part("cold/"), planned, finished=finished)
        self.visits_P = np.array(arrays["prompts/visits"], np.int64)
        self.last_step_P = np.array(arrays["prompts/last_step"], np.int64)
        self.step = int(meta["step"])
        self._probes = int(meta["probes"])
        self._metrics = dict(meta["metrics"])

    def _tier_P(self) -> Array:
        return self.tiers.assign(self.estimator.difficulty())

    def _chance(self, rows: Array) -> Array:
        """Chance of these rows to be drawn, among all prompts."""
        return self.selector.probability(self._signal(), self._tier_P())[rows]

    def _signal(self) -> Array:
        """What the selector draws by: the estimator's signal, or the log of what a group is worth.

        A group teaches where it is mixed; where the length of responses is foreseen, the chance of
        that counts per token. Prompts that were drawn a few steps ago wait until the others of
        their kind have had their turn.
        """
        selection = self.config.selection
        if selection.name != "value":
            return self.estimator.signal()
        chance = self.estimator.mixed(self.config.medium.group_size)
        worth = selection.sharpness * np.log(np.maximum(chance, 1e-9))
        tokens = self.estimator.tokens()
        if tokens is not None:
            worth = worth - selection.per_token * np.log(np.maximum(tokens, 1.0))
        a_cycle = len(self.prompts) / (2 * self._planner.usual_prompts)
        resting = self.step - self.last_step_P <= min(selection.rest, a_cycle)
        behind = max(_RESTING, selection.sharpness * np.log(_POOREST))
        return np.where(resting & (self.last_step_P >= 0), worth - behind, worth)

    def _next_plan(self) -> StepPlan:
        seed, step = self.config.seed, self.step
        name = f"estimator {self.config.estimator.name}: difficulty"
        difficulty = check_rates(self.estimator.difficulty(), len(self.prompts), name)
        if not self.cold_start.finished:
            rows, size = self.cold_start.waiting, self.config.cold_start.group_size
            if not self.config.cold_start.train:
                return self._planner.probe(step, rows, difficulty, size)
            return self._planner.first(step, rows, difficulty, size, keyed_rng(seed, step, "fill"))
        probe = self.estimator.probe(step, keyed_rng(seed, step, f"probe {self._probes}"))
        if probe is not None:
            return self._planner.probe(step, probe, difficulty, self.estimator.probe_group)
        sample = None
        if self.config.selection.name == "thompson":
            sample = self.estimator.sample(keyed_rng(seed, step, "thompson"))
        rows = self.selector.draw(
            self._signal(),
            self._tier_P(),
            self.last_step_P >= 0,
            self._planner.most_prompts,
            keyed_rng(seed, step, "draw"),
            sample,
            self._planner.usual_prompts,
        )
        groups, room = self._planner.replay(step, keyed_rng(seed, step, "replay"))
        kept = self.estimator.keep(step)
        if kept is not None:
            # These groups were rolled out in this very step: they may fill all that replay leaves.
            own_rng = keyed_rng(seed, step, "own groups")
            groups = self._planner.with_own(groups, room, kept, step, own_rng)
            room = self.config.rollout_budget
            rows = self._planner.beside(kept, rows)
        return self._planner.train(step, rows, difficulty, groups, room, self.estimator.mixed)

    def _build_cold_start(self) -> ColdStart:
        """Finished from the start where nobody uses it."""
        config, count, embeddings = self.config.cold_start, len(self.prompts), None
        if self.services.embeddings is not None:
            embeddings = check_embeddings(self.services.embeddings, count)
        if not self.estimator.uses_prior:
            config = replace(config, references=0)
        return ColdStart(count, config, self.config.seed, embeddings)

    def _learn_cold_start(self, plan: StepPlan, outcome: Outcome) -> None:
        """References have come out: spread their difficulty over all prompts (METHOD 3)."""
        self.cold_start.observe(plan.prompt_P, outcome)
        prior = self.cold_start.prior()
        self.estimator.set_prior(prior)
