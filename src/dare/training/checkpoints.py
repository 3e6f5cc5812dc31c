"""Trainer, with checkpoints that are complete or absent and those of one process, however many hold
the weights.

All private methods of Trainer that are overridden are here: it has no hooks around the writing of a
checkpoint, and would write and want shards where weights lie in parts.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import DistributedType, parse_flag_from_env
from safetensors import SafetensorError
from transformers import Trainer, TrainerState
from transformers.trainer import OPTIMIZER_NAME, SCHEDULER_NAME, TRAINER_STATE_NAME

from dare.errors import InvalidInput, first_line, require
from dare.policy import zero
from dare.policy.policy import Policy
from dare.policy.sharded import parted_state, whole_state
from dare.runs import checkpoint
from dare.runs.folder import RunFolder, sole
from dare.state import save_state
from dare.training.company import Company, is_loss, packed, unpacked
from dare.training.config import DareConfig


class WholeCheckpoints(Trainer):
    """What a trainer saves and loads, and how its weights are laid out."""

    args: DareConfig
    policy: Policy
    folder: RunFolder
    _company: Company
    _unwrapped: tuple[Any, Any] = (None, None)

    def flush(self) -> None:
        """Write what is known of the last step."""
        raise NotImplementedError

    def run_state(self) -> dict[str, Any]:
        """What is saved beside the weights and the optimiser."""
        raise NotImplementedError

    def how_to_continue(self) -> str:
        """The command or the call that goes on with this run."""
        raise NotImplementedError

    def kept(self) -> str:
        """What is left of a run that an error ends."""
        found = checkpoint.newest(self.folder.path)
        if found is None:
            return "there is no checkpoint yet that could be read"
        return f"{found} is intact: continue with {self.how_to_continue()}"

    def to_continue(self, wanted: str | bool | None) -> Path | None:
        """The checkpoint to go on from, None to begin; a run is not begun over another."""
        run = self.folder.path
        file = checkpoint.in_the_way(run)
        fix = "is no folder, and where a checkpoint is saved; remove it, or give it another name"
        require(file is None, "output_dir", str(file), fix)
        if wanted:
            found = checkpoint.chosen(run, wanted)
            fix = "has no usable checkpoint"
            require(found is not None, "resume_from_checkpoint", str(run), fix)
            return found
        if checkpoint.checkpoints(run) or self.folder.finished():
            fix = "holds a finished run (or files too damaged to tell), and no checkpoint; "
            if checkpoint.checkpoints(run):
                how = checkpoint.how_to_continue(run)
                fix = f"holds the checkpoints of a run; continue it with {how}, "
            fix += (
                "begin anew with overwrite_output_dir=True (--overwrite-output-dir true), "
                "or choose another folder"
            )
            require(self.args.overwrite_output_dir, "output_dir", str(run), fix)
        return None

    def agreed(self, wanted: str | bool | None, held: ExitStack) -> Path | None:
        """`to_continue`, of the first process for all of them: a file that one could not read would
        send it on from another step. The first has the run's folder to itself while it is `held`.
        """

        def choose() -> tuple[str, str] | None:
            held.enter_context(sole(self.folder.path))
            found = self.to_continue(wanted)
            return None if found is None else (str(found), checkpoint.identity(found))

        told = self._company.first_finds(choose)
        if told is None:
            return None
        found, identity = Path(told[0]), told[1]
        if self._company.processes > 1:
            first = self._company.rank == 0
            mine = None if first else checkpoint.verify(found, seen=identity)
            for rank, one in enumerate(self._company.gather(reason=packed(mine))):
                reason = unpacked(one["reason"])
                fix = f"process {rank} cannot go on from it, though the first can: {reason}"
                require(reason is None, "resume_from_checkpoint", str(found), fix)
        return found

    # ---- several processes ----

    def create_accelerator_and_postprocess(self) -> None:
        """Trainer's; FSDP shards on CPUs too, where accelerate makes it DDP without a word."""
        layouts = parse_flag_from_env("ACCELERATE_USE_PARALLELISM_CONFIG")
        layouts = layouts or self.args.parallelism_config is not None
        fix = "tensor, context and sequence parallel training are not supported: leave it out"
        require(not layouts, "parallelism_config", True, fix)
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

    def _bare_model(self) -> Any:
        """The module under DDP's wrapper; looked for again once FSDP has replaced it."""
        wrapped, bare = self._unwrapped
        if wrapped is not self.model:  # the search passes through every module of the model
            bare = self.accelerator.unwrap_model(self.model, keep_torch_compile=False)
            self._unwrapped = (self.model, bare)
        return bare

    # ---- a checkpoint ----

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Trainer's checkpoint plus the curriculum, staged and sealed: a folder that fills up in
        place cannot be complete or absent."""
        self.flush()
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
                save_state(self.run_state(), inner / "curriculum")
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
                f"there); {self.kept()}"
            )
            raise InvalidInput("output_dir", str(run), fix) from error
        finally:
            self.args.output_dir, self.args.save_total_limit = str(run), keep
        self.accelerator.wait_for_everyone()

    @contextmanager
    def _reading(self, found: str | Path, what: str) -> Iterator[None]:
        """What a part of a checkpoint fails with is a line that names it: a manifest that agrees
        may have been written for garbage, and every reader has errors of its own."""
        try:
            yield
        except (InvalidInput, torch.OutOfMemoryError):
            raise
        except Exception as error:
            if is_loss(error, self._company.processes):
                raise
            fix = f"{what} cannot be read ({type(error).__name__}: {first_line(error, 120)}); "
            fix += "resume from another one"
            raise InvalidInput("resume_from_checkpoint", str(found), fix) from error

    def _check_step(self, found: Path) -> None:
        """Trainer goes on from the step that its own file names."""
        with self._reading(found, TRAINER_STATE_NAME):
            step = TrainerState.load_from_json(str(found / TRAINER_STATE_NAME)).global_step
        named = found.resolve().name.removeprefix("checkpoint-")
        fix = f"its {TRAINER_STATE_NAME} is of step {step!r}; resume from another one"
        agreed = step == int(named) if named.isdecimal() else isinstance(step, int) and step >= 0
        require(agreed, "resume_from_checkpoint", str(found), fix)

    # ---- weights and optimiser of one process ----

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
            state = zero.whole_state(self.optimizer, self._groups, keep=self.args.should_save)
        else:
            state = whole_state(self.optimizer, keep=self.args.should_save)
        with self._as_one_process(optimizer=SimpleNamespace(state_dict=lambda: state)):
            super()._save_optimizer_and_scheduler(output_dir)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        with self._reading(str(checkpoint), "the state of its random numbers (rng_state*.pth)"):
            super()._load_rng_state(checkpoint)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        with self._reading(str(checkpoint), f"{OPTIMIZER_NAME} or {SCHEDULER_NAME}"):
            self._load_optimizer(checkpoint)

    def _load_optimizer(self, checkpoint: str | None) -> None:
        if checkpoint is None or not self._in_parts:
            return super()._load_optimizer_and_scheduler(checkpoint)
        optimizer: Any = self.optimizer
        scheduler: Any = self.lr_scheduler
        # Trainer would read the whole state onto every GPU. Mapped, a machine has it once at most.
        path = os.path.join(checkpoint, OPTIMIZER_NAME)
        state = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
        if self.is_deepspeed_enabled:
            zero.put_state(state, optimizer, self._groups)
        else:
            optimizer.load_state_dict(parted_state(state, optimizer))
        path = os.path.join(checkpoint, SCHEDULER_NAME)
        scheduler.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Tied weights are saved once, and Trainer warns of the second."""
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
        with self._reading(resume_from_checkpoint, "its weights"):
            self._load_weights(resume_from_checkpoint, model)

    def _load_weights(self, resume_from_checkpoint: str, model: Any) -> None:
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
