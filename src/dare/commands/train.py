"""`dare train`: one run from a recipe."""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dare.commands.options import Trust, quiet, split_options, trusted_recipe
from dare.errors import InvalidInput, require, suggest
from dare.text import legible


def train(
    context: typer.Context,
    recipe: Annotated[
        str | None, typer.Argument(help="A shipped recipe or a YAML file; quickstart by default.")
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(help="Go on with the run in this folder, from its newest good checkpoint."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what the first step would do, and stop.")
    ] = False,
    accelerate: Annotated[
        str | None,
        typer.Option(
            help="Start on several devices: ddp, fsdp2, zero2, zero3 or a YAML of accelerate."
        ),
    ] = None,
    processes: Annotated[
        int | None, typer.Option(help="Of these, how many; by default one a GPU.", min=1)
    ] = None,
    trust: Trust = False,
) -> None:
    """Train a policy.

    Any setting of the recipe can be changed on the command line: fields of DareConfig
    (--learning-rate 1e-5, --max-steps 50, --output-dir runs/mine), parts of the recipe (--model,
    --data, --preset) and settings of the curriculum by dotted name (--selection.sharpness 4). See
    [cyan]dare presets dare[/cyan] for the latter.
    """
    if accelerate is not None:  # before torch is read, which the launched processes do
        launch(accelerate, processes)
    require(processes is None, "--processes", processes, "goes with --accelerate NAME")
    quiet()
    from dare.config import acting_changes
    from dare.config.nested import typed
    from dare.training.progress import RichProgress
    from dare.training.recipe import build, change, located, own_code

    named, options = split_options(
        [*([] if recipe is None else [recipe]), *context.args], default=""
    )
    recipe = named or "quickstart"
    if resume is not None:
        if not os.path.isfile(Path(resume) / "recipe.yaml"):
            fix = "has no recipe.yaml; a script's own: trainer.train(resume_from_checkpoint=True)"
            raise InvalidInput("--resume", resume, fix)
        require(not named, "recipe", named, "a run is resumed with its own recipe; leave it out")
        recipe = f"{resume}/recipe.yaml"
    own = trusted_recipe(recipe, trust=trust)
    if resume is not None and not own.get("eval_data"):
        own.pop("eval_data", None)  # an empty one was taken once, and meant none
    if resume is not None and own.get("curriculum"):
        # It may be of a time when settings without effect were taken.
        own["curriculum"] = acting_changes(str(own.get("preset") or "dare"), own["curriculum"])
        own["curriculum"].pop("seed", None)  # nor was it read: a run has that of `training`
    settings = change(own, options)
    training = settings["training"] = dict(settings.get("training") or {})
    if "disable_tqdm" in training:  # checked before ours takes its place
        typed(bool | None, training["disable_tqdm"], "disable_tqdm")
    training["disable_tqdm"] = True
    if resume is not None:
        for part in ("model", "peft"):
            fix = f"a resumed run goes on with its own ({own.get(part)!r}); start another run"
            require(settings.get(part) == own.get(part), f"--{part}", settings.get(part), fix)
        where = training.get("output_dir")
        fix = (
            f"a resumed run stays in its folder, {resume}; copy that first, or leave the option out"
        )
        require(where == (own.get("training") or {}).get("output_dir"), "--output-dir", where, fix)
        training["output_dir"] = resume
        recipe = Path(resume).resolve().name
    if training.get("output_dir") is None:
        training["output_dir"] = "runs/" + Path(recipe).stem
    with ExitStack() as stack:
        if dry_run:  # the trainer makes its folder at once; a dry run must leave nothing behind
            training["output_dir"] = stack.enter_context(tempfile.TemporaryDirectory())
        progress = None if dry_run else [RichProgress(Path(recipe).stem)]
        trainer = build(settings, callbacks=progress)
        trainer.quiet()
        if dry_run:
            show_plan(trainer)
            return
        # One's own modules and data are found from wherever the run is continued.
        trainer.recipe = located({"modules": str(Path.cwd()), **settings})
        trainer.runs_own_code = bool(own_code(settings))
        trainer.train_or_stop(resume_from_checkpoint=True if resume is not None else None)
    folder = trainer.folder.path
    if trainer.resumed_at == trainer.args.max_steps > 0:
        typer.echo(f"was finished already, at step {trainer.resumed_at}; --max-steps goes further")
        return
    if trainer.stopped_by:
        typer.echo(trainer.told_of_stop(), err=True)
        raise typer.Exit(128 + trainer.stopped_by)  # as a shell has it
    typer.echo(
        f"done; dare report {folder} shows it: reward and accuracy, which prompts are hard now, "
        "and rollouts to read"
    )


def launch(name: str, processes: int | None) -> None:
    """This very command line, less --accelerate, by `accelerate launch`; exits with its code."""
    import subprocess
    from importlib.util import find_spec

    from dare.runs.files import user_yaml

    shipped = Path(__file__).parents[1] / "accelerate"
    known = sorted(path.stem for path in shipped.glob("*.yaml"))
    config = shipped / f"{name}.yaml" if name in known else Path(name)
    if not os.path.isfile(config):
        raise InvalidInput("--accelerate", name, f"{suggest(name, known)}, or a file of your own")
    fix = "a launcher has started this process already: leave this out, or the launcher"
    require("RANK" not in os.environ, "--accelerate", name, fix)
    told = user_yaml(config, "--accelerate")
    require(isinstance(told, dict), "--accelerate", name, "must be a mapping of settings")
    if "DEEPSPEED" in str(told):
        fix = "needs DeepSpeed: pip install 'dare-rl[deepspeed]'"
        require(find_spec("deepspeed") is not None, "--accelerate", name, fix)
    if processes is None and name in known:
        import torch

        processes = torch.cuda.device_count()
        fix = "no GPU is seen here: give the number of processes, to run them on the CPU"
        require(processes > 0, "--processes", None, fix)
    words, rest = sys.argv[1:], list[str]()
    while words:
        word = words.pop(0)
        if word in ("--accelerate", "--processes"):
            words.pop(0)
        elif not word.startswith(("--accelerate=", "--processes=")):
            rest.append(word)
    command = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(config)]
    command += [] if processes is None else ["--num_processes", str(processes)]
    raise typer.Exit(subprocess.run([*command, "-m", "dare", *rest], check=False).returncode)


def show_plan(trainer: Any) -> None:
    """The resolved plan of the first step; nothing is written or trained."""
    plan = trainer.first_plan()
    console = Console()
    kind = "probe (rolled out for the difficulty estimate, not trained on)"
    kind = "train" if plan.train else kind
    console.print(f"first plan: {kind}")
    console.print(
        f"{len(plan.prompt_P)} prompts, {plan.fresh_rollouts} rollouts, "
        f"{len(trainer.store)} prompts in all, at most {int(plan.max_tokens_P.max())} tokens each"
    )
    tiers, names = trainer.settings.tiers, ("easy", "medium", "hard")
    own = ("tier",) if tiers else ()  # off, all prompts are medium by name alone
    table = Table("prompt", "level", *own, "difficulty", "rollouts", "clip", box=None)
    prompts = trainer.store.table
    for place in range(min(12, len(plan.prompt_P))):
        row = int(plan.prompt_P[place])
        text = str(trainer.store.records[row]["prompt"]).replace("\n", " ")
        clip = f"{1 - plan.clip_low_P[place]:.1f} - {1 + plan.clip_high_P[place]:.1f}"
        table.add_row(
            Text(legible(text[:48])),
            Text(legible(str(prompts.levels[prompts.level_P[row]]))),
            *((names[plan.tier_P[place]],) if tiers else ()),
            f"{plan.difficulty_P[place]:.2f}",
            str(int(plan.group_size_P[place])),
            clip,
        )
    console.print(table)
    if len(plan.prompt_P) > 12:
        console.print(f"... and {len(plan.prompt_P) - 12} more")
