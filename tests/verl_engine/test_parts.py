"""The plug-in's parts by themselves: settings, rows, the loss."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from boundary import configure
from tensordict import TensorDict
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.utils.losses import ppo_loss

from dare import CurriculumConfig, InvalidInput
from dare.curriculum import Conditioning
from dare.integrations.loop import Asked
from dare.integrations.verl.loss import row_clipped_loss
from dare.integrations.verl.rows import (
    ASKED,
    CLIP_HIGH,
    CLIP_LOW,
    columns,
    records,
    told,
    trained,
)
from dare.integrations.verl.settings import settings_of


def config(tmp_path, *changes):
    return configure(tmp_path, tmp_path / "rows.jsonl", tmp_path, *changes)


def test_what_verl_has_a_name_for_is_taken_from_there(tmp_path):
    found = settings_of(config(tmp_path, "+trainer.v1.dare.curriculum.hard.clip_high=0.4"))
    made = found.curriculum
    assert (made.rollout_budget, made.medium.group_size, made.max_tokens) == (64, 8, 24)
    assert (made.tiers, made.hard.clip_high) == (True, 0.4)
    assert made.advantage == CurriculumConfig.preset("dare").advantage
    assert found.success is None


@pytest.mark.parametrize("preset", ["dare", "grpo", "mopps", "previous-fr"])
def test_these_presets_run_in_verl(preset, tmp_path):
    assert settings_of(config(tmp_path, f"trainer.v1.dare.preset={preset}"))


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ("algorithm.use_kl_in_reward=true", "algorithm.use_kl_in_reward"),
        ("algorithm.filter_groups.enable=true", "algorithm.filter_groups.enable"),
        ("algorithm.adv_estimator=gae", "algorithm.adv_estimator"),
        ("critic.enable=true", "critic.enable"),
        (
            "trainer.v1.sampler.sync_refill_failed_groups=true",
            "trainer.v1.sampler.sync_refill_failed_groups",
        ),
        (
            "trainer.v1.sampler.custom_sampler.path=a.py",
            "trainer.v1.sampler.custom_sampler.path",
        ),
        (
            "actor_rollout_ref.actor.policy_loss.loss_mode=gspo",
            "actor_rollout_ref.actor.policy_loss.loss_mode",
        ),
        ("distillation.enabled=true", "distillation.enabled"),
        ("+trainer.v1.sync.parameter_sync_step=2", "trainer.v1.sync.parameter_sync_step"),
        ("+trainer.v1.dare.curiculum={}", "trainer.v1.dare.curiculum"),
        (
            "+trainer.v1.dare.curriculum.rollout_budget=64",
            "trainer.v1.dare.curriculum.rollout_budget",
        ),
        (
            "+trainer.v1.dare.curriculum.medium.group_size=4",
            "trainer.v1.dare.curriculum.medium.group_size",
        ),
        ("+trainer.v1.dare.curriculum.fresh_share=0.5", "trainer.v1.dare.preset"),
        ("trainer.v1.dare.preset=paper", "trainer.v1.dare.preset"),
        ("trainer.v1.dare.preset=dapo", "trainer.v1.dare.preset"),
        ("trainer.v1.dare.preset=daer", "preset"),
    ],
)
def test_what_cannot_go_together_is_refused_by_name(change, field, tmp_path):
    with pytest.raises(InvalidInput) as error:
        settings_of(config(tmp_path, change))
    assert error.value.field == field


def row(prompt="a?", truth="1", **more):
    turns = [{"role": "user", "content": prompt}]
    rewards = {"style": "rule", "ground_truth": truth}
    return {"raw_prompt": turns, "data_source": "s", "reward_model": rewards, **more}


def test_a_ground_truth_is_an_answer_or_tests():
    found = list(records([row(), row(truth='{"inputs": ["1"]}'), row(truth="{1, 2}")]))
    assert [("answer" in one, "tests" in one) for one in found] == [
        (True, False),
        (False, True),
        (True, False),
    ]


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        (row(prompt=[{"type": "image"}]), "data.train_files: row 1"),
        (row(agent_name="tool_agent"), "data.train_files: row 1: agent_name"),
    ],
)
def test_rows_that_the_agent_loop_cannot_serve_are_refused(bad, field):
    with pytest.raises(InvalidInput) as error:
        list(records([row(), bad]))
    assert error.value.field == field


def asked(help=Conditioning.HINTED, helped=2):
    return Asked("00000000000000ab", 0, 6, 12, helped, help, ["First add.", "Then halve."])


@pytest.mark.parametrize("tested", [False, True])
def test_a_hint_is_shown_to_the_helped_alone(tested):
    turns = row()["raw_prompt"]
    made = columns([asked(), asked(helped=0)], [turns, turns], [tested] * 2)
    first, second = made[ASKED]
    assert "First add." in first["helped"][-1]["content"]
    assert first["helped"][-1]["content"].startswith("a?")
    assert ("boxed" in first["helped"][-1]["content"]) == (not tested)
    assert turns == row()["raw_prompt"]
    assert (first["plain"], second["plain"], second["helped"]) == (4, 6, None)
    assert made["__rollout_n__"].tolist() == [6, 6]
    assert len(set(made["uid"])) == 2
    assert not any("_" in uid for uid in made["uid"])


def queue_data(keys, rewards, extras):
    plans = [{"plain": 4, "help": int(Conditioning.HINTED)}] * len(keys)
    score = torch.nested.as_nested_tensor(
        [torch.tensor([0.0, reward]) for reward in rewards], layout=torch.jagged
    )
    return {"rm_scores": score, "responses": score, "extra_fields": extras, ASKED: plans}


def test_a_lost_plain_rollout_does_not_make_a_helped_one_plain():
    keys = [f"00ab-1_{session}_0" for session in (5, 0, 4)]
    found = told(keys, queue_data(keys, [1.0, 0.0, 0.5], [{}] * 3), None)
    assert found.ids == ["00ab"] * 3
    assert found.conditioning == [2, 0, 2]
    assert found.rewards == [1.0, 0.0, 0.5]


def test_rewards_of_any_size_need_to_be_told_right_from_wrong():
    keys = ["00ab-1_0_0", "00ab-1_1_0"]
    extras = [{"reward_extra_info": {"acc": True}}, {"reward_extra_info": {"acc": False}}]
    data = queue_data(keys, [2.0, -1.0], extras)
    with pytest.raises(InvalidInput, match=r"trainer\.v1\.dare\.success"):
        told(keys, data, None)
    found = told(keys, data, "acc")
    assert (found.rewards, found.success) == ([2.0, -1.0], [1.0, 0.0])
    with pytest.raises(InvalidInput, match="it has acc"):
        told(keys, data, "accuracy")


class Found:
    advantage_R = np.array([1.0, -1.0])
    weight_R = np.array([0.25, 0.5])
    clip_low_R = np.array([0.1, 0.2])
    clip_high_R = np.array([0.6, 0.3])


@pytest.mark.parametrize(("mode", "counted"), [("seq-mean-token-mean", 4), ("token-mean", 2)])
def test_padding_counts_where_verl_counts_it(mode, counted):
    masks = [torch.tensor(mask) for mask in ([1, 1], [0], [1, 0, 1], [0])]
    made = trained(Found(), [2, 0], masks, mode)
    tokens = [row.tolist() for row in made["advantages"].unbind()]
    assert tokens == [[-0.5 * counted] * 2, [0.0], [0.25 * counted, 0.0, 0.25 * counted], [0.0]]
    np.testing.assert_allclose(made[CLIP_LOW][:, 0], [0.2, 0.2, 0.1, 0.2])
    np.testing.assert_allclose(made[CLIP_HIGH][:, 0], [0.3, 0.2, 0.6, 0.2])


def ragged(rows):
    return torch.nested.as_nested_tensor([torch.tensor(row) for row in rows], layout=torch.jagged)


def micro_batch(ratios, advantages, low, high):
    """Two rows of a prompt of one token and as many response tokens as there are ratios."""
    fields = {
        "prompts": ragged([[5]] * len(ratios)),
        "responses": ragged([[6] * len(row) for row in ratios]),
        "response_mask": ragged([[1] * len(row) for row in ratios]),
        "old_log_probs": ragged([[0.0] * len(row) for row in ratios]),
        "advantages": ragged([[a] * len(row) for a, row in zip(advantages, ratios, strict=True)]),
        CLIP_LOW: ragged([[value] for value in low]),
        CLIP_HIGH: ragged([[value] for value in high]),
    }
    data = TensorDict(fields, batch_size=len(ratios))
    for name, value in (("dp_size", 1), ("batch_num_tokens", None), ("global_batch_size", 2)):
        data.set_non_tensor(name, value)
    flat = [value for row in ratios for value in [*np.log(row).tolist(), 0.0]]
    offsets = torch.tensor([0, *np.cumsum([len(row) + 1 for row in ratios])])
    logprob = torch.tensor(flat, requires_grad=True)
    return data, logprob, torch.nested.nested_tensor_from_jagged(logprob, offsets)


def test_each_row_is_clipped_at_its_own_bounds(tmp_path):
    actor = omega_conf_to_dataclass(config(tmp_path).actor_rollout_ref.actor)
    ratios = [[1.5, 0.95], [1.5, 0.7, 0.95]]
    data, logprob, output = micro_batch(ratios, [1.0, -1.0], [0.2, 0.1], [0.6, 0.2])
    loss, metrics = row_clipped_loss({"log_probs": output}, data, config=actor)
    # The first row may rise to 1.6; the second, which is wrong, may fall to 0.9.
    wanted = (-(1.5 + 0.95) / 2 + (1.5 + 0.9 + 0.95) / 3) / 2
    assert float(loss) == pytest.approx(wanted, abs=1e-6)
    loss.backward()
    moved = (logprob.grad.abs() > 1e-9).tolist()
    assert moved == [True, True, False, True, False, True, False]
    assert "actor/pg_clipfrac" in metrics


def test_equal_clips_are_verls_own_loss(tmp_path):
    settings = config(tmp_path, "actor_rollout_ref.actor.clip_ratio_high=0.28")
    actor = omega_conf_to_dataclass(settings.actor_rollout_ref.actor)
    ratios = [[1.5, 0.95, 0.5], [1.3, 0.7]]
    data, _, output = micro_batch(ratios, [1.0, -1.0], [0.2] * 2, [0.28] * 2)
    own, _ = ppo_loss(actor, {"log_probs": output}, data)
    made, _ = partial(row_clipped_loss, config=actor)(model_output={"log_probs": output}, data=data)
    assert float(made) == pytest.approx(float(own), abs=1e-7)
