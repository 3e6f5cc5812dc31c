"""Cost of the curriculum's own work.

    python benchmarks/curriculum.py [--out FILE.json]

Times are medians of several runs on a machine that may be busy; `draw_vs_log` is a ratio to one
np.log over a million doubles taken in the same breath. Ends with one JSON line:

    draw_vs_log      weights and draw of 1,024 of 1,000,000 prompts / one np.log of 1,000,000
    buffer_mb        memory of 4,096 groups x 8 rollouts x 1,000 tokens
    save_s, load_s   that buffer inside a curriculum, to disk and back
    observe_ms       observe() of 512 rollouts, with that buffer
    estimate_ms      estimation over 65,536 buffered rollouts
    growth_exponent  slope of log(time of a plan) over log(prompts), 10^4 to 10^7
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from dare.config import CurriculumConfig, EstimatorConfig, SelectionConfig
from dare.curriculum import Curriculum, PromptTable, RolloutBatch
from dare.curriculum.arrays import offsets_of
from dare.curriculum.buffer import RolloutBuffer
from dare.curriculum.estimators import Outcome, PaperEstimator
from dare.curriculum.selection import Selector
from dare.curriculum.tiers import TierPolicy
from dare.state import load_state, save_state


def seconds(work: Callable[[], object], repeats: int = 9) -> float:
    """Median wall time of one call."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def random_batch(rows: np.ndarray, tokens: int, rng: np.random.Generator) -> RolloutBatch:
    """Rollouts of `tokens` tokens each, one a row."""
    count = len(rows)
    total = count * tokens
    return RolloutBatch(
        prompt_R=rows.astype(np.int64),
        tokens=rng.integers(0, 150_000, total, dtype=np.int32),
        logprobs=-rng.random(total, dtype=np.float32),
        offsets=offsets_of(np.full(count, tokens)),
        total_logprob_R=-rng.random(count) * tokens,
        reward_R=rng.integers(0, 2, count).astype(np.float32),
        conditioning_R=np.zeros(count, np.uint8),
        finish_R=np.zeros(count, np.uint8),
    )


def draw_vs_log() -> float:
    """Draw of 1,024 of a million prompts, difficulties to rows, against one np.log."""
    rng = np.random.default_rng(0)
    difficulty = rng.random(1_000_000)
    seen = rng.random(1_000_000) < 0.5
    values = rng.random(1_000_000) + 0.5
    selector = Selector(SelectionConfig(name="beta"), CurriculumConfig().buffer.rollouts_per_prompt)
    tier = TierPolicy(CurriculumConfig()).assign(difficulty)
    ratios = []
    for _ in range(15):
        log = seconds(lambda: np.log(values), 3)
        draw = seconds(lambda: selector.draw(difficulty, tier, seen, 1024, rng), 3)
        ratios.append(draw / log)
    return statistics.median(ratios)


def full_curriculum(rng: np.random.Generator) -> Curriculum:
    """A curriculum whose buffer holds 4,096 groups of 8 rollouts of 1,000 tokens."""
    table = PromptTable.from_keys(np.arange(35_512, dtype=np.uint64) * 7919)
    curriculum = Curriculum(table, CurriculumConfig.preset("dare", **{"cold_start.references": 0}))
    for step in range(66):  # a little over 4,096 groups, so that eviction has happened
        rows = np.repeat(np.arange(64) + 64 * step, 8)
        batch = random_batch(rows, 1000, rng)
        curriculum.buffer.add(batch, step)
        failures = (1.0 - batch.reward_R).reshape(-1, 8).sum(axis=1)
        outcome = Outcome(step, rows[::8], np.full(64, 8.0), failures)
        curriculum.estimator.observe(outcome)
        curriculum.visits_P[rows[::8]] += 1
        curriculum.step = step + 1
    return curriculum


def observe_ms(curriculum: Curriculum, rng: np.random.Generator) -> float:
    """observe() of one planned step of 512 rollouts."""
    times = []
    for _ in range(7):
        rows = curriculum.plan().rows()["prompt"]
        batch = random_batch(rows, 1000, rng)
        start = time.perf_counter()
        curriculum.observe(batch)
        times.append(time.perf_counter() - start)
    return 1000 * statistics.median(times)


def estimate_ms(rng: np.random.Generator) -> float:
    """Re-reading 65,536 rescored rollouts of 4,096 prompts."""
    buffer = RolloutBuffer(16, 10**6)
    estimator = PaperEstimator(35_512, buffer, EstimatorConfig())
    rows = np.repeat(np.arange(4096), 16)
    batch = random_batch(rows, 1, rng)
    buffer.add(batch, 0)
    failures = (1.0 - batch.reward_R).reshape(-1, 16).sum(axis=1)
    estimator.observe(Outcome(0, np.arange(4096), np.full(4096, 16.0), failures))
    buffer.rescore(buffer["uid"], buffer["behaviour"] + rng.normal(size=len(buffer)), 1)
    return 1000 * seconds(lambda: estimator.refresh(1, rng))


def growth() -> dict[str, float]:
    """Seconds of one plan() by number of prompts; half of the prompts are seen."""
    result = {}
    for prompts in (10**4, 10**5, 10**6, 10**7):
        rng = np.random.default_rng(0)
        table = PromptTable.from_keys(np.arange(prompts, dtype=np.uint64))
        settings = {"cold_start.references": 0, "estimator.name": "previous-fr"}
        curriculum = Curriculum(table, CurriculumConfig.preset("dare", **settings))
        curriculum.estimator.difficulty()[:] = rng.random(prompts)
        curriculum.visits_P[: prompts // 2] = 1

        def plan(curriculum: Curriculum = curriculum) -> None:
            curriculum.refresh()
            curriculum.plan()

        result[str(prompts)] = seconds(plan, 3 if prompts == 10**7 else 9)
    return result


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    figures: dict[str, object] = {"draw_vs_log": round(draw_vs_log(), 2)}
    curriculum = full_curriculum(rng)
    figures["buffer_mb"] = round(curriculum.buffer.nbytes / 1e6, 1)
    figures["observe_ms"] = round(observe_ms(curriculum, rng), 2)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state"
        start = time.perf_counter()
        save_state(curriculum.state_dict(), path)
        figures["save_s"] = round(time.perf_counter() - start, 2)
        start = time.perf_counter()
        restored = Curriculum(curriculum.prompts, curriculum.config)
        restored.load_state_dict(load_state(path))
        figures["load_s"] = round(time.perf_counter() - start, 2)
    assert restored.plan().ids == curriculum.plan().ids
    figures["estimate_ms"] = round(estimate_ms(rng), 2)
    times = growth()
    size = np.log([float(prompts) for prompts in times])
    figures["growth_exponent"] = round(
        float(np.polyfit(size, np.log(list(times.values())), 1)[0]), 3
    )
    figures["plan_s"] = {prompts: round(value, 5) for prompts, value in times.items()}
    for name, value in figures.items():
        print(f"{name:16} {value}")
    if options.out:
        options.out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
