"""The settings of a run, each with what it does and the range it must be in."""

# ruff: noqa: RUF009 (`_told` makes a field, not a value)

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from transformers import SchedulerType, TrainingArguments

from dare.policy.correction import Mode
from dare.policy.loss import Level, LossType

STEPS = 200
"""Of a run that is not told how long it is."""

_INTERVALS: dict[str, str] = {
    "[1, inf)": "per_device_train_batch_size per_device_eval_batch_size torch_empty_cache_steps "
    "gradient_accumulation_steps eval_accumulation_steps dataloader_prefetch_factor ddp_timeout "
    "ddp_bucket_cap_mb",
    "[1, 1e9]": "max_completion_length generation_batch_size unscored_window generation_rows "
    "score_batch_tokens steps_per_generation vllm_max_model_length",
    "[1, 1e4]": "eval_samples num_generations_eval num_iterations vllm_tensor_parallel_size",
    "[1, 65535]": "vllm_server_port",
    "[2, 1e9]": "rollout_budget num_generations",
    "[0, inf)": "max_grad_norm warmup_steps eval_delay save_total_limit dataloader_num_workers "
    "neftune_noise_alpha top_k sample_rows num_completions_to_print "
    "vllm_importance_sampling_clip_min",
    "[0, 1000]": "weight_decay beta",
    "(0, inf)": "num_train_epochs logging_steps save_steps eval_steps epsilon_high "
    "vllm_importance_sampling_clip_max vllm_server_timeout",
    "[-1, inf)": "local_rank",
    "[-1, 1e9]": "max_steps",
    "[0, 4294967295]": "seed data_seed",
    "[0, 100]": "learning_rate eval_temperature",
    "[1e-3, 100]": "temperature",
    "[0, 1)": "adam_beta1 adam_beta2 label_smoothing_factor",
    "(0, 1)": "epsilon",
    "(0, 1]": "top_p vllm_gpu_memory_utilization",
    "[0, 1]": "unscored_limit adam_epsilon",
}
RANGES = {name: interval for interval, names in _INTERVALS.items() for name in names.split()}


def _told(default: Any, text: str) -> Any:
    """A field with a text, where transformers' own have theirs."""
    return field(default=default, metadata={"help": text})


@dataclass
class RunSettings(TrainingArguments):
    """All that `DareConfig` has beside the settings of transformers."""

    # Defaults of transformers that make no sense here, or that the method fixes.
    learning_rate: float = _told(2e-6, "Learning rate of AdamW.")
    lr_scheduler_type: SchedulerType | str = _told("constant", "Schedule of the rate.")
    max_steps: int = _told(
        -1,
        "Optimiser steps of the run; a generation makes one unless told more. "
        f"{STEPS} where neither this nor num_train_epochs is given.",
    )
    num_train_epochs: float = _told(
        -1.0, "Instead of max_steps: so many draws of a prompt, on average."
    )
    gradient_accumulation_steps: int = _told(
        -1,
        "Micro-batches of an update on each process; -1: all of a generation. Without "
        "rollout_budget they say how many rollouts there are, as in TRL.",
    )
    overwrite_output_dir: bool = _told(
        False, "Begin anew where the folder holds checkpoints of a run."
    )
    logging_steps: float = _told(1, "Steps between two log lines.")
    save_steps: float = _told(20, "Steps between two checkpoints.")
    save_total_limit: int | None = _told(2, "Checkpoints kept.")
    remove_unused_columns: bool = _told(
        False, "Must stay False: reward functions read the columns."
    )
    logging_nan_inf_filter: bool = _told(False, "A NaN loss is shown as it is.")

    bf16: bool | None = _told(  # type: ignore[assignment]  # None: decided below
        None, "Compute in bfloat16 with float32 weights; by default on a GPU that can."
    )
    gradient_checkpointing: bool | None = _told(  # type: ignore[assignment]  # None: decided below
        None, "Compute activations twice instead of keeping them; default on a GPU."
    )
    use_liger_kernel: bool | None = _told(  # type: ignore[assignment]  # None: decided below
        None, "Fused layers of liger-kernel; by default on a GPU where it is there."
    )
    model_init_kwargs: dict[str, Any] | None = _told(
        None,
        "Given to from_pretrained where the model is a name. `dtype` is float32 unless "
        "set; with adapters (PEFT) on a GPU it is bfloat16, as the frozen weights never change. "
        "float16 is for frozen weights alone.",
    )
    trust_remote_code: bool = _told(False, "Run Python code that comes with a model of that name.")
    disable_dropout: bool = _told(False, "Set every dropout of the model to 0.")
    chat_template_kwargs: dict[str, Any] | None = _told(
        None, "For the tokenizer's chat template, as {enable_thinking: false}."
    )
    generator: str = _told(
        "transformers",
        "What samples responses: `transformers`, `vllm`, or your own as module:Class.",
    )
    use_vllm: bool = _told(False, "TRL's name of generator: vllm.")
    vllm_mode: Literal["colocate", "server"] = _told(
        "colocate", "vLLM in each training process (`colocate`), or a `server` elsewhere."
    )
    vllm_model_impl: Literal["vllm", "transformers", "auto"] = _told(
        "vllm", "Whose code of the model vLLM runs."
    )
    vllm_gpu_memory_utilization: float = _told(
        0.3, "Share of the GPU's memory for vLLM, weights included."
    )
    vllm_tensor_parallel_size: int = _told(1, "GPUs that share one engine of `colocate`.")
    vllm_max_model_length: int | None = _told(
        None, "Tokens of prompt and response together; the model's own by default."
    )
    vllm_enable_sleep_mode: bool = _told(
        False, "vLLM gives its memory back while the policy is updated."
    )
    vllm_engine_kwargs: dict[str, Any] | None = _told(
        None, "More arguments of vllm.LLM, as {enforce_eager: true}; `colocate` only."
    )
    vllm_server_base_url: str | None = _told(
        None, "Address of the server; wins over host and port."
    )
    vllm_server_host: str = _told("0.0.0.0", "Host of the server.")
    vllm_server_port: int = _told(8000, "Port of the server.")
    vllm_server_timeout: float = _told(
        240.0,
        "Seconds without a sign of life of vLLM, served or not, after which the run "
        "ends; a start may take 600.",
    )
    vllm_server_sync_dir: str | None = _told(
        None,
        "Folder that the server sees too, where weights are left for it; by default "
        "one in output_dir.",
    )
    vllm_importance_sampling_correction: bool = _told(
        True, "Weigh rollouts by how much likelier the policy was to draw them than vLLM."
    )
    vllm_importance_sampling_mode: Mode = _told(
        "sequence_mask",
        "Weights of each `token` or of the `sequence`; outside the range they are cut "
        "to it (`truncate`) or 0 (`mask`).",
    )
    vllm_importance_sampling_clip_max: float | None = _told(3.0, "Largest weight; none without.")
    vllm_importance_sampling_clip_min: float | None = _told(None, "Smallest weight; none without.")

    preset: str = _told("dare", "Named settings of the curriculum.")
    curriculum: dict[str, Any] | None = _told(None, "Changes to the preset, by dotted name.")
    rollout_budget: int | None = _told(None, "R: rollouts a step trains on, over all processes.")
    num_generations: int | None = _told(
        None, "G: group size of medium prompts (medium.group_size)."
    )
    max_completion_length: int | None = _told(None, "Full token budget of a response (max_tokens).")
    num_iterations: int = _told(1, "Passes over what a generation brought, with updates in each.")
    generation_batch_size: int | None = _told(
        None, "TRL's name of rollout_budget, in whole micro-batches of all processes."
    )
    steps_per_generation: int | None = _told(
        None,
        "Micro-batches of a generation on each process; gradient_accumulation_steps "
        "of them make an update. By default all of them do.",
    )
    loss_type: LossType = _told(
        "grpo",
        "What tokens are averaged over: `grpo` its rollout, then group and prompts; "
        "`dapo` all tokens; `dr_grpo` rollouts times max_completion_length; `cispo` as dapo, "
        "and the ratio is a clipped weight.",
    )
    importance_sampling_level: Level = _told(
        "token", "The ratio is of each `token`, or of the whole response (`sequence`)."
    )
    mask_truncated_completions: bool = _told(
        False, "Responses that were cut off are not trained on."
    )
    epsilon: float | None = _told(
        None, "Clip range of medium prompts, both sides unless the upper is set."
    )
    epsilon_high: float | None = _told(
        None,
        "Upper clip range of medium prompts where it differs; for `cispo` the bound "
        "itself, above 1.",
    )
    scale_rewards: str | None = _told(
        None, "Advantages are divided by the std of the `group`, the `batch`, `none`."
    )
    temperature: float = _told(
        1.0, "Sampling temperature; 0.6 by default with the presets of the paper."
    )
    top_p: float = _told(
        1.0, "Nucleus: 1.0 keeps every token; 0.95 by default with the presets of the paper."
    )
    top_k: int = _told(0, "Most likely tokens kept; 0 keeps all.")
    beta: float = _told(0.0, "Weight of the KL to the reference policy; 0 loads none.")
    hint_conditioning: Literal["original", "hinted"] = _told(
        "original", "Helped rollouts are trained on the `original` or the `hinted` prompt."
    )
    system_prompt: str | None = _told(
        None, "A shipped template (math, gsm8k, code) or a system message's text."
    )
    reward_weights: list[float] | None = _told(
        None, "Weights of several reward functions in their sum; 1 each by default."
    )
    success_threshold: Any = _told(
        None,
        "What counts as a success for the difficulty of prompts: the reward that it "
        "takes, or a function (in a recipe module:function) of `rewards` and all that reward "
        "functions get. By default the reward itself, which must lie in [0, 1] to tell.",
    )
    unscored_limit: float = _told(
        0.05, "Save and stop when more than this share of a window is unscored."
    )
    unscored_window: int = _told(20, "Steps of that window; it is judged once it is full.")
    generation_rows: int = _told(512, "Rollouts decoded at once on a device.")
    score_batch_tokens: int = _told(
        16384, "Tokens of one pass that scores or embeds; halved when memory runs out."
    )
    eval_temperature: float = _told(0.0, "Temperature of evaluation; 0 is greedy.")
    eval_samples: int = _told(1, "Responses to each evaluation prompt.")
    num_generations_eval: int | None = _told(None, "TRL's name of eval_samples.")
    log_completions: bool = _told(False, "Print rollouts of a step with its log line.")
    num_completions_to_print: int | None = _told(
        None, "So many; all that samples.jsonl has of the step."
    )
    sample_rows: int = _told(2, "Rollouts of each tier kept per step in samples.jsonl.")
