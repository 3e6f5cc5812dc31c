"""What a step leaves behind: its line of figures, its selection and a few rollouts to read."""

from __future__ import annotations

import sys
from collections.abc import Container, Mapping, Sequence
from typing import Any

import numpy as np

from dare.curriculum import Curriculum
from dare.curriculum.arrays import Array
from dare.curriculum.batch import TrainBatch
from dare.curriculum.plan import StepPlan
from dare.curriculum.rollouts import Conditioning, Finish, RolloutBatch
from dare.curriculum.tiers import Tier
from dare.runs.folder import RunFolder
from dare.text import legible, prompt_text
from dare.training.collect import Collector
from dare.training.from_trl import length_figures, logged
from dare.training.prompts import PromptStore


class StepLines:
    """A step's lines in the run folder: selection and samples when it is rolled out, its figures
    when it is over and has been logged."""

    def __init__(self, folder: RunFolder, sample_rows: int) -> None:
        self._folder, self._sample_rows = folder, sample_rows
        self._begun: dict[str, Any] = {}
        self._lengths: dict[str, float] = {}
        self._record: dict[str, Any] | None = None
        self._nothing_right = NothingRight()
        self.samples: list[dict[str, Any]] = []

    def rolled_out(
        self,
        plan: StepPlan,
        rollouts: RolloutBatch,
        batch: TrainBatch,
        curriculum: Curriculum,
        collector: Collector,
    ) -> None:
        """Write what is known already; the `batch` has the rollouts of probes too."""
        self.flush()
        everyone, fresh = batch.rollouts, batch.fresh_R
        length, cut = everyone.length_R[fresh], everyone.finish_R[fresh] == Finish.LENGTH
        reward = everyone.reward_R[fresh & everyone.scored_R]
        self._begun = {
            **curriculum.metrics(),
            "reward_std": float(reward.std(ddof=1)) if len(reward) > 1 else 0.0,
            "length": float(length.mean()) if len(length) else 0.0,
            "truncated": float(cut.mean()) if len(length) else 0.0,
            **collector.logged,
            "step": plan.step,
        }
        self._lengths = length_figures(length, cut)
        self._folder.append("selections.jsonl", selection_record(plan, rollouts))
        if not self._folder.writes:
            return
        count, store = self._sample_rows, collector.store
        self.samples = sample_records(plan, batch, count, curriculum, store, collector.told)
        for sample in self.samples:
            self._folder.append("samples.jsonl", sample)
        self._nothing_right.observe(rollouts.reward_R[rollouts.scored_R], self.samples)

    def over(self, figures: Mapping[str, Any]) -> None:
        """The last update is done: this is the step's line."""
        self._record = {**self._begun, **figures}

    def logged(
        self, logs: Mapping[str, float], more: Mapping[str, float], theirs: Container[str]
    ) -> dict[str, float] | None:
        """Trainer's logs of a step with `more` and the step's figures, which take from them what
        Trainer alone knows; None where no step is over. `theirs` are the names of rewards."""
        if "loss" not in logs or self._record is None:
            return None
        known = ("grad_norm", "learning_rate")
        self._record |= {name: float(logs[name]) for name in known if name in logs}
        return {**logged({**self._record, **more}, theirs), **self._lengths, **logs}

    def flush(self) -> None:
        """Write the figures of the last step, if it is over."""
        if self._record is not None:
            self._folder.append("metrics.jsonl", self._record)
            self._record = None


class NothingRight:
    """Tells once when every reward of the first steps was 0, and shows one rollout: the policy
    may be too weak, but more often the reward never finds the answer."""

    STEPS = 3

    def __init__(self) -> None:
        self._steps: int | None = 0

    def observe(self, rewards: Array, samples: Sequence[Mapping[str, Any]]) -> None:
        """Count a step; `rewards` are those of its scored rollouts."""
        if self._steps is None or not len(rewards):
            return
        self._steps = None if rewards.any() else self._steps + 1
        if self._steps == self.STEPS:
            self._steps = None
            example = f" One rollout:\n{told(samples[0])}" if samples else ""
            print(
                f"\nEvery reward of the first {self.STEPS} steps is 0, so nothing is learnt yet. "
                f"Is it the policy, or does the reward miss the answer?{example}\n",
                file=sys.stderr,
            )


def selection_record(plan: StepPlan, rollouts: RolloutBatch) -> dict[str, Any]:
    """Per prompt of the plan: id, tier, difficulty, group size, realised failure rate, tokens."""
    counted = rollouts.evidence_R
    everywhere = _places(plan, rollouts)
    place = everywhere[counted]
    tokens = np.bincount(everywhere, weights=rollouts.length_R, minlength=len(plan.prompt_P))
    count = np.bincount(place, minlength=len(plan.prompt_P))
    failed = np.bincount(place, weights=1.0 - rollouts.success_R[counted], minlength=len(count))
    rate = np.divide(failed, count, out=np.full(len(count), np.nan), where=count > 0)
    return {
        "step": plan.step,
        "prompt": plan.ids,
        "tier": [Tier(tier).name.lower() for tier in plan.tier_P.tolist()],
        "difficulty": np.round(plan.difficulty_P, 4).tolist(),
        "group_size": plan.group_size_P.tolist(),
        "failure_rate": np.round(rate, 4).tolist(),
        "tokens": tokens.astype(int).tolist(),
        "replayed_groups": len(plan.replay),
    }


def told(sample: Mapping[str, Any]) -> str:
    """One of these rollouts as lines for a terminal."""
    lines = [f"step {sample['step'] + 1}, reward {sample['reward']:g}, {sample['tokens']} tokens"]
    for name in ("prompt", "response", "answer"):
        if sample[name] is not None:
            text = legible(prompt_text(sample[name]), 1500)
            lines.append(f"{name}: {text}" if len(text) < 80 else f"{name}:\n{text}")
    return "\n".join(lines)


def _places(plan: StepPlan, rollouts: RolloutBatch) -> Array:
    """Where in the plan the prompt of each rollout stands."""
    order = np.argsort(plan.prompt_P)
    return order[np.searchsorted(plan.prompt_P[order], rollouts.prompt_R)]


def sample_records(
    plan: StepPlan,
    batch: TrainBatch,
    count: int,
    curriculum: Curriculum,
    store: PromptStore,
    extra: Sequence[Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """Up to `count` new rollouts of each tier, the first right and the first wrong one preferred.

    Those of a probe that are trained on are not in the plan: they have the difficulty of now.
    `extra` is what rewards told of the rollouts of the plan, which come first.
    """
    place_of = {int(row): place for place, row in enumerate(plan.prompt_P)}
    rollouts, difficulty = batch.rollouts, curriculum.difficulty()
    difficulty[plan.prompt_P] = plan.difficulty_P
    answers, records = store.table.answers, []
    for tier in Tier:
        rows = np.flatnonzero(batch.fresh_R & (batch.tier_R == tier))
        # Right and wrong alternate, so that two rows show one of each where there are both.
        right = [row for row in rows if rollouts.success_R[row] == 1.0]
        wrong = [row for row in rows if rollouts.success_R[row] != 1.0]
        mixed = [row for pair in zip(right, wrong, strict=False) for row in pair]
        picked = (mixed or [*right, *wrong])[:count]
        for row in map(int, picked):
            prompt = int(rollouts.prompt_R[row])
            place = place_of.get(prompt)
            part = slice(rollouts.offsets[row], rollouts.offsets[row + 1])
            reward = float(rollouts.reward_R[row])
            records.append(
                {
                    "step": plan.step,
                    "id": store.table.ids([prompt])[0],
                    "tier": tier.name.lower(),
                    "difficulty": float(difficulty[prompt]),
                    "conditioning": Conditioning(rollouts.conditioning_R[row]).name.lower(),
                    "hint": [] if place is None else plan.hints[place],
                    "prompt": store.records[prompt]["prompt"],
                    "answer": None if answers is None else answers[prompt],
                    "response": store.decode(rollouts.tokens[part]),
                    "reward": reward,
                    "tokens": int(part.stop - part.start),
                    "finish": Finish(rollouts.finish_R[row]).name.lower(),
                    **(extra[row] if row < len(extra) else {}),
                }
            )
    return records
