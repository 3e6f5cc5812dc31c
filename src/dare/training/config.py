"""DareConfig: transformers' TrainingArguments with DARE's settings, under names TRL users know."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import Enum
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.utils.checkpoint
from transformers import SchedulerType, TrainingArguments
from transformers.integrations import integration_utils
from transformers.integrations.deepspeed import unset_hf_deepspeed_config
from transformers.optimization import TYPE_TO_SCHEDULER_FUNCTION

from dare.config import CurriculumConfig
from dare.config.nested import arguments, hints_of, nest, typed, within
from dare.errors import InvalidInput, first_line, require, suggest
from dare.policy.correction import Correction
from dare.policy.model import check_dtype
from dare.policy.vllm_engine import VllmSettings
from dare.rewards.builtin import reward_named
from dare.training.from_trl import knows_trl
from dare.training.settings import RANGES, STEPS, RunSettings
from dare_decoder import Sampling
from dare_decoder.sampling import COLDEST

_LOG = logging.getLogger(__name__)
_OF_THE_PAPER = {"temperature": 0.6, "top_p": 0.95}  # what its presets sample with, unless told
# Of liger's kernels those inside the layers: the head's log-probs are chunked here already.
_LIGER = {"rope": True, "rms_norm": True, "swiglu": True, "cross_entropy": False}
_LIGER |= {"fused_linear_cross_entropy": False}

_COUNTED = ("all", "non_padding", "no")
_WORD = 3  # letters of a value that is looked for in an error
_EVALUATED = ("accuracy", "tokens", "truncated", "responses", "unscored")

# Settings of the curriculum under the names that GRPO users know.
FAMILIAR = {
    "rollout_budget": "rollout_budget",
    "medium.group_size": "num_generations",
    "max_tokens": "max_completion_length",
    "medium.clip_low": "epsilon",
    "medium.clip_high": "epsilon_high",
    "advantage.scale_rewards": "scale_rewards",
}


@knows_trl
@dataclass
class DareConfig(RunSettings):
    """Everything a run is made of.

    The method's own knobs are those of `CurriculumConfig`; `preset` names a full set of them and
    `curriculum` changes single ones by dotted name, for instance {"selection.sharpness": 4}. A few
    of them also have the name that GRPO users know; where given, these win. Other names of TRL's
    GRPOConfig are taken where they change nothing here, and answered with what to use otherwise.
    """

    def __post_init__(self) -> None:
        # As in TRL. Its parser knows no field that is a text, true or false, or nothing.
        words = {"true": "group", "false": "none"}
        self.scale_rewards = words.get(str(self.scale_rewards).lower(), self.scale_rewards)
        self.debug = "" if self.debug is None else self.debug  # as transformers' parser has it
        given = self._given = self._typed()
        if self.preset in ("paper", "paper-release"):
            vars(self).update({name: _OF_THE_PAPER[name] for name in _OF_THE_PAPER.keys() - given})
        several = int(os.environ.get("WORLD_SIZE", "1")) > 1
        if several and not torch.accelerator.is_available():
            self.use_cpu = True  # or accelerate looks for GPUs, finds none and leaves each alone
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
        best = self.metric_for_best_model
        plateau = self.lr_scheduler_type in ("reduce_lr_on_plateau", "greedy")
        if best is None and (self.load_best_model_at_end or plateau):
            self.metric_for_best_model = "accuracy"  # a loss is never evaluated here
        elif best is not None and best.rpartition("_")[2] not in _EVALUATED:
            raise InvalidInput("metric_for_best_model", best, suggest(best, _EVALUATED))
        report = ["none"] if self.report_to is None else self.report_to
        for name in [report] if isinstance(report, str) else report:
            known = ("all", "none", *integration_utils.INTEGRATION_TO_CALLBACK)
            require(name in known, "report_to", name, suggest(name, known))
            here = getattr(integration_utils, f"is_{name}_available", lambda: True)
            require(
                here(), "report_to", name, f"needs a library: pip install {name}, or leave it out"
            )
        self.report_to = report
        seen = self.include_num_input_tokens_seen
        counted = isinstance(seen, bool) or seen in _COUNTED
        require(counted, "include_num_input_tokens_seen", seen, suggest(str(seen), _COUNTED))
        fix = "changes nothing without fsdp: true"
        require(self.fsdp or not self.fsdp_config, "fsdp_config", self.fsdp_config, fix)
        self._check_texts()
        with self.refusals(given):
            super().__post_init__()
        idle = torch.cuda.device_count() - 1 if on_gpu and self.world_size == 1 else 0
        if idle > 0:
            _LOG.warning("one GPU is used, %d more are there: --accelerate ddp uses all", idle)
        if self.deepspeed_plugin is not None:
            unset_hf_deepspeed_config()  # or models would be loaded in parts, under ZeRO-3
        for name in ("auto_find_batch_size", "remove_unused_columns"):
            fix = "is not supported: a step's rollouts are planned for a fixed batch size"
            if name == "remove_unused_columns":
                fix = "must stay false: reward functions read the columns"
            require(not getattr(self, name, False), name, True, fix)
        if self.loss_type == "cispo" and self.epsilon_high is not None:
            fix = "with cispo it is the bound of the ratio, not its distance from 1: 5.0, say"
            require(self.epsilon_high > 1, "epsilon_high", self.epsilon_high, fix)
        kwargs = self.gradient_checkpointing_kwargs
        if kwargs is not None:
            again: Any = torch.utils.checkpoint.checkpoint
            arguments(again, kwargs, "gradient_checkpointing_kwargs", some=True)
        if self.lr_scheduler_kwargs is not None:
            schedule: Any = TYPE_TO_SCHEDULER_FUNCTION[SchedulerType(self.lr_scheduler_type)]
            arguments(schedule, self.lr_scheduler_kwargs, "lr_scheduler_kwargs", some=True)
        if self.num_generations_eval is not None:
            self.eval_samples = self.num_generations_eval
        if self.use_vllm:
            fix = "use_vllm asks for vLLM; leave one of the two out"
            require(self.generator in ("transformers", "vllm"), "generator", self.generator, fix)
            self.generator = "vllm"
        low = self.vllm_importance_sampling_clip_min
        high = self.vllm_importance_sampling_clip_max
        if low is not None and high is not None:
            fix = f"must be below vllm_importance_sampling_clip_max, {high}"
            require(low < high, "vllm_importance_sampling_clip_min", low, fix)
        warm = self.eval_temperature
        fix = f"must be 0, which is greedy, or at least {COLDEST:g}"
        require(warm == 0 or warm >= COLDEST, "eval_temperature", warm, fix)
        self._check_updates()
        self._check_steps()
        self.curriculum_config()

    def _typed(self) -> dict[str, Any]:
        """Every field as its annotation has it and within its range, transformers' own included;
        returns those that were given. Whatever way a setting came in, it is checked here."""
        hints, given = hints_of(type(self)), dict[str, Any]()
        for item in fields(self):
            value = getattr(self, item.name)
            if not item.init or value is item.default:
                continue
            value = typed(hints[item.name], value, item.name)
            choices = item.metadata.get("choices")
            if choices and value is not None:
                require(value in choices, item.name, value, suggest(str(value), map(str, choices)))
            if item.name in RANGES and value is not None:
                within(RANGES[item.name], value, item.name)
            setattr(self, item.name, value)
            given[item.name] = value
        return given

    @contextlib.contextmanager
    def refusals(self, given: Mapping[str, Any] | None = None, usual: str = "training") -> Any:
        """What transformers refuses in this context as one line that names the field: the one that
        its error speaks of, or the one of `given` without which there would be none."""
        try:
            yield
        except (InvalidInput, torch.OutOfMemoryError):
            raise
        except Exception as error:  # it has checks of many kinds
            told = vars(self).get("_given", {}) if given is None else given
            name = _named(error, self, told) or usual
            fix = f"transformers refuses it: {first_line(error)}"
            if self.deepspeed is not None:  # else the next model of this process is loaded by it
                unset_hf_deepspeed_config()
            raise InvalidInput(name, getattr(self, name, None), fix) from error

    def _check_texts(self) -> None:
        """Texts that transformers reads late, or of which its error names another field."""
        parts = (self.optim_args or "").replace(" ", "").split(",")
        pairs = parts == [""] or all(re.fullmatch("[^=]+=[^=]*", part) for part in parts)
        fix = "must be name=value pairs with commas between them: alpha=0.9,eps=1e-8"
        require(pairs, "optim_args", self.optim_args, fix)
        path = self.fsdp_config
        if isinstance(path, str) and not path.startswith("{"):
            try:
                read = json.loads(Path(path).read_text(encoding="utf-8"))
            except (OSError, ValueError, RecursionError) as error:
                fix = f"must be a mapping or the path of a JSON file: {first_line(error)}"
                raise InvalidInput("fsdp_config", path, fix) from None
            require(isinstance(read, dict), "fsdp_config", path, "the file must hold a mapping")
        backend = self.torch_compile_backend
        if backend is not None:
            known = torch.compiler.list_backends(exclude_tags=())
            fix = suggest(backend, torch.compiler.list_backends())
            require(backend in known, "torch_compile_backend", backend, fix)

    def _check_updates(self) -> None:
        part, batch = self.gradient_accumulation_steps, self.generation_batch_size
        rows = self.per_device_train_batch_size * self.world_size
        if batch is not None:
            fix = f"must be a multiple of the {rows} rows of a micro-batch on all processes"
            require(batch % rows == 0, "generation_batch_size", batch, fix)
            fix = f"and generation_batch_size ({batch}, so {batch // rows}) are two; give one"
            steps = self.steps_per_generation
            require(steps in (None, batch // rows), "steps_per_generation", steps, fix)
            self.steps_per_generation = batch // rows
        if self.steps_per_generation is None:
            self.steps_per_generation = part if part > 0 else None  # as in TRL
        elif part < 0:
            self.gradient_accumulation_steps = part = 1
        steps = self.steps_per_generation
        if steps is not None:
            fix = f"must be a multiple of gradient_accumulation_steps ({part})"
            require(steps % part == 0, "steps_per_generation", steps, fix)

    def _check_steps(self) -> None:
        epochs, steps, warm = self.num_train_epochs, self.max_steps, self.warmup_steps
        fix = "must be a whole number, or a share of the run below 1"
        require(warm < 1 or warm == int(warm), "warmup_steps", warm, fix)
        require(steps > 0 or steps == -1, "max_steps", steps, "say how many steps to train")
        if steps < 0 and epochs > 0:
            return  # `set_length` knows how many, with the data
        if steps < 0:
            self.max_steps = STEPS * self.updates_per_generation
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

    def to_dict(self) -> dict[str, Any]:
        """The settings as plain values: a function by its name."""
        rule, values = self.success_threshold, super().to_dict()
        if callable(rule):
            named = getattr(rule, "__qualname__", type(rule).__qualname__)
            values["success_threshold"] = f"{rule.__module__}:{named}"
        return values

    @property
    def n_gpu(self) -> int:
        """One for each process: torch's DataParallel, which Trainer would wrap a model in that sees
        more, cuts packed batches apart."""
        return min(1, super().n_gpu)

    @property
    def success_rule(self) -> Any:
        """A number, a function, or None."""
        rule, fix = self.success_threshold, "must be a finite number or a function"
        if isinstance(rule, str):
            return reward_named(rule, "success_threshold")
        number = type(rule) in (int, float) and math.isfinite(rule)
        require(rule is None or callable(rule) or number, "success_threshold", rule, fix)
        return rule

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

    @property
    def engine(self) -> VllmSettings:
        """How vLLM is run, where it is the generator."""
        host = f"http://{self.vllm_server_host}:{self.vllm_server_port}"
        return VllmSettings(
            mode=self.vllm_mode,
            model_impl=self.vllm_model_impl,
            gpu_memory_utilization=self.vllm_gpu_memory_utilization,
            tensor_parallel_size=self.vllm_tensor_parallel_size,
            max_model_length=self.vllm_max_model_length,
            enable_sleep_mode=self.vllm_enable_sleep_mode,
            engine_kwargs=dict(self.vllm_engine_kwargs or {}),
            server_url=(self.vllm_server_base_url or host).rstrip("/"),
            server_timeout=self.vllm_server_timeout,
            sync_folder=self.vllm_server_sync_dir or str(self.output_dir),
            logprobs=self.vllm_importance_sampling_correction,
            trust_remote_code=self.trust_remote_code,
        )

    @property
    def correction(self) -> Correction:
        """How rollouts are weighed that an engine other than the policy has drawn."""
        return Correction(
            self.vllm_importance_sampling_mode,
            self.vllm_importance_sampling_clip_min,
            self.vllm_importance_sampling_clip_max,
        )

    def curriculum_config(self, processes: int | None = None) -> CurriculumConfig:
        """The curriculum's settings: preset, then `curriculum`, then the familiar names."""
        changes = dict(self.curriculum or {})
        budget, steps = self.rollout_budget, self.steps_per_generation
        if budget is None and "rollout_budget" not in changes and steps is not None:
            budget = self.per_device_train_batch_size * (processes or self.world_size) * steps
        if "seed" in changes:
            fix = f"the seed of a run is that of `training`, {self.seed}: set it there alone"
            same = typed(int, changes["seed"], "curriculum.seed") == self.seed
            require(same, "curriculum.seed", changes["seed"], fix)
        changes["seed"] = self.seed
        high = self.epsilon if self.epsilon_high is None else self.epsilon_high
        medium = nest(changes).get("medium")
        if self.epsilon_high is None and isinstance(medium, Mapping) and "clip_high" in medium:
            high = None  # one that is told wins over `epsilon`, whichever its name
        if self.loss_type == "cispo" and self.epsilon_high is not None:
            high = self.epsilon_high - 1.0  # TRL's is the bound itself; ours counts from 1
        named = {name: getattr(self, familiar) for name, familiar in FAMILIAR.items()}
        named["rollout_budget"], named["medium.clip_high"] = budget, high
        changes.update({name: value for name, value in named.items() if value is not None})
        try:
            return CurriculumConfig.preset(self.preset, **changes)
        except InvalidInput as error:
            familiar = FAMILIAR.get(error.field)
            if familiar in (None, error.field) or getattr(self, str(familiar)) is None:
                raise
            raise InvalidInput(f"{familiar} ({error.field})", error.value, error.fix) from None

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


def _named(error: Exception, config: DareConfig, given: Mapping[str, Any]) -> str | None:
    """The field that an error of transformers is about."""
    names = sorted((item.name for item in fields(config)), key=len, reverse=True)
    spoken = re.search(rf"(?<!\w)({'|'.join(names)})(?!\w)", str(error))
    if spoken and (not given or spoken[1] in given):
        return spoken[1]
    guilty = _culprit(given)
    if guilty or spoken:
        return guilty or (spoken and spoken[1])
    said = str(error).lower()
    for item in fields(config):  # or the one whose value it quotes
        value = getattr(config, item.name)
        told = item.name in given if given else value != item.default
        if not told or isinstance(value, Enum):
            continue
        for word in value if isinstance(value, list) else [value]:
            # Whole words, and none that any sentence has: 'no' is in 'not' and in 'unknown'.
            quoted = isinstance(word, str) and len(word) >= _WORD
            if quoted and re.search(rf"(?<!\w){re.escape(word.lower())}(?!\w)", said):
                return item.name
    return None


def _culprit(given: Mapping[str, Any]) -> str | None:
    """The setting without which transformers takes the others."""
    theirs = {item.name for item in fields(TrainingArguments)}
    held = {name: value for name, value in given.items() if name in theirs}
    with contextlib.suppress(Exception):
        TrainingArguments(**held)
        return None  # it takes them all: the error is of a later time
    for name in held:
        with contextlib.suppress(Exception):  # not this one, or not this one alone
            TrainingArguments(**{key: value for key, value in held.items() if key != name})
            return name
    return None
