"""Toy worlds that the curriculum tests share: prompts, a simulated policy, state comparison.

Rollouts depend on (seed, step, prompt id, kind) alone, never on rows or call order, so two
curricula that plan the same see the same outcomes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from hypothesis import settings

from dare.config import CurriculumConfig, nest
from dare.config.nested import merge
from dare.curriculum import Curriculum, PromptTable, RolloutBatch, ScoreRequest, Services, StepPlan
from dare.curriculum.estimators import Measured
from dare_hints import hint

SOLUTION = (
    "Let the first side be x and note that the other side is twice as long. "
    "Since the perimeter is the sum of all sides, we write x + y + z = 6 x by substitution. "
    "Therefore we divide both sides by the common factor and compare the terms."
)

CLASSIC: dict[str, Any] = {
    "tiers": True,
    "fresh_share": 0.25,
    "estimator.name": "paper",
    "estimator.below_threshold": "raw",
    "selection.name": "beta",
    "selection.eta": 0.2,
}
"""Tiers, help, replay, SNIS with a cold start and draws around 0.5: all that `dare` leaves off."""


def examples(count: int) -> settings:
    """Reproducible hypothesis settings."""
    return settings(max_examples=count, deadline=None, derandomize=True, database=None)


def table(count: int, *, answers: bool = True) -> PromptTable:
    """`count` prompts whose ids look random."""
    gold = [f"gold-{i}" for i in range(count)] if answers else None
    return PromptTable.from_columns([f"question {i}" for i in range(count)], answers=gold)


def records(count: int) -> list[dict[str, Any]]:
    return [{"prompt": f"question {i}", "answer": f"gold-{i}"} for i in range(count)]


def truth(prompts: PromptTable) -> np.ndarray:
    """A failure rate a prompt, spread over [0, 1], a function of the id alone."""
    return np.array([(int(key) % 997) / 996 for key in prompts.key_P.tolist()])


def batch(
    prompt: Sequence[int],
    reward: Sequence[float | None],
    *,
    length: Sequence[int] | int = 3,
    conditioning: Any = None,
    total: Any = None,
    seed: int = 0,
) -> RolloutBatch:
    """Rollouts with random tokens."""
    rng = np.random.default_rng(seed)
    lengths = [length] * len(prompt) if isinstance(length, int) else list(length)
    return RolloutBatch.from_lists(
        prompt,
        [rng.integers(0, 1000, n) for n in lengths],
        [-rng.random(n) for n in lengths],
        reward,
        conditioning=conditioning,
        total_logprob=total,
    )


def roll(
    plan: StepPlan,
    prompts: PromptTable,
    fail: np.ndarray,
    *,
    seed: int = 0,
    drop: Callable[[dict[str, Any]], bool] = lambda row: False,
    unscored: Callable[[dict[str, Any]], bool] = lambda row: False,
) -> RolloutBatch:
    """What a policy with these failure rates answers to the plan."""
    rows = plan.rows()
    found: list[tuple[int, Any, Any, float | None, int]] = []
    for place in range(len(plan.prompt_P)):
        mine = np.flatnonzero(rows["place"] == place)
        prompt = int(plan.prompt_P[place])
        key = int(prompts.key_P[prompt])
        rng = np.random.default_rng([seed, plan.step, plan.train, key % 2**31, key >> 33])
        for i, row in enumerate(mine.tolist()):
            length = int(rng.integers(1, 12))
            tokens, logprobs = rng.integers(0, 500, length), -rng.random(length)
            reward: float | None = float(rng.random() >= fail[prompt])
            what = {"prompt": prompt, "index": i, "conditioning": int(rows["conditioning"][row])}
            if drop(what):
                continue
            if unscored(what):
                reward = None
            found.append((prompt, tokens, logprobs, reward, what["conditioning"]))
    columns = list(zip(*found, strict=True)) if found else [[], [], [], [], []]
    return RolloutBatch.from_lists(*columns[:4], conditioning=list(columns[4]))


def scorer(request: ScoreRequest) -> np.ndarray:
    """A policy that has drifted a little, differently for each rollout."""
    drift = 0.8 * np.sin(request.uid_R.astype(float))
    return np.asarray(request.rollouts.total_logprob_R + drift)


def run(
    curriculum: Curriculum,
    steps: int,
    fail: np.ndarray | None = None,
    *,
    refresh: int | None = 200,
    **options: Any,
) -> list[tuple[Any, ...]]:
    """Train for `steps` steps; returns what was planned on the way."""
    fail = truth(curriculum.prompts) if fail is None else fail
    plans = []
    end = curriculum.step + steps
    while curriculum.step < end:
        plan = curriculum.plan()
        plans.append(describe(plan))
        curriculum.observe(roll(plan, curriculum.prompts, fail, **options))
        if plan.train and refresh is not None:
            curriculum.refresh(scorer, refresh)
    return plans


def describe(plan: StepPlan) -> tuple[Any, ...]:
    """All of a plan that a resume must reproduce, by id and not by row."""
    return (
        plan.step,
        plan.kind,
        tuple(plan.ids),
        *(
            tuple(getattr(plan, name).tolist())
            for name in (
                "difficulty_P",
                "tier_P",
                "plain_P",
                "extra_P",
                "extra_conditioning_P",
                "max_tokens_P",
                "clip_low_P",
                "clip_high_P",
                "shaping_P",
                "replay",
            )
        ),
        plan.replay_rollouts,
        tuple(map(tuple, plan.hints)),
    )


def small(preset: str = "dare", **overrides: Any) -> CurriculumConfig:
    """A preset at toy size; "classic" is `dare` with everything that it leaves off."""
    tiny = {
        "rollout_budget": 64,
        "buffer.groups": 200,
        "cold_start.references": 16,
    }
    classic = preset == "classic"
    base = CurriculumConfig.preset("dare" if classic else preset).to_dict()
    base = merge(base, nest(CLASSIC if classic else {}))
    if base["cold_start"]["references"] == 0:
        del tiny["cold_start.references"]
    # A whole, so that combinations may have what their method does not read.
    return CurriculumConfig.from_dict(merge(base, nest({**tiny, **overrides})))


def services(count: int = 0) -> Services:
    """Decoding for hints and, with a count, embeddings and the policy's states on the prompts."""
    if not count:
        return Services(decode=lambda tokens: SOLUTION, hint=hint)
    rng = np.random.default_rng(5)
    embeddings = rng.normal(size=(count, 6))
    states = rng.normal(size=(count, 8))
    return Services(
        decode=lambda tokens: SOLUTION,
        hint=hint,
        embeddings=embeddings,
        states=lambda rows: Measured(states[rows], 4 * len(rows)),
    )


def frozen(state: Any) -> Any:
    """A deep copy that later changes cannot reach."""
    return copy.deepcopy(state)


def same(left: Any, right: Any) -> bool:
    """Deep equality of states: values, dtypes and shapes."""
    if isinstance(left, dict):
        return (
            isinstance(right, dict)
            and left.keys() == right.keys()
            and all(same(left[name], right[name]) for name in left)
        )
    if isinstance(left, np.ndarray):
        return (
            isinstance(right, np.ndarray)
            and left.dtype == right.dtype
            and left.shape == right.shape
            and np.array_equal(left, right, equal_nan=left.dtype.kind == "f")
        )
    return bool(left == right)
