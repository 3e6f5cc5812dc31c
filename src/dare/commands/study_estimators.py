"""`dare study estimators`: every estimator of difficulty against the truth, in one run."""

from __future__ import annotations

from typing import Annotated, Any

import typer


def estimators(
    context: typer.Context,
    recipe: Annotated[str, typer.Argument(help="A shipped recipe or a YAML file.")] = "quickstart",
    seeds: Annotated[int, typer.Option(help="Runs, each with its own seed.")] = 1,
    steps: Annotated[int, typer.Option(help="Steps of a run; 0 takes the recipe's.")] = 0,
    at: Annotated[
        str, typer.Option(help="Steps to measure at, as in 20,40,60; default: each third.")
    ] = "",
    prompts: Annotated[int, typer.Option(help="Prompts whose truth is measured.")] = 200,
    rollouts: Annotated[int, typer.Option(help="Fresh rollouts of each, for the truth.")] = 64,
    out: Annotated[str, typer.Option(help="Folder of the study.")] = "runs/estimators",
    names: Annotated[
        str, typer.Option("--estimators", help="Some of them, by comma; default: all.")
    ] = "",
    variant: Annotated[
        list[str] | None,
        typer.Option(help="'NAME=--field value ...': dare with other settings; may be repeated."),
    ] = None,
    teacher: Annotated[
        str | None,
        typer.Option(help="A DOTS head of `dare teacher fit`; default: an untrained one."),
    ] = None,
    workers: Annotated[int, typer.Option(help="Seeds at a time, a process each.")] = 1,
) -> None:
    """Hold every estimator of difficulty against the true failure rate during training.

    One run a seed; all estimators watch the same rollouts and none but the run's own decides
    anything. At the chosen steps a random set of training prompts, half of them seen so far, is
    rolled out many times. Writes estimators.json and estimators.md. Runs that are finished are
    not repeated when the command is given again. Other options change the recipe, as with
    [cyan]dare train[/cyan].

    [bold]Examples[/bold]

    [cyan]dare study estimators --seeds 5 --at 20,40,60[/cyan]

    [cyan]dare study estimators --variant 'K=32=--estimator.name paper'[/cyan]
    """
    from pathlib import Path

    import torch
    from transformers.utils import logging

    from dare.commands.train import split_options
    from dare.study.estimator_report import show
    from dare.study.estimator_runs import run_estimators
    from dare.study.estimators import ESTIMATORS, Measurement
    from dare.training.recipe import change, load_recipe

    logging.disable_progress_bar()
    recipe, options = split_options([recipe, *context.args])
    options += ["--max-steps", str(steps)] if steps else []
    settings = change(load_recipe(recipe), options)
    length = int((settings.get("training") or {}).get("max_steps", 200))
    chosen = tuple(name.strip() for name in names.split(",") if name.strip())
    wanted = Measurement(
        at=parse_steps(at, length),
        prompts=prompts,
        rollouts=rollouts,
        estimators=chosen or tuple(ESTIMATORS),
        variants=dict(parse_variant(text) for text in variant or []),
    )
    if settings.get("model", "pocket") == "pocket":
        torch.set_num_threads(1)  # the matrices are tiny: threads would only wait for each other
    figures = run_estimators(settings, Path(out), wanted, seeds, teacher, workers)
    show(figures)
    typer.echo(f"wrote {Path(out) / 'estimators.json'} and {Path(out) / 'estimators.md'}")


def parse_variant(text: str) -> tuple[str, dict[str, Any]]:
    """Name and settings from 'NAME=--field value ...'; the name may hold a = itself."""
    import shlex

    from dare.errors import InvalidInput
    from dare.training.recipe import change

    name, found, rest = text.partition("=--")
    options = shlex.split("--" + rest) if found else []
    made = change({}, options) if options else {}
    if not name.strip() or not made.get("curriculum"):
        fix = "is written as 'NAME=--field value ...', as in 'mopps=--estimator.name posterior'"
        raise InvalidInput("--variant", text, fix)
    others = sorted(set(made) - {"curriculum"})
    if others:
        raise InvalidInput("--variant", text, f"{others[0]} is no setting of the estimate")
    return name.strip(), made["curriculum"]


def parse_steps(text: str, length: int) -> tuple[int, ...]:
    """The steps named, each once and in order; the thirds of the run where none is."""
    from dare.errors import InvalidInput, require

    if not text.strip():
        return tuple(sorted({max(1, round(length * part / 3)) for part in (1, 2, 3)}))
    try:
        found = sorted({int(word) for word in text.split(",")})
    except ValueError:
        raise InvalidInput("--at", text, "name steps by comma, as in 20,40,60") from None
    fix = f"must be between 1 and the last step, {length}"
    require(found[0] >= 1 and found[-1] <= length, "--at", text, fix)
    return tuple(found)
