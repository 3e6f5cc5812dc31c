"""`dare eval`: a policy, or saved responses, on benchmarks; a look at the records; comparison."""

from __future__ import annotations

import json as encoder
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, Group
from rich.rule import Rule
from rich.text import Text
from typer.core import TyperGroup

from dare.commands.options import Json, quiet
from dare.errors import InvalidInput, require
from dare.table import print_tables
from dare.text import legible

if TYPE_CHECKING:
    from dare.evaluation.records import Record


def show(
    folder: Annotated[str, typer.Argument(metavar="RUN", help="A folder of `dare eval`.")],
    benchmark: Annotated[str | None, typer.Option(help="Only this one.")] = None,
    wrong: Annotated[bool, typer.Option("--wrong", help="Wrong responses.")] = False,
    right: Annotated[bool, typer.Option("--right", help="Right responses.")] = False,
    unscored: Annotated[bool, typer.Option("--unscored", help="Those nobody could score.")] = False,
    truncated: Annotated[
        bool, typer.Option("--truncated", help="Those that were cut off.")
    ] = False,
    disagree: Annotated[
        bool, typer.Option("--disagree", help="Judged otherwise than the file's own label.")
    ] = False,
    level: Annotated[list[str] | None, typer.Option(help="Level; repeat it.")] = None,
    subject: Annotated[str | None, typer.Option(help="Subject.")] = None,
    id: Annotated[str | None, typer.Option(help="One problem.")] = None,
    contains: Annotated[str | None, typer.Option(help="Words in prompt or response.")] = None,
    limit: Annotated[int, typer.Option(help="Responses shown.")] = 5,
    skip: Annotated[int, typer.Option(help="Responses passed over first.")] = 0,
    chars: Annotated[int, typer.Option(help="Characters shown of each text; 0 shows all.")] = 1500,
    json: Annotated[bool, typer.Option("--json", help="JSON lines instead of text.")] = False,
) -> None:
    """Browse the records of an evaluation.

    [cyan]dare eval show runs/eval/mine --wrong --level 5[/cyan]
    """
    from dare.evaluation.records import Wanted, check, pick, read_records

    for option, value in (("--limit", limit), ("--skip", skip), ("--chars", chars)):
        require(value >= 0, option, value, "must not be negative")
    flags = (right, wrong, unscored, truncated, disagree)
    names = ("right", "wrong", "unscored", "truncated", "disagree")
    kinds = tuple(name for name, given in zip(names, flags, strict=True) if given)
    wanted = Wanted(benchmark, tuple(level or ()), subject, id, contains, kinds)
    records = read_records(folder)
    check(records, wanted)
    found = [(record, place) for record, places in pick(records, wanted) for place in places]
    shown = found[skip : skip + limit]
    if json:
        for record, place in shown:
            typer.echo(encoder.dumps({**record, "response": place}))
        return
    console = Console(highlight=False)
    for record, place in shown:
        console.print(_page(record, place, chars))
    places = f"{skip + 1} to {skip + len(shown)} of " if shown else ""
    console.print(f"responses: {places}{len(found)} that fit, in {len(records)} problems")


def compare(
    runs: Annotated[
        list[str], typer.Argument(metavar="RUN...", help="Folders of `dare eval`, or NAME=FOLDER.")
    ],
    k: Annotated[
        int | None, typer.Option(help="Solved means: by one of the first k responses.")
    ] = None,
    out: Annotated[str | None, typer.Option(help="Write FILE.json or FILE.md.")] = None,
    json: Json = False,
) -> None:
    """Compare evaluations on the problems they share: differences, pass@k, overlap.

    The first is the base of the differences, which are paired by problem.
    """
    from dare.evaluation.figures import page_of
    from dare.evaluation.side_by_side import compare as compared
    from dare.evaluation.side_by_side import load_named, tables_of
    from dare.runs.files import check_out, write_whole

    if out is not None:
        check_out(Path(out), ".json", ".md")
    found = compared(load_named(runs), k)
    tables, text = tables_of(found), encoder.dumps(found, indent=1)
    if out is not None:
        try:
            write_whole(Path(out), text + "\n" if out.endswith(".json") else page_of(tables))
        except OSError as error:
            fix = f"cannot be written ({error.strerror})"
            raise InvalidInput("--out", out, fix) from None
    if json:
        typer.echo(text)
    else:
        print_tables(tables)


def _page(record: Record, place: int, chars: int) -> Any:
    """One response with its problem; whatever they contain is shown as plain text."""
    from dare.evaluation.records import verdict

    def part(title: str, text: Any, style: str = "") -> Text:
        longest = chars or len(str(text)) + 1
        return Text.assemble((f"{title}\n", "dim"), (legible(str(text), longest), style), "\n")

    kind = verdict(record, place)
    colour = {"right": "green", "wrong": "red"}.get(kind, "yellow")
    facts = [
        f"level {record['level']}" if record["level"] is not None else "",
        str(record["subject"] or ""),
        f"{record['tokens'][place]} tokens" if record["tokens"][place] is not None else "",
        str(record["finish"][place] or ""),
    ]
    if "labels" in record:
        facts.append(f"label {record['labels'][place]}")
    title = f"{record['benchmark']} {record['id']}, response {place + 1}"
    head = Text(legible(title, 200), style="bold")
    head.append(f"  {kind}", style=colour)
    head.append(legible("  " + ", ".join(fact for fact in facts if fact), 300), style="dim")
    parts: list[Any] = [Rule(style="dim"), head, part("problem", record["prompt"])]
    if record["gold"] is not None:
        parts.append(part("gold", record["gold"], "cyan"))
    parts.append(part("response", record["responses"][place]))
    return Group(*parts)


_BENCHMARKS = "gsm8k,math500,aime-amc,minerva,olympiadbench"


class _RunByDefault(TyperGroup):
    """`dare eval MODEL` is short for `dare eval run MODEL`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands:
            args = ["run", *args]
        return super().parse_args(ctx, args)


eval_app = typer.Typer(
    cls=_RunByDefault,
    help="Evaluate a policy, or saved responses, on benchmarks.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)


@eval_app.command()
def run(
    context: typer.Context,
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODEL]",
            help="A hub id, a model folder, a run, a checkpoint, or `pocket`.",
        ),
    ] = None,
    benchmarks: Annotated[
        str,
        typer.Option(help="Names with commas (`dare eval list`), or YAML files of your own."),
    ] = _BENCHMARKS,
    data_dir: Annotated[
        str | None, typer.Option(help="Folder with local copies; otherwise the hub is asked.")
    ] = None,
    samples: Annotated[int, typer.Option(help="Responses to each problem.")] = 1,
    temperature: Annotated[
        float | None,
        typer.Option(help="0 is greedy; default 0 for one sample and 0.6 for several."),
    ] = None,
    top_p: Annotated[float, typer.Option(help="Nucleus; 1 keeps every token.")] = 0.95,
    max_tokens: Annotated[int, typer.Option(help="Longest response.")] = 3072,
    seed: Annotated[int, typer.Option(help="Of the sampling.")] = 0,
    template: Annotated[
        str | None,
        typer.Option(help="A template or a system prompt's text, instead of the benchmark's."),
    ] = None,
    form: Annotated[
        str,
        typer.Option(help="How responses state answers: native, tag, line, program, continuation."),
    ] = "auto",
    limit: Annotated[int | None, typer.Option(help="Only the first problems of each.")] = None,
    responses: Annotated[
        str | None, typer.Option(help="Evaluate this file of saved responses; no model runs.")
    ] = None,
    column: Annotated[
        str | None, typer.Option(help="Its column with the responses; guessed otherwise.")
    ] = None,
    label: Annotated[
        str | None, typer.Option(help="Its column with verdicts to compare with; guessed too.")
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="Tokenizer that counts the tokens of saved responses.")
    ] = None,
    out: Annotated[str | None, typer.Option(help="Folder; default runs/eval/NAME.")] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Begin anew where the folder holds an evaluation.")
    ] = False,
    rows: Annotated[int, typer.Option(help="Responses decoded at once.")] = 256,
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    json: Json = False,
) -> None:
    """Evaluate a policy, or saved responses, on benchmarks.

    The prompts' templates and the scorers are those of training. The same command goes on where a
    killed one stopped; nothing is generated twice. Other commands: [cyan]dare eval list[/cyan]
    (benchmarks), [cyan]dare eval show RUN[/cyan] (browse the records) and
    [cyan]dare eval compare RUN RUN[/cyan] (differences, pass@k, overlap of solved problems).

    [bold]Examples[/bold]

    [cyan]dare eval Qwen/Qwen2.5-Math-1.5B --benchmarks math500,gsm8k[/cyan]

    [cyan]dare eval runs/mine --benchmarks amc --samples 64 --temperature 0.6[/cyan]  # pass@k

    [cyan]dare eval --responses saved.jsonl.gz --benchmarks math500 --data-dir data[/cyan]

    [cyan]dare eval pocket --benchmarks tasks --max-tokens 64[/cyan]  # no download at all
    """
    from dare.config.nested import within
    from dare.evaluation.benchmarks import chosen
    from dare.evaluation.run import evaluate
    from dare.runs.files import check_out

    items = chosen(benchmarks)
    require(limit is None or limit >= 1, "--limit", limit, "must be at least 1")
    require(rows >= 1, "--rows", rows, "must be at least 1")
    within("(0, 1]", top_p, "--top-p")  # though greedy ones have no use for it
    if (model is None) == (responses is None):
        fix = "name a model, or a file with --responses; one of the two"
        raise InvalidInput("MODEL", model, fix)
    _check_used(context, "samples temperature top_p max_tokens seed template rows dtype", responses)
    _check_used(context, "column label tokenizer", model)
    for name, value in (("MODEL", model), ("--out", out)):
        require(value != "", name, value, "is empty; give a name, or leave it out")
    if out is not None:
        check_out(Path(out), folder=True)  # before a model is loaded
    source: Any
    if responses is not None:
        source, settings = _from_file(responses, column, label, form, tokenizer)
        name = Path(responses).name.lstrip(".").partition(".")[0]
    else:
        assert model is not None
        warm = (0.0 if samples == 1 else 0.6) if temperature is None else temperature
        choices = {"samples": samples, "temperature": warm, "max_tokens": max_tokens, "seed": seed}
        choices["top_p"] = 1.0 if warm == 0 else top_p
        form = "native" if form == "auto" else form
        source, settings = _from_model(model, choices, template, form, rows, dtype)
        # "." and "runs/mine/.." have no name before they are resolved.
        name = Path(model).resolve().name if os.path.isdir(model) else Path(model).name
    folder = Path(out or f"runs/eval/{name}")
    told = not json and sys.stderr.isatty()

    def progress(name: str, done: int, total: int) -> None:
        """A line for each batch, rewritten in place."""
        if told:
            typer.echo(f"\r{name}: {done:,} of {total:,} problems", err=True, nl=done >= total)

    options: dict[str, Any] = {"data_dir": data_dir, "limit": limit, "overwrite": overwrite}
    figures = evaluate(items, source, folder, settings, progress=progress, **options)
    if responses is not None:
        _report_unmatched(source.file.unmatched())
    _present(figures, folder, json)


@eval_app.command("list")
def list_benchmarks() -> None:
    """Show the benchmarks: problems, reward, template, where they come from."""
    from dare.evaluation.benchmarks import benchmark, benchmark_names

    for name in benchmark_names():
        item = benchmark(name)
        typer.echo(f"{name:<14}{item.rows:>6}  {item.about}")
        first = item.parts[0]
        if "hub" in first:
            origin = f"{first['hub']['path']}, or {first['file']}.jsonl below --data-dir"
            typer.echo(f"{'':<22}{origin}")
        typer.echo(f"{'':<22}reward {item.reward}, template {item.template}")


eval_app.command()(show)
eval_app.command()(compare)


def _check_used(context: typer.Context, names: str, other: str | None) -> None:
    """Options of responses yet to be drawn say nothing of saved ones, and the other way round."""
    for name in names.split() if other is not None else ():
        given = context.get_parameter_source(name)
        fix = f"does nothing beside {other}; leave it out"
        usual = given is None or given.name.startswith("DEFAULT")
        require(usual, f"--{name.replace('_', '-')}", context.params[name], fix)


def _from_model(
    model: str, choices: dict[str, Any], template: str | None, form: str, rows: int, dtype: str
) -> tuple[Any, dict[str, Any]]:
    """The policy as a source of responses, and the settings that these depend on."""
    from dare.evaluation.sources import Drawing, FromModel, Respondent, locate, open_model
    from dare.templates import load_template, template_of

    quiet()
    drawing = Drawing(**choices)
    found = locate(model)
    given = None if template is None else template_of(template)
    trained = None if found.system_prompt is None else template_of(found.system_prompt)
    if given is None and trained is not None:
        typer.echo("mathematics is asked with the system prompt of the training run", err=True)

    def words(item: Any) -> Any:
        own = trained if not item.is_code else None
        return given or own or load_template(item.template)

    policy = open_model(found, dtype=dtype, rows=rows)
    respondent = Respondent(policy.generator, policy.tokenizer, policy.context, drawing)
    settings = {
        "model": model,
        "weights": found.weights,
        **choices,
        "template": template if template is not None else found.system_prompt,
        "form": form,
        "dtype": dtype,
    }
    return FromModel(respondent, form, words, batch=max(rows, choices["samples"])), settings


def _from_file(
    path: str, column: str | None, label: str | None, form: str, tokenizer: str | None
) -> tuple[Any, dict[str, Any]]:
    """A file as a source of responses, and the settings that the records depend on."""
    from dare.evaluation.responses import ResponseFile
    from dare.evaluation.sources import FromFile

    file = ResponseFile(path, column, label)
    count = None
    if tokenizer is not None:
        from dare.evaluation.sources import counter

        count = counter(tokenizer)
    settings = {
        "responses": Path(path).name,
        "digest": file.digest,
        **{"column": column, "label": label, "form": form, "tokenizer": tokenizer},
    }
    return FromFile(file, form, count), settings


def _report_unmatched(names: Sequence[str]) -> None:
    if names:
        shown = ", ".join(" ".join(legible(name, 200).split()) for name in names[:5])
        shown += ", ..." if len(names) > 5 else ""
        typer.echo(f"{len(names)} row(s) of the file answer no problem here: {shown}", err=True)


def _present(figures: dict[str, Any], folder: Path, json: bool) -> None:
    from dare.evaluation.figures import tables_of

    if json:
        typer.echo(encoder.dumps(figures, indent=1))
    else:
        for name, one in figures["benchmarks"].items():
            total = one["problems"] + (one.get("missing") or 0)
            if one.get("expected") and total != one["expected"]:
                text = f"{name}: {total} problems here, the benchmark has {one['expected']}"
                typer.echo(text, err=True)
        print_tables(tables_of(figures))
    typer.echo(f"wrote eval.json, eval.md and records.jsonl to {folder}", err=True)
