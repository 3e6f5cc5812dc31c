"""The command `dare`. Each command imports what it needs when it runs, so that help is instant."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, NoReturn

import typer

from dare.commands.compare import compare
from dare.commands.data import data
from dare.commands.difficulty import difficulty
from dare.commands.doctor import doctor
from dare.commands.eval import eval_app
from dare.commands.options import OPEN
from dare.commands.plan import plan
from dare.commands.presets import presets
from dare.commands.quickstart import quickstart
from dare.commands.recipe import init, recipe
from dare.commands.report import report
from dare.commands.study import study
from dare.commands.teacher import teacher
from dare.commands.train import train
from dare.errors import InvalidInput
from dare.text import legible

ABOUT = """\
Difficulty-adaptive reinforcement learning from verifiable rewards.

DARE estimates how often the current policy fails on each training prompt, draws the prompts it \
learns most from, and spends rollouts, tokens and clip range by how hard each one is. Its settings \
come in presets: the method itself ([bold]dare[/bold]), the paper's literal values \
([bold]paper[/bold]) and the baselines it is compared with.

[bold]Examples[/bold]

[cyan]dare quickstart[/cyan]  # GRPO and DARE on the built-in policy, a few minutes on a CPU

[cyan]dare train[/cyan]  # one run of the quickstart recipe

[cyan]dare init --model Qwen/Qwen2.5-1.5B-Instruct --data mine.jsonl[/cyan]  # writes a recipe

[cyan]dare recipe[/cyan]  # the shipped ones; --explain lists every key

[cyan]dare train my.yaml --preset grpo --learning-rate 1e-5[/cyan]  # your recipe, changed

[cyan]dare train my.yaml --tiers true --dry-run[/cyan]  # what the first step would do

[cyan]dare plan my.yaml --gpu "H100 80GB"[/cyan]  # will it fit? memory by part, before loading

[cyan]dare train --resume runs/mine[/cyan]  # go on from the newest checkpoint

[cyan]dare eval runs/mine --benchmarks math500,gsm8k[/cyan]  # accuracy, pass@k, by level

[cyan]dare study methods --workers 4[/cyan]  # presets x seeds at equal tokens, resumable

[cyan]dare compare runs/methods[/cyan]  # accuracy, speed-up and cost, with intervals

[cyan]dare difficulty runs/quickstart/dare[/cyan]  # how hard each prompt is for the policy now

[cyan]dare report runs/quickstart/dare[/cyan]  # the whole run as one page, offline

[cyan]dare data prepare paper-math[/cyan]  # the paper's training set, cleaned; or your own files

[cyan]dare presets paper[/cyan]  # every setting of a preset as YAML, explained

[cyan]dare doctor[/cyan]  # is this machine ready?
"""

app = typer.Typer(
    name="dare",
    help=ABOUT,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
for changes_a_recipe in (train, plan):
    app.command(context_settings=OPEN)(changes_a_recipe)
for command in (quickstart, presets, init, recipe, compare, difficulty, report, doctor):
    app.command()(command)
for name, group in {"study": study, "data": data, "teacher": teacher, "eval": eval_app}.items():
    app.add_typer(group, name=name)


def main() -> None:
    """Run the command; a value DARE cannot work with is one red line and exit code 2."""
    # Sampling and training take turns with blocks of other sizes: torch would hold a third more.
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    try:
        _check_words(sys.argv[1:])
        sys.exit(app(standalone_mode=False) or 0)
    except InvalidInput as error:
        _refuse(str(error))
    except OSError as error:
        # Commands say it better. Where none does, it is still a file and not a fault of DARE's.
        if not isinstance(error.filename, (str, bytes, os.PathLike)):
            raise
        path = os.fsdecode(error.filename)
        fix = f"cannot be used ({error.strerror or type(error).__name__})"
        _refuse(str(InvalidInput(_option_of(path), path, fix)))
    except OverflowError:
        large = [one for one in _named(sys.argv[1:]) if _LARGE.fullmatch(one[1])]
        if not large:
            raise
        _refuse(str(InvalidInput(*large[0], "is too large a number")))
    except typer.Abort:
        _refuse("aborted", 1)
    except _USAGE as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()
            sys.exit(2)
        where = "dare" if error.ctx is None else error.ctx.command_path
        _refuse(f"{error.format_message().rstrip('.')}; see {where} --help")


_LARGE = re.compile(r"[+-]?[0-9]{19,}")
"""What is too large a number for the libraries that it reaches: more than 64 bits."""


def _named(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Every word that is a value, with the option that it belongs to."""
    before = ""
    for word in words:
        name, equals, value = word.partition("=")
        if word.startswith("--") and equals:
            yield name, value
        elif not word.startswith("--"):
            yield before, word
        before = word if word.startswith("--") and not equals else ""


def _check_words(words: Sequence[str]) -> None:
    """Refuse what is no text; commands would fail on it wherever they first write or open it."""
    for name, word in _named(words):
        try:
            fits = b"\0" not in os.fsencode(word)
        except UnicodeEncodeError:  # half of a character
            fits = False
        if not fits:
            raise InvalidInput(_told(name), word, "is no text; leave out what is no character")


def _option_of(path: str) -> str:
    """The option whose value a path is, or lies in."""
    whole = os.path.abspath(path)
    for name, word in _named(sys.argv[1:]):
        place = os.path.abspath(os.path.expanduser(word))
        if word and (whole == place or whole.startswith(place.rstrip("/") + "/")):
            return _told(name)
    return "file"


def _told(name: str, commands: typer.Typer = app) -> str:
    """The option before a word; an argument where that is a flag, which takes none."""
    todo: list[Any] = [typer.main.get_command(commands)]
    flags = set[str]()
    for one in todo:
        todo += getattr(one, "commands", {}).values()
        for item in one.params:
            flags |= (
                {*item.opts, *item.secondary_opts} if getattr(item, "is_flag", False) else set()
            )
    return name if name and name not in flags else "argument"


_USAGE: Any = typer.BadParameter.__bases__[0]
"""What a wrong option, argument or command raises; typer has click's, or its own copy of it."""


def _refuse(text: str, code: int = 2) -> NoReturn:
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    # One line, whatever names and texts of strangers it quotes.
    line = " ".join(legible(f"error: {text}").splitlines())
    console.print(line, style="red", markup=False, soft_wrap=True)
    sys.exit(code)


def _show_version(wanted: bool) -> None:
    if wanted:
        from dare import __version__

        typer.echo(f"dare {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Options of `dare` itself."""
