"""Recipes: one YAML file that says everything about a run."""

from __future__ import annotations

import dataclasses
import datetime
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from inspect import signature
from pathlib import Path
from typing import Any

from dare.config import CurriculumConfig, nest
from dare.config.named import NAMED
from dare.config.nested import arguments, hints_of, kinds_of, names_of, typed, within
from dare.errors import InvalidInput, require, suggest
from dare.policy.model import refused_by_peft
from dare.rewards.model import named_functions
from dare.runs.files import load_yaml, typed_yaml, user_yaml
from dare.training.config import FAMILIAR, DareConfig
from dare.training.from_trl import MEANT, answer, is_trls, suggest_setting
from dare.training.trainer import DareTrainer

PARTS = {
    "model": "A hub id, a folder with a model, or `pocket`, the built-in policy.",
    "data": "Prompts to train on: a file (.jsonl, .json, .csv, .parquet), a hub id, "
    "{path, config, split, columns: {prompt: question, answer: gold}} or {tasks: {count, seed}}.",
    "eval_data": "Prompts to evaluate on: the same, or several by name, as in {a: ..., b: ...}.",
    "reward": "boxed, math, gsm8k, code, or a function of your own as module:function.",
    "modules": "Folder of your own modules; by default the recipe's, or the current one.",
    "preset": "Settings of the curriculum by name (`dare presets`); `dare` by default.",
    "training": "The run: fields of DareConfig, which has all of transformers' TrainingArguments.",
    "curriculum": "Changes to the preset, by dotted name or nested.",
    "peft": "LoRA: fields of peft's LoraConfig. Without it all weights are trained.",
}
"""What a recipe consists of."""
_PARTS: dict[str, Any] = {
    "model": str,
    "data": str | dict,
    "eval_data": str | dict | None,
    "reward": str | list,
    "modules": str | None,
    "preset": str | None,
    "training": dict | None,
    "curriculum": dict | None,
    "peft": dict | None,
}
_SOURCE = dict.fromkeys(("split", "config", "revision"), str | None) | {"columns": dict | None}
_SOURCE["path"] = str
_DATA = ("data", "eval_data")
_OURS = re.compile(r"dare[.:]")


def recipe_names() -> list[str]:
    """Names of the shipped recipes."""
    folder = resources.files("dare").joinpath("recipes")
    return sorted(item.name[:-5] for item in folder.iterdir() if item.name.endswith(".yaml"))


def shipped_text(name: str) -> str:
    """A shipped recipe as it stands, with its comments."""
    if name not in recipe_names():
        fix = f"is neither a file nor a shipped recipe; {suggest(name, recipe_names())}"
        raise InvalidInput("recipe", name, fix)
    return resources.files("dare").joinpath("recipes", f"{name}.yaml").read_text("utf-8")


def load_recipe(name: str) -> dict[str, Any]:
    """A shipped recipe by name, or a YAML file by path."""
    path, own = Path(name), dict[str, Any]()
    if path.suffix in (".yaml", ".yml") or os.path.lexists(name):
        recipe, own = user_yaml(path, "recipe"), {"modules": str(path.resolve().parent)}
    else:
        recipe = load_yaml(shipped_text(name))
    if not isinstance(recipe, dict) or not recipe:
        raise InvalidInput("recipe", name, "must be a mapping of settings")
    whole = {**own, **_checked(recipe)}
    nest(whole.get("curriculum") or {}, once=True)
    return located(whole, Path(whole["modules"])) if whole.get("modules") else whole


def located(recipe: Mapping[str, Any], folder: Path | None = None) -> dict[str, Any]:
    """The recipe with the whole paths of data files: those that are not found from here and lie in
    `folder`, or without one all. A recipe moves with its data; a run is resumed from anywhere."""

    def found(source: Any) -> Any:
        if isinstance(source, Mapping):
            parts = {"path": source["path"]} if "path" in source else source
            return {**source, **{name: found(part) for name, part in parts.items()}}
        if not isinstance(source, str) or (folder is not None and os.path.exists(source)):
            return source
        there = os.path.join(folder or os.getcwd(), source)
        return os.path.abspath(there) if os.path.isfile(there) else source

    return {**recipe, **{name: found(recipe[name]) for name in _DATA if name in recipe}}


def find_modules(recipe: Mapping[str, Any], *others: Any) -> None:
    """Let `module:name`, in the recipe or in `others`, find what lies beside the recipe; it hides
    no installed package. Where nothing is named nobody was asked for trust: a wandb.py there must
    not stand in for a library that is not installed."""
    if not own_code({**recipe, "others": others}):
        return
    folder = str(Path(recipe.get("modules") or Path.cwd()).resolve())
    if folder not in sys.path:
        sys.path.append(folder)


def _elsewhere(key: str, known: Iterable[str]) -> str:
    """In which part of a recipe a setting belongs that is in none or in the wrong one."""
    from peft import LoraConfig

    settings = list(names_of(CurriculumConfig))
    adapters = [item.name for item in dataclasses.fields(LoraConfig)]
    places = {"training": [*_fields()], "curriculum": settings, "peft": adapters}
    for part, names in places.items():
        if key in names or (part == "training" and is_trls(key)):
            return f"belongs under `{part}:`"
    if key in _PARTS:
        return "is a part of the recipe: it belongs at its top level"
    inside = [name for name in settings if name.split(".")[0] == key or name.endswith(f".{key}")]
    if inside:
        return f"belongs under `curriculum:`, as {' or '.join(inside[:3])}"
    meant = MEANT.get(key)
    for part, names in places.items():
        if meant in names:
            return f"is no setting; did you mean {meant!r}, under `{part}:`?"
    return f"is no setting; {suggest_setting(key, known)}"


def _checked(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """The parts of a recipe, each of its kind."""
    for key in recipe:
        if key not in _PARTS:
            raise InvalidInput(f"recipe: {key}", recipe[key], _elsewhere(str(key), _PARTS))
    return {key: typed(_PARTS[key], value, key) for key, value in recipe.items()}


def own_code(recipe: Mapping[str, Any]) -> list[str]:
    """What a recipe would have imported or fetched to be run, beside this package."""
    found, todo = list[str](), [(key, recipe[key]) for key in recipe if key not in _DATA]
    while todo:
        key, value = todo.pop()
        if key == "trust_remote_code" and value:  # whatever it is: transformers asks no more
            found.append(key)
        elif isinstance(value, Mapping):
            todo += [(str(name), inner) for name, inner in value.items()]
        elif isinstance(value, (list, tuple)):
            todo += [(key, inner) for inner in value]
        elif isinstance(value, str) and NAMED.fullmatch(value) and not _OURS.match(value):
            found.append(value)
    return sorted(found)


def own_estimators(recipe: Mapping[str, Any]) -> list[str]:
    """Those of them that `dare plan` imports."""
    training = recipe.get("training") or {}
    return own_code({"curriculum": [recipe.get("curriculum"), training.get("curriculum")]})


def change(recipe: Mapping[str, Any], options: Sequence[str]) -> dict[str, Any]:
    """The recipe with `--name value` options: its own parts, DareConfig fields, dotted settings."""
    changed = {key: dict(v) if isinstance(v, dict) else v for key, v in recipe.items()}
    fields, settings = _fields(), names_of(CurriculumConfig)
    items = list(options)
    while items:
        option = items.pop(0)
        if not option.startswith("--"):
            raise InvalidInput("option", option, "options are written as --name value")
        name, equals, text = option[2:].partition("=")
        if not equals:
            if not items:
                raise InvalidInput(f"--{name}", None, "needs a value")
            text = items.pop(0)
        plain = name.replace("-", "_")
        # `seed` and `rollout_budget` are names of both; the run's own field sets the curriculum's.
        for part, known in (("", _PARTS), ("training", fields), ("curriculum", settings)):
            if plain in known:
                value = typed(known[plain], _value(text, known[plain], name), plain)
                held = changed if not part else changed.setdefault(part, {})
                if held is None:  # an empty part in the file
                    held = changed[part] = {}
                held[plain] = value
                familiar = FAMILIAR.get(plain) if part == "curriculum" else None
                if familiar and changed.get("training"):  # of the file: it would win over this
                    was = changed["training"].pop(familiar, None)
                    if familiar == "epsilon" and was and "clip_high" not in nest(held)["medium"]:
                        held["medium.clip_high"] = was  # the other side of it stays
                break
        else:
            if is_trls(plain):
                answer(plain, typed_yaml(text, f"--{name}", text))
                continue
            every = [*_PARTS, *fields, *settings]
            raise InvalidInput(f"--{name}", text, f"is no setting; {suggest_setting(plain, every)}")
    return changed


def _fields() -> dict[str, Any]:
    """The settings of DareConfig with their annotations."""
    hints = hints_of(DareConfig)
    return {name: hints[name] for name in signature(DareConfig).parameters}


def config_of(recipe: Mapping[str, Any]) -> DareConfig:
    """The DareConfig of a recipe; an unknown field names the nearest."""
    recipe = _checked(recipe)
    find_modules(recipe)
    given, fields = dict(recipe.get("training") or {}), _fields()
    for name in given:
        if name not in fields and not is_trls(name):
            raise InvalidInput(f"training.{name}", given[name], _elsewhere(str(name), fields))
    for key, value in nest(recipe.get("curriculum") or {}).items():
        own_fields = CurriculumConfig.__dataclass_fields__
        if key not in own_fields:
            raise InvalidInput(f"curriculum.{key}", value, _elsewhere(key, own_fields))
    if recipe.get("preset") is not None:
        given["preset"] = recipe["preset"]
    if recipe.get("curriculum"):
        own = typed(fields["curriculum"], given.get("curriculum"), "curriculum")
        given["curriculum"] = nest({**(own or {}), **recipe["curriculum"]})
    return DareConfig(**given)


def resolved(recipe: Mapping[str, Any]) -> DareConfig:
    """All settings that a recipe stands for, to be looked at: it needs no folder yet."""
    training = {**(recipe.get("training") or {}), "output_dir": "unused"}
    return config_of({**recipe, "training": training})


def curriculum_of(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the curriculum, as plain values."""
    return resolved(recipe).curriculum_config().to_dict()


def build(recipe: Mapping[str, Any], **kwargs: Any) -> DareTrainer:
    """The trainer of a recipe."""
    args = config_of(recipe)
    reward = recipe.get("reward", "boxed")
    reward = named_functions(reward, "reward")  # before data and model are looked for
    peft = _adapters(recipe["peft"]) if recipe.get("peft") else None
    train = load_data(recipe.get("data"), "data")
    held_out = _evaluation_data(recipe.get("eval_data"))
    model = recipe.get("model", "pocket")
    tokenizer = None
    if model == "pocket":
        from dare import pocket

        model, tokenizer = pocket.load_policy(), pocket.load_tokenizer()
    return DareTrainer(model, reward, args, train, held_out, tokenizer, peft_config=peft, **kwargs)


def _adapters(given: Mapping[str, Any]) -> Any:
    """The LoraConfig of the part `peft`."""
    from peft import LoraConfig

    known = {item.name for item in dataclasses.fields(LoraConfig)}
    for key, value in given.items():
        if key not in known:
            raise InvalidInput(f"peft.{key}", value, _elsewhere(str(key), known))
    options = arguments(LoraConfig, {"task_type": "CAUSAL_LM", **given}, "peft")
    task = options["task_type"]
    require(task == "CAUSAL_LM", "peft.task_type", task, "a policy is a CAUSAL_LM; leave it out")
    within("[0, 1)", options.get("lora_dropout", 0.0), "peft.lora_dropout")
    # At 0 the adapters change nothing, below they are trained away from what they should learn.
    within("(0, inf)", options.get("lora_alpha", 1), "peft.lora_alpha")
    try:
        return LoraConfig(**options)
    except Exception as error:  # its own checks, of several kinds
        raise refused_by_peft(error, given) from error


def eval_sources(source: Any) -> dict[str, Any]:
    """Sources of evaluation sets by name; the name of a single one is empty."""
    if source is None:
        return {}
    fix = "names no data, so nothing would be evaluated: name some, or leave it out"
    require(source, "eval_data", source, fix)
    several = isinstance(source, Mapping) and not {"path", "tasks"} & set(source)
    return dict(source) if several else {"": source}


def _evaluation_data(source: Any) -> Any:
    field = "eval_data"
    found = {
        name: load_data(each, f"{field}.{name}" if name else field)
        for name, each in eval_sources(source).items()
    }
    return found.get("", found or None)


def load_data(source: Any, field: str) -> list[dict[str, Any]]:
    """Rows from {tasks: ...}, a data file, a hub id, or {path, split, config, columns}."""
    if isinstance(source, Mapping) and "tasks" in source:
        from dare import tasks

        require(len(source) == 1, field, source, "has 'tasks' beside other keys; keep one")
        options = arguments(tasks.generate, source["tasks"], f"{field}.tasks")
        try:
            return [dict(problem) for problem in tasks.generate(**options)]
        except InvalidInput as error:
            raise InvalidInput(f"{field}.tasks.{error.field}", error.value, error.fix) from None
    path = source.get("path") if isinstance(source, Mapping) else source
    if not isinstance(path, str) or not path:
        fix = "name a data file, a hub id, or {tasks: {count: 1024, seed: 0}}"
        raise InvalidInput(field, source, fix)
    from dare.data.schema import training_rows

    if isinstance(source, Mapping):
        for name, value in source.items():
            require(name in _SOURCE, f"{field}.{name}", value, suggest(str(name), _SOURCE))
            typed(_SOURCE[name], value, f"{field}.{name}")
    try:
        return training_rows(dict(source) if isinstance(source, Mapping) else source)
    except InvalidInput as error:
        if field == "data":
            raise
        raise InvalidInput(f"{field}: {error.field}", error.value, error.fix) from None


def _value(text: str, hint: Any, name: str) -> Any:
    """An option's text as YAML reads it, except where the setting takes it as a word."""
    kinds = kinds_of(hint)
    value = typed_yaml(text, f"--{name}", text)
    word = (isinstance(value, bool) and bool not in kinds) or (not text and str in kinds)
    if str in kinds and not {int, float} & set(kinds):
        word |= isinstance(value, int | float | datetime.date) and not isinstance(value, bool)
    return text if word else value
