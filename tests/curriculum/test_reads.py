"""A setting that does nothing cannot be written: the table of what each part reads, and its truth.

The table is held against the code: every (estimator, selector) pair runs a few steps with settings
that note who asks for them.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import yaml
from test_switches import built
from worlds import roll, scorer, small, truth

from dare import InvalidInput
from dare.config import (
    ESTIMATORS,
    CurriculumConfig,
    EstimatorConfig,
    SelectionConfig,
    acting_changes,
    load_preset,
    preset_names,
)
from dare.config.nested import names_of
from dare.config.reads import SELECTOR_READS, TABLE, idle
from dare.curriculum.estimators import Estimator, estimator_class
from dare.curriculum.snapshot import fitting
from dare.training.recipe import curriculum_of, load_recipe, recipe_names

SETTINGS = names_of(CurriculumConfig)
PAIRS = [(estimator, selector) for estimator in ESTIMATORS for selector in SELECTOR_READS]
# Read by whoever runs the curriculum, not by the curriculum itself.
ELSEWHERE = {"estimator.refresh_share", "estimator.teacher"}


class Noting:
    """Notes which settings of a section are asked for."""

    def __init__(self, section: Any, path: str, seen: set[str]) -> None:
        self._section, self._path, self._seen = section, path, seen

    def __getattr__(self, name: str) -> Any:
        self._seen.add(f"{self._path}.{name}")
        return getattr(self._section, name)


def asked_for(estimator: str, selector: str, **changes: Any) -> set[str]:
    """The settings of estimator and selection that three steps with this pair ask for."""
    seen: set[str] = set()
    made = built({"estimator.name": estimator, "selection.name": selector, **changes})
    config = made.config
    for section in ("estimator", "selection"):
        object.__setattr__(config, section, Noting(getattr(config, section), section, seen))
    again = type(made)(made.prompts, config, made.services)
    while again.step < 3:
        plan = again.plan()
        if again.observe(roll(plan, again.prompts, truth(again.prompts))) is not None:
            again.refresh(scorer, 10_000)
    return seen - {"estimator.name", "selection.name"}


def said(config: CurriculumConfig) -> set[str]:
    """Those that act by the table."""
    own = {name for name in SETTINGS if name.startswith(("estimator.", "selection."))}
    return own - {*idle(config), "estimator.name", "selection.name"}


@pytest.mark.parametrize(("estimator", "selector"), PAIRS)
def test_the_table_says_what_the_code_asks_for(estimator: str, selector: str) -> None:
    config = small("dare", **{"estimator.name": estimator, "selection.name": selector})
    assert asked_for(estimator, selector) == said(config) - ELSEWHERE


@pytest.mark.parametrize("explore", ["supply", "coverage", "release", "fixed", "off"])
def test_the_share_of_unseen_prompts_reads_what_its_rule_needs(explore: str) -> None:
    changes = {"selection.explore": explore}
    config = small("dare", **{"estimator.name": "uniform", "selection.name": "beta", **changes})
    assert asked_for("uniform", "beta", **changes) == said(config) - ELSEWHERE


@pytest.mark.parametrize("name", ESTIMATORS)
def test_classes_and_table_agree_on_cold_start_and_reading(name: str) -> None:
    config = small("dare", **{"estimator.name": name})
    kind = estimator_class(config)
    assert kind.uses_prior == ("cold_start.group_size" not in idle(config))
    reads = bool(kind.rescores) or kind.read is not Estimator.read
    assert reads == ("estimator.refresh_share" not in idle(config))


@pytest.mark.parametrize(("estimator", "selector"), PAIRS)
def test_whatever_does_nothing_is_refused_by_name_and_the_rest_is_taken(
    estimator: str, selector: str
) -> None:
    """Every setting beside every pair, at its default: it is the writing that is refused."""
    usual, pair = CurriculumConfig().to_dict(), {"estimator.name": estimator}
    pair["selection.name"] = selector
    nothing = idle(CurriculumConfig.from_dict(pair))
    off = {"easy.use": False, "hard.use": False, "selection.explore": "off"}
    for name in SETTINGS.keys() - pair.keys():
        section, _, field = name.rpartition(".")
        value = usual[section][field] if section else usual[field]
        if name not in nothing or value == off.get(name, ...) or value is False:
            CurriculumConfig.from_dict({**pair, name: value})
            continue
        for write in (
            lambda values: CurriculumConfig.from_dict({**pair, **values}),
            lambda values: CurriculumConfig.preset("dare", **pair, **values),
            lambda values: CurriculumConfig().replace({**pair, **values}),
        ):
            with pytest.raises(InvalidInput) as caught:
                write({name: value})
            assert (caught.value.field, caught.value.value) == (name, value)
            assert "does nothing here: it acts with " in caught.value.fix


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"selection.kappa": 8}, "selection.name beta, not with value; leave it out"),
        ({"estimator.ess_threshold": 2}, "estimator.name paper, not with dare"),
        ({"estimator.candidates": 2}, "estimator.name entropy or judge, not with dare"),
        ({"easy.below": 0.2}, "tiers true, not with false"),
        ({"tiers": True, "hard.use": False, "hard.plain": 4}, "hard.use true, not with false"),
        ({"replay.times": 2}, "fresh_share below 1, not with 1.0"),
        ({"largest_group": 32}, "group_sizes value, not with tiers"),
        (
            {"estimator.name": "paper", "cold_start.references": 0, "cold_start.train": False},
            "cold_start.references above 0, not with 0",
        ),
        (
            {"advantage.scale_rewards": "none", "advantage.std_floor": 1e-3},
            "advantage.scale_rewards group or batch, not with none",
        ),
    ],
)
def test_the_fix_says_what_would_let_it_act(values: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        CurriculumConfig.preset("dare", **values)
    assert caught.value.field == list(values)[-1]
    assert words in caught.value.fix


def test_an_estimator_of_ones_own_may_read_all() -> None:
    own = {"estimator.name": "some.module:Own", "estimator.clip": 2, "cold_start.train": False}
    assert CurriculumConfig.preset("dare", **own).estimator.clip == 2


def test_every_name_of_the_table_is_a_setting() -> None:
    for decides in TABLE:
        assert decides.name in SETTINGS
        assert {name for names in decides.reads.values() for name in names} <= SETTINGS.keys()
    kinds = {item.name: item.type for item in dataclasses.fields(SelectionConfig)}
    assert all(repr(name)[1:-1] in str(kinds["name"]) for name in SELECTOR_READS)
    assert EstimatorConfig(name="greso").name in ESTIMATORS


@pytest.mark.parametrize("name", preset_names())
def test_presets_load_come_back_and_write_nothing_that_does_nothing(name: str) -> None:
    config = CurriculumConfig.preset(name)
    again = CurriculumConfig.from_dict(yaml.safe_load(yaml.safe_dump(config.to_dict())))
    assert again == config
    assert CurriculumConfig.from_dict(load_preset(name)) == config


@pytest.mark.parametrize("name", recipe_names())
def test_recipes_load(name: str) -> None:
    assert curriculum_of(load_recipe(name))


def test_a_whole_configuration_is_taken_as_it_is() -> None:
    """As an older run resolved it, when more could be written."""
    whole = CurriculumConfig.preset("dare").to_dict()
    whole["selection"]["kappa"] = 3.0
    assert CurriculumConfig.from_dict(whole).selection.kappa == 3.0


def test_an_older_run_goes_on_without_what_did_nothing() -> None:
    written = {"selection": {"kappa": 3, "eta": 0.5}, "estimator.clip": 2, "fresh_share": 0.5}
    kept = acting_changes("dare", written)
    assert kept == {"selection.eta": 0.5, "fresh_share": 0.5}
    state = built({"selection.name": "value"}).state_dict()
    older = built({"selection.name": "value", "selection.kappa": 3.0}).state_dict()
    assert fitting(older, state, new_data=False)
    for name, value in (("selection.eta", 0.4), ("selection.name", "uniform")):
        other = built({"selection.name": "value", name: value}).state_dict()
        with pytest.raises(InvalidInput, match=name):
            fitting(other, state, new_data=False)
