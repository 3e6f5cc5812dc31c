"""From a plan to scored rollouts, each process its share."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from accelerate.utils import gather_object

from dare.curriculum.arrays import Array
from dare.curriculum.estimators.base import Measured
from dare.curriculum.foresight import STATISTICS, solution_statistics
from dare.curriculum.plan import StepPlan
from dare.curriculum.refresh import ScoreRequest
from dare.curriculum.rollouts import Conditioning, RolloutBatch
from dare.policy.batching import IntArray, layout_of
from dare.policy.generate import GenerationRequest, Generator
from dare.policy.score import Sampling, Scores, score
from dare.rewards.calling import Rewards
from dare.training.prompts import PromptStore


@dataclass
class Phases:
    """Seconds and tokens of each phase of a step."""

    seconds: dict[str, float] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Add the time of this block to phase `name`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def count(self, name: str, tokens: int) -> None:
        """Add tokens to phase `name`."""
        self.tokens[name] = self.tokens.get(name, 0) + int(tokens)


class Collector:
    """Generates, rewards and scores what a plan asks for.

    All processes hold the same plan; each does every n-th rollout and they exchange the results,
    so that all of them end up with the same batch in the same order.
    """

    def __init__(
        self,
        store: PromptStore,
        generator: Generator,
        rewards: Rewards,
        model: Callable[[], Any],
        sampling: Sampling,
        *,
        tokenizer: Any,
        pad_id: int,
        context: int,
        seed: int,
        rank: int,
        processes: int,
        score_batch_tokens: int,
        needs_scores: bool = True,
    ) -> None:
        self._store, self.generator, self._rewards = store, generator, rewards
        self._model, self._sampling, self._tokenizer = model, sampling, tokenizer
        self._pad, self._context, self.seed = pad_id, context, seed
        self._rank, self._processes = rank, processes
        self._batch_tokens = score_batch_tokens
        self._needs_scores = needs_scores

    def share(self, count: int) -> IntArray:
        """Which of `count` things this process does."""
        return np.arange(self._rank, count, self._processes)

    def gather(self, items: list[Any]) -> list[Any]:
        """The items of all processes, one list after the other."""
        return list(gather_object(items)) if self._processes > 1 else items

    def room(self, prompt: IntArray) -> int:
        """Tokens that a response to this prompt may have before the context is full."""
        return self._context - len(prompt)

    def rollouts(self, plan: StepPlan, phases: Phases, purpose: str) -> RolloutBatch:
        """The plan's rollouts with rewards and behaviour log-probs, complete on every process."""
        rows = plan.rows()
        mine = self.share(len(rows["prompt"]))
        prompts, prompt_R = self.prompt_tokens(plan, rows, mine)
        room = np.array([self.room(prompts[p]) for p in prompt_R], dtype=np.int64)
        request = GenerationRequest(
            prompts=prompts,
            prompt_R=prompt_R,
            max_tokens_R=np.maximum(1, np.minimum(rows["max_tokens"][mine], room)),
            noise_R=mine,
            seed=self.seed,
            step=plan.step,
            purpose=purpose,
        )
        with phases.measure("generate"):
            generated = self.generator.generate(request, self._sampling)
        phases.count("generated", sum(len(tokens) for tokens in generated.tokens))
        with phases.measure("reward"):
            reward = self.reward(rows["prompt"][mine], generated.tokens)
        with phases.measure("score"):
            if self._needs_scores:
                scores = self.score([prompts[p] for p in prompt_R], generated.tokens, drawn=True)
                phases.count("scored", len(scores.logprobs))
            else:
                total = sum(len(tokens) for tokens in generated.tokens)
                scores = Scores(np.zeros(total, np.float32), np.zeros(len(mine)))
        offsets = np.concatenate([[0], np.cumsum([len(tokens) for tokens in generated.tokens])])
        local = [
            (
                int(row),
                tokens.astype(np.int32),
                scores.logprobs[offsets[place] : offsets[place + 1]],
                float(scores.total[place]),
                reward[place],
                int(generated.finish_R[place]),
            )
            for place, (row, tokens) in enumerate(zip(mine, generated.tokens, strict=True))
        ]
        everyone = self.gather(local)
        everyone.sort(key=lambda rollout: rollout[0])
        return RolloutBatch.from_lists(
            rows["prompt"],
            [rollout[1] for rollout in everyone],
            [rollout[2] for rollout in everyone],
            [rollout[4] for rollout in everyone],
            total_logprob=[rollout[3] for rollout in everyone],
            conditioning=rows["conditioning"],
            finish=[rollout[5] for rollout in everyone],
        )

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
        return tokens if len(tokens) < self._context else self._store.tokens(row)

    def reward(
        self, rows: IntArray, tokens: list[IntArray], store: PromptStore | None = None
    ) -> list[float | None]:
        """Rewards of these responses, as text (or messages, where the prompt is messages)."""
        store = store or self._store
        if not len(rows):
            return []
        texts = self._tokenizer.batch_decode(tokens, skip_special_tokens=True)
        prompts = [store.records[row]["prompt"] for row in rows.tolist()]
        completions = [
            text if isinstance(prompt, str) else [{"role": "assistant", "content": text}]
            for prompt, text in zip(prompts, texts, strict=True)
        ]
        columns = store.columns(rows.tolist())
        return self._rewards(prompts, completions, [t.tolist() for t in tokens], columns)

    def score(
        self,
        prompts: list[IntArray],
        responses: list[IntArray],
        *,
        drawn: bool = False,
        sampling: Sampling | None = None,
    ) -> Scores:
        """Log-probs of these responses under the policy of now; every process takes part."""
        lengths = np.array([len(p) + len(r) for p, r in zip(prompts, responses, strict=True)])
        model = self._model()
        layout = layout_of(model, self._pad)
        forwards = len(layout.split(lengths, self._batch_tokens)) if len(lengths) else 0
        if self._processes > 1:
            forwards = max(gather_object([forwards]))
        return score(
            model,
            prompts,
            responses,
            sampling or self._sampling,
            pad_id=self._pad,
            max_batch_tokens=self._batch_tokens,
            forwards=forwards,
            drawn=drawn,
            layout=layout,
        )

    def rescore(self, request: ScoreRequest) -> Array:
        """Scorer for `Curriculum.refresh`: plain rollouts of the buffer, shared over processes."""
        batch = request.rollouts
        mine = self.share(len(batch))
        prompts = [self._store.tokens(int(row)) for row in batch.prompt_R[mine]]
        responses = [
            batch.tokens[batch.offsets[row] : batch.offsets[row + 1]].astype(np.int64)
            for row in mine
        ]
        return self.exchange(mine, self.score(prompts, responses).total[:, None], len(batch))[:, 0]

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
