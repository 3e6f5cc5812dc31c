"""`dare train`: one run from a recipe."""

from __future__ import annotations

from typing import Annotated, Any

import typer


def train(
    context: typer.Context,
    recipe: Annotated[str, typer.Argument(help="A shipped recipe or a YAML file.")] = "quickstart",
    resume: Annotated[
        str | None,
        typer.Option(help="Go on with the run in this folder, from its newest good checkpoint."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what the first step would do, and stop.")
    ] = False,
) -> None:
    """Train a policy.

    Any setting of the recipe can be changed on the command line: fields of DareConfig
    (--learning-rate 1e-5, --max-steps 50, --output-dir runs/mine), parts of the recipe (--model,
    --data, --preset) and settings of the curriculum by dotted name (--selection.sharpness 4). See
    [cyan]dare presets dare[/cyan] for the latter.
    """
    import shutil
    import tempfile
    from pathlib import Path

    from transformers.utils import logging

    from dare.errors import InvalidInput
    from dare.training.progress import RichProgress
    from dare.training.recipe import build, change, load_recipe

    logging.disable_progress_bar()
    recipe, options = split_options([recipe, *context.args])
    if resume is not None:
        if not (Path(resume) / "recipe.yaml").is_file():
            fix = (
                "has no recipe.yaml; a run of a script: trainer.train(resume_from_checkpoint=True)"
            )
            raise InvalidInput("--resume", resume, fix)
        recipe = str(Path(resume) / "recipe.yaml")
        options += ["--output-dir", resume]
    settings = change(load_recipe(recipe), options)
    settings.setdefault("training", {}).setdefault("output_dir", "runs/" + Path(recipe).stem)
    settings["training"]["disable_tqdm"] = True
    if dry_run:  # the trainer makes its folder at once; a dry run must leave nothing behind
        settings["training"]["output_dir"] = tempfile.mkdtemp()
    trainer = build(settings, callbacks=None if dry_run else [RichProgress(Path(recipe).stem)])
    trainer.quiet()
    if dry_run:
        show_plan(trainer)
        shutil.rmtree(trainer.folder.path, ignore_errors=True)
        return
    _keep_recipe(trainer, settings)
    trainer.train(resume_from_checkpoint=resume is not None)
    typer.echo(
        f"done; dare report {trainer.folder.path} shows it: reward and accuracy, which prompts are "
        "hard now, and rollouts to read"
    )


def split_options(words: list[str]) -> tuple[str, list[str]]:
    """The recipe and the `--name value` options among the words, in whichever order they came."""
    recipe, options = "quickstart", []
    words = list(words)
    while words:
        word = words.pop(0)
        if not word.startswith("--"):
            recipe = word
            continue
        options.append(word)
        if "=" not in word and words:
            options.append(words.pop(0))
    return recipe, options


def show_plan(trainer: Any) -> None:
    """The resolved plan of the first step; nothing is written or trained."""
    from rich.console import Console
    from rich.table import Table

    plan = trainer.first_plan()
    console = Console()
    kind = "probe (rolled out for the difficulty estimate, not trained on)"
    kind = "train" if plan.train else kind
    console.print(f"first plan: {kind}")
    console.print(
        f"{len(plan.prompt_P)} prompts, {plan.fresh_rollouts} rollouts, "
        f"{len(trainer.store)} prompts in all, at most {int(plan.max_tokens_P.max())} tokens each"
    )
    table = Table("prompt", "level", "tier", "difficulty", "rollouts", "clip", box=None)
    names = ("easy", "medium", "hard")
    prompts = trainer.store.table
    for place in range(min(12, len(plan.prompt_P))):
        row = int(plan.prompt_P[place])
        text = str(trainer.store.records[row]["prompt"]).replace("\n", " ")
        clip = f"{1 - plan.clip_low_P[place]:.1f} - {1 + plan.clip_high_P[place]:.1f}"
        table.add_row(
            text[:48],
            prompts.levels[prompts.level_P[row]],
            names[plan.tier_P[place]],
            f"{plan.difficulty_P[place]:.2f}",
            str(int(plan.group_size_P[place])),
            clip,
        )
    console.print(table)
    if len(plan.prompt_P) > 12:
        console.print(f"... and {len(plan.prompt_P) - 12} more")


def _keep_recipe(trainer: Any, settings: dict[str, Any]) -> None:
    """The recipe as it was run, so that --resume needs nothing but the folder."""
    from pathlib import Path

    import yaml

    if trainer.is_world_process_zero():
        own = {"modules": str(Path.cwd())}  # found from wherever the run is continued
        text = yaml.safe_dump({**own, **settings}, sort_keys=False)
        (trainer.folder.path / "recipe.yaml").write_text(text, encoding="utf-8")
