"""The gradient that reaches the optimiser is that of the objective written out row by row."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from gradient_cases import CASES, TOLERANCE, by_step, check_reference, metrics, run, updates
from plain_reference import HINTED, THINK, Step, tier

import tiny


def conditionings(step: Step) -> Counter[int]:
    return Counter(rollout.conditioning for group in step.groups for rollout in group.rollouts)


def exercised(case: str, steps: list[Step], accumulation: int) -> dict[str, bool]:
    """What a case is there for must really have happened in it."""
    treated = () if case == "grpo" else ("easy", "hard")
    tiers = {tier(group.difficulty, treated) for step in steps for group in step.groups}
    last = steps[-1]
    unscored = any(r.reward is None for step in steps for g in step.groups for r in g.rollouts)
    helped = sum((conditionings(step) for step in steps), Counter())
    seen = {
        "three tiers": tiers == {"easy", "medium", "hard"},
        "one tier": tiers == {"medium"},
        "accumulation 2": accumulation == 2,
        "accumulation 4": accumulation == 4,
        "replay": any(group.replayed for group in last.groups),
        "ratios on both sides": min(last.ratios) < 0.8 and max(last.ratios) > 1.2,
        "clipping": last.clipped > 0.05,
        "divergence": last.kl > 0.05,
        "hints": helped[HINTED] > 0,
        "think longer": helped[THINK] > 0,
        "unscored": unscored,
        "thinned": sum(step.thinned for step in steps) >= 4,
        "cut off": any(r.cut for step in steps for g in step.groups for r in g.rollouts),
        # A fresh rollout that was trained on already is no longer of the policy that drew it.
        "drift within a step": max(abs(r - 1.0) for r in by_step(case, steps)[0][-1].ratios) > 0.2,
    }
    wanted = {
        "tiers": ["three tiers", "hints", "ratios on both sides"],
        "accumulation 2": ["three tiers", "accumulation 2"],
        "accumulation 4": ["three tiers", "accumulation 4"],
        "replay": ["three tiers", "replay", "ratios on both sides", "clipping"],
        "hinted": ["three tiers", "hints"],
        "think longer": ["think longer"],
        "kl": ["three tiers", "divergence"],
        "unscored": ["three tiers", "unscored"],
        "thinned": ["three tiers", "unscored", "thinned"],
        "thinned replay": ["three tiers", "replay", "thinned", "divergence"],
        "paper": ["three tiers", "hints"],
        "grpo": ["one tier", "divergence", "accumulation 4"],
        "all": [
            *("three tiers", "replay", "ratios on both sides", "clipping", "divergence"),
            *("hints", "unscored", "accumulation 4"),
        ],
        "dapo": ["three tiers", "replay", "clipping", "unscored"],
        "dr_grpo": ["three tiers", "replay", "clipping", "divergence"],
        "cispo": ["three tiers", "replay", "clipping", "divergence"],
        "sequence": ["three tiers", "replay", "clipping", "drift within a step"],
        "truncated": ["three tiers", "replay", "cut off"],
        "truncated dapo": ["three tiers", "cut off"],
        "iterations": ["three tiers", "clipping", "divergence", "drift within a step"],
        "mini-batches": [
            *("three tiers", "replay", "hints", "clipping", "drift within a step"),
            "accumulation 2",
        ],
    }
    return {name: seen[name] for name in wanted[case]}


@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradient_equal_the_plain_reference(case: str, tmp_path: Path) -> None:
    trainer, steps = run(case, tmp_path)
    assert len(steps) == 2 * updates(case)
    check_reference(case, steps, metrics(tmp_path))
    done = exercised(case, steps, trainer.args.gradient_accumulation_steps)
    assert all(done.values()), done


@pytest.mark.parametrize("case", ["hinted", "think longer"])
def test_help_that_does_not_fit_is_left_out_of_training_too(case: str, tmp_path: Path) -> None:
    model = tiny.policy()
    model.config.max_position_embeddings = 64
    _, steps = run(case, tmp_path, model)
    for step in steps:
        kinds = conditionings(step)
        assert kinds[THINK] + kinds[HINTED] > 0
        assert step.distance() < TOLERANCE
        assert max(abs(ratio - 1.0) for ratio in step.ratios) < 1e-5
