"""What more prompts and more processes cost.

    python benchmarks/scale.py [--largest 1000000] [--out FILE.json] [--derive]

By prompts, each size in a process of its own: with the default estimator, a full memory of 16,384
groups and states along 96 directions (`dare`); with one that keeps two numbers a prompt and reads
nothing of the policy, ten times as many prompts (`posterior`):

    table_s      the prompt table, from texts of 100 characters (above 10^6 from keys)
    plan_s       the plan of a step
    observe_s    what came of 512 rollouts of 1,000 tokens: buffer, advantages, one regression
    refresh_s    reading a share of the prompts again, one regression
    buffer_s     the buffer's part of observe
    save_s, load_s, state_mb   the curriculum on disk
    peak_mb      the most memory of the process

First readings (`read`): states of 1,536 numbers of all prompts at once, computing them left out.
By processes (`processes`), 8 rollouts of 1,000 tokens each: what every process packs, receives,
unpacks and puts together in a step, the network left out; `gloo_s` has it, a few on one machine.

Larger sizes (`extrapolated`) are not measured: each figure lies on a straight line through those of
the two largest sizes that were. `--derive` computes them anew from the rows that --out holds.

Seconds are of one core's time, so that a busy machine counts the same; `save_s`, `load_s` and
`gloo_s` are of the clock. Set OMP_NUM_THREADS=1.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load, save

from curriculum import random_batch
from dare.config import CurriculumConfig
from dare.curriculum import Curriculum, PromptTable, RolloutBatch, RolloutBuffer, Services
from dare.curriculum.estimators.base import Measured
from dare.curriculum.estimators.dare.estimator import MEMORY
from dare.curriculum.estimators.dare.features import DIRECTIONS
from dare.policy.generate import Generated
from dare.rewards.calling import Scored, Values
from dare.state import load_state, save_state
from dare.training.collect import as_arrays, put_together
from dare.training.company import Company

ROLLOUTS, TOKENS, HIDDEN = 512, 1000, 1536
PER_PROCESS = 8  # rollouts
PROMPT_TOKENS = 100
PROCESSES = (1, 4, 16, 64, 256, 1024)
CONNECTED = (2, 4, 8)
EXTRAPOLATED = {"dare": (10**7, 10**8), "posterior": (10**8,)}


def timed(
    work: Callable[[], Any], clock: Callable[[], float] = time.process_time
) -> tuple[float, Any]:
    """Seconds of one call, and what it gave."""
    start = clock()
    result = work()
    return clock() - start, result


def states_of(width: int) -> Callable[[np.ndarray], Measured]:
    """A policy whose states are noise: what it costs to compute them is not measured here."""

    def states(rows: np.ndarray) -> Measured:
        rng = np.random.default_rng(len(rows))
        values = rng.standard_normal((len(rows), width), dtype=np.float32)
        return Measured(values, PROMPT_TOKENS * len(rows))

    return states


def table_of(prompts: int) -> tuple[float, PromptTable]:
    """The table and its seconds."""
    if prompts > 10**6:
        return timed(lambda: PromptTable.from_keys(np.arange(prompts, dtype=np.uint64)))
    texts = [f"{number:0100d}" for number in range(prompts)]
    return timed(lambda: PromptTable.from_columns(texts))


def of_prompts(estimator: str, prompts: int, repeats: int) -> dict[str, float]:
    """All figures of one size; medians over `repeats` steps."""
    rng = np.random.default_rng(0)
    table_s, table = table_of(prompts)
    settings = {"estimator.name": estimator, "cold_start.references": 0}
    config = CurriculumConfig.preset("dare", rollout_budget=ROLLOUTS, **settings)
    curriculum = Curriculum(table, config, Services(states=states_of(DIRECTIONS)))
    if estimator == "dare":
        remember(curriculum, min(MEMORY, prompts), rng)
        curriculum.refresh(None, 0)
    budget = config.estimator.refresh_budget(2 * ROLLOUTS * TOKENS)
    times: dict[str, list[float]] = {name: [] for name in ("plan", "observe", "refresh", "buffer")}
    for step in range(repeats):
        seconds, plan = timed(curriculum.plan)
        times["plan"].append(seconds)
        batch = random_batch(plan.rows()["prompt"], TOKENS, rng)
        other = RolloutBuffer(32, 4096)
        times["buffer"].append(timed(lambda: other.add(batch, step))[0])  # noqa: B023
        times["observe"].append(timed(lambda: curriculum.observe(batch))[0])  # noqa: B023
        times["refresh"].append(timed(lambda: curriculum.refresh(None, budget))[0])
    figures = {f"{name}_s": statistics.median(some) for name, some in times.items()}
    peak = peak_mb()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state"
        figures["save_s"] = timed(
            lambda: save_state(curriculum.state_dict(), path), time.perf_counter
        )[0]
        figures["load_s"] = timed(
            lambda: curriculum.load_state_dict(load_state(path)), time.perf_counter
        )[0]
        size = sum(file.stat().st_size for file in path.iterdir())
    return {"table_s": table_s, **figures, "state_mb": size / 1e6, "peak_mb": peak}


def peak_mb() -> float:
    """The most memory of this process; `getrusage` would count that of the one that started it."""
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1e3


def remember(curriculum: Curriculum, groups: int, rng: np.random.Generator) -> None:
    """Fill the estimator's memory with groups of 8 of as many prompts, over the last 256 steps."""
    arrays = curriculum.estimator.state_dict()["arrays"]
    rows = rng.choice(len(curriculum.prompts), groups, replace=False)
    rate = rng.beta(0.6, 0.6, groups)
    arrays["memory_prompt"] = rows.astype(np.float64)
    arrays["memory_step"] = np.sort(rng.integers(0, 256, groups)).astype(np.float64)
    arrays["memory_visits"] = np.zeros(groups)
    arrays["memory_trials"] = np.full(groups, 8.0)
    arrays["memory_failures"] = rng.binomial(8, rate).astype(np.float64)
    arrays["memory_tokens"] = rng.lognormal(6.0, 1.0, groups)
    arrays["visits"][rows] += 1
    curriculum.estimator.load_state_dict({**curriculum.estimator.state_dict(), "arrays": arrays})
    curriculum.visits_P[rows] += 1
    curriculum.last_step_P[rows] = arrays["memory_step"].astype(np.int64)
    curriculum.step = 256


def of_reading(prompts: int) -> dict[str, float]:
    """The first reading of all prompts, what the policy computes left out."""
    table = PromptTable.from_keys(np.arange(prompts, dtype=np.uint64))
    states = states_of(HIDDEN)
    curriculum = Curriculum(table, services=Services(states=states))
    remember(curriculum, min(MEMORY, prompts), np.random.default_rng(0))
    noise = timed(lambda: states(np.arange(prompts)))[0]
    seconds = timed(lambda: curriculum.refresh(None, 0))[0]
    peak = peak_mb()
    return {"seconds": seconds - noise, "peak_mb": peak}


def share_of(rank: int) -> dict[str, Any]:
    """What a process sends: its rollouts, as the trainer packs them."""
    rng = np.random.default_rng(rank)
    ones: Values = [1.0] * PER_PROCESS
    tokens = [rng.integers(0, 150_000, TOKENS) for _ in ones]
    scores = Scored(ones, ones, {"math_reward": ones})
    return as_arrays(Generated(tokens, np.zeros(PER_PROCESS, np.int64)), scores)


def of_processes(processes: int) -> dict[str, float]:
    """What one of so many processes does to exchange a step's rollouts, without the network."""
    shares = [save(share_of(rank)) for rank in range(processes)]

    def work() -> RolloutBatch:
        save(share_of(0))
        everyone = put_together(Company(0, processes), [load(share) for share in shares])
        rows = np.arange(len(everyone.tokens))
        return RolloutBatch.from_lists(rows, everyone.tokens, None, everyone.reward)

    seconds = statistics.median(timed(work)[0] for _ in range(3))
    return {"seconds": seconds, "received_mb": sum(map(len, shares)) / 1e6}


def connected(rank: int, processes: int, folder: Path) -> None:
    """One process of a real exchange over gloo; the first writes how long it took."""
    import torch.distributed as dist

    dist.init_process_group("gloo", f"file://{folder}/meeting", rank=rank, world_size=processes)
    company, mine = Company(rank, processes), share_of(rank)
    times = []
    for _ in range(6):
        dist.barrier()
        times.append(timed(lambda: company.gather(**mine), time.perf_counter)[0])
    if rank == 0:
        text = json.dumps(statistics.median(times[1:]))
        (folder / "seconds").write_text(text, encoding="utf-8")
    dist.destroy_process_group()


def over_gloo(processes: int) -> float:
    """Seconds of one exchange between so many processes of this machine."""
    with tempfile.TemporaryDirectory() as folder:
        words = [str(processes), folder]
        running = [
            subprocess.Popen([sys.executable, __file__, "--rank", str(rank), *words])
            for rank in range(processes)
        ]
        if [one.wait() for one in running] != [0] * processes:
            raise RuntimeError("a process of the exchange failed")
        return float((Path(folder) / "seconds").read_text("utf-8"))


def alone(kind: str, prompts: int) -> dict[str, float]:
    """Figures of one size, from a process of its own: a peak of memory does not go down."""
    command = [sys.executable, __file__, "--one", kind, str(prompts)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return {name: float(f"{value:.3g}") for name, value in json.loads(done.stdout).items()}


def extrapolated(found: dict[str, Any]) -> dict[str, Any]:
    """Figures of sizes beyond those measured, none below that of the largest. The prompt table is
    left out: it is made in two ways."""
    made: dict[str, Any] = {}
    for kind, sizes in EXTRAPOLATED.items():
        low, high = sorted(map(int, found[kind]))[-2:]
        first, last = found[kind][str(low)], found[kind][str(high)]
        made[kind] = {
            str(size): {
                name: float(f"{last[name] + max(0.0, slope) * (size - high):.2g}")
                for name in last
                if name != "table_s"
                for slope in [(last[name] - first[name]) / (high - low)]
            }
            for size in sizes
            if size > high
        }
    return made


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--largest", type=int, default=10**6, help="prompts; 10^7 takes 31 GB")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--derive", action="store_true", help="measure nothing")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--rank", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        rank, processes, folder = options.rank
        connected(int(rank), int(processes), Path(folder))
        return
    if options.one:
        kind, prompts = options.one[0], int(options.one[1])
        repeats = 3 if prompts >= 10**6 else 5
        figures = of_reading(prompts) if kind == "read" else of_prompts(kind, prompts, repeats)
        print(json.dumps(figures))
        return
    if options.derive:
        found = json.loads(options.out.read_text("utf-8"))
        found["extrapolated"] = extrapolated(found)
        options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        return
    found = {"dare": {}, "posterior": {}, "read": {}, "processes": {}}
    most = {"dare": options.largest, "posterior": 10 * options.largest, "read": 10**5}
    for kind, largest in most.items():
        for size in [10**power for power in range(3, 9) if 10**power <= largest]:
            found[kind][str(size)] = alone(kind, size)
            print(kind, size, found[kind][str(size)], flush=True)
    for processes in PROCESSES:
        figures = of_processes(processes)
        found["processes"][str(processes)] = {k: float(f"{v:.3g}") for k, v in figures.items()}
    found["gloo_s"] = {str(count): float(f"{over_gloo(count):.3g}") for count in CONNECTED}
    found["extrapolated"] = extrapolated(found)
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
