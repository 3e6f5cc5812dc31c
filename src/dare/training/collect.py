"""From a plan to scored rollouts, each process its share."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from accelerate.utils import gather_object

from dare.curriculum.arrays import Array
from dare.curriculum.buffer import ScoreRequest
from dare.curriculum.estimators.base import Measured
from dare.curriculum.estimators.dare.features import STATISTICS, solution_statistics
from dare.curriculum.plan import StepPlan
from dare.curriculum.rollouts import Conditioning, RolloutBatch
from dare.policy.batching import IntArray
from dare.policy.generate import GenerationRequest
from dare.policy.logprobs import Sampling
from dare.policy.policy import Policy
from dare.policy.score import Scores
from dare.rewards.calling import Rewards, Scored, Values
from dare.training.prompts import PromptStore

_LOG = logging.getLogger(__name__)

KNOBS = {
    "generate": ("max_completion_length", "not even one response at a time fits; lower it"),
    "score": ("score_batch_tokens", "lower it"),
    "refresh": ("score_batch_tokens", "lower it"),
    "train": ("per_device_train_batch_size", "halve it, or set gradient_checkpointing: true"),
}
"""The setting that a phase's memory hangs on, and what to do about it."""
_OF_ENGINE = ("drawn", "sampled")


@dataclass
class Phases:
    """Seconds and tokens of each phase of a step, and the phase of `now` (the last one begun)."""

    seconds: dict[str, float] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)
    now: str = ""

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Add the time of this block to phase `name`."""
        start = time.perf_counter()
        self.now = name
        try:
            yield
            self.now = ""
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def count(self, name: str, tokens: int) -> None:
        """Add tokens to phase `name`."""
        self.tokens[name] = self.tokens.get(name, 0) + int(tokens)


@contextmanager
def _undisturbed(model: Any) -> Iterator[None]:
    """What a user's function does to the process and to the policy's mode is undone."""
    folder, training, gradients = os.getcwd(), model.training, torch.is_grad_enabled()
    try:
        yield
    finally:
        os.chdir(folder)
        torch.set_grad_enabled(gradients)
        if model.training != training:
            model.train(training)


def told_of(scores: Scored, count: int) -> list[dict[str, Any]]:
    """Per rollout: `rewards` by function, and the columns that functions logged."""
    values, extra = scores.by_function, scores.extra
    return [
        {"rewards": {name: one[row] for name, one in values.items()}}
        | ({"extra": {name: one[row] for name, one in extra.items()}} if extra else {})
        for row in range(count)
    ]


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
        *,
        seed: int,
        rank: int,
        processes: int,
    ) -> None:
        self._store, self.policy, self._rewards = store, policy, rewards
        self._sampling, self.seed = sampling, seed
        self._rank, self._processes = rank, processes
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

    def share(self, count: int) -> IntArray:
        """Which of `count` things this process does."""
        return np.arange(self._rank, count, self._processes)

    def gather(self, items: list[Any]) -> list[Any]:
        """The items of all processes, one list after the other."""
        return list(gather_object(items)) if self._processes > 1 else items

    def rollouts(
        self, plan: StepPlan, phases: Phases, purpose: str, scored: Collection[int] = ()
    ) -> RolloutBatch:
        """The plan's rollouts with rewards, complete on every process.

        Behaviour log-probs come with the update, but for the kinds of conditioning in `scored`.
        """
        rows = plan.rows()
        mine = self.share(len(rows["prompt"]))
        prompts, prompt_R = self.prompt_tokens(plan, rows, mine)
        room = np.array([self.policy.room(prompts[p]) for p in prompt_R], dtype=np.int64)
        request = GenerationRequest(
            prompts=prompts,
            prompt_R=prompt_R,
            max_tokens_R=np.maximum(1, np.minimum(rows["max_tokens"][mine], room)),
            noise_R=mine,
            seed=self.seed,
            step=plan.step,
            purpose=purpose,
            logprobs=True,
        )
        with phases.measure("generate"):
            generated = self.policy.generate(request, self._sampling)
        phases.count("generated", sum(len(tokens) for tokens in generated.tokens))
        with phases.measure("reward"):
            scores = self.judge(rows["prompt"][mine], generated.tokens)
        told = told_of(scores, len(mine))
        local = [
            (
                int(row),
                tokens.astype(np.int32),
                scores.reward[place],
                int(generated.finish_R[place]),
                scores.success[place],
                told[place],
                None if generated.logprobs is None else generated.logprobs[place],
            )
            for place, (row, tokens) in enumerate(zip(mine, generated.tokens, strict=True))
        ]
        everyone = self.gather(local)
        everyone.sort(key=lambda rollout: rollout[0])
        reward = [rollout[2] for rollout in everyone]
        self.told = [rollout[5] for rollout in everyone]
        self.drawn = {one[0]: one[6] for one in everyone if one[6] is not None}
        self.sampled = {}
        self.logged |= self.means(scores)
        batch = RolloutBatch.from_lists(
            rows["prompt"],
            [rollout[1] for rollout in everyone],
            None,
            reward,
            conditioning=rows["conditioning"],
            finish=[rollout[3] for rollout in everyone],
            success=self.believed(reward, [rollout[4] for rollout in everyone]),
        )
        wanted = np.flatnonzero(np.isin(rows["conditioning"], [int(kind) for kind in scored]))
        if not len(wanted):
            return batch
        shown = {int(row): prompts[prompt_R[place]] for place, row in enumerate(mine)}
        with phases.measure("score"):
            return self.with_behaviour(batch, wanted, phases, shown)

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
        everyone = self.share(len(batch))
        mine = everyone[np.isin(everyone, rows)]
        prompts = [
            self._store.tokens(int(batch.prompt_R[row])) if shown is None else shown[int(row)]
            for row in mine
        ]
        responses = [batch.response(int(row)) for row in mine]
        scores = self.policy.score(prompts, responses, self._sampling, drawn=True)
        phases.count("scored", len(scores.logprobs))
        ends = np.cumsum(batch.length_R[mine]).tolist()
        parts = [slice(end - batch.length_R[row], end) for row, end in zip(mine, ends, strict=True)]
        found = [
            (
                int(row),
                scores.logprobs[part],
                float(total),
                scores.sampled[part] if int(row) in self.drawn else None,
            )
            for row, part, total in zip(mine, parts, scores.total, strict=True)
        ]
        found = sorted(self.gather(found), key=lambda one: one[0])
        self.sampled |= {one[0]: one[3] for one in found if one[3] is not None}
        return batch.with_behaviour(
            [row for row, *_ in found],
            [tokens for _, tokens, *_ in found],
            [total for _, _, total, _ in found],
        )

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
        tokens = self._store.tokens(row, conditioning, hint)
        return tokens if len(tokens) < self.policy.context else self._store.tokens(row)

    def reward(self, rows: IntArray, tokens: list[IntArray]) -> Values:
        """Outcomes in [0, 1] of these responses; None where they cannot be told."""
        return self.judge(rows, tokens).success

    def judge(
        self, rows: IntArray, tokens: list[IntArray], store: PromptStore | None = None
    ) -> Scored:
        """Rewards of these responses, as text (or messages, where the prompt is messages)."""
        store = store or self._store
        if not len(rows):
            return Scored([], [])
        texts = self.policy.tokenizer.batch_decode(tokens, skip_special_tokens=True)
        prompts = [store.records[row]["prompt"] for row in rows.tolist()]
        completions = [
            text if isinstance(prompt, str) else [{"role": "assistant", "content": text}]
            for prompt, text in zip(prompts, texts, strict=True)
        ]
        columns = store.columns(rows.tolist())
        with _undisturbed(self.policy.module):
            return self._rewards(prompts, completions, [t.tolist() for t in tokens], columns)

    def believed(self, reward: Values, success: Values) -> Values:
        """Successes of the rollouts of all processes, or none at all.

        Without a rule, some rewards outside [0, 1] make those inside no successes either: to count
        only the latter would call every prompt easy.
        """
        pairs = zip(reward, success, strict=True)
        lost = any(value is not None and told is None for value, told in pairs)
        if lost and self.tells_success and self._rewards.rule is None:
            self.tells_success = False
            if self._rank == 0:
                _LOG.warning(
                    "rewards outside [0, 1] do not tell what a success is: the run trains on them, "
                    "but nothing is learnt of the difficulty of prompts. Set success_threshold to "
                    "the reward that a success takes, or to a function"
                )
        return success if self.tells_success else [None] * len(success)

    def means(self, scores: Scored) -> dict[str, float]:
        """Mean and deviation of each function over all processes, and what was logged."""
        everyone = self.gather([(scores.by_function, scores.metrics)])
        values: dict[str, float] = {}
        for part, suffix in ((0, "/mean"), (1, "")):
            for name in sorted({name for one in everyone for name in one[part]}):
                parts = [one[part].get(name, []) for one in everyone]
                # In an order that does not depend on how the rollouts were shared.
                known = sorted(value for some in parts for value in some if value is not None)
                if known:
                    label = f"rewards/{name}" if suffix else name
                    values[f"{label}{suffix}"] = float(np.mean(known))
                if suffix and len(known) > 1:
                    values[f"{label}/std"] = float(np.std(known, ddof=1))
        return values

    def score(
        self,
        prompts: list[IntArray],
        responses: list[IntArray],
        sampling: Sampling | None = None,
    ) -> Scores:
        """Log-probs of these responses under the policy of now; every process takes part."""
        return self.policy.score(prompts, responses, sampling or self._sampling)

    def rescore(self, request: ScoreRequest) -> Array:
        """Scorer for `Curriculum.refresh`: plain rollouts of the buffer, shared over processes."""
        batch = request.rollouts
        mine = self.share(len(batch))
        prompts = [self._store.tokens(int(row)) for row in batch.prompt_R[mine]]
        responses = [batch.response(int(row)) for row in mine]
        return self.exchange(mine, self.score(prompts, responses).total[:, None], len(batch))[:, 0]

    def read_states(self, rows: Array) -> Measured:
        """The policy's state on these prompts, shared over processes."""
        mine = self.share(len(rows))
        prompts = [self._store.tokens(int(rows[place])) for place in mine]
        states = self.policy.states(prompts)
        parts = self.gather([(mine, states)])
        values = np.empty((len(rows), max(part.shape[1] for _, part in parts)), np.float32)
        for places, part in parts:
            values[places] = part if len(places) else values[:0]
        return Measured(values, int(self._store.lengths[rows].sum()))

    def read_solutions(self, rows: Array, longest: int) -> Measured:
        """What `solution_statistics` says of these prompts' reference solutions; NaN without."""
        mine = self.share(len(rows))
        solutions = [self._store.solution(int(row))[:longest] for row in rows[mine]]
        there = [place for place, tokens in enumerate(solutions) if len(tokens)]
        prompts = [self._store.tokens(int(rows[mine[place]])) for place in there]
        # Over the full vocabulary: a solution that leaves the nucleus must not become -inf.
        plain = Sampling(self._sampling.temperature, 1.0, 0)
        scores = self.score(prompts, [solutions[place] for place in there], sampling=plain)
        values = np.full((len(mine), STATISTICS), np.nan)
        if there:
            sizes = np.array([len(solutions[place]) for place in there])
            number = self._store.holds_digit(np.concatenate([solutions[place] for place in there]))
            values[there] = solution_statistics(scores.logprobs.astype(np.float64), sizes, number)
        values = self.exchange(mine, values, len(rows))
        return Measured(values, int(np.nansum(values[:, 0])))

    def exchange(self, mine: IntArray, values: Array, count: int) -> Array:
        """Rows that each process computed for itself, put together on all of them."""
        pairs = self.gather(list(zip(mine.tolist(), values.tolist(), strict=True)))
        result = np.empty((count, values.shape[1]))
        result[[row for row, _ in pairs]] = np.array([value for _, value in pairs])
        return result
