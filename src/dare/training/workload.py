"""What a recipe asks of one device: its settings, the model's shape and how long prompts are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dare.config.nested import hints_of, typed, within
from dare.curriculum.estimators.build import wanted_scores
from dare.errors import InvalidInput, require
from dare.policy.gpus import Card
from dare.policy.memory import GB, OPTIMISER_BYTES, OPTIMISER_STATES, MemoryPlan, plan_memory
from dare.policy.shape import ModelShape, shape_of
from dare.policy.workload import Workload
from dare.training.config import DareConfig
from dare.training.recipe import eval_sources, load_data, resolved

ASSUMED_PROMPT = 256
"""Tokens of a prompt where data or tokenizer are not at hand."""
LORA = {"r": 16}
"""The adapters that are proposed where a run does not fit."""
_SAMPLE = 256  # prompts that are read for their mean length
_LARGEST = 256e6  # bytes of a data file that is still read for that
# Refused where no GPU is, or with other defaults there; a plan is made on any machine.
_OF_THE_DEVICE = (
    "bf16",
    "fp16",
    "tf32",
    "bf16_full_eval",
    "fp16_full_eval",
    "use_cpu",
    "gradient_checkpointing",
)
_SHARDING = ("deepspeed", "fsdp", "fsdp_config")


@dataclass(frozen=True)
class Planned:
    """A recipe's workload, and what was assumed or left out on the way to it."""

    workload: Workload
    notes: tuple[str, ...]
    model: str


def plan_recipe(recipe: Mapping[str, Any], **given: Any) -> MemoryPlan:
    """The memory plan of a recipe; `given` are the keywords of `workload_of`."""
    return plan_memory(workload_of(recipe, **given).workload)


def memory_lines(workload: Workload, limit: float | None) -> list[str]:
    """The parts of each phase's worst moment and their sum, as comments of a recipe."""
    lines = []
    for most in plan_memory(workload, limit).worst_moments():
        parts = [f"{part} {size / GB:.1f}" for part, size in most.parts.items() if size >= 5e7]
        together = f"{' + '.join(parts)} = {most.total / GB:.1f}" if parts else "less than 0.1"
        lines.append(f"#   {most.phase}: {together}")
    return lines


def workload_of(
    recipe: Mapping[str, Any],
    *,
    prompt_tokens: float | None = None,
    response_tokens: float | None = None,
    processes: int = 1,
    card: Card | None = None,
) -> Planned:
    """What a step of this recipe does on each of `processes` devices. No weights are read.

    Mean lengths that are not given are measured (prompts) or assumed (responses at their limit).
    Settings that depend on the device have their values on `card`, or on a GPU of today.
    """
    require(processes >= 1, "--processes", processes, "must be at least 1")
    for name, tokens in (("prompt", prompt_tokens), ("response", response_tokens)):
        within("(0, inf)", 1.0 if tokens is None else tokens, f"--{name}-tokens")
    config, device = _settings(recipe)
    settings = config.curriculum_config(processes)
    config.accumulation(settings.rollout_budget, processes)  # refuses an uneven split
    notes: list[str] = []
    mixed = _mixed(device, card)
    shape = recipe_shape(recipe, recipe.get("peft"), mixed=mixed)
    if prompt_tokens is None:
        prompt_tokens, note = _prompt_tokens(recipe, config)
        notes.append(note)
    limit = settings.max_tokens
    if response_tokens is None:
        notes.append(f"responses: {limit:,} tokens, their limit (--response-tokens, if shorter)")
    if settings.prompts_per_step:
        usual = min(settings.rollout_budget, settings.prompts_per_step * settings.medium.group_size)
        notes.append(f"rollouts: the most a step may have; {usual:,} if its prompts are medium")
    cold = settings.cold_start
    workload = Workload(
        shape=shape,
        prompt_tokens=float(prompt_tokens),
        max_completion_length=limit,
        mean_response=response_tokens,
        rollout_budget=settings.rollout_budget,
        per_device_train_batch_size=config.per_device_train_batch_size,
        group_size=settings.medium.group_size,
        generated_at_most=max(
            0 if cold.train else cold.references * cold.group_size, _evaluated(recipe, config)
        ),
        fresh_share=settings.fresh_share,
        num_iterations=config.num_iterations,
        generation_rows=config.generation_rows,
        score_batch_tokens=config.score_batch_tokens,
        scores=wanted_scores(settings) != "none" or settings.helps or config.mini_batches > 1,
        mixed_precision=mixed,
        gradient_checkpointing=device["gradient_checkpointing"] in (None, True),
        beta=config.beta,
        optim=str(getattr(config.optim, "value", config.optim)),
        processes=processes,
    )
    notes += _left_out(recipe, workload)
    return Planned(workload, tuple(notes), str(recipe.get("model", "pocket")))


def recipe_shape(
    recipe: Mapping[str, Any], peft: Mapping[str, Any] | None, *, mixed: bool
) -> ModelShape:
    """The shape of a recipe's model, with these adapters or none, in the type it is loaded in."""
    model = recipe.get("model", "pocket")
    require(model, "model", model, "name a folder, a hub id, or pocket")
    given = (recipe.get("training") or {}).get("model_init_kwargs") or {}
    usual = "bfloat16" if peft and mixed else "float32"  # as DareConfig.model_options has it
    return shape_of(model, peft, "auto" if model == "pocket" else given.get("dtype", usual))


def lora_shape(recipe: Mapping[str, Any], *, mixed: bool) -> ModelShape | None:
    """With the adapters that are proposed; None where they need settings that we do not know."""
    try:
        return recipe_shape(recipe, LORA, mixed=mixed)
    except InvalidInput:
        return None


def _settings(recipe: Mapping[str, Any]) -> tuple[DareConfig, dict[str, Any]]:
    """The run's settings, and those that depend on the device apart."""
    training = dict(recipe.get("training") or {})
    hints = hints_of(DareConfig)
    apart = {name: training.pop(name, None) for name in (*_OF_THE_DEVICE, *_SHARDING)}
    apart = {k: v if v is None else typed(hints[k], v, k) for k, v in apart.items()}
    training["use_cpu"] = True  # the plan itself runs on no device
    return resolved({**recipe, "training": training}), apart


def _mixed(device: Mapping[str, Any], card: Card | None) -> bool:
    """bf16 where it is asked for, or nothing is and the card can."""
    if device["bf16"] is None and not device["fp16"]:
        return card is None or card.bf16
    return bool(device["bf16"] or device["fp16"])


def _prompt_tokens(recipe: Mapping[str, Any], config: DareConfig) -> tuple[float, str]:
    """The mean over a sample of the data, where data and tokenizer are on this machine."""
    from dare.templates import template_of
    from dare.templates.encode import encode, give_options

    tokenizer, rows = _tokenizer(recipe), _local_rows(recipe.get("data"), "data")
    picked = rows[:: max(1, len(rows) // _SAMPLE)][:_SAMPLE]
    if any("prompt" not in row for row in picked):
        columns = ", ".join(sorted(picked[0]))
        fix = f"has no column 'prompt'; rename one of {columns}"
        raise InvalidInput("data", recipe.get("data"), fix)
    sizes = []
    if tokenizer is not None:
        template = template_of(config.system_prompt)
        give_options(tokenizer, config.chat_template_kwargs)
        sizes = [len(encode(tokenizer, template.messages(row["prompt"]))) for row in picked]
    if not sum(sizes):  # transformers makes tokenizers without a vocabulary where files are missing
        missing = "tokenizer" if picked else "data"
        note = f"prompts: {ASSUMED_PROMPT} tokens assumed, no {missing} here (--prompt-tokens)"
        return float(ASSUMED_PROMPT), note
    mean = sum(sizes) / len(sizes)
    return mean, f"prompts: {mean:,.0f} tokens in the mean of {len(sizes):,} of the data"


def _tokenizer(recipe: Mapping[str, Any]) -> Any:
    """The model's, unless it would have to be fetched."""
    from transformers import AutoTokenizer

    model = recipe.get("model", "pocket")
    if model == "pocket":
        from dare import pocket

        return pocket.load_tokenizer()
    try:
        return AutoTokenizer.from_pretrained(model, local_files_only=True)
    except (OSError, ValueError):
        return None  # the caller says that lengths are assumed


def _local_rows(source: Any, field: str) -> list[dict[str, Any]]:
    """Rows of built-in problems or of files that are quickly read; none of a hub id."""
    from dare.data.load import files_of, is_file

    if not source:
        return []
    if isinstance(source, Mapping) and "tasks" in source:
        return load_data(source, field)
    path = source.get("path") if isinstance(source, Mapping) else source
    if isinstance(path, str) and path:
        small = is_file(path) and sum(file.stat().st_size for file in files_of(path)) < _LARGEST
        return load_data(source, field) if small else []
    return load_data(source, field)  # refuses what is no data


def _evaluated(recipe: Mapping[str, Any], config: DareConfig) -> int:
    """Responses of one evaluation; as many as fit at once where the data is not at hand."""
    most = 0
    for source in eval_sources(recipe.get("eval_data")).values():
        tasks = source.get("tasks") if isinstance(source, Mapping) else None
        count = tasks.get("count") if isinstance(tasks, Mapping) else None
        if not isinstance(count, int):
            count = len(_local_rows(source, "eval_data")) or 1 << 30
        most = max(most, count * config.eval_samples)
    return most


def _left_out(recipe: Mapping[str, Any], workload: Workload) -> list[str]:
    """What a reader of the plan must know that its numbers do not say."""
    notes, training = [], recipe.get("training") or {}
    sharding = [name for name in _SHARDING if training.get(name)]
    if sharding:
        notes.append(f"{sharding[0]}: sharding is not modelled; this is one whole copy a device")
    if workload.precision == "half" and not workload.shape.adapters:
        notes.append("weights: trained in 16 bits, without a float32 master copy")
    if not workload.shape.paged:
        notes.append("responses: sampled by the model's own forward pass; its cache grows")
    if ":" in str(training.get("generator", "")):
        notes.append("generator: of your own, counted as if it were ours")
    if workload.shape.quantised:
        notes.append("weights: quantised ones are not modelled; these are the unquantised sizes")
    known = {*OPTIMISER_STATES, *OPTIMISER_BYTES}
    if workload.optim not in known:
        notes.append(f"optim: {workload.optim} is counted as AdamW")
    return notes
