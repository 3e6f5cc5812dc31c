"""Fills the tables of the documentation from the measured figures in docs/results.

    python benchmarks/pages.py            # writes every marked block anew
    python benchmarks/pages.py --check    # fails, and names the blocks, where a page is stale

A block begins with `<!-- table: NAME -->` and ends with `<!-- end -->`; what stands between the two
is the table of that NAME below. So a figure is typed nowhere: it is measured, kept as JSON, shown.
The last line printed is JSON: the number of blocks, and those that were stale.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

DOCS = Path(__file__).resolve().parents[1] / "docs"
BLOCK = re.compile(r"(<!-- table: ([\w-]+) -->\n)(.*?)(<!-- end -->)", re.S)
Rows = Iterable[Iterable[object]]
TABLES: dict[str, Callable[[], str]] = {}


@cache
def results(name: str) -> Any:
    """The figures of one file of docs/results."""
    return json.loads((DOCS / "results" / f"{name}.json").read_text("utf-8"))


def markdown(head: Iterable[str], rows: Rows) -> str:
    """A table; the first column is text, None is a dash."""
    names = list(head)
    lines = [names, ["---"] * len(names)]
    lines += [["-" if cell is None else str(cell) for cell in row] for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def table(function: Callable[[], str]) -> Callable[[], str]:
    """Register a table under its function's name, with dashes."""
    TABLES[function.__name__.replace("_", "-")] = function
    return function


def interval(triple: list[float], sign: str = "") -> str:
    """Mean and 95 % interval."""
    mean, low, high = (f"{value:{sign}.3f}" for value in triple)
    return f"{mean} [{low}, {high}]"


def short(seconds: float) -> str:
    """A duration in the unit that suits it."""
    if seconds < 0.1:
        return f"{seconds * 1000:.2g} ms"
    return f"{float(f'{seconds:.2g}'):g} s"


def size(megabytes: float) -> str:
    """Memory in the unit that suits it."""
    return f"{megabytes / 1000:.1f} GB" if megabytes >= 100 else f"{megabytes:.2g} MB"


def power(count: str) -> str:
    """10⁵ for 100000."""
    return "10" + "⁰¹²³⁴⁵⁶⁷⁸⁹"[len(count) - 1]


@table
def pilot() -> str:
    """One seed of each on a language model: results.md."""
    runs = results("methods_gpu_pilot")["runs"]
    grpo, dare = runs["grpo, 2e-6 constant"], runs["dare, 2e-6 constant"]
    rows = []
    for at, step in enumerate(grpo["step"]):
        cells: list[object] = [step]
        for name in ("math500", "gsm8k"):
            cells += [f"{run[name][at]:.3f}" for run in (grpo, dare)]
        rows.append([*cells, *(f"{run['tokens'][at] / 1e6:.1f} M" for run in (grpo, dare))])
    sets = ("MATH-500", "GSM8K", "tokens")
    return markdown(["step", *(f"{s}, `{m}`" for s in sets for m in ("grpo", "dare"))], rows)


@table
def screen() -> str:
    """Settings tried on problems that the final runs do not use."""
    rows: list[list[object]] = []
    for name, run in results("methods_gpu_screen")["runs"].items():
        for at in (1, 2):
            figures = (f"{run[key][at]:.3f}" for key in ("math", "truncated", "gsm8k"))
            rows.append([name, run["step"][at], *figures, f"{run['tokens'][at] / 1e6:.1f} M"])
    return markdown(["run", "step", "MATH", "cut off", "GSM8K", "tokens"], rows)


@table
def three_seeds() -> str:
    """Three seeds of each method, each alone on its GPU."""
    task = results("methods_gpu")["tasks"]["mixture"]
    grpo, dare = task["arms"]["grpo"], task["arms"]["dare"]
    rows: list[list[object]] = []
    for name, title in (("math500", "MATH-500"), ("gsm8k", "GSM8K")):
        for axis in ("tokens", "seconds"):
            cells = [f"{arm['accuracy'][name][axis]['mean']:.3f}" for arm in (grpo, dare)]
            gap = dare["difference"][name][axis]["end"]
            rows.append(
                [
                    f"{title} at equal {axis}",
                    *cells,
                    interval([gap["mean"], gap["low"], gap["high"]], "+"),
                ]
            )
    shares = (f"{arm['varied_share']:.2f}" for arm in (grpo, dare))
    rows.append(["groups with right and wrong rollouts", *shares, ""])
    per_group = (f"{arm['tokens_per_varied_group']:,}" for arm in (grpo, dare))
    rows.append(["tokens for one such group", *per_group, ""])
    rows.append(["tokens of a run", *(f"{arm['tokens'] / 1e6:.2f} M" for arm in (grpo, dare)), ""])
    rows.append(["seconds of a run", *(f"{arm['seconds']:.0f}" for arm in (grpo, dare)), ""])
    return markdown(["", "`grpo`", "`dare`", "difference"], rows)


@table
def three_seeds_curve() -> str:
    """The same runs at every evaluation, mean of the seeds."""
    arms = results("methods_gpu")["tasks"]["mixture"]["arms"]
    rows = []
    for at, step in enumerate((0, 20, 40, 60)):
        cells = [
            mean(line[at][2] for line in arms[arm]["curve"][name].values())
            for name in ("math500", "gsm8k")
            for arm in ("grpo", "dare")
        ]
        rows.append([step, *(f"{cell:.3f}" for cell in cells)])
    names = [f"{s}, `{m}`" for s in ("MATH-500", "GSM8K") for m in ("grpo", "dare")]
    return markdown(["step", *names], rows)


@table
def code_runs() -> str:
    """Runs on programs: accuracy at the start, half way and at the end, and what a run took."""
    arms = results("methods_gpu")["tasks"]["code"]["arms"]
    titles = {"grpo": "`grpo`", "dare": "`dare`", "dare:tiers=true": "`dare`, tiers and hints"}
    rows = []
    for name, title in titles.items():
        arm = arms[name]
        curves = [mean_curve(arm["curve"][chosen]) for chosen in ("humaneval", "mbpp-test")]
        cells = [", ".join(f"{value:.3f}" for value in curve) for curve in curves]
        shares = [f"{arm['varied_share']:.2f}", f"{arm['unscored_share']:.3f}"]
        rows.append([title, *cells, *shares, f"{arm['tokens'] / 1e6:.2f} M"])
    heads = ["run", "HumanEval after 0, 15, 30 steps", "MBPP after 0, 15, 30 steps"]
    return markdown([*heads, "mixed groups", "unscored", "tokens"], rows)


def mean_curve(by_seed: dict[str, list[list[float]]]) -> list[float]:
    """The accuracy at each evaluation, mean of the seeds."""
    return [mean(points[at][2] for points in by_seed.values()) for at in range(3)]


@table
def forgetting() -> str:
    """What the estimate says of prompts that return, by stage of a run."""
    figures = results("forgetting")
    told = figures["in_the_run"]
    rows = [
        ["mixed groups in the runs", *(f"{one:.2f}" for one in told["mixed"])],
        ["error in the runs", *(f"{one:.3f}" for one in told["mae"])],
    ]
    for name, one in figures["table"].items():
        title = f"error, forgetting {name}" if name.startswith("fixed") else "error, as it is now"
        rows.append([title, *(f"{value:.3f}" for value in one["mae"])])
    return markdown(["", *(f"steps {low} to {high - 1}" for low, high in figures["steps"])], rows)


@table
def thinning() -> str:
    """What is trained on, and what is learnt for it, by `advantage.thin_below`."""
    found = results("thinning")

    def worth(one: dict[str, float]) -> list[str]:
        return [f"{one['per_second']:.2f}", f"{one['per_m_tokens']:.0f}"]

    rows: list[list[object]] = [
        [name, f"{one['trained_on']:.2f}", f"{one['variance']:.2f}", *worth(one)]
        for name, one in found["table"].items()
    ]
    rows.append(["`grpo`, not thinned", None, None, *worth(found["grpo"])])
    heads = ["`thin_below`", "share trained on", "variance of the gradient"]
    return markdown([*heads, "mixed groups over it, a second", "a million tokens"], rows)


@table
def power_of_runs() -> str:
    """What so many seeds and problems can show; simulated."""
    sizes = results("methods_gpu_power")["sizes"]
    gains = list(sizes[0]["seen"])
    rows = [
        [
            f"{one['seeds']} seeds x {one['problems']:,} problems",
            f"{one['half_width']:.3f}",
            *(f"{one['seen'][gain]:.0%}" for gain in gains),
        ]
        for one in sizes
    ]
    heads = (f"a gain of {float(gain):.3f} is seen" for gain in gains)
    return markdown(["runs of each arm", "half-width of the interval", *heads], rows)


@table
def draws() -> str:
    """Which draw finds groups that teach, while the policy stands still."""
    columns = {"mixed": ".2f", "tokens_a_mixed_group": ",.0f", "problems": ",.0f"}
    rows = [
        [name, *(f"{one[key]:{form}}" for key, form in columns.items())]
        for name, one in results("draws")["mixture"]["table"].items()
    ]
    return markdown(["draw", "mixed groups", "tokens for one", "problems drawn"], rows)


@table
def forecast() -> str:
    """Error on prompts that were never tried."""
    rows = []
    for name, title in (("mixture", "MATH and DeepScaleR"), ("gsm8k", "GSM8K")):
        for method, by_groups in results("forecast")[name]["table"].items():
            figures = [by_groups.get(count) for count in ("128", "256", "512", "1024")]
            rows.append([title, method, *(one and f"{one['mae']:.3f}" for one in figures)])
    return markdown(["data", "estimate", "128 groups", "256", "512", "1,024"], rows)


def _methods(names: Iterable[str]) -> str:
    methods = results("methods")["methods"]
    rows = []
    for name in names:
        one = methods[name]
        gain = interval(one["gain"], "+") if name != "grpo" else None
        times = [
            f"{one[key][0]:.2f}" if one["reached"] >= 3 and name != "grpo" else None
            for key in ("token_speed_up", "step_speed_up")
        ]
        seconds = one["seconds_to_target"][0]
        length = f"{one['tokens_per_response'][0]:.1f}"
        reach = f"{one['reached']}/{len(one['seeds'])}"
        took = seconds and f"{seconds:.0f}"
        rows.append([f"`{name}`", interval(one["accuracy"]), gain, length, *times, took, reach])
    head = ["method", "accuracy", "gain over `grpo`", "tokens per response", "times fewer tokens"]
    head += ["times fewer steps", "seconds to GRPO's end", "seeds that reach it"]
    return markdown(head, rows)


@table
def methods() -> str:
    """All methods on the built-in problems, at equal tokens."""
    parts = [name for name in results("methods")["methods"] if name.startswith("grpo+")]
    return _methods(name for name in results("methods")["methods"] if name not in parts)


@table
def parts() -> str:
    """The parts of the paper's method, added to GRPO."""
    names = results("methods")["methods"]
    return _methods(["grpo", *(name for name in names if name.startswith("grpo+"))])


@table
def five_seeds() -> str:
    """Accuracy over generated tokens on the built-in problems."""
    arms = results("quickstart")["arms"]
    grid = arms["dare"]["tokens_grid"]
    rows = [
        [f"{grid[at]:,}", *(interval(arm["accuracy"][at]) for arm in arms.values())]
        for at in range(0, len(grid), 4)
    ]
    return markdown(["tokens generated", *(f"`{name}`" for name in arms)], rows)


@table
def quickstart_run() -> str:
    """What `dare quickstart` prints."""
    found = results("quickstart_seed42")
    target = f"{found['target']:.3f}"
    lines = {
        "start_accuracy": ("accuracy at the start", ".3f"),
        "accuracy": ("accuracy at the end", ".3f"),
        "steps": ("steps", "d"),
        "generated_tokens": ("tokens generated", ",d"),
        "tokens_to_target": (f"tokens to accuracy {target}", ",d"),
        "seconds": ("seconds of training", ".0f"),
        "seconds_to_target": (f"seconds to accuracy {target}", ".0f"),
        "estimation_mae": ("error of the difficulty estimate", ".3f"),
        "fresh_mae": ("error of 8 fresh rollouts", ".3f"),
    }
    arms = found["presets"]
    rows = [
        [title, *(None if arm[key] is None else f"{arm[key]:{form}}" for arm in arms.values())]
        for key, (title, form) in lines.items()
    ]
    return markdown(["", *(f"`{name}`" for name in arms)], rows)


@table
def fresh_share() -> str:
    """What replay buys: cost to reach an accuracy, by the share that is generated."""
    found = results("fresh_share")["methods"]
    named = {name.removeprefix("sigma-"): one for name, one in found.items()}
    named["0.25"] = named.pop("dare")
    rows = []
    for sigma, one in sorted(named.items(), key=lambda item: -float(item[0])):
        costs = [one["cost"].get(level) for level in ("0.48", "0.49", "0.5")]
        final = sum(one["final"]) / len(one["final"])
        paid = [f"{cost[0]:,}" if cost and cost[0] else None for cost in costs]
        rows.append([sigma, f"{final:.3f}", *paid])
    head = ["`fresh_share`", "accuracy after 300,000 tokens"]
    return markdown([*head, "cost of 0.48", "of 0.49", "of 0.50"], rows)


def _estimators(name: str) -> str:
    found = results(name)
    named = {f"`{estimator}`": one for estimator, one in found["estimators"].items()}
    if "constant" in found:  # runs of the earlier version have none; it has no interval
        named["best constant in hindsight"] = found["constant"]
    rows = []
    for title, one in sorted(named.items(), key=lambda item: item[1]["mae"]):
        if "=" in title or title == "`no-shrinkage`":
            continue  # one setting of the version before
        error = f"{one['mae']:.3f}"
        if "mae_low" in one:
            error = interval([one["mae"], one["mae_low"], one["mae_high"]])
        sides = [f"{one[side]['mae']:.3f}" for side in ("seen", "unseen")]
        rows.append([title, error, f"{one['mse']:.4f}", *sides])
    return markdown(["estimator", "MAE", "MSE", "MAE, seen", "MAE, unseen"], rows)


@table
def estimators_pocket() -> str:
    """Estimators on the built-in policy."""
    return _estimators("estimators")


@table
def estimators_gpu() -> str:
    """Estimators of the version before, a language model."""
    return _estimators("estimators_gpu")


@table
def estimators_curves() -> str:
    """The default of now on recorded training curves."""
    found = results("estimators_curves")["estimators"]
    rows = [[name, f"{one['mae']:.3f}", f"{one['mse']:.4f}"] for name, one in found.items()]
    return markdown(["estimator", "MAE", "MSE"], rows)


@table
def estimators_tabular() -> str:
    """Against an enumerated truth, 16 rollouts a prompt, T = 0.6."""
    rows = [row for row in results("estimators_tabular")["rows"] if row["sampling"] != "T = 1"]
    rows = [row for row in rows if row["rollouts_per_prompt"] == 16]
    names = list(rows[0]["mae"])
    body = [[row["drift"], *(f"{row['mae'][name]['mae']:.3f}" for name in names)] for row in rows]
    return markdown(["drift per step", *names], body)


@table
def hints() -> str:
    """Does a hint give the answer away?"""
    found = results("hints")
    rows = []
    for name, one in found.items():
        shown = f"{one['leaks']} hints" if "leaks" in one else f"{one['mean']:.0%} of its lines"
        usable, three = f"{one['usable_share']:.0%}", f"{one['three_share']:.0%}"
        rows.append([name, f"{one['n']:,}", shown, usable, three])
    head = ["solutions", "n", "answer, or program, shown", "with a usable fragment", "with three"]
    return markdown(head, rows)


def _scale(estimator: str) -> str:
    rows = []
    found = results("scale")
    measured = {power(prompts): one for prompts, one in found[estimator].items()}
    more = {f"{power(prompts)} *": one for prompts, one in found["extrapolated"][estimator].items()}
    for prompts, one in {**measured, **more}.items():
        names = ("plan_s", "observe_s", "refresh_s", "save_s", "load_s")
        times = [short(one[name]) for name in names]
        rows.append([prompts, *times, size(one["state_mb"]), size(one["peak_mb"])])
    head = ["prompts", "plan", "observe", "refresh", "save", "load"]
    return markdown([*head, "state on disk", "peak memory of a process"], rows)


@table
def scale_dare() -> str:
    """A step of the default estimator, by prompts."""
    return _scale("dare")


@table
def scale_posterior() -> str:
    """The same of an estimator that reads nothing."""
    return _scale("posterior")


@table
def scale_processes() -> str:
    """What a step's exchange costs, by processes."""
    found = results("scale")
    alone, gloo = found["processes"], found["gloo_s"]
    rows = []
    for count in sorted({*alone, *gloo}, key=int):
        one = alone.get(count, {})
        pack, received = one.get("seconds"), one.get("received_mb")
        told = (None if pack is None else short(pack), None if pack is None else size(received))
        rows.append([f"{int(count):,}", *told, short(gloo[count]) if count in gloo else None])
    head = ["processes", "pack and unpack", "received", "with gloo, on one machine"]
    return markdown(head, rows)


TRL_MODES = {"generate": "`generate`", "paged": "continuous batching", "vllm": "vLLM"}


@table
def gpu() -> str:
    """One step on one H200, and the engines beside it."""
    found = results("gpu")
    ours, vllm = found["decode"]["rows"], found["vllm"]["tokens_per_s"]
    grpo, dare = found["grpo"], found["dare"]
    trl = [found[f"trl_{mode}"] for mode in TRL_MODES]
    fastest = found[f"trl_{found['figures']['trl_mode']}"]
    seconds = f"TRL with {TRL_MODES[fastest['mode']]} {fastest['means']['total_s']:.1f}"
    rows: list[list[object]] = [
        [f"tokens/s, {count} responses at once", f"{one['tok_s']:,}", f"vLLM {vllm[count]:,}"]
        for count, one in ours.items()
    ]
    least = min(trl, key=lambda one: float(one["peak_gb"]))
    memory = f"TRL with {TRL_MODES[least['mode']]} {least['peak_gb']:.1f}; "
    memory += f"`dare plan` said {grpo['plan_gb']:.1f}"
    mfu = found["figures"]["train_mfu"]
    rows += [
        ["a step of `grpo`, s", f"{grpo['step_s']:.1f}", seconds],
        ["a step of `dare`, s", f"{dare['step_s']:.1f}", None],
        ["peak memory of `grpo`, GB", f"{grpo['peak_gb']:.1f}", memory],
        ["share of the card's peak in training and optimiser (MFU)", f"{mfu:.0%}", None],
        ["the curriculum's share of a step of `dare`", f"{dare['own_share']:.1%}", None],
    ]
    return markdown(["what", "measured", "beside"], rows)


GPU_FIGURES = {
    "decode_tok_s_256": "tokens/s of our decoder, 256 responses at once",
    "decode_tok_s_1024": "the same, 1024 at once",
    "decode_floor_share": "time in which memory could be read, of the time taken at 256",
    "decode_vs_generate": "times `model.generate`, 256 responses",
    "decode_vs_vllm": "times vLLM, where that is least",
    "train_tok_s": "tokens/s read in training and optimiser, prompts included",
    "train_mfu": "share of the card's peak in training and optimiser",
    "dare_step_vs_grpo_step": "a step of `dare` in steps of `grpo`",
    "own_share": "the curriculum's share of a step of `dare`",
    "peak_gb": "peak memory of `grpo`, GB",
    "plan_error": "distance of `dare plan` from it, share",
    "tokens_per_s_vs_trl": "tokens/s of a step, times TRL's fastest mode",
    "memory_vs_trl": "peak memory, times the least of TRL's modes",
    "zero_drift_ess_share": "effective rollouts after a second reading, share",
}


@table
def gpu_figures() -> str:
    """The figures that the benchmark derives from its parts."""
    found = results("gpu")
    first, second = found["figures"], found["second_run"]["figures"]
    rows = [
        [f"`{name}`", what, f"{first[name]:,}", f"{second[name]:,}" if name in second else None]
        for name, what in GPU_FIGURES.items()
    ]
    return markdown(["figure", "what", "measured", "steps again"], rows)


@table
def gpu_trl() -> str:
    """A step of ours beside TRL's in each of its modes."""
    found = results("gpu")
    ours = found["grpo"]
    rows: list[list[object]] = [
        [
            "DARE, preset `grpo`",
            f"{ours['step_s']:.1f}",
            f"{ours['seconds']['generate']:.1f}",
            f"{ours['generated_tok_s']:,}",
            f"{ours['peak_gb']:.1f}",
        ]
    ]
    for mode, title in TRL_MODES.items():
        one = found[f"trl_{mode}"]
        rows.append(
            [
                f"TRL with {title}",
                f"{one['means']['total_s']:.1f}",
                f"{one['means']['generation_s']:.1f}",
                f"{one['tokens_per_s']:,}",
                f"{one['peak_gb']:.1f}",
            ]
        )
    return markdown(
        ["trainer", "a step, s", "of it sampling, s", "tokens/s of a step", "peak, GB"], rows
    )


@table
def engines_gpu() -> str:
    """Steps of `dare` on one H200, sampled by each engine."""
    found = results("engines_gpu")
    titles = {
        "own": "the decoder that DARE brings",
        "vllm": "vLLM in the process, asleep in updates",
    }
    heads = ["generator", "a step, s", "of it sampling, s", "tokens/s of a step"]
    rows: list[list[object]] = [
        [
            title,
            f"{one['step_s']:.1f}",
            f"{one['seconds']['generate']:.1f}",
            f"{one['tokens_per_s']:,}",
        ]
        for name, title in titles.items()
        for one in (found[name],)
    ]
    other = found["trl"]
    sampling = f"{other['means']['generation_s']:.1f}"
    rows.append(
        [
            "TRL's trainer with vLLM",
            f"{other['step_s']:.1f}",
            sampling,
            f"{other['tokens_per_s']:,}",
        ]
    )
    return markdown(heads, rows)


@table
def gradients_gpu() -> str:
    """How far the gradients of a language model's groups agree with that of accuracy elsewhere."""
    found = results("gradients_gpu")
    metrics = [found[name] for name in ("adam", "plain")]

    def cell(figures: list[float]) -> str:
        value, low, high = figures
        return f"{value:.0f} [{low:.0f}, {high:.0f}]"

    rows: list[list[object]] = [
        [name, *(cell(metric["cosine"][name]) for metric in metrics)]
        for name in metrics[0]["cosine"]
    ]
    rows.append(["of two groups, with each other", *(cell(metric["shared"]) for metric in metrics)])
    return markdown(["mixed groups", "AdamW's metric", "plainly"], rows)


@table
def gradients_pocket() -> str:
    """How far a step gets toward accuracy elsewhere, by what it drew."""
    found = results("gradients_pocket")
    rows: list[list[object]] = []
    for name, (value, low, high) in found["adam"]["draws"].items():
        progress = f"{value:.1f}" if name == "uniform" else f"{value:.1f} [{low:.1f}, {high:.1f}]"
        rows.append(
            [name, progress, f"{found['mixed_share'][name]:.2f}", found["tokens_of_a_group"][name]]
        )
    return markdown(["draw", "progress", "mixed groups", "tokens of a group"], rows)


@table
def gradients_pocket_sizes() -> str:
    """The same by the number of groups in a step."""
    found = results("gradients_pocket")["adam"]["sizes"]
    sizes = list(found["uniform"])
    rows: list[list[object]] = [
        [name, *(f"{by_size[size][0]:.1f}" for size in sizes)] for name, by_size in found.items()
    ]
    return markdown(["draw", *(f"{size} groups" for size in sizes)], rows)


@table
def interruptions() -> str:
    """Interrupted runs that came out identical."""
    titles = {
        "kill": "`kill -9` at a random moment",
        "operation": "`kill -9` inside a save",
        "sigterm": "SIGTERM",
        "sigint": "Ctrl-C",
        "pause": "a process that stops for 3 s",
        "stop": "a process that stops for good",
    }
    counts: dict[tuple[str, int], list[int]] = {}
    for run in results("interruptions")["runs"]:
        for kind in titles:
            if kind in run:
                same, times = counts.setdefault((kind, run["processes"]), [0, 0])
                found = [same + run[kind]["identical"], times + run[kind]["times"]]
                counts[kind, run["processes"]] = found
    rows = []
    for kind, title in titles.items():
        both = [counts.get((kind, processes)) for processes in (1, 2)]
        rows.append([title, *(one and f"{one[0]} of {one[1]}" for one in both)])
    return markdown(["interrupted by", "one process", "two processes"], rows)


@table
def verdicts() -> str:
    """Verdicts on programs that are known to be right or wrong."""
    rows = [[name, one["rows"], one["right"]] for name, one in results("code_judge").items()]
    return markdown(["programs", "judged", "verdict as known"], rows)


@table
def math_verdicts() -> str:
    """The math verifier beside math-verify alone and TRL's reward, on the same pairs."""
    rows = []
    for name, one in results("math_rewards")["contenders"].items():
        title = f"{name}: {one['pairs']:,} pairs, {one['right']:,} right"
        for contender, found in one.items():
            if isinstance(found, dict):
                kinds = ("false_accepts", "false_rejects", "unscored", "hangs")
                times = (short(found["ms"] / 1000), short(found["slowest_s"]))
                rows.append([title, contender, *(found[kind] for kind in kinds), *times])
                title = ""
    head = ["pairs", "verdict by", "false accepts", "false rejects", "unscored", "hangs"]
    return markdown([*head, "mean time", "slowest"], rows)


@table
def golds() -> str:
    """Benchmarks whose gold answers are right against themselves."""
    found = results("eval_golds")
    rows = []
    for name, one in found.items():
        if one and name != "total":
            rows.append([name, f"{one['problems']:,}", f"{one['right']:,}"])
    return markdown(["benchmark", "problems", "golds right against themselves"], rows)


@table
def responses() -> str:
    """Saved responses of public models, scored here and by their authors."""
    rows = []
    for name, one in results("eval_responses").items():
        labels = one.get("labels") or {}
        score = f"{100 * one['accuracy']:.1f}"
        differ = None
        if labels:
            differ = f"{labels['right_here_only']} and {labels['right_by_labels_only']}"
        rows.append([name, one["responses"], score, differ])
    return markdown(["responses", "n", "accuracy in %", "right here only, there only"], rows)


@table
def teacher() -> str:
    """The head of DOTS on prompts that it did not see."""
    real, pocket = results("teacher")["held_out"], results("teacher_pocket")["errors"]
    rows = [
        [
            name,
            *(f"{real[name][key][0]:.3f}" for key in ("bce", "mae")),
            *(f"{pocket[name][key]:.3f}" for key in ("bce", "mae")),
        ]
        for name in real
    ]
    head = ["prediction", "real policies: BCE", "MAE", "built-in policy: BCE", "MAE"]
    return markdown(head, rows)


@table
def simulation() -> str:
    """Presets on a simulated learner."""
    rows = []
    for name, one in results("simulation")["presets"]["lines"].items():
        error = f"{one['mae_seen'][0]:.3f} ({one['intrinsic_seen'][0]:.3f})"
        shares = [f"{one[key][0]:.0%}" for key in ("varied", "coverage")]
        rows.append([name, interval(one["gain"], "+"), *shares, error])
    head = ["", "accuracy gained", "mixed groups", "prompts tried"]
    return markdown([*head, "MAE seen (8 fresh rollouts)"], rows)


@table
def pocket_levels() -> str:
    """Success of the built-in policy by level."""
    found = results("pocket")["pretraining"]["measured"]
    names = {"T1.0": "T = 1", "T0.6-p0.95": "T = 0.6, top-p 0.95"}
    rows: list[list[object]] = [
        [title, *found[name]["by_level"], f"{found[name]['success']:.3f}"]
        for name, title in names.items()
    ]
    rows.append(["tokens, T = 1", *found["T1.0"]["tokens_by_level"], None])
    return markdown(["level", *"12345678", "all"], rows)


@table
def pocket_learning() -> str:
    """Success of the built-in policy while it learns."""
    runs = results("pocket")["reinforcement_learning"]["runs"]
    places = range(0, len(runs[0]["steps"]), 2)
    rows = []
    for run in runs:
        seeds = run["test_success_by_seed"]
        means = [sum(seed[at] for seed in seeds) / len(seeds) for at in places]
        title = f"{run['selection']}, {run['learning_rate']:g}"
        rows.append([title, *(f"{mean:.3f}" for mean in means)])
    steps = (f"step {runs[0]['steps'][at]}" for at in places)
    return markdown(["draw, learning rate", *steps], rows)


def filled(text: str) -> tuple[str, list[str]]:
    """A page with its tables as they should be, and the names of those that were not."""
    stale: list[str] = []

    def block(match: re.Match[str]) -> str:
        name = match[2]
        if name not in TABLES:
            sys.exit(f"table = {name!r}: is not one of {', '.join(sorted(TABLES))}")
        body = TABLES[name]()
        if match[3] != body:
            stale.append(name)
        return f"{match[1]}{body}{match[4]}"

    return BLOCK.sub(block, text), stale


def main(argv: list[str] | None = None) -> int:
    """Write or check all pages."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, fail where stale")
    options = parser.parse_args(argv)
    blocks, stale = 0, []
    for page in sorted([*DOCS.glob("*.md"), *DOCS.glob("lab/*.md")]):
        text = page.read_text("utf-8")
        new, names = filled(text)
        blocks += len(BLOCK.findall(text))
        stale += [f"{page.relative_to(DOCS)}: {name}" for name in names]
        if names and not options.check:
            page.write_text(new, "utf-8")
    for name in stale:
        print(f"{'stale' if options.check else 'written'}: {name}")
    if stale and options.check:
        print("run python benchmarks/pages.py")
    print(json.dumps({"blocks": blocks, "stale": stale}))
    return int(bool(stale) and options.check)


if __name__ == "__main__":
    sys.exit(main())
