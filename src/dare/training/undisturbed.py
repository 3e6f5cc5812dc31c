"""What a user's function does to the process and to the policy is undone, or told."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from dare.errors import InvalidInput


def _autocast() -> list[tuple[str, bool, torch.dtype]]:
    kinds = ("cpu", "cuda")
    return [(k, torch.is_autocast_enabled(k), torch.get_autocast_dtype(k)) for k in kinds]


def _set_autocast(before: list[tuple[str, bool, torch.dtype]]) -> None:
    for kind, enabled, dtype in before:
        torch.set_autocast_enabled(kind, enabled)
        torch.set_autocast_dtype(kind, dtype)


def _set_device(before: torch.device) -> None:
    torch.set_default_device(None if before.type == "cpu" else before)


def _handlers() -> list[tuple[signal.Signals, Any]]:
    return [(one, signal.getsignal(one)) for one in (signal.SIGINT, signal.SIGTERM)]


def _handle(before: list[tuple[signal.Signals, Any]]) -> None:
    if threading.current_thread() is threading.main_thread():
        for number, handler in before:
            signal.signal(number, handler)


def _fatal() -> list[Any]:
    return [one for one in warnings.filters if one[0] == "error"]


def _less_fatal(before: list[Any]) -> None:
    for one in _fatal():
        if one not in before:
            warnings.filters.remove(one)  # type: ignore[attr-defined]


def _deterministic() -> tuple[bool, bool]:
    on = torch.are_deterministic_algorithms_enabled()
    return on, torch.is_deterministic_algorithms_warn_only_enabled()


# What a run reads of its process, and how it is set.
_PROCESS: tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...] = (
    (os.getcwd, os.chdir),
    (torch.is_grad_enabled, torch.set_grad_enabled),
    (_autocast, _set_autocast),
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_default_device, _set_device),
    (torch.get_num_threads, torch.set_num_threads),
    (_deterministic, lambda was: torch.use_deterministic_algorithms(was[0], warn_only=was[1])),
    (torch.is_anomaly_enabled, torch.set_anomaly_enabled),
    (np.geterr, lambda was: np.seterr(**was)),
    (_fatal, _less_fatal),
    (_handlers, _handle),
    (sys.getrecursionlimit, sys.setrecursionlimit),
    (gc.isenabled, lambda was: gc.enable() if was else gc.disable()),
    (lambda: logging.root.manager.disable, logging.disable),
    (lambda: (sys.stdout, sys.stderr), lambda was: vars(sys).update(stdout=was[0], stderr=was[1])),
)


@contextmanager
def undisturbed(model: Any, names: str) -> Iterator[None]:
    """Functions of the user's with these `names` run in here: the process and the policy are the
    run's own again when they are over. Weights that they wrote to are lost, and end the run."""
    process = [get() for get, _ in _PROCESS]
    modes = [(module, module.training) for module in model.modules()]
    weights = [(p, p.requires_grad, p.grad) for p in model.parameters()]
    written = [(p._version, p.dtype) for p, *_ in weights]
    try:
        yield
    finally:
        for (get, put), before in zip(_PROCESS, process, strict=True):
            if _differs(get, before):
                put(before)
        for module, training in modes:
            module.training = training
        for weight, trained, gradient in weights:
            if weight.requires_grad != trained:
                weight.requires_grad_(trained)
            if weight.grad is not gradient:
                weight.grad = gradient
    if written != [(p._version, p.dtype) for p, *_ in weights]:
        fix = "wrote to the weights of the policy, which only training may: give it a copy of the "
        fix += "model, and go on from the last checkpoint"
        raise InvalidInput("reward_funcs", names, fix)


def _differs(get: Callable[[], Any], before: Any) -> bool:
    try:
        return bool(get() != before)
    except OSError:  # a current folder that is gone
        return True
