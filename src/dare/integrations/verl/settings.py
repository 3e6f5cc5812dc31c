"""What verl's configuration says about the curriculum, and what of it cannot go together.

`trainer.v1.dare` has a `preset`, changes to it (`curriculum`) and `success`. What verl has a name
for is taken from there: a step has `data.train_batch_size` x `rollout.n` rollouts, of which verl
makes its mini-batches, a medium group has `rollout.n`, a response `rollout.response_length` tokens.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from omegaconf import OmegaConf

from dare.config import CurriculumConfig
from dare.config.nested import merge, nest
from dare.curriculum.estimators.base import Estimator
from dare.curriculum.estimators.build import estimator_class, wanted_scores
from dare.errors import InvalidInput, require, suggest

SECTION = "trainer.v1.dare"
_KEYS = ("preset", "curriculum", "success")
_VERLS = {
    "rollout_budget": "data.train_batch_size x actor_rollout_ref.rollout.n",
    "medium.group_size": "actor_rollout_ref.rollout.n",
    "max_tokens": "actor_rollout_ref.rollout.response_length",
}
_REFUSED = {
    "algorithm.use_kl_in_reward": "advantages come from the curriculum; use actor.use_kl_loss",
    "algorithm.filter_groups.enable": "the curriculum chooses the groups; switch it off",
    "trainer.v1.sampler.sync_refill_failed_groups": "a plan is not refilled; switch it off",
    "trainer.v1.sampler.custom_sampler.path": "the curriculum draws the prompts; leave it out",
    "distillation.enabled": "it has a loss of its own, without a clip for each row; switch it off",
}
"""Settings that must be off, with why."""


class Settings(NamedTuple):
    """The curriculum's own, and where to read whether a rollout is right."""

    curriculum: CurriculumConfig
    success: str | None
    """Name in the reward's extra information; None: the reward is in [0, 1] and says it itself."""


def settings_of(config: Any) -> Settings:
    """From verl's whole configuration; raises on what the plug-in cannot honour."""
    _refuse(config)
    given = OmegaConf.to_container(config.trainer.v1.get("dare") or OmegaConf.create())
    assert isinstance(given, dict)
    for name in given:
        if name not in _KEYS:
            raise InvalidInput(f"{SECTION}.{name}", given[name], suggest(str(name), _KEYS))
    changes = nest(given.get("curriculum") or {})
    for name, where in _VERLS.items():
        section: Any = changes
        for part in name.split("."):
            section = section.get(part) if isinstance(section, dict) else None
        require(section is None, f"{SECTION}.curriculum.{name}", section, f"verl has it: {where}")
    rollout = config.actor_rollout_ref.rollout
    own = {
        "rollout_budget": int(config.data.train_batch_size) * int(rollout.n),
        "medium.group_size": int(rollout.n),
        "max_tokens": int(rollout.response_length),
    }
    preset = given.get("preset") or "dare"
    built = CurriculumConfig.preset(preset).replace(merge(nest(own), changes))
    fix = (
        "reads log-probs of past rollouts, for the estimate or for replay, which the plug-in does "
        "not compute; choose the estimator dare or posterior, and fresh_share: 1"
    )
    require(wanted_scores(built) == "none", f"{SECTION}.preset", preset, fix)
    fix = "rolls prompts out before it chooses, which verl's step has no room for; choose dare"
    probes = estimator_class(built).probe is not Estimator.probe
    require(not probes, f"{SECTION}.preset", preset, fix)
    return Settings(built, given.get("success"))


def _refuse(config: Any) -> None:
    for name, fix in _REFUSED.items():
        value = OmegaConf.select(config, name)
        require(not value, name, value, fix)
    estimator, critic = config.algorithm.adv_estimator, config.critic.enable
    fix = "write grpo: advantages come from the curriculum, which needs no critic"
    require(estimator == "grpo", "algorithm.adv_estimator", estimator, fix)
    require(not critic, "critic.enable", critic, "nobody reads its values; switch it off")
    mode = config.actor_rollout_ref.actor.policy_loss.loss_mode
    fix = "only vanilla is known to take a clip for each row"
    require(mode == "vanilla", "actor_rollout_ref.actor.policy_loss.loss_mode", mode, fix)
    cycle = OmegaConf.select(config, "trainer.v1.sync.parameter_sync_step", default=1)
    fix = "a plan is one step of rollouts: leave it at 1"
    require(cycle == 1, "trainer.v1.sync.parameter_sync_step", cycle, fix)
