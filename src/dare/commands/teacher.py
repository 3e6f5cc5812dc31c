"""`dare teacher`: the learnt difficulty predictor of the preset `dots`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from dare.commands.options import OPEN, Json, Recipe, Trust, changed_recipe, quiet, steps_of

teacher = typer.Typer(
    help="Train the difficulty predictor (a head over embeddings) of the preset `dots`.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)


def measure(
    context: typer.Context,
    recipe: Recipe = "quickstart",
    at: Annotated[
        str, typer.Option(help="Steps to measure at; 0 is before the first update.")
    ] = "0,20,40",
    prompts: Annotated[int, typer.Option(help="Prompts rolled out at each of them.")] = 1024,
    rollouts: Annotated[int, typer.Option(help="Rollouts of each prompt.")] = 8,
    out: Annotated[str, typer.Option(help="File of the rates, JSON lines.")] = "rates.jsonl",
    preset: Annotated[str, typer.Option(help="Preset of the training run.")] = "grpo",
    leave_out: Annotated[
        str, typer.Option(help="A recipe whose training prompts are not measured.")
    ] = "",
    trust: Trust = False,
) -> None:
    """Train a recipe and measure pass rates of training prompts along the way.

    Each point takes other prompts as long as there are any. A measurement that is stopped goes on
    from its newest checkpoint when the command is given again. Other options change the recipe, as
    with [cyan]dare train[/cyan]: give it other prompts than the ones you will train on, or leave
    those out with --leave-out.

    [bold]Examples[/bold]

    [cyan]dare teacher measure my.yaml --at 0,50,100 --prompts 2000 --out rates.jsonl[/cyan]

    [cyan]dare teacher measure quickstart --data '{tasks: {count: 8192, seed: 7}}' \
--leave-out quickstart[/cyan]
    """
    import torch

    from dare.runs.files import check_out
    from dare.study.pass_rates import Wanted, prompts_of
    from dare.study.pass_rates import measure as run
    from dare.training.recipe import load_recipe

    quiet()
    settings = changed_recipe(context, recipe, "--preset", preset, trust=trust)
    steps = tuple(steps_of("--at", at, "0,20,40"))
    check_out(Path(out))
    apart = prompts_of(load_recipe(leave_out)) if leave_out else frozenset()
    if settings.get("model", "pocket") == "pocket":
        torch.set_num_threads(1)  # the matrices are tiny: threads would only wait for each other
    lines = run(settings, Path(out), Wanted(steps, prompts, rollouts, apart))
    typer.echo(f"wrote {out}: {len(lines)} pass rates of {len(steps)} policies")


def fit(
    rates: Annotated[list[str], typer.Argument(help="Pass rates: .jsonl, .jsonl.gz or .parquet.")],
    out: Annotated[str, typer.Option(help="File of the head.")] = "head.safetensors",
    embed: Annotated[
        str, typer.Option(help="`pocket`, a model by path or name, or a .npy with a row a rate.")
    ] = "pocket",
    prompt_column: Annotated[str, typer.Option(help="Column of the prompts.")] = "prompt",
    pass_rate_column: Annotated[str, typer.Option(help="Column of the rates.")] = "pass_rate",
    trials_column: Annotated[str, typer.Option(help="Column of the rollouts, if any.")] = "trials",
    policy_column: Annotated[str, typer.Option(help="Column of the policy, if any.")] = "policy",
    system_prompt: Annotated[
        str | None, typer.Option(help="System message of the run, where it has one.")
    ] = None,
    steps: Annotated[int, typer.Option(help="Updates.")] = 1500,
    references: Annotated[int, typer.Option(help="References that a step attends to.")] = 256,
    hidden: Annotated[int, typer.Option(help="Width of the adapters; DOTS: 896.")] = 128,
    batch: Annotated[int, typer.Option(help="Prompts predicted in a step.")] = 256,
    lr: Annotated[float, typer.Option(help="Learning rate.")] = 3e-3,
    weight_decay: Annotated[
        float, typer.Option(help="Decay of the matrices, times the rate.")
    ] = 1.0,
    dropout: Annotated[
        float, typer.Option(help="Share of an embedding that a step does not see.")
    ] = 0.0,
    tau: Annotated[float, typer.Option(help="Temperature of the attention.")] = 1.0,
    held_out: Annotated[float, typer.Option(help="Share of the prompts kept for the test.")] = 0.1,
    seed: Annotated[int, typer.Option(help="Of the head, the split and the order.")] = 0,
    json: Json = False,
) -> None:
    """Fit a head to pass rates and test it on prompts that it did not see.

    Embeddings must be those of the policy that the run will start from. Rows of one policy form a
    group: references and prompts are always of the same one. Use the file with
    [cyan]--estimator.teacher FILE[/cyan] of [cyan]dare train --preset dots[/cyan].

    [bold]Examples[/bold]

    [cyan]dare teacher fit rates.jsonl --out head.safetensors[/cyan]

    [cyan]dare teacher fit a.jsonl.gz b.parquet --embed ./encoder --prompt-column problem[/cyan]
    """
    from json import dumps

    from dare.runs.files import check_out
    from dare.teacher.embedder import embed as embedded
    from dare.teacher.file import SavedHead, save_head
    from dare.teacher.fit import FitSettings
    from dare.teacher.fitting import fit_teacher, show
    from dare.teacher.rates import Columns, read_rates

    quiet()
    settings = FitSettings(
        steps=steps,
        references=references,
        hidden=hidden,
        batch=batch,
        lr=lr,
        weight_decay=weight_decay,
        dropout=dropout,
        tau=tau,
        held_out=held_out,
        seed=seed,
    )
    check_out(Path(out))
    columns = Columns(prompt_column, pass_rate_column, trials_column, policy_column)
    found = read_rates(rates, columns)
    with _progress(quiet=json) as bar:
        task = bar.add_task("embed", total=None, figures=f"{len(found)} rates")
        rows = embedded(found.prompts, embed, system_prompt, lambda n: bar.advance(task, n))
        bar.remove_task(task)
        task = bar.add_task("fit", total=steps, figures="")

        def heard(step: int, loss: float) -> None:
            bar.update(task, completed=step, figures=f"loss {loss:.3f}")

        head, about = fit_teacher(
            rows.rows_PH, found.rate_P, found.trials_P, found.policy_P, settings, heard
        )
    save_head(SavedHead(head, rows.embedder, rows.probes, about), out)
    if json:
        typer.echo(dumps(about))
        return
    show(about)
    typer.echo(f"wrote {out}")


def _progress(quiet: bool) -> Progress:
    return Progress(
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeRemainingColumn(compact=True),
        TextColumn("{task.fields[figures]}"),
        console=Console(stderr=True),
        disable=quiet,
        transient=True,
    )


teacher.command(context_settings=OPEN)(measure)
teacher.command()(fit)
