"""verl trains with the plug-in, step by step, up to the engine that generates."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from boundary import TOKENS, Cpu, Step, configure, save_rows

from dare import InvalidInput
from dare.curriculum import Conditioning
from dare.integrations.verl.rows import CLIP_HIGH, CLIP_LOW

CHANCES = [0.0] * 4 + [0.5] * 4 + [1.0] * 4
LEARNT = (  # an estimate that knows nothing but outcomes, so that tiers follow the chances at once
    "+trainer.v1.dare.curriculum.estimator.name=posterior",
    "+trainer.v1.dare.curriculum.selection.name=uniform",
    "+trainer.v1.dare.curriculum.cold_start.references=0",
    "+trainer.v1.dare.curriculum.easy.clip_low=0.1",
)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("work")


@pytest.fixture(scope="module")
def build(model: Path, queue: None, work: Path) -> Any:
    data = save_rows(work / "rows.jsonl", CHANCES)

    def built(folder: str, steps: int, *changes: str) -> Cpu:
        length = (f"trainer.total_training_steps={steps}", "trainer.total_epochs=100")
        return Cpu(configure(model, data, work / folder, *length, *changes))

    return built


@pytest.fixture(scope="module")
def trainer(build: Any) -> Cpu:
    """Four steps of 64 rollouts, two updates each, two checkpoints."""
    made: Cpu = build("whole", 4, "trainer.save_freq=2", *LEARNT)
    made.run()
    return made


def entries(step: Step, column: str) -> list[Any]:
    """A column of things that are no tensors."""
    return [getattr(value, "data", value) for value in list(step.data[column])]


def groups(step: Step) -> Counter[str]:
    return Counter(step.keys[place].split("-")[0] for place in step.places)


def test_every_step_has_the_prompts_and_the_group_sizes_of_its_plan(trainer):
    assert len(trainer.steps) == 4
    for step in trainer.steps:
        assert groups(step) == {one.id: one.rollouts for one in step.asked}
        assert len(step.places) == len(step.keys) == 64  # filled exactly: nothing is padded
    sizes = {size for step in trainer.steps for size in groups(step).values()}
    assert sizes == {4, 8, 16}
    assert any(len(step.asked) != 8 for step in trainer.steps)  # verl's train_batch_size


def test_each_rollout_has_its_budget_and_the_last_of_a_hard_group_their_help(trainer):
    budgets, helps = set(), set()
    for step in trainer.steps:
        asked = {one.id: one for one in step.asked}
        lengths = [len(row) for row in step.data["responses"].unbind()]
        prompts = [trainer.tokenizer.decode(row) for row in step.data["prompts"].unbind()]
        extras = entries(step, "extra_fields")
        found = step.batch.rollouts.conditioning_R
        for key, length, prompt, extra, kind in zip(
            step.keys, lengths, prompts, extras, found, strict=True
        ):
            one, session = asked[key.split("-")[0]], int(key.split("_")[1])
            assert length <= extra["limit"] == one.max_tokens
            assert prompt == extra["shown"]  # trained on what was shown
            helped = session >= one.rollouts - one.helped
            assert kind == (one.help if helped else Conditioning.PLAIN)
            assert helped == (len(prompt) > len("u:coin 10 of 0.5?\na:"))
            budgets.add(one.max_tokens)
            helps.add(Conditioning(kind))
    assert budgets == {TOKENS // 2, TOKENS}
    assert Conditioning.THINK_LONGER in helps


def test_rewards_become_the_estimates(trainer):
    curriculum = trainer.loop.curriculum
    chance = np.array([float(text.split(" of ")[1][:3]) for text in curriculum.prompts.texts])
    seen = curriculum.visits_P > 0
    assert seen.sum() >= 10
    estimate = curriculum.difficulty()
    assert estimate[seen & (chance == 1.0)].max() < 0.3
    assert estimate[seen & (chance == 0.0)].min() > 0.7


def test_the_curriculum_reads_responses_for_its_hints(trainer):
    words = trainer.loop.curriculum.services.decode
    step = trainer.steps[0]
    assert set(words(step.batch.rollouts.response(0))) <= {"0", "1", "."}
    assert words(step.batch.rollouts.response(0))[0] in "01"


def rows_of(passed: Any) -> dict[str, tuple[float, float, float]]:
    """Of a micro-batch at the loss: clips and advantage by key."""
    names = [getattr(name, "data", name) for name in list(passed["uid"])]
    sessions = [int(getattr(name, "data", name)) for name in list(passed["session_id"])]
    found = {}
    columns = (passed[name].unbind() for name in (CLIP_LOW, CLIP_HIGH, "advantages"))
    for name, session, low, high, advantage in zip(names, sessions, *columns, strict=True):
        assert len(set(advantage.tolist())) == 1
        found[f"{name}_{session}_0"] = (float(low), float(high), float(advantage[0]))
    return found


def updates(trainer: Cpu, number: int) -> list[list[Any]]:
    """The micro-batches of each update of a step: 2 of 32 rows, in passes of 8."""
    mine = trainer.actor_rollout_wg.passes[8 * number : 8 * number + 8]
    return [mine[:4], mine[4:]]


def test_each_row_reaches_the_loss_with_its_clips_and_its_advantage(trainer):
    assert len(trainer.actor_rollout_wg.passes) == 4 * 8
    clips = set()
    for number, step in enumerate(trainer.steps):
        at_loss: dict[str, Any] = {}
        for update in updates(trainer, number):
            for data, _ in update:
                at_loss |= rows_of(data)
        assert set(at_loss) == set(step.keys)
        batch = step.batch
        advantage = batch.advantage_R * batch.weight_R * 64
        wanted = np.column_stack([batch.clip_low_R, batch.clip_high_R, advantage])
        found = np.array([at_loss[key] for key in step.keys])
        np.testing.assert_allclose(found, wanted, rtol=1e-5)
        clips |= {tuple(np.round(row, 6)) for row in found[:, :2].tolist()}
    assert clips == {(0.1, 0.6), (0.2, 0.2)}


def test_a_mini_batch_of_unequal_groups_has_its_share_of_the_weighted_loss(trainer):
    """Before the first update ratios are 1: the loss is minus the weighted advantages, of which a
    step's two updates have twice their half. verl's mean over rows would not say so."""
    for number, step in enumerate(trainer.steps):
        weighted = dict(zip(step.keys, step.batch.advantage_R * step.batch.weight_R, strict=True))
        first = updates(trainer, number)[0]
        keys = [key for data, _ in first for key in rows_of(data)]
        assert len(keys) == 32
        wanted = -2 * sum(weighted[key] for key in keys)
        assert sum(float(loss) for _, loss in first) == pytest.approx(wanted, abs=1e-5)


def test_a_checkpoint_goes_on_with_the_same_plan(trainer, build, work):
    saved = work / "whole" / "global_step_2"
    assert {path.name for path in saved.iterdir()} == {"actor", "dare", "data.pt"}
    resume = ("trainer.resume_mode=resume_path", f"trainer.resume_from_path={saved}")
    resumed: Cpu = build("resumed", 4, *resume, *LEARNT)
    resumed.init()
    assert resumed.global_steps == 2
    assert resumed.loop.ask() == trainer.steps[2].asked
    latest: Cpu = build("whole", 4, *LEARNT)
    latest.init()
    assert latest.global_steps == 4
    assert latest.loop.curriculum.step == 4
    shutil.rmtree(saved / "dare")
    with pytest.raises(InvalidInput, match="is it a curriculum state"):
        resumed._load_checkpoint()


def test_what_is_lost_is_padded_and_counts_nothing(build):
    """48 rollouts a step, of which one never comes, in mini-batches of 32: verl pads to 64. Their
    micro-batches are of as many rows as fit."""
    ragged = (
        "actor_rollout_ref.actor.use_dynamic_bsz=true",
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=600",
        "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=600",
    )
    changes = ("data.train_batch_size=6", "trainer.v1.dare.success=acc", *ragged)
    made: Cpu = build("lost", 1, *changes, *LEARNT)
    made.run(lost="coin ")
    [step] = made.steps
    assert (len(step.places), len(step.keys)) == (47, 64)
    assert sorted(groups(step).values()) == [7, 8, 8, 8, 8, 8]
    at_loss: dict[str, Any] = {}
    for data, _ in made.actor_rollout_wg.passes:
        at_loss |= rows_of(data)
    padding = set(range(64)) - set(step.places)
    assert all(at_loss[step.keys[place]][2] == 0 for place in padding)
    wanted = step.batch.advantage_R * step.batch.weight_R * 64
    found = [at_loss[step.keys[place]][2] for place in step.places]
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    keys, loss, passes = [], 0.0, iter(made.actor_rollout_wg.passes)
    while len(keys) < 32:
        data, part = next(passes)
        keys += rows_of(data)
        loss += float(part)
    weighted = dict(zip([step.keys[place] for place in step.places], wanted / 64, strict=True))
    assert len(keys) == 32
    assert loss == pytest.approx(-2 * sum(weighted.get(key, 0.0) for key in keys), abs=1e-5)
