"""`dare recipe`: what is shipped, and every key explained. `dare init`: a recipe of your own."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from keyword import iskeyword
from pathlib import Path
from typing import Annotated, Any

import typer

from dare.commands.data import parse_columns
from dare.commands.options import Columns
from dare.commands.presets import field_docs
from dare.errors import InvalidInput, require
from dare.text import legible

_REWARD = '''\
"""The reward of this recipe: one number a rollout, or None where it could not be scored."""


def {name}(prompts, completions, **columns):
    """{example}"""
    answers = columns.get("answer") or [None] * len(completions)
    return [
        None if answer is None else float(str(answer) in text_of(completion))
        for completion, answer in zip(completions, answers)
    ]


def text_of(completion):
    """A completion is a string, or a list of messages where the prompts are."""
    return completion if isinstance(completion, str) else completion[-1]["content"]
'''

_RECIPE = """\
# {about}
# Next: dare train {out}{trust} --dry-run  (what the first step would do)
#       dare train {out}{trust}
#       dare report {run}  (also while it runs: --serve)
# All keys: dare recipe --explain
{memory}
model: {model}
data: {data}
# {rows}
{eval_data}
reward: {reward}  # boxed, math, gsm8k, code, or module:function with the module beside this file
preset: dare  # grpo is the same trainer without the curriculum, to compare with
training:
  output_dir: {run}
  system_prompt: {system_prompt}  # math, gsm8k, code or a text of your own; null: the prompt alone
  max_steps: {max_steps}  # {length_of_run}; or num_train_epochs
  learning_rate: {learning_rate}
  rollout_budget: {budget}  # rollouts a step trains on: {prompts} prompts x 8
  num_generations: 8
  max_completion_length: {length}  # tokens; what is longer is cut off and rarely right
  temperature: 1.0
  top_p: 1.0
  per_device_train_batch_size: {batch}  # rows a backward pass; lower it where memory is short
  generation_rows: {decoded}  # rollouts decoded at once; lower it where memory is short
  save_steps: 20
"""
_EVALUATE = """\
  eval_strategy: steps
  eval_steps: 20
  eval_on_start: true
"""
_NO_EVALUATION = "# eval_data: held_out.jsonl  # prompts to evaluate on, with eval_strategy: steps"
_PEFT = """\
peft:  # without this part all weights are trained, in 16 bytes each
  r: 32
  lora_alpha: 64
  target_modules: all-linear
"""
_POCKET = (
    "pocket, the built-in policy, knows chains of arithmetic like 38*7*5 mod 97 alone: on other "
    "prompts it shows that your parts fit together, and its rewards stay 0"
)
_UNREAD = "not read; where columns are not guessed: {path: ..., columns: {prompt: question}}"


def recipe(
    name: Annotated[
        str | None,
        typer.Argument(help="A shipped recipe to print; with --explain, part of a key's name."),
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="List every key, its default and what it does.")
    ] = False,
) -> None:
    """List the shipped recipes, print one, or explain every key that a recipe can have.

    [cyan]dare recipe qwen2.5-1.5b-gsm8k-lora > mine.yaml[/cyan]  # to change it

    [cyan]dare recipe --explain[/cyan]

    [cyan]dare recipe --explain learning_rate[/cyan]
    """
    from dare.training.recipe import recipe_names, shipped_text

    if explain:
        part = (name or "").replace("-", "_")
        for key, default, text in explained():
            if part in key:
                typer.echo(f"{key}: {default}" if default else f"{key}:")
                if text:
                    typer.echo(f"    {text}")
    elif name is None:
        width = max(map(len, recipe_names()))
        for each in recipe_names():
            typer.echo(f"{each:{width}}  {shipped_text(each).partition(chr(10))[0].lstrip('# ')}")
    else:
        typer.echo(shipped_text(name), nl=False)


def init(
    data: Annotated[str, typer.Option(help="A data file, or a hub id.")],
    model: Annotated[str, typer.Option(help="A hub id, a folder, or pocket.")] = "pocket",
    reward: Annotated[
        str,
        typer.Option(help="boxed, math, gsm8k, code, or module:function; a new file is begun."),
    ] = "math",
    eval_data: Annotated[str | None, typer.Option(help="The same for evaluation.")] = None,
    columns: Columns = None,
    gpu: Annotated[str | None, typer.Option(help="A card or a size, as in 24GB.")] = None,
    full: Annotated[bool, typer.Option("--full", help="Train all weights, not LoRA.")] = False,
    out: Annotated[str, typer.Option(help="The file to write.")] = "recipe.yaml",
) -> None:
    """Write a commented recipe for your model, data and reward.

    [cyan]dare init --model Qwen/Qwen2.5-1.5B-Instruct --data mine.jsonl --reward mine:score[/cyan]
    """
    import yaml

    from dare.runs.files import check_out, write_whole

    path = Path(out)
    check_out(path, ".yaml", ".yml")
    if os.path.exists(path):
        raise InvalidInput("--out", out, "is there already; name another file, or remove it")
    given = {"--model": model, "--data": data, "--eval-data": eval_data, "--columns": columns}
    for option, word in given.items():
        fix = "is no text that a recipe can hold; rename it in UTF-8"
        require(_utf8(word or ""), option, word, fix)
    _check_reward(reward)
    _check_model(model)
    named = parse_columns(columns)

    def source(file: str) -> Any:
        return {"path": file, "columns": named} if named else file

    rows = _rows(source(data), data, "--data")
    if eval_data is not None:  # refused here, not after a night of training
        _rows(source(eval_data), eval_data, "--eval-data")
    small = model == "pocket"
    budget = 64 if len(rows) < 512 and rows else 256
    steps = -(-3 * len(rows) * 8 // budget) if rows else 200
    run = f"runs/{path.stem}"
    trust = " --trust" if ":" in reward else ""  # the recipe runs code of your own

    def shown_yaml(value: Any) -> str:
        text = yaml.safe_dump(value, default_flow_style=True, width=1000)
        return text.partition("\n...")[0].strip()

    text = _RECIPE.format(
        about=_comment(f"{model} on {data}, scored by {reward}."),
        out=_comment(out),
        trust=trust,
        run=shown_yaml(run),
        memory="{memory}",
        model=shown_yaml(model),
        data=shown_yaml(source(data)),
        rows=f"{len(rows):,} rows; reward functions get {_columns(rows)}" if rows else _UNREAD,
        eval_data=f"eval_data: {shown_yaml(source(eval_data))}" if eval_data else _NO_EVALUATION,
        reward=shown_yaml(reward),
        system_prompt=reward if reward in ("math", "gsm8k", "code") else "null",
        max_steps=(chosen := min(200, max(20, steps))),
        length_of_run="each prompt about three times" if chosen == steps else "a start",
        learning_rate="3.0e-4" if small else "1.0e-6" if full else "2.0e-5",
        budget=budget,
        prompts=budget // 8,
        length=64 if small else 1024,
        batch=64 if small else 8,
        decoded=128,
    )
    text += (_EVALUATE if eval_data else "") + ("" if small or full else _PEFT)
    memory, missing = _memory(yaml.safe_load(text.replace("{memory}", "")), gpu)
    path.parent.mkdir(parents=True, exist_ok=True)
    begun = _begin_reward(reward, path.parent, rows)
    write_whole(path, text.replace("{memory}", memory))
    typer.echo(f"wrote {out}{f' and {begun}, the reward to fill in' if begun else ''}")
    if missing:
        typer.echo(f"without an estimate of memory: {missing}", err=True)
    if small:
        typer.echo(_POCKET, err=True)
    typer.echo(
        f"next: dare train {out}{trust} --dry-run; dare train {out}{trust}; dare report {run}"
    )


def _utf8(text: str) -> bool:
    """Whether it can stand in a recipe; a file's name may be bytes that are no characters."""
    try:
        return bool(text.encode()) or not text
    except UnicodeEncodeError:
        return False


def _comment(text: str) -> str:
    """What is known of strangers, in one line that YAML passes over."""
    return " ".join(legible(text).split())


def _check_model(model: str) -> None:
    """Refuse what training could not load, whatever the network says."""
    from dare.data.load import is_hub_id

    require(model, "--model", model, "name a folder, a hub id, or pocket")
    if os.path.isdir(os.path.expanduser(model)):
        return
    local = model.startswith((".", "/", "~")) or model.count("/") > 1
    local |= os.path.isfile(os.path.dirname(model))
    require(not local, "--model", model, "there is no such folder")
    fix = "is neither a folder with a model nor a hub id such as owner/name"
    require(is_hub_id(model) and not os.path.exists(model), "--model", model, fix)


def _rows(source: Any, name: str, option: str) -> list[dict[str, Any]]:
    """The rows of a file; none of a hub id, which is not asked for here."""
    from dare.data.load import is_file, is_hub_id
    from dare.training.recipe import load_data

    if is_file(name):
        return load_data(source, option)
    fix = "is neither a file nor a hub id such as owner/name"
    require(is_hub_id(name), option, name, fix)
    return []


def _columns(rows: list[dict[str, Any]]) -> str:
    """What reward functions can name, beside prompts and completions."""
    names = (str(name) for name in rows[0] if name not in ("prompt", "source"))
    return ", ".join(map(_comment, names))


def _check_reward(reward: str) -> None:
    """Refuse what is neither a reward of ours nor can be a function's name."""
    from dare.rewards.builtin import REWARDS

    module, colon, function = reward.partition(":")
    parts = [*module.split("."), function]
    named = colon and all(part.isidentifier() and not iskeyword(part) for part in parts)
    fix = f"use one of {', '.join(REWARDS)}, or module:function"
    require(named or reward in REWARDS, "--reward", reward, fix)


def _begin_reward(reward: str, folder: Path, rows: list[dict[str, Any]]) -> str | None:
    """A file for a reward of one's own, unless there is one; its name."""
    from dare.rewards.builtin import REWARDS

    module, _, function = reward.partition(":")
    if reward in REWARDS:
        return None
    path = folder / f"{module.replace('.', '/')}.py"
    if os.path.exists(path) or "." in module:
        return None
    names = f"({_columns(rows)})" if rows else "of the data"
    example = f"Columns {names} come as lists, one entry a rollout."
    path.write_text(_REWARD.format(name=function, example=example), encoding="utf-8")
    return str(path)


def _memory(recipe: dict[str, Any], gpu: str | None) -> tuple[str, str]:
    """The plan of the recipe in a line a phase, and why there is none where the model's
    configuration cannot be had."""
    from dare.policy.gpus import card_here, card_named
    from dare.policy.memory import usable
    from dare.training.workload import memory_lines, workload_of

    card = card_here() if gpu is None else card_named(gpu)
    try:
        workload = workload_of(recipe, card=card).workload
    except InvalidInput as error:
        return "# Memory: dare plan shows it, before anything is loaded", str(error)
    limit = None if card is None else usable(card.bytes)
    fits = "" if card is None else f" on one {card.name}"
    lines = [f"# Memory{fits} in GB (dare plan has more):", *memory_lines(workload, limit)]
    return "\n".join(lines), ""


def explained() -> Iterator[tuple[str, str, str]]:
    """(dotted key, default, what it does) of all that a recipe can say."""
    from peft import LoraConfig

    from dare.config import CurriculumConfig
    from dare.training.config import DareConfig
    from dare.training.recipe import PARTS

    for name, about in PARTS.items():
        yield name, "", about
        if name in ("training", "peft"):
            for item in dataclasses.fields(DareConfig if name == "training" else LoraConfig):
                plain = item.default is not dataclasses.MISSING and item.init
                text = " ".join(str(item.metadata.get("help", "")).split())
                if item.init:
                    yield f"{name}.{item.name}", str(item.default) if plain else "", text
        elif name == "curriculum":
            usual = CurriculumConfig()
            for key, text in field_docs(CurriculumConfig):
                value: Any = usual
                for step in key.split("."):
                    value = getattr(value, step)
                default = "" if dataclasses.is_dataclass(value) else str(value)
                yield f"{name}.{key}", default, text
