"""The settings of a benchmark, checked: a YAML file of one's own may hold anything."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dare.errors import InvalidInput, require, suggest
from dare.templates import load_template

_PART = ("hub", "file", "tasks", "join", "columns", "keep", "subject")
_KINDS: dict[str, tuple[type, str]] = {
    "about": (str, "a text"),
    "rows": (int, "a whole number"),
    "reward": (str, "a text"),
    "template": (str, "a text"),
    "continues": (bool, "true or false"),
    "prelude": (str, "a text"),
    "unpack": (str, "a text"),
    "judge": (dict, "a mapping"),
    "file": (str, "a text"),
    "join": (str, "a text"),
    "tasks": (dict, "a mapping"),
    "columns": (dict, "a mapping"),
    "keep": (dict, "a mapping"),
}
_REPAIR = {"id", "find", "replace"}


def check_settings(name: str, values: Any, known: Sequence[str]) -> dict[str, Any]:
    """The settings as they are, with every hub id as a mapping; what cannot be is named."""
    where = f"benchmark {name}"
    if not isinstance(values, dict):
        raise InvalidInput(where, values, "must be a mapping of settings")
    _check_keys(where, values, known)
    if "template" in values:
        load_template(values["template"])
    prompt = values.get("prompt", "")
    texts = list(prompt.values()) if isinstance(prompt, dict) else [prompt]
    fix = "must be a text, or a mapping with one for each kind of test"
    require(all(isinstance(one, str) for one in texts), f"{where}: prompt", prompt, fix)
    unpack = values.get("unpack", "livecodebench")
    require(unpack == "livecodebench", f"{where}: unpack", unpack, "can only be livecodebench")
    _check_repairs(where, values.get("repairs", []))
    if values.get("judge"):
        fix = "belongs to the reward code"
        require(values.get("reward") == "code", f"{where}: judge", values["judge"], fix)
    parts = values.get("parts")
    if not isinstance(parts, list) or not parts or not all(isinstance(p, dict) for p in parts):
        raise InvalidInput(f"{where}: parts", parts, "must be a list of mappings")
    return {**values, "parts": [_part(where, part) for part in parts]}


def beside(part: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A part whose files lie in this folder."""
    return {key: str(folder / part[key]) if key in ("file", "join") else part[key] for key in part}


def _part(where: str, part: dict[str, Any]) -> dict[str, Any]:
    _check_keys(where, part, _PART)
    if not {"hub", "file", "tasks"} & part.keys():
        raise InvalidInput(f"{where}: parts", part, "needs a hub, a file or tasks")
    if isinstance(part.get("hub"), str):
        part = {**part, "hub": {"path": part["hub"]}}
    hub = part.get("hub", {"path": ""})
    known = isinstance(hub, dict) and isinstance(hub.get("path"), str)
    require(known, f"{where}: hub", hub, "must be a hub id, or a mapping with its path")
    for column, pattern in part.get("keep", {}).items():
        try:
            re.compile(str(pattern))
        except re.error as error:
            fix = f"is no regular expression: {error}"
            raise InvalidInput(f"{where}: keep.{column}", pattern, fix) from None
    for field, column in part.get("columns", {}).items():
        require(isinstance(column, str), f"{where}: columns.{field}", column, "must be a text")
    if "tasks" in part:
        from dare import tasks

        check_options(f"{where}: tasks", part["tasks"], tasks.generate)
    return part


def _check_keys(where: str, values: Mapping[str, Any], known: Sequence[str]) -> None:
    for key, value in values.items():
        if key not in known:
            raise InvalidInput(f"{where}: {key}", value, suggest(str(key), known))
        kind, words = _KINDS.get(key, (object, ""))
        right = isinstance(value, kind) and (kind is not int or not isinstance(value, bool))
        require(right, f"{where}: {key}", value, f"must be {words}")


def _check_repairs(where: str, repairs: Any) -> None:
    listed = isinstance(repairs, (list, tuple))
    known = listed and all(isinstance(one, dict) and one.keys() == _REPAIR for one in repairs)
    require(known, f"{where}: repairs", repairs, "must be a list of {id, find, replace}")


def check_options(where: str, values: Mapping[str, Any], *functions: Callable[..., Any]) -> None:
    """Refuse keywords that none of these functions has, and miss those that the first needs."""
    named = [inspect.signature(function).parameters for function in functions]
    known = [key for one in named for key, p in one.items() if p.kind is not p.VAR_KEYWORD]
    for key, value in values.items():
        require(key in known, f"{where}.{key}", value, suggest(str(key), known))
    for key, one in named[0].items():
        needed = one.default is one.empty and one.kind is not one.VAR_KEYWORD
        require(key in values or not needed, f"{where}.{key}", None, "is needed")
