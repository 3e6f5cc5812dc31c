"""`dare plan`: the memory of a step, before anything is loaded."""

from __future__ import annotations

import json as encoder
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from dare.commands.options import Json, Recipe, Trust, changed_recipe, quiet
from dare.errors import InvalidInput


def plan(
    context: typer.Context,
    recipe: Recipe = "quickstart",
    gpu: Annotated[
        str | None,
        typer.Option(help="A card ('H100 80GB') or a size ('24GB'); the GPU that is here."),
    ] = None,
    prompt_tokens: Annotated[
        float | None, typer.Option(help="Mean tokens of a prompt; measured where data is here.")
    ] = None,
    response_tokens: Annotated[
        float | None, typer.Option(help="Mean tokens of a response; the limit otherwise.")
    ] = None,
    processes: Annotated[int, typer.Option(help="Devices that share a step.")] = 1,
    trust: Trust = False,
    json: Json = False,
) -> None:
    """Will it fit? Memory by part and phase, and tokens per step, from config.json alone.

    No weights are read: of a hub id only its configuration is fetched. Any setting of the recipe
    can be changed on the command line as with [cyan]dare train[/cyan]. What cannot fit is refused
    with exit code 2, and the settings that would help are named with what each saves.

    [bold]Examples[/bold]

    [cyan]dare plan my.yaml --gpu "H100 80GB"[/cyan]

    [cyan]dare plan my.yaml --gpu 24GB --gradient-checkpointing true --generation-rows 128[/cyan]

    [cyan]dare plan my.yaml --response-tokens 600 --json[/cyan]  # what responses really take
    """
    from huggingface_hub.utils import logging as hub
    from transformers.utils import logging

    from dare.policy.gpus import card_here, card_named
    from dare.policy.knobs import knobs_that_help, knobs_together
    from dare.policy.memory import plan_memory, usable
    from dare.training.workload import lora_shape, workload_of

    quiet()
    logging.set_verbosity_error()
    hub.set_verbosity_error()
    card = card_here() if gpu is None else card_named(gpu)
    settings = changed_recipe(context, recipe, trust=trust, trains=False)
    planned = workload_of(
        settings,
        prompt_tokens=prompt_tokens,
        response_tokens=response_tokens,
        processes=processes,
        card=card,
    )
    limit = None if card is None else usable(card.bytes)
    memory = plan_memory(planned.workload, limit)
    alone: list[Any] = []
    together: list[Any] = []
    reached = memory
    if limit is not None and memory.peak.total > limit:
        lora = lora_shape(settings, mixed=planned.workload.mixed_precision)
        alone = knobs_that_help(planned.workload, limit, lora)
        together, reached = knobs_together(planned.workload, limit, lora)
    if json:
        figures = as_json(planned, memory, card, limit, alone, together)
        typer.echo(encoder.dumps(figures, indent=2))
    else:
        _show(planned, memory, card, limit, alone)
    if limit is not None and memory.peak.total > limit:
        raise _refusal(memory, card, limit, alone, together, reached)


def as_json(
    planned: Any, memory: Any, card: Any, limit: float | None, alone: list[Any], together: list[Any]
) -> dict[str, Any]:
    """Everything that the command knows; memory in GB (1e9 bytes) of one device."""
    from dare.policy.memory import CUDA_CONTEXT, GB

    def named(knob: Any) -> dict[str, Any]:
        return {
            "setting": knob.setting,
            "costs": knob.price,
            "same_result": knob.neutral,
            "phase": knob.phase,
            "saves_gb": _round(knob.saves_gb),
            "fits": knob.fits,
        }

    shape = memory.workload.shape
    return {
        "model": planned.model,
        "parameters": shape.parameters,
        "trained_parameters": shape.trained,
        "precision": memory.workload.precision,
        "moments": [
            {
                "phase": moment.phase,
                "moment": moment.name,
                "total_gb": _round(moment.total / GB),
                "parts_gb": {part: _round(size / GB) for part, size in moment.parts.items()},
            }
            for moment in memory.moments
        ],
        "rows": memory.workload.rows,
        "rows_waiting": memory.waiting,
        "peak_gb": _round(memory.peak_gb),
        "peak_moment": memory.peak.name,
        "cuda_context_gb": CUDA_CONTEXT / GB,
        "gpu": None if card is None else {"name": card.name, "gb": _round(card.bytes / GB)},
        "usable_gb": None if limit is None else _round(limit / GB),
        "fits": None if limit is None else memory.peak.total <= limit,
        "tokens": memory.workload.step_tokens(),
        "notes": list(planned.notes),
        "knobs": [named(knob) for knob in alone],
        "together": [named(knob) for knob in together],
    }


def _round(gigabytes: float) -> float:
    return round(gigabytes, 6)


def _gb(size: float) -> str:
    """Bytes as GB."""
    return f"{size / 1e9:,.1f}" if size >= 0.995e9 else f"{size / 1e9:.2g}"


def _show(planned: Any, memory: Any, card: Any, limit: float | None, alone: list[Any]) -> None:
    from dare.policy.knobs import fuller_passes
    from dare.policy.memory import CUDA_CONTEXT, PARTS

    console = Console(highlight=False)
    shape, load = memory.workload.shape, memory.workload
    kinds = {"half": "16-bit weights", "mixed": "mixed precision", "float": "float32"}
    trained = f"{shape.trained:,} trained (LoRA)" if shape.adapters else "all trained"
    console.print(
        f"[bold]{planned.model}[/bold]: {shape.parameters:,} parameters, {trained}, "
        f"{kinds[load.precision]}"
    )
    moments = memory.worst_moments()
    unit, scale = ("GB", 1e9) if memory.peak.total >= 1e9 else ("MB", 1e6)
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column(f"{unit} on each device" if load.processes > 1 else unit)
    for moment in moments:
        table.add_column(moment.phase, justify="right")
    for part in PARTS:
        sizes = [moment.parts.get(part) for moment in moments]
        if any(sizes):
            table.add_row(part, *(f"{size / scale:,.2f}" if size else "" for size in sizes))
    totals = [f"[bold]{moment.total / scale:,.2f}[/bold]" for moment in moments]
    table.add_row("[bold]together[/bold]", *totals)
    console.print()
    console.print(table)
    peak = f"{memory.peak.total / scale:,.2f} {unit}"
    console.print(
        f"\n[bold]peak {peak}[/bold] at {memory.peak.name}, and {_gb(CUDA_CONTEXT)} GB for CUDA"
    )
    _show_step(console, load)
    for note in planned.notes:
        console.print(note, markup=False)
    if memory.waiting:
        rows = f"{load.rows - memory.waiting:,} of {load.rows:,} rows"
        console.print(f"cache: {rows} if all run to their limit; the others wait their turn")
    if card is None or limit is None:
        console.print("no GPU here: name one with --gpu to see whether it fits")
    elif memory.peak.total <= limit:
        left = limit - memory.peak.total
        console.print(f"[green]fits[/green] {card.name}: {_gb(left)} of {_gb(limit)} GB to spare")
        larger = fuller_passes(load, limit)
        if larger is not None:
            now = load.per_device_train_batch_size
            console.print(
                f"per_device_train_batch_size: {now} -> {larger} fits too and trains faster: "
                f"passes of {load.micro_batch_tokens:,.0f} tokens leave a GPU waiting"
            )
    elif alone:
        _show_knobs(console, alone)


def _show_step(console: Any, load: Any) -> None:
    tokens = load.step_tokens()
    on = "" if load.processes == 1 else f" on each of {load.processes} devices"
    console.print(
        f"a step: {tokens['rollouts']:,} rollouts, {tokens['fresh_rollouts']:,} of them new "
        f"({tokens['generated']:,} tokens generated); {tokens['trained']:,} tokens trained on, "
        f"in {tokens['micro_batches']:,} micro-batches of {tokens['micro_batch']:,}{on}"
    )


def _show_knobs(console: Any, alone: list[Any]) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("what helps", no_wrap=True)
    table.add_column("saves GB", justify="right")
    for title in ("in", "fits", "costs"):
        table.add_column(title)
    for knob in alone:
        fits = "[green]yes[/green]" if knob.fits else "no"
        table.add_row(knob.setting, f"{knob.saves_gb:,.1f}", knob.phase, fits, knob.price)
    console.print()
    console.print(table)


_DOING = {"generate": "generating", "score": "scoring", "train": "training"}


def _refusal(
    memory: Any, card: Any, limit: float, alone: list[Any], together: list[Any], reached: Any
) -> Exception:
    """What overflows where, and what to turn; one line."""

    def told(knobs: list[Any]) -> str:
        return ", ".join(f"{knob.setting} (saves {knob.saves_gb:,.1f} GB)" for knob in knobs)

    peak = memory.peak
    most = f"{peak.largest} {_gb(peak.parts[peak.largest])}"
    said = f"{_DOING[peak.phase]} needs {_gb(peak.total)} GB ({most}), {_gb(limit)} can be used"
    enough = [knob for knob in alone if knob.fits]
    if enough:
        these = "any of these makes" if len(enough) > 1 else "this makes"
        turns = f"{these} it fit: {told(enough)}"
    elif reached.peak.total <= limit:
        turns = f"these together make it fit: {told(together)}"
    else:
        least = f"{_gb(reached.peak.total)} GB with all that helps"
        turns = f"no setting makes it fit ({least}): take a larger card or a smaller model"
    return InvalidInput("--gpu", card.name, f"{said}; {turns}")
