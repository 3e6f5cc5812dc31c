"""DareConfig: transformers' TrainingArguments with DARE's settings, under names TRL users know."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import torch
from transformers import TrainingArguments

from dare.config import CurriculumConfig
from dare.errors import InvalidInput, require
from dare.policy.logprobs import Sampling
from dare.policy.loss import LEVELS, LOSS_TYPES
from dare.policy.model import check_dtype
from dare.training.from_trl import knows_trl

_LOG = logging.getLogger(__name__)
_STEPS = 200  # of a run that is not told how long it is
# Of liger's kernels those inside the layers: the head's log-probs are chunked here already.
_LIGER = {"rope": True, "rms_norm": True, "swiglu": True, "cross_entropy": False}
_LIGER |= {"fused_linear_cross_entropy": False}


@knows_trl
@dataclass
class DareConfig(TrainingArguments):
    """Everything a run is made of.

    The method's own knobs are those of `CurriculumConfig`; `preset` names a full set of them and
    `curriculum` changes single ones by dotted name, for instance {"selection.sharpness": 4}. A few
    of them also have the name that GRPO users know; where given, these win. Other names of TRL's
    GRPOConfig are taken where they change nothing here, and answered with what to use otherwise.
    """

    # Defaults of transformers that make no sense here, or that the method fixes.
    learning_rate: float = field(default=2e-6, metadata={"help": "Learning rate of AdamW."})
    lr_scheduler_type: str = field(default="constant", metadata={"help": "Schedule of the rate."})
    max_steps: int = field(
        default=-1,
        metadata={
            "help": "Optimiser steps of the run; a generation makes one unless told more. "
            f"{_STEPS} where neither this nor num_train_epochs is given."
        },
    )
    num_train_epochs: float = field(
        default=0.0,
        metadata={"help": "Instead of max_steps: so many draws of a prompt, on average."},
    )
    gradient_accumulation_steps: int = field(
        default=0,
        metadata={
            "help": "Micro-batches of an update on each process; 0: all of a generation. Without "
            "rollout_budget they say how many rollouts there are, as in TRL."
        },
    )
    overwrite_output_dir: bool = field(
        default=False, metadata={"help": "Begin anew where the folder holds checkpoints of a run."}
    )
    logging_steps: float = field(default=1, metadata={"help": "Steps between two log lines."})
    save_steps: float = field(default=20, metadata={"help": "Steps between two checkpoints."})
    save_total_limit: int | None = field(default=2, metadata={"help": "Checkpoints kept."})
    remove_unused_columns: bool = field(
        default=False, metadata={"help": "Must stay False: reward functions read the columns."}
    )
    logging_nan_inf_filter: bool = field(
        default=False, metadata={"help": "A NaN loss is shown as it is."}
    )

    bf16: bool | None = field(  # type: ignore[assignment]  # None: decided below
        default=None,
        metadata={
            "help": "Compute in bfloat16 with float32 weights; by default on a GPU that can."
        },
    )
    gradient_checkpointing: bool | None = field(  # type: ignore[assignment]  # None: decided below
        default=None,
        metadata={"help": "Compute activations twice instead of keeping them; default on a GPU."},
    )
    use_liger_kernel: bool | None = field(  # type: ignore[assignment]  # None: decided below
        default=None,
        metadata={"help": "Fused layers of liger-kernel; by default on a GPU where it is there."},
    )
    model_init_kwargs: dict[str, Any] | None = field(
        default=None,
        metadata={
            "help": "Given to from_pretrained where the model is a name. `dtype` is float32 unless "
            "set; with adapters (PEFT) on a GPU it is bfloat16, as the frozen weights never change."
        },
    )
    trust_remote_code: bool = field(
        default=False, metadata={"help": "Run Python code that comes with a model of that name."}
    )
    disable_dropout: bool = field(
        default=False, metadata={"help": "Set every dropout of the model to 0."}
    )
    chat_template_kwargs: dict[str, Any] | None = field(
        default=None,
        metadata={"help": "For the tokenizer's chat template, as {enable_thinking: false}."},
    )
    generator: str = field(
        default="transformers",
        metadata={"help": "What samples responses: `transformers`, or your own as module:Class."},
    )

    preset: str = field(default="dare", metadata={"help": "Named settings of the curriculum."})
    curriculum: dict[str, Any] | None = field(
        default=None, metadata={"help": "Changes to the preset, by dotted name."}
    )
    rollout_budget: int | None = field(
        default=None, metadata={"help": "R: rollouts a step trains on, over all processes."}
    )
    num_generations: int | None = field(
        default=None, metadata={"help": "G: group size of medium prompts (medium.group_size)."}
    )
    max_completion_length: int | None = field(
        default=None, metadata={"help": "Full token budget of a response (max_tokens)."}
    )
    num_iterations: int = field(
        default=1, metadata={"help": "Passes over what a generation brought, with updates in each."}
    )
    generation_batch_size: int | None = field(
        default=None,
        metadata={"help": "TRL's name of rollout_budget, in whole micro-batches of all processes."},
    )
    steps_per_generation: int | None = field(
        default=None,
        metadata={
            "help": "Micro-batches of a generation on each process; gradient_accumulation_steps "
            "of them make an update. By default all of them do."
        },
    )
    loss_type: str = field(
        default="grpo",
        metadata={
            "help": "What tokens are averaged over: `grpo` its rollout, then group and prompts; "
            "`dapo` all tokens; `dr_grpo` rollouts times max_completion_length; `cispo` as dapo, "
            "and the ratio is a clipped weight."
        },
    )
    importance_sampling_level: str = field(
        default="token",
        metadata={"help": "The ratio is of each `token`, or of the whole response (`sequence`)."},
    )
    mask_truncated_completions: bool = field(
        default=False, metadata={"help": "Responses that were cut off are not trained on."}
    )
    epsilon: float | None = field(
        default=None, metadata={"help": "Clip range of medium prompts, both sides."}
    )
    epsilon_high: float | None = field(
        default=None,
        metadata={
            "help": "Upper clip range of medium prompts where it differs; for `cispo` the bound "
            "itself, above 1."
        },
    )
    scale_rewards: str | None = field(
        default=None,
        metadata={"help": "Advantages are divided by the std of the `group`, the `batch`, `none`."},
    )
    temperature: float = field(default=0.6, metadata={"help": "Sampling temperature."})
    top_p: float = field(default=0.95, metadata={"help": "Nucleus: 1.0 keeps every token."})
    top_k: int = field(default=0, metadata={"help": "Most likely tokens kept; 0 keeps all."})
    beta: float = field(
        default=0.0, metadata={"help": "Weight of the KL to the reference policy; 0 loads none."}
    )
    hint_conditioning: str = field(
        default="original",
        metadata={"help": "Helped rollouts are trained on the `original` or the `hinted` prompt."},
    )
    system_prompt: str | None = field(
        default=None,
        metadata={"help": "A shipped template (math, gsm8k, code) or a system message's text."},
    )
    reward_weights: list[float] | None = field(
        default=None, metadata={"help": "Weights of several reward functions; default equal."}
    )
    unscored_limit: float = field(
        default=0.05,
        metadata={"help": "Save and stop when more than this share of a window is unscored."},
    )
    unscored_window: int = field(
        default=20, metadata={"help": "Steps of that window; it is judged once it is full."}
    )
    generation_rows: int = field(
        default=512, metadata={"help": "Rollouts decoded at once on a device."}
    )
    score_batch_tokens: int = field(
        default=16384, metadata={"help": "Tokens of one scoring pass; halved when memory runs out."}
    )
    eval_temperature: float = field(
        default=0.0, metadata={"help": "Temperature of evaluation; 0 is greedy."}
    )
    eval_samples: int = field(default=1, metadata={"help": "Responses to each evaluation prompt."})
    num_generations_eval: int | None = field(
        default=None, metadata={"help": "TRL's name of eval_samples."}
    )
    log_completions: bool = field(
        default=False, metadata={"help": "Print rollouts of a step with its log line."}
    )
    num_completions_to_print: int | None = field(
        default=None, metadata={"help": "So many; all that samples.jsonl has of the step."}
    )
    sample_rows: int = field(
        default=2, metadata={"help": "Rollouts of each tier kept per step in samples.jsonl."}
    )

    def __post_init__(self) -> None:
        on_gpu = torch.cuda.is_available() and not self.use_cpu
        if self.bf16 is None:
            self.bf16 = not self.fp16 and on_gpu and torch.cuda.is_bf16_supported(False)
        elif self.bf16 and on_gpu:
            check_dtype("bfloat16", torch.device("cuda"), "bf16")
        if self.gradient_checkpointing is None:
            self.gradient_checkpointing = on_gpu
        if self.gradient_checkpointing and self.gradient_checkpointing_kwargs is None:
            self.gradient_checkpointing_kwargs = {"use_reentrant": False}
        if self.use_liger_kernel is None:
            self.use_liger_kernel = on_gpu and find_spec("liger_kernel") is not None
        if self.use_liger_kernel and self.liger_kernel_config is None:
            self.liger_kernel_config = dict(_LIGER)
        super().__post_init__()
        require(self.temperature > 0, "temperature", self.temperature, "must be positive")
        require(0 < self.top_p <= 1, "top_p", self.top_p, "must be in (0, 1]")
        require(self.top_k >= 0, "top_k", self.top_k, "0 keeps all tokens")
        require(self.beta >= 0, "beta", self.beta, "must not be negative")
        if self.num_generations_eval is not None:
            self.eval_samples = self.num_generations_eval
        self._check_objective()
        self._check_updates()
        self._check_steps()
        limit, window = self.unscored_limit, self.unscored_window
        require(0 <= limit <= 1, "unscored_limit", limit, "must be in [0, 1]; 1 never stops")
        require(window >= 1, "unscored_window", window, "must be at least one step")
        choices = ("original", "hinted")
        fix = "choose 'original' or 'hinted'"
        require(self.hint_conditioning in choices, "hint_conditioning", self.hint_conditioning, fix)
        if getattr(self, "auto_find_batch_size", False):
            fix = "is not supported: a step's rollouts are planned for a fixed batch size"
            raise InvalidInput("auto_find_batch_size", True, fix)

    def _check_objective(self) -> None:
        for name, choices in (("loss_type", LOSS_TYPES), ("importance_sampling_level", LEVELS)):
            value = getattr(self, name)
            require(value in choices, name, value, f"choose one of {', '.join(choices)}")
        if self.loss_type == "cispo" and self.epsilon_high is not None:
            fix = "with cispo it is the bound of the ratio, not its distance from 1: 5.0, say"
            require(self.epsilon_high > 1, "epsilon_high", self.epsilon_high, fix)

    def _check_updates(self) -> None:
        rounds, part, batch = (
            self.num_iterations,
            self.gradient_accumulation_steps,
            self.generation_batch_size,
        )
        require(rounds >= 1, "num_iterations", rounds, "must be at least 1")
        require(part >= 0, "gradient_accumulation_steps", part, "must not be negative")
        rows = self.per_device_train_batch_size * self.world_size
        if batch is not None:
            fix = f"must be a multiple of the {rows} rows of a micro-batch on all processes"
            require(batch > 0 and batch % rows == 0, "generation_batch_size", batch, fix)
            fix = f"and generation_batch_size ({batch}, so {batch // rows}) are two; give one"
            steps = self.steps_per_generation
            require(steps in (None, batch // rows), "steps_per_generation", steps, fix)
            self.steps_per_generation = batch // rows
        if self.steps_per_generation is None:
            self.steps_per_generation = part or None  # as in TRL
        elif part == 0:
            self.gradient_accumulation_steps = part = 1
        steps = self.steps_per_generation
        if steps is not None:
            fix = f"must be a multiple of gradient_accumulation_steps ({part})"
            require(steps >= 1 and steps % part == 0, "steps_per_generation", steps, fix)

    def _check_steps(self) -> None:
        epochs, steps = self.num_train_epochs, self.max_steps
        require(epochs >= 0, "num_train_epochs", epochs, "must be positive; 0: max_steps says")
        require(steps > 0 or steps == -1, "max_steps", steps, "say how many steps to train")
        if steps < 0 and epochs > 0:
            return  # `set_length` knows how many, with the data
        if steps < 0:
            self.max_steps = _STEPS * self.updates_per_generation
        elif epochs > 0:
            _LOG.warning("max_steps = %d decides; num_train_epochs = %g is not used", steps, epochs)
        updates = self.updates_per_generation
        fix = (
            f"must be a multiple of the {updates} updates of a generation: "
            f"{-(-self.max_steps // updates) * updates}, say"
        )
        require(self.max_steps % updates == 0, "max_steps", self.max_steps, fix)

    def set_length(self, prompts: int, settings: CurriculumConfig) -> None:
        """`max_steps` of `num_train_epochs`: an epoch draws as many prompts as there are."""
        if self.max_steps < 0:
            drawn = settings.rollout_budget * settings.fresh_share / settings.medium.group_size
            drawn = settings.prompts_per_step or drawn
            generations = math.ceil(round(self.num_train_epochs * prompts / drawn, 6))
            self.max_steps = generations * self.updates_per_generation

    @property
    def mini_batches(self) -> int:
        """Parts of a generation that get an update each, in every pass over it."""
        steps = self.steps_per_generation
        return 1 if steps is None else steps // self.gradient_accumulation_steps

    @property
    def updates_per_generation(self) -> int:
        """Optimiser steps that one plan's rollouts are used for."""
        return self.num_iterations * self.mini_batches

    @property
    def precision(self) -> torch.dtype | None:
        """The dtype of mixed precision, None without."""
        if self.bf16:
            return torch.bfloat16
        return torch.float16 if self.fp16 else None

    def model_options(self, adapters: bool) -> dict[str, Any]:
        """How a model that is given by name is loaded."""
        options = dict(self.model_init_kwargs or {})
        # Steps of 1e-6 are lost in 16-bit weights: what is trained is kept in float32.
        name = options.pop("dtype", "bfloat16" if adapters and self.bf16 else "float32")
        if not isinstance(name, torch.dtype):
            name = check_dtype(name, self.device, "model_init_kwargs.dtype")
        return {"dtype": name, "trust_remote_code": self.trust_remote_code, **options}

    @property
    def sampling(self) -> Sampling:
        """The distribution that rollouts are drawn from."""
        return Sampling(self.temperature, self.top_p, self.top_k)

    def curriculum_config(self, processes: int | None = None) -> CurriculumConfig:
        """The curriculum's settings: preset, then `curriculum`, then the familiar names."""
        changes = dict(self.curriculum or {})
        budget, steps = self.rollout_budget, self.steps_per_generation
        if budget is None and "rollout_budget" not in changes and steps is not None:
            budget = self.per_device_train_batch_size * (processes or self.world_size) * steps
        changes["seed"] = self.seed
        high = self.epsilon if self.epsilon_high is None else self.epsilon_high
        if self.loss_type == "cispo" and self.epsilon_high is not None:
            high = self.epsilon_high - 1.0  # TRL's is the bound itself; ours counts from 1
        named = {
            "rollout_budget": budget,
            "medium.group_size": self.num_generations,
            "max_tokens": self.max_completion_length,
            "medium.clip_low": self.epsilon,
            "medium.clip_high": high,
            "advantage.scale_rewards": {"True": "group", "False": "none"}.get(  # as in TRL
                str(self.scale_rewards), self.scale_rewards
            ),
        }
        changes.update({name: value for name, value in named.items() if value is not None})
        return CurriculumConfig.preset(self.preset, **changes)

    def accumulation(self, rollouts: int, processes: int) -> int:
        """Micro-batches an update takes on each process; an uneven split is refused."""
        rows = self.per_device_train_batch_size * processes
        if rollouts % rows:
            fits = [
                d for d in range(1, rollouts // processes + 1) if rollouts % (d * processes) == 0
            ]
            near = min(fits, key=lambda d: abs(d - self.per_device_train_batch_size), default=1)
            fix = (
                f"{rollouts} rollouts do not split into rows of {self.per_device_train_batch_size} "
                f"on {processes} process(es); try {near}"
            )
            raise InvalidInput("per_device_train_batch_size", self.per_device_train_batch_size, fix)
        steps = self.steps_per_generation
        if steps is None:
            return rollouts // rows
        fix = (
            f"{rollouts} rollouts in rows of {self.per_device_train_batch_size} on {processes} "
            f"process(es) are {rollouts // rows} micro-batches; set that, or rollout_budget to "
            f"{steps * rows}"
        )
        own = steps != self.gradient_accumulation_steps
        name = "steps_per_generation" if own else "gradient_accumulation_steps"
        require(steps == rollouts // rows, name, steps, fix)
        return self.gradient_accumulation_steps
