"""How long does it take to write the report of a long run, and to open it?

    python benchmarks/report.py --steps 1000 --prompts 35000

Synthesises a run folder as a trainer would leave it, writes its report, and opens that in headless
Chromium several times (needs the package playwright and a Chromium or Chrome). The last line
printed is one JSON object:

    build_seconds     reading the run folder and writing the page
    megabytes         of the page
    open_seconds      from the address to the first screen with its plots drawn: median, best, worst
    words_seconds     until headings, figures and tables can be read, median
    scroll_seconds    drawing every plot of the page, from top to bottom
    plots             drawn in the end
    record_ms         what one line of landscape.jsonl costs a training step, median
    load, cores       how busy the machine was meanwhile; times grow with load / cores
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import yaml

from dare.curriculum.landscape import landscape_record
from dare.report.document import write_report
from dare.runs.difficulty import TIERS

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
DRAWN = """() => {
  const seen = [...document.querySelectorAll('.plot')].filter(
    (plot) => plot.getBoundingClientRect().top < innerHeight);
  return seen.length > 0 && seen.every((plot) => plot.querySelector('.main-svg'));
}"""
READABLE = """new MutationObserver(() => {
  window.readable ||= document.querySelector('#settings h2') && performance.now();
}).observe(document, {childList: true, subtree: true});"""
_PHASES = {"plan": 0.3, "generate": 6.0, "reward": 0.4, "score": 1.5, "train": 4.0, "refresh": 1.0}
_WORDS = ["so", "we", "take", "the", "sum", "of", "both", "sides", "and", "find", "that", "it"]


def synthesise(
    folder: Path,
    *,
    steps: int = 1000,
    prompts: int = 35_000,
    drawn: int = 128,
    words: int = 500,
    seed: int = 0,
    preset: str = "dare",
    eval_every: int = 10,
) -> list[float]:
    """Write a run in which prompts become easier; returns the seconds each landscape took."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    difficulty = rng.beta(0.8, 0.6, prompts)
    level = (1 + 5 * difficulty).astype(int).clip(1, 5)
    ids = np.array([f"{key:016x}" for key in rng.integers(0, 2**62, prompts)])
    visits, last = np.zeros(prompts, int), np.full(prompts, -1)
    files = {name: open(folder / f"{name}.jsonl", "w") for name in _NAMES}  # noqa: SIM115
    spent, total = [], 0

    def write(name: str, record: dict[str, Any]) -> None:
        files[name].write(json.dumps(record) + "\n")

    for step in range(steps):
        if step % eval_every == 0:
            write("eval", _evaluation(rng, step, total, float(1 - difficulty.mean())))
        chance = np.exp(-16 * (difficulty - 0.5) ** 2) + 0.05
        rows = np.argsort(np.log(chance) + rng.gumbel(size=prompts))[-drawn:]
        failed = rng.binomial(8, difficulty[rows]) / 8
        tokens = rng.integers(200, 900, drawn) * 8
        tier = _tier(difficulty[rows])
        write("selections", _selection(step, ids[rows], tier, difficulty[rows], failed, tokens))
        for sample in _samples(rng, step, rows, ids, tier, difficulty, words):
            write("samples", sample)
        total += int(tokens.sum())
        write("metrics", _metrics(rng, step, tier, failed, tokens, total, visits))
        visits[rows] += 1
        last[rows] = step
        difficulty *= 1 - 0.8 / steps
        difficulty[rows] *= 0.9
        begin = time.perf_counter()
        record = landscape_record(step, difficulty, _tier(difficulty))
        spent.append(time.perf_counter() - begin)
        write("landscape", record)
    write("eval", _evaluation(rng, steps, total, float(1 - difficulty.mean())))
    for file in files.values():
        file.close()
    table = {
        "id": ids, "source": np.full(prompts, "synthetic"), "level": level.astype(str),
        "difficulty": difficulty, "tier": _tier(difficulty), "evidence": visits * 8.0,
        "estimate": np.where(visits > 0, "snis", "cold-start"), "visits": visits, "last_step": last,
    }  # fmt: skip
    pyarrow.parquet.write_table(pyarrow.table(table), folder / "difficulty.parquet")
    curriculum = {
        "tiers": True,
        "estimator": {"name": "snis"},
        "easy": {"below": 0.3},
        "hard": {"above": 0.8, "use": True, "plain": 8},
    }
    training = {"preset": preset, "seed": seed, "max_steps": steps, "learning_rate": 1e-6}
    config = {"curriculum": curriculum, "training": training, "prompts": prompts}
    (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    return spent


_NAMES = ("metrics", "selections", "samples", "landscape", "eval")


def _tier(difficulty: Any) -> Any:
    return (difficulty >= 0.3).astype(np.uint8) + (difficulty > 0.8)


def _selection(
    step: int, ids: Any, tier: Any, difficulty: Any, failed: Any, tokens: Any
) -> dict[str, Any]:
    return {
        "step": step,
        "prompt": ids.tolist(),
        "tier": [TIERS[code] for code in tier],
        "difficulty": np.round(difficulty, 4).tolist(),
        "group_size": [8] * len(ids),
        "failure_rate": failed.tolist(),
        "tokens": tokens.tolist(),
        "replayed_groups": 0,
    }


def _metrics(
    rng: Any, step: int, tier: Any, failed: Any, tokens: Any, total: int, visits: Any
) -> dict[str, Any]:
    counts = np.bincount(tier, minlength=3)
    generated = int(tokens.sum())
    return {
        "step": step,
        "prompts": len(tier),
        "rollouts": 8 * len(tier),
        "unscored": 0,
        **{f"tier_{name}": int(count) for name, count in zip(TIERS, counts, strict=True)},
        "coverage": float((visits > 0).mean()),
        "reward": float(1 - failed.mean()),
        "ess": 6 + rng.normal(0, 0.2),
        "ess_accepted": 0.95,
        "varied_groups": float(((failed > 0) & (failed < 1)).mean()),
        "prediction_error": 0.15,
        "length": generated / (8 * len(tier)),
        "truncated": 0.05 + 0.02 * rng.random(),
        "loss": rng.normal(0, 1e-4),
        "objective_clipped": 0.01 * rng.random(),
        "objective_kl": 1e-5 * step,
        "grad_norm": 0.3 + 0.1 * rng.random(),
        "learning_rate": 1e-6,
        "tokens": {"generated": generated, "scored": generated, "trained": generated // 2},
        "generated_tokens_total": total,
        "seconds": {name: round(s * (0.8 + 0.4 * rng.random()), 4) for name, s in _PHASES.items()},
        "memory_mb": 40_000.0 + step,
        "time": 1_700_000_000 + 14.0 * step,
    }


def _evaluation(rng: Any, step: int, total: int, accuracy: float) -> dict[str, Any]:
    def part(rate: float, count: int) -> dict[str, Any]:
        right = int(rng.binomial(count, min(max(rate, 0.0), 1.0)))
        fixed = {"tokens": 500.0, "truncated": 0.05, "responses": count, "unscored": 0}
        return {"accuracy": right / count, **fixed}

    levels = {str(level): part(accuracy + 0.3 - 0.1 * level, 100) for level in range(1, 6)}
    whole = part(accuracy, 500)
    return {"step": step, "generated_tokens_total": total, **whole, "by_level": levels}


def _samples(
    rng: Any, step: int, rows: Any, ids: Any, tier: Any, difficulty: Any, words: int
) -> Iterator[dict[str, Any]]:
    for code, name in enumerate(TIERS):
        for place, row in enumerate(rows[tier == code][:2]):
            kind = "hinted" if code == 2 and place else "plain"
            count = max(3, int(words * rng.uniform(0.3, 1.7)))
            yield {
                "step": step,
                "id": str(ids[row]),
                "tier": name,
                "difficulty": float(difficulty[row]),
                "conditioning": kind,
                "hint": ["Look at both sides."] if code == 2 else [],
                "prompt": f"Problem {row}: what is the sum of all x?",
                "response": " ".join(rng.choice(_WORDS, count)) + f" \\boxed{{{row}}}",
                "reward": float(place == 0),
                "tokens": count,
                "finish": "length" if count > 1.6 * words else "stop",
            }


def browser_path() -> str | None:
    """The Chromium or Chrome of this machine, or None."""
    return next((found for name in BROWSERS if (found := shutil.which(name))), None)


def opened(file: Path, times: int) -> dict[str, Any]:
    """Open the page several times, each in a fresh context, and draw all of it once."""
    from playwright.sync_api import sync_playwright

    words: list[float] = []
    seconds: list[float] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path(), args=list(ARGUMENTS))
        browser.new_page().goto("about:blank")  # the browser's own start is not the page's
        for _ in range(times):
            tab = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
            tab.add_init_script(READABLE)
            begin = time.perf_counter()
            tab.goto(file.as_uri(), wait_until="commit")
            tab.wait_for_function(DRAWN)
            seconds.append(time.perf_counter() - begin)
            words.append(tab.evaluate("window.readable") / 1000)
        begin = time.perf_counter()
        draw_all(tab)
        scrolled = time.perf_counter() - begin
        plots = tab.locator(".js-plotly-plot").count()
        browser.close()
    return {
        "open_seconds": round(statistics.median(seconds), 2),
        "words_seconds": round(statistics.median(words), 2),
        "open_seconds_best": round(min(seconds), 2),
        "open_seconds_worst": round(max(seconds), 2),
        "scroll_seconds": round(scrolled, 2),
        "plots": plots,
    }


def draw_all(tab: Any) -> None:
    """Bring every plot into view, folded ones too, and wait until it is drawn."""
    tab.evaluate("document.querySelectorAll('details.fold').forEach((d) => { d.open = true; })")
    for plot in tab.locator(".plot").all():
        plot.scroll_into_view_if_needed()
        plot.locator(".main-svg").first.wait_for(state="attached")


def main() -> None:
    """Synthesise, build, open, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--prompts", type=int, default=35_000)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--keep", type=Path, help="leave run and report in this new folder")
    parser.add_argument("--out", type=Path, help="write the figures there too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        root = options.keep or Path(temporary)
        spent = synthesise(root / "run", steps=options.steps, prompts=options.prompts)
        file = root / "report.html"
        begin = time.perf_counter()
        write_report([str(root / "run")], file)
        built = time.perf_counter() - begin
        folder = sum(path.stat().st_size for path in (root / "run").iterdir())
        figures = {
            "steps": options.steps,
            "prompts": options.prompts,
            "run_megabytes": round(folder / 1e6, 1),
            "build_seconds": round(built, 2),
            "megabytes": round(file.stat().st_size / 1e6, 2),
            **opened(file, options.times),
            "record_ms": round(1000 * statistics.median(spent), 2),
            "cores": os.cpu_count(),
            "load": round(os.getloadavg()[0], 1),
        }
    if options.out is not None:
        options.out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
