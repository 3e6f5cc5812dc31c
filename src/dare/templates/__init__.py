"""Prompt templates as data: what a policy is shown, in training and in evaluation alike.

A template is one YAML file here: `system`, `think_longer`, `hint` and `step` (a line of the hint's
skeleton); `like` names the template whose wording it takes where it says nothing itself.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

import yaml

from dare.errors import InvalidInput, require, suggest

Message = dict[str, str]
_SLOT = re.compile(r"\{(prompt|steps|number|fragment)\}")
_WORDINGS = ("system", "think_longer", "hint", "step")
DEFAULT = "none"


@dataclass(frozen=True)
class Template:
    """The words around a prompt. Slots are filled in one pass, so prompts may hold braces."""

    name: str
    about: str
    system: str | None
    think_longer: str
    hint: str
    step: str

    def messages(
        self,
        prompt: str | Sequence[Mapping[str, str]],
        *,
        think_longer: bool = False,
        fragments: Sequence[str] | None = None,
    ) -> list[Message]:
        """The conversation that the policy is shown; a prompt's own system message is kept."""
        turns: list[Message] = (
            [{"role": "user", "content": prompt}]
            if isinstance(prompt, str)
            else [dict(turn) for turn in prompt]
        )
        if self.system is not None and turns[0]["role"] != "system":
            turns.insert(0, {"role": "system", "content": self.system})
        if fragments is not None:
            turns[-1]["content"] = self.hinted(turns[-1]["content"], fragments)
        elif think_longer:
            turns[-1]["content"] = self.longer(turns[-1]["content"])
        return turns

    def longer(self, prompt: str) -> str:
        """The prompt followed by the request to take more time."""
        return _fill(self.think_longer, prompt=prompt)

    def hinted(self, prompt: str, fragments: Sequence[str]) -> str:
        """The prompt followed by a reasoning skeleton."""
        require(fragments, "fragments", fragments, "use think_longer for a prompt without a hint")
        steps = "\n".join(
            _fill(self.step, number=str(number), fragment=fragment)
            for number, fragment in enumerate(fragments, 1)
        )
        return _fill(self.hint, prompt=prompt, steps=steps)


def template_names() -> list[str]:
    """Names of the shipped templates."""
    folder = resources.files(__package__)
    return sorted(item.name[:-5] for item in folder.iterdir() if item.name.endswith(".yaml"))


@functools.cache
def load_template(name: str) -> Template:
    """A shipped template by name."""
    if name not in template_names():
        raise InvalidInput("template", name, suggest(name, template_names()))
    values = _read(name)
    base = _read(values["like"]) if "like" in values else {}
    wording: dict[str, Any] = {key: values.get(key, base.get(key)) for key in _WORDINGS}
    if "system" in values:  # null is a choice: no system prompt
        wording["system"] = values["system"]
    return Template(name=name, about=values["about"], **wording)


def template_of(system_prompt: str | None) -> Template:
    """The template that a `system_prompt` setting stands for: a shipped name, a text, or none."""
    if system_prompt is None:
        return load_template(DEFAULT)
    names = template_names()
    if system_prompt in names:
        return load_template(system_prompt)
    if re.fullmatch(r"[\w+-]+", system_prompt) and difflib.get_close_matches(system_prompt, names):
        fix = f"is no template; {suggest(system_prompt, names)}"
        raise InvalidInput("system_prompt", system_prompt, fix)
    return replace(load_template(DEFAULT), name="text", about="", system=system_prompt)


def _read(name: str) -> dict[str, Any]:
    text = resources.files(__package__).joinpath(f"{name}.yaml").read_text(encoding="utf-8")
    values: dict[str, Any] = yaml.safe_load(text)
    return values


def _fill(wording: str, **values: str) -> str:
    return _SLOT.sub(lambda slot: values.get(slot[1], slot[0]), wording)
