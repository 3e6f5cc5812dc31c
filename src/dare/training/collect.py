"""From a plan to scored rollouts, each process its share."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dare.curriculum.arrays import Array
from dare.curriculum.buffer import ScoreRequest
from dare.curriculum.estimators.base import Measured
from dare.curriculum.estimators.dare.features import STATISTICS, solution_statistics
from dare.curriculum.plan import StepPlan
from dare.curriculum.rollouts import Conditioning, RolloutBatch
from dare.policy.generate import Generated, GenerationRequest
from dare.policy.policy import Policy
from dare.rewards.calling import Rewards, Scored, Values
from dare.runs.folder import plain
from dare.training.company import Company, packed, unpacked
from dare.training.phases import Phases
from dare.training.prompts import PromptStore
from dare.training.undisturbed import undisturbed
from dare_decoder import Sampling
from dare_decoder.batching import IntArray

_LOG = logging.getLogger(__name__)

_OF_ENGINE = ("drawn", "sampled")


@dataclass
class Together:
    """Rollouts of all processes in their order, and what rewards said of them."""

    tokens: list[Array]
    finish_R: Array
    reward: Values
    success: Values
    told: list[dict[str, Any]]
    """Of each what every function gave, and what it logged."""
    means: dict[str, float]
    """Mean and deviation of each function, and means of what was logged."""
    drawn: list[Array]
    """Log-probs by the engine that drew them; none where it was the policy."""


def told_of(scores: Scored, count: int) -> list[dict[str, Any]]:
    """Per rollout: `rewards` by function, and the columns that functions logged."""
    values, extra = scores.by_function, scores.extra
    return [
        {"rewards": {name: one[row] for name, one in values.items()}}
        | ({"extra": {name: one[row] for name, one in extra.items()}} if extra else {})
        for row in range(count)
    ]


def means_of(told: list[dict[str, Any]], metrics: list[dict[str, list[float]]]) -> dict[str, float]:
    """Mean and deviation of each function's rewards, and means of the metrics of each process.

    In an order that does not depend on how the rollouts were shared.
    """
    values: dict[str, float] = {}
    for name in sorted({name for one in told for name in one["rewards"]}):
        given = (one["rewards"].get(name) for one in told)
        known = sorted(value for value in given if value is not None)
        if known:
            values[f"rewards/{name}/mean"] = float(np.mean(known))
        if len(known) > 1:
            values[f"rewards/{name}/std"] = float(np.std(known, ddof=1))
    for name in sorted({name for one in metrics for name in one}):
        values[name] = float(np.mean(sorted(v for one in metrics for v in one.get(name, []))))
    return values


def as_arrays(generated: Generated, scores: Scored) -> dict[str, Array]:
    """A process's rollouts and their rewards, to gather."""
    told = told_of(scores, len(generated.tokens))
    return {
        "length": np.array([len(tokens) for tokens in generated.tokens], np.int64),
        "tokens": np.concatenate([np.empty(0, np.int32), *generated.tokens]).astype(np.int32),
        "drawn": np.concatenate([np.empty(0), *(generated.logprobs or [])]).astype(np.float32),
        "finish": np.asarray(generated.finish_R, np.int64),
        "reward": np.array(scores.reward, float),  # None is NaN there, which no reward can be
        "success": np.array(scores.success, float),
        "words": packed(plain({"told": told, "metrics": scores.metrics})),
    }


def put_together(company: Company, parts: Sequence[Mapping[str, Array]]) -> Together:
    """The rollouts of all processes, from the arrays of each."""
    words = [unpacked(part["words"]) for part in parts]
    told = company.in_order([one["told"] for one in words])

    def column(name: str) -> list[Any]:
        return company.in_order([part[name].tolist() for part in parts])

    def known(name: str) -> Values:
        return [None if math.isnan(value) else value for value in column(name)]

    def by_rollout(name: str) -> list[Any]:  # what is behind the last end is nothing
        ends = [np.cumsum(part["length"]) for part in parts]
        cut = [np.split(part[name], end)[:-1] for part, end in zip(parts, ends, strict=True)]
        return company.in_order(cut)

    by_engine = any(len(part["drawn"]) for part in parts)
    return Together(
        by_rollout("tokens"),
        np.array(column("finish"), np.int64),
        known("reward"),
        known("success"),
        told,
        means_of(told, [one["metrics"] for one in words]),
        by_rollout("drawn") if by_engine else [],
    )


class Collector:
    """Generates, rewards and scores what a plan asks for.

    All processes hold the same plan; each does every n-th rollout and they exchange the results,
    so that all of them end up with the same batch in the same order.
    """

    def __init__(
        self,
        store: PromptStore,
        policy: Policy,
        rewards: Rewards,
        sampling: Sampling,
        company: Company,
        *,
        seed: int,
    ) -> None:
        self.store, self.policy, self._rewards = store, policy, rewards
        self._sampling, self.company, self.seed = sampling, company, seed
        self.tells_success = True
        """Whether rewards have said what a success is; once they have not, none is believed."""
        self.told: list[dict[str, Any]] = []
        """Of each of the last rollouts, what every function gave and what it logged."""
        self.logged: dict[str, float] = {}
        """Means of what functions logged since it was cleared."""
        self.drawn: dict[int, Array] = {}
        """By row of the last plan: log-probs by the engine that drew it, where it was not the
        policy."""
        self.sampled: dict[int, Array] = {}
        """The policy's own of the same, of the rows that a pass before the update has read."""

    def rollouts(
        self, plan: StepPlan, phases: Phases, purpose: str, scored: Collection[int] = ()
    ) -> RolloutBatch:
        """The plan's rollouts with rewards, complete on every process.

        Behaviour log-probs come with the update, but for the kinds of conditioning in `scored`.
        """
        rows = plan.rows()
        mine = self.company.share(len(rows["prompt"]))
        prompts, prompt_R = self.prompt_tokens(plan, rows, mine)
        most_R, key = rows["max_tokens"][mine], (plan.step, purpose)
        with phases.measure("generate"):
            generated = self.generate(prompts, prompt_R, mine, most_R, key, logprobs=True)
        with phases.measure("reward"):
            scores = self.judge(rows["prompt"][mine], generated.tokens)
        everyone = self.together(generated, scores)
        self.told = everyone.told
        self.drawn, self.sampled = dict(enumerate(everyone.drawn)), {}
        self.logged |= everyone.means
        batch = RolloutBatch.from_lists(
            rows["prompt"],
            everyone.tokens,
            None,
            everyone.reward,
            conditioning=rows["conditioning"],
            finish=everyone.finish_R,
            success=everyone.success,
        )
        phases.count("generated", batch.length_R.sum())
        wanted = np.flatnonzero(np.isin(rows["conditioning"], [int(kind) for kind in scored]))
        if not len(wanted):
            return batch
        shown = {int(row): prompts[prompt_R[place]] for place, row in enumerate(mine)}
        with phases.measure("score"):
            return self.with_behaviour(batch, wanted, phases, shown)

    def generate(
        self,
        prompts: Sequence[IntArray],
        prompt_R: Array,
        noise_R: Array,
        most_R: Any,
        key: tuple[int, str],
        sampling: Sampling | None = None,
        *,
        logprobs: bool = False,
    ) -> Generated:
        """A response to each of these prompts, as long as it may be and the context has room.

        Its random numbers are those of the run's seed, the `key` (step and purpose) and its noise.
        """
        room = np.array([self.policy.room(prompts[p]) for p in prompt_R], dtype=np.int64)
        most = np.maximum(1, np.minimum(most_R, room))
        request = GenerationRequest(prompts, prompt_R, most, noise_R, self.seed, *key, logprobs)
        return self.policy.generate(request, sampling or self._sampling)

    def together(self, generated: Generated, scores: Scored) -> Together:
        """What all processes generated, each its share, with the rewards."""
        parts = self.company.gather(**as_arrays(generated, scores))
        found = put_together(self.company, parts)
        found.success = self.believed(found.reward, found.success)
        return found

    def with_behaviour(
        self,
        batch: RolloutBatch,
        rows: IntArray,
        phases: Phases,
        shown: dict[int, IntArray] | None = None,
    ) -> RolloutBatch:
        """The batch with the log-probs of these rows under the policy that has just drawn them.

        For rows that no update will read under the prompt they were `shown` (their plain one
        unless given). Every process takes part.
        """
        everyone = [share[np.isin(share, rows)] for share in self.company.shares(len(batch))]
        mine = everyone[self.company.rank]
        prompts = [
            self.store.tokens(int(batch.prompt_R[row])) if shown is None else shown[int(row)]
            for row in mine
        ]
        responses = [batch.response(int(row)) for row in mine]
        scores = self.policy.score(prompts, responses, self._sampling, drawn=True)
        phases.count("scored", batch.length_R[rows].sum())
        more = {"sampled": scores.sampled} if self.drawn else {}
        found = self.company.gather(logprobs=scores.logprobs, total=scores.total, **more)
        read = np.concatenate(everyone)
        ends = np.cumsum(batch.length_R[read])[:-1]
        if self.drawn:
            sampled = np.split(np.concatenate([one["sampled"] for one in found]), ends)
            given = zip(read.tolist(), sampled, strict=True)
            self.sampled |= {row: part for row, part in given if row in self.drawn}
        flat, total = (np.concatenate([one[n] for one in found]) for n in ("logprobs", "total"))
        return batch.with_behaviour(read, np.split(flat, ends), total)

    def reference(self, batch: RolloutBatch, prompts: Sequence[IntArray]) -> Array:
        """Log-probs of all tokens under the policy as it started. Every process takes part."""
        shares = self.company.shares(len(batch))
        mine = shares[self.company.rank].tolist()
        responses = [batch.response(row) for row in mine]
        found = self.policy.reference_score(
            [prompts[row] for row in mine], responses, self._sampling
        )
        flat = np.zeros(int(batch.offsets[-1]), found.logprobs.dtype)
        for share, one in zip(shares, self.company.gather(told=found.logprobs), strict=True):
            flat[np.isin(np.repeat(np.arange(len(batch)), batch.length_R), share)] = one["told"]
        return flat

    def of_engine(self, batch: RolloutBatch) -> dict[str, Array]:
        """`drawn` and `sampled` of all tokens of a batch that begins with the last plan's rows;
        NaN where they are not known. Nothing where no engine told its log-probs."""
        if not self.drawn:
            return {}
        flat = {name: np.full(int(batch.offsets[-1]), np.nan, np.float32) for name in _OF_ENGINE}
        for name, values in flat.items():
            for row, part in getattr(self, name).items():
                values[batch.offsets[row] : batch.offsets[row + 1]] = part
        return flat

    def prompt_tokens(
        self, plan: StepPlan, rows: dict[str, IntArray], mine: IntArray
    ) -> tuple[list[IntArray], IntArray]:
        """Distinct prompts (by place in the plan and conditioning), and which each rollout has."""
        key = rows["place"][mine].astype(np.int64) * len(Conditioning) + rows["conditioning"][mine]
        distinct, inverse = np.unique(key, return_inverse=True)
        prompts = []
        for value in distinct.tolist():
            place, conditioning = divmod(value, len(Conditioning))
            row = int(plan.prompt_P[place])
            prompts.append(self.shown(row, conditioning, plan.hints[place]))
        return prompts, inverse.reshape(-1)

    def shown(self, row: int, conditioning: int, hint: list[str]) -> IntArray:
        """The prompt under its conditioning; help that does not fit is left out."""
        tokens = self.store.tokens(row, conditioning, hint)
        return tokens if len(tokens) < self.policy.context else self.store.tokens(row)

    def judge(
        self, rows: IntArray, tokens: list[IntArray], store: PromptStore | None = None
    ) -> Scored:
        """Rewards of these responses, as text (or messages, where the prompt is messages)."""
        store = store or self.store
        if not len(rows):
            return Scored([], [])
        texts = self.policy.tokenizer.batch_decode(tokens, skip_special_tokens=True)
        prompts = [store.records[row]["prompt"] for row in rows.tolist()]
        completions = [
            text if isinstance(prompt, str) else [{"role": "assistant", "content": text}]
            for prompt, text in zip(prompts, texts, strict=True)
        ]
        columns = store.columns(rows.tolist())
        given, ids = store.table.dataset_row_P[rows].tolist(), [t.tolist() for t in tokens]
        with undisturbed(self.policy.module, self._rewards.names):
            return self._rewards(prompts, completions, ids, columns, given)

    def believed(self, reward: Values, success: Values) -> Values:
        """Successes of the rollouts of all processes, or none at all.

        Without a rule, some rewards outside [0, 1] make those inside no successes either: to count
        only the latter would call every prompt easy.
        """
        pairs = zip(reward, success, strict=True)
        lost = any(value is not None and told is None for value, told in pairs)
        if lost and self.tells_success and self._rewards.rule is None:
            self.tells_success = False
            if self.company.rank == 0:
                _LOG.warning(
                    "rewards outside [0, 1] do not tell what a success is: the run trains on them, "
                    "but nothing is learnt of the difficulty of prompts. Set success_threshold to "
                    "the reward that a success takes, or to a function"
                )
        return success if self.tells_success else [None] * len(success)

    def rescore(self, request: ScoreRequest) -> Array:
        """Scorer for `Curriculum.refresh`: plain rollouts of the buffer, shared over processes."""
        batch = request.rollouts
        mine = self.company.share(len(batch))
        prompts = [self.store.tokens(int(row)) for row in batch.prompt_R[mine]]
        responses = [batch.response(int(row)) for row in mine]
        scores = self.policy.score(prompts, responses, self._sampling)
        return self.company.exchange(scores.total)

    def read_states(self, rows: Array) -> Measured:
        """The policy's state on these prompts, shared over processes."""
        mine = self.company.share(len(rows))
        prompts = [self.store.tokens(int(rows[place])) for place in mine]
        states = self.company.exchange(self.policy.states(prompts))
        return Measured(states, int(self.store.lengths[rows].sum()))

    def read_solutions(self, rows: Array, longest: int) -> Measured:
        """What `solution_statistics` says of these prompts' reference solutions; NaN without."""
        mine = self.company.share(len(rows))
        solutions = [self.store.solution(int(row))[:longest] for row in rows[mine]]
        there = [place for place, tokens in enumerate(solutions) if len(tokens)]
        prompts = [self.store.tokens(int(rows[mine[place]])) for place in there]
        # Over the full vocabulary: a solution that leaves the nucleus must not become -inf.
        plain = Sampling(self._sampling.temperature, 1.0, 0)
        scores = self.policy.score(prompts, [solutions[place] for place in there], plain)
        values = np.full((len(mine), STATISTICS), np.nan)
        if there:
            sizes = np.array([len(solutions[place]) for place in there])
            number = self.store.holds_digit(np.concatenate([solutions[place] for place in there]))
            values[there] = solution_statistics(scores.logprobs.astype(np.float64), sizes, number)
        values = self.company.exchange(values)
        return Measured(values, int(np.nansum(values[:, 0])))
