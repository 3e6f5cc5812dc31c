"""`dare study`: many runs side by side, resumable, and what they show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from dare.commands.study_estimators import estimators

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
Recipe = Annotated[str, typer.Option(help="A shipped recipe or a YAML file.")]
Workers = Annotated[int, typer.Option(help="Runs at a time, a process of one thread each.")]
Devices = Annotated[
    str,
    typer.Option(help="Where: `cpu`, or GPUs by number (0,1). Default: all; pocket on the CPU."),
]
Truth = Annotated[
    bool, typer.Option("--truth", help="Measure the error of the difficulty estimate at the end.")
]
Json = Annotated[bool, typer.Option("--json", help="JSON instead of text.")]
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
    recipe: Recipe = "quickstart",
    workers: Workers = 1,
    devices: Devices = "",
    out: Annotated[str, typer.Option(help="Folder of the runs.")] = "runs/methods",
    base: Base = None,
    truth: Truth = False,
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
    from dare.study.arms import arms_of

    names = [name.strip() for name in presets.split(",") if name.strip()]
    arms = arms_of(names, arm or [])
    made = _study(arms, out, (first_seed, seeds), tokens, recipe, context.args, truth)
    _run(made, workers, devices)
    _conclude(made, base, json)


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
    recipe: Recipe = "quickstart",
    workers: Workers = 1,
    devices: Devices = "",
    out: Annotated[str, typer.Option(help="Folder of the runs.")] = "runs/sweep",
    base: Base = None,
    truth: Truth = False,
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
    from dare.study.sweep import SYMBOLS, grid

    arms = grid(preset, field, values)
    made = _study(arms, out, (first_seed, seeds), tokens, recipe, context.args, truth)
    _run(made, workers, devices)
    _conclude(made, base, json, [SYMBOLS.get(name, name) for name in field])


def _study(
    arms: Sequence[Any],
    out: str,
    seeds: tuple[int, int],
    tokens: int | None,
    recipe: str,
    options: Sequence[str],
    truth: bool,
) -> Any:
    from pathlib import Path

    from dare.study.methods import Study

    first, count = seeds
    return Study(arms, Path(out), count, tokens, recipe, list(options), truth, first)


def _run(made: Any, workers: int, devices: str) -> None:
    """Run what is missing; stop here where it was interrupted."""
    from dare.study.study_progress import StudyProgress

    places = [word.strip() for word in devices.split(",") if word.strip()]
    outcome = made.run(workers, places, progress=StudyProgress())
    if outcome.failed:
        failed = "; ".join(f"{job.title} ({job.log})" for job, _ in outcome.failed)
        typer.echo(f"failed, and tried again by the same command: {failed}", err=True)
    if outcome.interrupted:
        left = len(outcome.interrupted)
        typer.echo(f"stopped with {left} run(s) left; the same command goes on", err=True)
        raise typer.Exit(130)


def _conclude(made: Any, base: str | None, json: bool, fields: Sequence[str] = ()) -> None:
    """Compare what is finished; exit code 1 where a run failed."""
    from dare.commands.compare import present
    from dare.study.compare import compare_runs
    from dare.study.runs import load_runs

    finished = [str(job.folder) for job in made.jobs() if job.done]
    if finished:
        runs, _ = load_runs(finished)
        figures = compare_runs(runs, base)
        present(figures, json=json, out=made.out / "compare", fields=fields)
    if len(finished) < len(made.jobs()):
        raise typer.Exit(1)


_OPEN = {"allow_extra_args": True, "ignore_unknown_options": True}
study.command(context_settings=_OPEN)(methods)
study.command(context_settings=_OPEN)(sweep)
study.command(context_settings=_OPEN)(estimators)
