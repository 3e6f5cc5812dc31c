"""Settings: presets, names, types, and values that cannot work."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from dare import CurriculumConfig, InvalidInput
from dare.config import load_preset, preset_names

PRESETS = {
    "dare",
    "paper",
    "paper-release",
    "grpo",
    "dapo",
    "greso",
    "dots",
    "edco",
    "llm-judge",
    "mopps",
    "previous-fr",
    "current-fr",
    "grpo+snis",
    "grpo+snis+selection",
    "grpo+snis+selection+easy",
    "grpo+snis+selection+hard",
}


def test_all_presets_of_the_method_exist_and_change_only_known_settings() -> None:
    assert set(preset_names()) == PRESETS
    default = CurriculumConfig().to_dict()
    for name in PRESETS:
        built = CurriculumConfig.preset(name).to_dict()
        for path, value in flat(load_preset(name)).items():
            assert pick(built, path) == value
        assert set(flat(built)) == set(flat(default))


def flat(values: dict[str, Any], path: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        where = f"{path}.{key}" if path else key
        found.update(flat(value, where) if isinstance(value, dict) else {where: value})
    return found


def pick(values: dict[str, Any], path: str) -> Any:
    for part in path.split("."):
        values = values[part]
    return values


@pytest.mark.parametrize(
    ("preset", "expected"),
    [
        ("dare", {"easy.group_size": 4, "medium.group_size": 8, "hard.group_size": 16}),
        ("dare", {"easy.below": 0.3, "hard.above": 0.8, "easy.max_tokens_ratio": 0.5}),
        ("dare", {"easy.length_penalty": 1e-4, "hard.length_bonus": 1e-4, "hard.plain": 8}),
        ("dare", {"easy.clip_high": 0.6, "easy.clip_low": 0.2, "medium.clip_high": 0.2}),
        ("dare", {"estimator.clip": 4.0, "estimator.refresh_share": 0.10, "max_tokens": 3072}),
        ("dare", {"selection.explore_floor": 0.1, "cold_start.temperature": "auto"}),
        ("dare", {"cold_start.references": 256, "prompts_per_step": 0}),
        ("dare", {"fresh_share": 1.0, "tiers": False, "estimator.name": "dare"}),
        ("dare", {"selection.name": "value", "selection.sharpness": 16.0, "selection.eta": 0.05}),
        ("dare", {"selection.per_token": 1.0, "selection.rest": 4.0, "advantage.thin_below": 1.0}),
        *((name, {"fresh_share": 1.0}) for name in ("grpo", "paper", "dapo", "greso", "mopps")),
        *((name, {"fresh_share": 1.0}) for name in sorted(PRESETS) if name.startswith("grpo+")),
        ("paper", {"selection.kappa": 100, "selection.eta": 0.0, "buffer.groups": 4096}),
        (
            "paper",
            {"estimator.name": "paper", "estimator.ess_threshold": 3.0, "estimator.clip": 4.0},
        ),
        ("paper", {"estimator.below_threshold": "prior", "estimator.refresh_share": "all"}),
        (
            "paper",
            {"prompts_per_step": 512, "rollout_budget": 512 * 16, "selection.explore": "off"},
        ),
        ("paper", {"easy.group_size": 4, "medium.group_size": 8, "hard.group_size": 16}),
        ("paper", {"cold_start.temperature": "paper", "hard.extra": "hint-or-think"}),
        ("paper", {"advantage.std_floor": 1e-6, "advantage.shape_alone": True, "tiers": True}),
        ("paper-release", {"estimator.below_threshold": "raw", "selection.explore": "release"}),
        ("paper-release", {"prompts_per_step": 512, "hard.extra": "hint-or-plain"}),
        ("dapo", {"estimator.name": "dynamic", "selection.name": "uniform", "tiers": False}),
        ("dapo", {"medium.clip_low": 0.2, "medium.clip_high": 0.28, "estimator.max_probes": 16}),
        ("greso", {"estimator.name": "greso", "estimator.greso_target": 0.25, "tiers": False}),
        ("greso", {"estimator.probe_factor": 1.5, "estimator.refill_margin": 1.25}),
        ("dare", {"advantage.shape_alone": False, "advantage.scale_rewards": "group"}),
        ("grpo", {"tiers": False, "estimator.name": "uniform", "selection.name": "uniform"}),
        ("dots", {"fresh_share": 0.5, "estimator.references": 256, "estimator.name": "teacher"}),
        ("edco", {"selection.name": "softmax", "selection.temperature": 1.0}),
        ("llm-judge", {"estimator.name": "judge", "selection.name": "beta"}),
        ("mopps", {"estimator.posterior_discount": 0.5, "selection.name": "thompson"}),
        ("mopps", {"selection.target": 0.5, "selection.explore_start": 0.3}),
        ("previous-fr", {"estimator.name": "previous-fr", "fresh_share": 1.0}),
        ("current-fr", {"estimator.target_low": 0.4, "estimator.target_high": 0.6}),
        ("grpo+snis", {"estimator.name": "paper", "selection.kappa": 100, "selection.eta": 0.0}),
        *(
            (name, {"estimator.below_threshold": "raw", "selection.name": "beta", "tiers": True})
            for name in sorted(PRESETS)
            if name.startswith("grpo+")
        ),
        ("grpo+snis+selection", {"selection.eta": 0.2, "easy.use": False, "hard.use": False}),
        ("grpo+snis+selection+easy", {"easy.use": True, "hard.use": False}),
        ("grpo+snis+selection+hard", {"easy.use": False, "hard.use": True}),
    ],
)
def test_presets_are_those_of_the_method(preset: str, expected: dict[str, Any]) -> None:
    built = CurriculumConfig.preset(preset).to_dict()
    for path, value in expected.items():
        assert pick(built, path) == value, path


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_settings_survive_yaml_and_json(name: str) -> None:
    config = CurriculumConfig.preset(name)
    assert CurriculumConfig.from_dict(config.to_dict()) == config
    assert CurriculumConfig.from_dict(yaml.safe_load(yaml.safe_dump(config.to_dict()))) == config
    assert CurriculumConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_dotted_and_nested_keys_mean_the_same() -> None:
    flat = {"easy.below": 0.2, "easy.group_size": 6, "tiers": True}
    dotted = CurriculumConfig.from_dict(flat)
    nested = CurriculumConfig.from_dict({"easy": {"below": 0.2, "group_size": 6}, "tiers": True})
    mixed = CurriculumConfig.from_dict({**flat, "easy": {"below": 0.2}})
    assert dotted == nested == mixed
    assert CurriculumConfig().replace(flat) == dotted
    preset = CurriculumConfig.preset("paper", **{"selection.eta": 0.2}, seed=9)
    assert (preset.selection.eta, preset.selection.kappa, preset.seed) == (0.2, 100.0, 9)


def test_numbers_come_in_the_ways_yaml_writes_them() -> None:
    config = CurriculumConfig.from_dict(
        yaml.safe_load("advantage: {std_floor: 1e-6}\nselection: {rest: 8}\nrollout_budget: 64.0")
    )
    assert config.advantage.std_floor == 1e-6
    assert isinstance(config.selection.rest, float)
    assert config.rollout_budget == 64
    assert isinstance(config.rollout_budget, int)


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("selecton", "selection"),
        ("selection.kapa", "kappa"),
        ("easy.groupsize", "group_size"),
        ("rollout_budgt", "rollout_budget"),
        ("buffer.rollouts_per_promt", "rollouts_per_prompt"),
        ("estimator.ess_treshold", "ess_threshold"),
    ],
)
def test_an_unknown_key_is_told_the_nearest(key: str, nearest: str) -> None:
    with pytest.raises(InvalidInput, match=f"did you mean '{nearest}'") as error:
        CurriculumConfig.from_dict({key: 1})
    assert error.value.field == key


@pytest.mark.parametrize(
    "key", ["foresight", "foresight.use", "estimator.forgetting", "estimator.prior_strength"]
)
def test_settings_that_are_gone_are_refused(key: str) -> None:
    with pytest.raises(InvalidInput, match="is no setting"):
        CurriculumConfig.from_dict({key: 1})


def test_an_unknown_preset_is_told_the_nearest() -> None:
    with pytest.raises(InvalidInput, match="did you mean 'paper'"):
        CurriculumConfig.preset("papper")
    with pytest.raises(InvalidInput, match="choose one of"):
        CurriculumConfig.from_dict({"zzz": 1})


@pytest.mark.parametrize(
    ("values", "field", "fix"),
    [
        ({"seed": "x"}, "seed", "number"),
        ({"seed": 1.5}, "seed", "whole number"),
        ({"seed": True}, "seed", "whole number"),
        ({"seed": None}, "seed", "whole number"),
        ({"seed": float("inf")}, "seed", "whole number"),
        ({"tiers": "false"}, "tiers", "true or false"),
        ({"tiers": 1}, "tiers", "true or false"),
        ({"selection.kappa": [1]}, "selection.kappa", "number"),
        ({"selection.kappa": float("nan")}, "selection.kappa", "number"),
        ({"selection.kappa": {"x": 1}}, "selection.kappa", "number"),
        ({"selection.name": "betta"}, "selection.name", "did you mean 'beta'"),
        ({"selection.name": 3}, "selection.name", "choose one of"),
        ({"estimator.refresh_share": "most"}, "estimator.refresh_share", "'all'"),
        ({"cold_start.temperature": "cold"}, "cold_start.temperature", "'auto', 'paper'"),
        ({"easy": 3}, "easy", "mapping"),
        ({"easy": None}, "easy", "mapping"),
        ({"seed": 1, "seed.x": 2}, "seed", ""),
    ],
)
def test_wrong_types_are_refused_by_name(values: dict[str, Any], field: str, fix: str) -> None:
    with pytest.raises(InvalidInput) as error:
        CurriculumConfig.from_dict(values)
    assert error.value.field.startswith(field)
    assert fix in error.value.fix


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"seed": -1}, "seed"),
        ({"buffer.rollouts_per_prompt": 1}, "buffer.rollouts_per_prompt"),
        ({"buffer.groups": 0}, "buffer.groups"),
        ({"estimator.clip": -0.1}, "estimator.clip"),
        ({"estimator.ess_threshold": 0.5}, "estimator.ess_threshold"),
        ({"estimator.refresh_share": -0.1}, "estimator.refresh_share"),
        ({"estimator.posterior_discount": 1.1}, "estimator.posterior_discount"),
        ({"estimator.target_low": 0.7}, "estimator.target_low"),
        ({"estimator.max_probes": 0}, "estimator.max_probes"),
        ({"estimator.probe_factor": 0.9}, "estimator.probe_factor"),
        ({"estimator.refill_margin": 0}, "estimator.refill_margin"),
        ({"estimator.greso_target": 1.5}, "estimator.greso_target"),
        ({"prompts_per_step": -1}, "prompts_per_step"),
        ({"cold_start.references": 1}, "cold_start.references"),
        ({"cold_start.group_size": 1}, "cold_start.group_size"),
        ({"cold_start.temperature": 0}, "cold_start.temperature"),
        ({"selection.sharpness": -1}, "selection.sharpness"),
        ({"selection.sharpness": 1001}, "selection.sharpness"),
        ({"selection.per_token": -0.1}, "selection.per_token"),
        ({"selection.rest": 0}, "selection.rest"),
        ({"selection.kappa": -1}, "selection.kappa"),
        ({"selection.kappa": float("inf")}, "selection.kappa"),
        ({"selection.eta": 1.01}, "selection.eta"),
        ({"selection.temperature": 0}, "selection.temperature"),
        ({"selection.target": 2}, "selection.target"),
        ({"selection.explore_floor": 0.9}, "selection.explore_floor"),
        ({"easy.below": 0.8, "hard.above": 0.8}, "easy.below"),
        ({"easy.below": 0.9}, "easy.below"),
        ({"hard.above": 1.1}, "easy.below"),
        ({"easy.group_size": 1}, "easy.group_size"),
        ({"medium.max_tokens_ratio": 0}, "medium.max_tokens_ratio"),
        ({"medium.max_tokens_ratio": 1.5}, "medium.max_tokens_ratio"),
        ({"hard.clip_low": 1.0}, "hard.clip_low"),
        ({"hard.clip_high": 0}, "hard.clip_high"),
        ({"easy.length_penalty": 1.0}, "easy.length_penalty"),
        ({"hard.length_bonus": -0.1}, "hard.length_bonus"),
        ({"hard.plain": 17}, "hard.plain"),
        ({"hard.plain": 1}, "hard.plain"),
        ({"fresh_share": 0}, "fresh_share"),
        ({"fresh_share": 1.1}, "fresh_share"),
        ({"rollout_budget": 15, "tiers": True}, "rollout_budget"),
        ({"rollout_budget": 24, "tiers": True, "fresh_share": 0.5}, "rollout_budget"),
        ({"rollout_budget": 7}, "rollout_budget"),
        ({"rollout_budget": 14, "fresh_share": 0.5}, "rollout_budget"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"advantage.std_floor": 0}, "advantage.std_floor"),
    ],
)
def test_values_that_cannot_work_are_named_shown_and_explained(
    values: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidInput) as error:
        CurriculumConfig.from_dict(values)
    assert error.value.field == field
    assert error.value.fix
    assert field in str(error.value)
    assert error.value.fix in str(error.value)


def test_an_error_shows_long_values_cut() -> None:
    with pytest.raises(InvalidInput) as error:
        CurriculumConfig.from_dict({"seed": "x" * 1000})
    assert len(str(error.value)) < 200
    assert isinstance(error.value, ValueError)


@pytest.mark.parametrize("size", [2, 3, 32, 64])
def test_any_group_size_works_where_groups_are_equal(size):
    assert CurriculumConfig.preset("dare", **{"medium.group_size": size}).medium.group_size == size
    with pytest.raises(InvalidInput, match="smallest_group"):
        CurriculumConfig.preset("dare", group_sizes="value", **{"medium.group_size": size})


def test_a_budget_that_is_too_small_names_the_group_that_does_not_fit():
    small = {"rollout_budget": 8, "medium.group_size": 4}
    with pytest.raises(InvalidInput, match=r"group of 16, that of hard .* smaller hard.group_size"):
        CurriculumConfig.preset("paper", **small)
    with pytest.raises(InvalidInput, match=r"that of medium .* smaller num_generations, or more"):
        CurriculumConfig.preset("dare", **small, fresh_share=0.25)
