"""`dare study`: many runs side by side, resumable, and what they show."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from dare.commands.compare import present
from dare.commands.options import (
    OPEN,
    Json,
    Recipe,
    Trust,
    changed_recipe,
    filled,
    listed,
    quiet,
    steps_of,
    trusted_recipe,
)
from dare.errors import InvalidInput, require, suggest


def estimators(
    context: typer.Context,
    recipe: Recipe = "quickstart",
    seeds: Annotated[int, typer.Option(help="Runs, each with its own seed.")] = 1,
    steps: Annotated[int, typer.Option(help="Steps of a run; 0 takes the recipe's.")] = 0,
    at: Annotated[
        str, typer.Option(help="Steps to measure at, as in 20,40,60; default: each third.")
    ] = "",
    prompts: Annotated[int, typer.Option(help="Prompts whose truth is measured.")] = 200,
    rollouts: Annotated[int, typer.Option(help="Fresh rollouts of each, for the truth.")] = 64,
    out: Annotated[
        str, typer.Option(help="Folder of the study.", callback=filled)
    ] = "runs/estimators",
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
    trust: Trust = False,
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
    import torch

    from dare.study.estimator_runs import run_estimators, show
    from dare.study.estimators import ESTIMATORS, Measurement

    quiet()
    context.args += ["--max-steps", str(steps)] if steps else []
    settings = changed_recipe(context, recipe, trust=trust)
    length = int((settings.get("training") or {}).get("max_steps", 200))
    wanted = Measurement(
        at=parse_steps(at, length),
        prompts=prompts,
        rollouts=rollouts,
        estimators=tuple(listed(names) or ESTIMATORS),
        variants=dict(parse_variant(text) for text in variant or []),
    )
    if settings.get("model", "pocket") == "pocket":
        torch.set_num_threads(1)  # the matrices are tiny: threads would only wait for each other
    figures = run_estimators(settings, Path(out), wanted, seeds, teacher, workers)
    show(figures)
    typer.echo(f"wrote {Path(out) / 'estimators.json'} and {Path(out) / 'estimators.md'}")


def parse_variant(text: str) -> tuple[str, dict[str, Any]]:
    """Name and settings from 'NAME=--field value ...'; the name may hold a = itself."""
    from dare.study.methods import words_of
    from dare.training.recipe import change

    name, found, rest = text.partition("=--")
    options = words_of("--variant", "--" + rest) if found else []
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
    if not text.strip():
        return tuple(sorted({max(1, round(length * part / 3)) for part in (1, 2, 3)}))
    found = steps_of("--at", text, "20,40,60")
    fix = f"must be between 1 and the last step, {length}"
    require(found[0] >= 1 and found[-1] <= length, "--at", text, fix)
    return tuple(found)


study = typer.Typer(
    help="Studies: many runs side by side. A study that is stopped goes on where it was.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

PRESETS = "grpo,paper,dare"
Seeds = Annotated[int, typer.Option(help="Runs of each method, one a seed.")]
FirstSeed = Annotated[
    int, typer.Option(help="The seeds are this one and those after it; choose and test apart.")
]
Tokens = Annotated[
    int | None,
    typer.Option(help="Tokens that each run may generate, probes included; quickstart: 500000."),
]
RecipeOption = Annotated[str, typer.Option(help="A shipped recipe or a YAML file.")]
Workers = Annotated[int, typer.Option(help="Runs at a time, a process of one thread each.")]
Devices = Annotated[
    str,
    typer.Option(help="Where: `cpu`, or GPUs by number (0,1). Default: all; pocket on the CPU."),
]
Truth = Annotated[
    bool, typer.Option("--truth", help="Measure the error of the difficulty estimate at the end.")
]
Base = Annotated[str | None, typer.Option(help="What is compared against; the first otherwise.")]


def methods(
    context: typer.Context,
    presets: Annotated[str, typer.Option(help="Presets, with commas.")] = PRESETS,
    arm: Annotated[
        list[str] | None,
        typer.Option(help="'NAME=PRESET --field value ...': a line of your own; may be repeated."),
    ] = None,
    seeds: Seeds = 5,
    first_seed: FirstSeed = 0,
    tokens: Tokens = None,
    recipe: RecipeOption = "quickstart",
    workers: Workers = 1,
    devices: Devices = "",
    out: Annotated[str, typer.Option(help="Folder of the runs.", callback=filled)] = "runs/methods",
    base: Base = None,
    truth: Truth = False,
    trust: Trust = False,
    json: Json = False,
) -> None:
    """Presets x seeds at equal generated tokens, then the comparison.

    Finished runs are never repeated: the same command goes on after a crash
    or Ctrl-C; with more seeds or presets it adds to what is there. A run that
    fails is reported and stops no other. Tables and figures go to OUT/compare.
    Other options change the recipe of every run, as with [cyan]dare train[/cyan].
    With --presets '' only the lines of --arm are run.

    [bold]Examples[/bold]

    [cyan]dare study methods --workers 4[/cyan]  # GRPO, the paper and DARE, five seeds each

    [cyan]dare study methods --presets grpo,grpo+snis,dare --out runs/parts[/cyan]

    [cyan]dare study methods --presets grpo --arm 'tiers=dare --tiers true' --seeds 3[/cyan]

    [cyan]dare study methods --recipe my.yaml --tokens 20000000 --learning-rate 1e-6[/cyan]
    """
    from dare.study.methods import Study, arms_of

    arms = arms_of(listed(presets), arm or [])
    trusted_recipe(recipe, trust=trust)  # here alone: the processes of its runs do not ask
    made = Study(arms, Path(out), seeds, tokens, recipe, context.args, truth, first_seed)
    _run(made, workers, devices, base, json)


def sweep(
    context: typer.Context,
    field: Annotated[
        list[str],
        typer.Option(help="A setting by its dotted name or the paper's letter; once or twice."),
    ],
    values: Annotated[list[str], typer.Option(help="Its values, with commas; one list a field.")],
    preset: Annotated[str, typer.Option(help="The preset that is changed.")] = "dare",
    seeds: Seeds = 3,
    first_seed: FirstSeed = 0,
    tokens: Tokens = None,
    recipe: RecipeOption = "quickstart",
    workers: Workers = 1,
    devices: Devices = "",
    out: Annotated[str, typer.Option(help="Folder of the runs.", callback=filled)] = "runs/sweep",
    base: Base = None,
    truth: Truth = False,
    trust: Trust = False,
    json: Json = False,
) -> None:
    """One method a value of a setting, or a pair of values of two, at equal generated tokens.

    Letters of the paper: lambda_easy, lambda_hard, kappa, eta, c, K, sigma,
    tau_ESS. Any other setting goes by its name in [cyan]dare presets dare[/cyan] or
    [cyan]dare train[/cyan]. Runs that an earlier sweep in the same folder has
    finished are used again. Other options change the recipe of every run.

    [bold]Examples[/bold]

    [cyan]dare study sweep --field selection.sharpness --values 4,8,16 --workers 4[/cyan]

    [cyan]dare study sweep --field eta --values 0,0.05 --field sigma --values 0.5,1[/cyan]

    [cyan]dare study sweep --tiers true --field easy.clip_high --values 0.2,0.6[/cyan]
    """
    from dare.study.methods import SYMBOLS, Study, grid

    arms = grid(preset, field, values)
    trusted_recipe(recipe, trust=trust)
    made = Study(arms, Path(out), seeds, tokens, recipe, context.args, truth, first_seed)
    _run(made, workers, devices, base, json, [SYMBOLS.get(name, name) for name in field])


def _run(
    made: Any, workers: int, devices: str, base: str | None, json: bool, fields: Sequence[str] = ()
) -> None:
    """Run what is missing, unless interrupted compare what is finished; exit code 1 where a run
    failed."""
    from dare.runs.methods import load_runs
    from dare.study.comparison import compare_runs
    from dare.study.runner import StudyProgress

    names = [arm.name for arm in made.arms]
    require(base is None or base in names, "--base", base, suggest(str(base), names))
    require(workers >= 1, "--workers", workers, "needs at least one")
    outcome = made.run(workers, listed(devices), progress=StudyProgress())
    if outcome.failed:
        failed = "; ".join(f"{job.title} ({job.log})" for job, _ in outcome.failed)
        typer.echo(f"failed, and tried again by the same command: {failed}", err=True)
    if outcome.interrupted:
        left = len(outcome.interrupted)
        typer.echo(f"stopped with {left} run(s) left; the same command goes on", err=True)
        raise typer.Exit(130)
    finished = [str(job.folder) for job in made.jobs() if job.done]
    if finished:
        figures = compare_runs(load_runs(finished)[0], base)
        present(figures, json=json, out=made.out / "compare", fields=fields)
    if len(finished) < len(made.jobs()):
        raise typer.Exit(1)


study.command(context_settings=OPEN)(methods)
study.command(context_settings=OPEN)(sweep)
study.command(context_settings=OPEN)(estimators)
