"""The table of `methods_gpu.py`: methods against GRPO at equal tokens and at equal seconds.

    python benchmarks/methods_gpu_table.py runs/methods_gpu --out methods_gpu.json

Accuracy between two evaluations is interpolated, problem by problem. All arms of a task are
compared where the first of their runs ends: at so many generated tokens, and at so many seconds of
training; `area` is the mean from the start to there. Differences are paired by seed and problem;
their 95 % intervals are Student's t and take seeds *and* problems as samples, beside the usual one
over seeds alone. `reach` is how many times fewer tokens or seconds an arm needs for the accuracy
that GRPO ends with.

`at_the_ends` needs no interpolation: the last evaluations of two arms, and which of them, if any,
used no more tokens and no more seconds than the other, in the mean of the seeds that both have. If
that one is ahead, it is ahead at equal cost, of either kind. Where neither is the cheaper in both,
the difference is one of unequal cost, and the table says so. Where runs are evaluated at the end
alone, this is what to read: between two points nothing is known. Prints the table as Markdown; the
last line is the figures as JSON.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from methods_gpu_data import read_lines
from numpy.typing import NDArray

from dare.evaluation.intervals import Interval, student, two_way

Array = NDArray[np.float64]

AXES = ("tokens", "seconds")


@dataclass(frozen=True)
class Run:
    """One run's summary and evaluations."""

    summary: dict[str, Any]
    axes: dict[str, Array]
    """Tokens and seconds [E] of each evaluation."""
    right: dict[str, Array]
    """Right or wrong [E, N] of each set."""

    def end(self, axis: str) -> float:
        """Where the last evaluation is."""
        return float(self.axes[axis][-1])

    def at(self, name: str, axis: str, place: float) -> Array:
        """Right or wrong [N] at this place, interpolated."""
        return weights_at(self.axes[axis], place) @ self.right[name]

    def mean_to(self, name: str, axis: str, place: float) -> Array:
        """The mean [N] from the start to this place: the area under the curve."""
        return area_weights(self.axes[axis], place) @ self.right[name]


Runs = dict[str, dict[int, Run]]


def main(arguments: Sequence[str] | None = None) -> None:
    """Read runs, compare, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", type=Path, help="what methods_gpu.py was given as --out")
    parser.add_argument("--out", type=Path, help="write the figures there")
    parser.add_argument("--arms", help="these alone, with commas between them")
    parser.add_argument("--against", default="grpo")
    options = parser.parse_args(arguments)
    chosen = options.arms.split(",") if options.arms else None
    figures = {
        task: compared(runs, options.against) for task, runs in load(options.runs, chosen).items()
    }
    for task, found in figures.items():
        print(markdown(task, found, options.against))
    text = json.dumps({"against": options.against, "tasks": figures})
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(text + "\n", encoding="utf-8")
    print(text)


# ---- reading ----


def load(folder: Path, arms: Sequence[str] | None = None) -> dict[str, Runs]:
    """Runs by task, arm and seed. Runs that were evaluated differently are refused."""
    found: dict[str, Runs] = {}
    asked: dict[str, Any] = {}
    for file in sorted(folder.glob("*/*/seed-*/summary.json")):
        summary = json.loads(file.read_text(encoding="utf-8"))
        task, arm = summary["task"], summary["arm"]
        if arms is not None and arm not in arms:
            continue
        same = {name: summary["settings"][name] for name in ("sets", "problems", "model")}
        if asked.setdefault(task, same) != same:
            raise SystemExit(f"{file.parent} has other problems or another model than the rest")
        points = read_lines(file.parent / "eval.jsonl")
        right = {
            name: np.array([[float(c) for c in point["sets"][name]["right"]] for point in points])
            for name in points[0]["sets"]
        }
        axes = {axis: np.array([float(point[axis]) for point in points]) for axis in AXES}
        found.setdefault(task, {}).setdefault(arm, {})[summary["seed"]] = Run(summary, axes, right)
    if not found:
        raise SystemExit(f"{folder}: there is no finished run")
    return found


# ---- curves ----


def weights_at(places: Array, place: float) -> Array:
    """What each evaluation counts in the value at `place`; they sum to 1."""
    after = int(np.clip(np.searchsorted(places, place), 1, len(places) - 1))
    share = float(np.clip((place - places[after - 1]) / (places[after] - places[after - 1]), 0, 1))
    weights = np.zeros(len(places))
    weights[after - 1 : after + 1] = 1.0 - share, share
    return weights


def area_weights(places: Array, place: float) -> Array:
    """What each evaluation counts in the mean over [0, place] of the interpolated curve."""
    inside = places[places < place]
    corners = np.append(inside, place)
    rows = np.array([weights_at(places, corner) for corner in corners])
    step = np.diff(corners)[:, None]
    return ((rows[1:] + rows[:-1]) / 2 * step).sum(axis=0) / float(corners[-1] - corners[0])


def first_reach(runs: Sequence[Run], name: str, axis: str, wanted: float) -> float | None:
    """Where the mean curve of these runs first has this accuracy; None where it never does."""
    last = min(run.end(axis) for run in runs)
    grid = np.unique(np.concatenate([run.axes[axis] for run in runs]))
    grid = grid[grid <= last]
    curve = np.array([np.mean([run.at(name, axis, x).mean() for run in runs]) for x in grid])
    above = np.flatnonzero(curve >= wanted)
    if not len(above):
        return None
    place = int(above[0])
    if place == 0:
        return float(grid[0])
    low, high = curve[place - 1], curve[place]
    return float(grid[place - 1] + (wanted - low) / (high - low) * (grid[place] - grid[place - 1]))


# ---- the comparison ----


def interval(values_SxP: Array) -> dict[str, Any]:
    """Mean and 95 % interval over seeds and problems; of one seed, over problems."""
    one = student(values_SxP[0].tolist()) if len(values_SxP) == 1 else two_way(values_SxP)
    return {**rounded(one), "seeds": len(values_SxP)}


def rounded(found: Interval) -> dict[str, float | None]:
    """An interval for JSON."""
    values = found._asdict().items()
    return {name: None if value is None else round(value, 5) for name, value in values}


def compared(runs: Runs, against: str) -> dict[str, Any]:
    """Every arm at the common ends, and its differences to `against`."""
    everyone = [run for seeds in runs.values() for run in seeds.values()]
    ends = {axis: min(run.end(axis) for run in everyone) for axis in AXES}
    sets = list(everyone[0].right)
    figures: dict[str, Any] = {"ends": ends, "sets": {}, "arms": {}}
    first = everyone[0]
    for name in sets:
        start = float(np.mean([run.right[name][0].mean() for run in everyone]))
        figures["sets"][name] = {"problems": first.right[name].shape[1], "start": round(start, 4)}
    told = [run.summary["settings"] for run in everyone]
    figures["settings"] = {
        name: value
        for name, value in told[0].items()
        if name not in ("preset", "solutions") and all(one.get(name) == value for one in told)
    }
    figures["device"] = sorted({run.summary["device"] for run in everyone})
    for arm in sorted(runs, key=lambda name: (name != against, name)):
        seeds = runs[arm]
        settings = next(iter(seeds.values())).summary["settings"]
        own = {name: value for name, value in settings.items() if name not in figures["settings"]}
        figures["arms"][arm] = {
            "settings": own,
            **own_figures(list(seeds.values())),
            "accuracy": {
                name: {axis: accuracy(list(seeds.values()), name, axis, ends) for axis in AXES}
                for name in sets
            },
            "curve": {name: curve(seeds, name) for name in sets},
        }
        if against in runs:
            figures["arms"][arm]["reach"] = {
                name: {axis: reach(runs, arm, against, name, axis) for axis in AXES}
                for name in sets
            }
            if arm != against:
                figures["arms"][arm]["difference"] = {
                    name: difference(runs[arm], runs[against], name, ends) for name in sets
                }
                figures["arms"][arm]["at_the_ends"] = at_the_ends(arm, against, runs, sets)
    return figures


def own_figures(runs: Sequence[Run]) -> dict[str, Any]:
    """Means over seeds of what a run's summary says of itself."""
    summaries = [run.summary for run in runs]
    groups = sum(one["groups"] for one in summaries)
    varied = sum(one["varied_groups"] for one in summaries)
    tokens = sum(one["tokens"] for one in summaries)
    return {
        "seeds": sorted(one["seed"] for one in summaries),
        "steps": round(float(np.mean([one["steps"] for one in summaries])), 1),
        "tokens": round(float(np.mean([one["tokens"] for one in summaries]))),
        "seconds": round(float(np.mean([one["seconds"] for one in summaries])), 1),
        "varied_share": round(varied / max(1, groups), 4),
        "tokens_per_varied_group": round(tokens / varied) if varied else None,
        "unscored_share": round(float(np.mean([one["unscored_share"] for one in summaries])), 5),
        "peak_gb": max(one["peak_gb"] for one in summaries),
    }


def accuracy(runs: Sequence[Run], name: str, axis: str, ends: dict[str, float]) -> dict[str, Any]:
    """At the common end and in the mean up to it; the interval takes seeds and problems in."""
    here = np.array([run.at(name, axis, ends[axis]) for run in runs])
    area = np.array([run.mean_to(name, axis, ends[axis]) for run in runs])
    return {**interval(here), "area": round(float(area.mean()), 5)}


def difference(
    ours: dict[int, Run], theirs: dict[int, Run], name: str, ends: dict[str, float]
) -> dict[str, Any] | None:
    """Paired by seed and problem; None where no seed is in both."""
    seeds = sorted(ours.keys() & theirs.keys())
    if not seeds:
        return None
    values: dict[str, Callable[[Run, str], Array]] = {
        "end": lambda run, axis: run.at(name, axis, ends[axis]),
        "area": lambda run, axis: run.mean_to(name, axis, ends[axis]),
    }
    made: dict[str, Any] = {}
    for axis in AXES:
        made[axis] = {}
        for kind, value in values.items():
            gap = np.array([value(ours[s], axis) - value(theirs[s], axis) for s in seeds])
            made[axis][kind] = interval(gap)
            made[axis][f"{kind}_seeds_alone"] = rounded(student(gap.mean(axis=1).tolist()))
    return made


def at_the_ends(arm: str, against: str, runs: Runs, sets: Sequence[str]) -> dict[str, Any] | None:
    """Which arm is the cheaper in both, the ratios of cost, and the differences of the last
    evaluations, paired by seed and problem; None where no seed is in both."""
    ours, theirs = runs[arm], runs[against]
    seeds = sorted(ours.keys() & theirs.keys())
    if not seeds:
        return None
    cost = {
        axis: [float(np.mean([one[seed].end(axis) for seed in seeds])) for one in (ours, theirs)]
        for axis in AXES
    }
    cheaper = None
    if all(own <= other for own, other in cost.values()):
        cheaper = arm
    elif all(own >= other for own, other in cost.values()):
        cheaper = against
    return {
        "cheaper": cheaper,
        "cost": {axis: round(own / other, 4) for axis, (own, other) in cost.items()},
        "difference": {
            name: interval(
                np.array([ours[one].right[name][-1] - theirs[one].right[name][-1] for one in seeds])
            )
            for name in sets
        },
    }


def reach(runs: Runs, arm: str, against: str, name: str, axis: str) -> dict[str, float | None]:
    """Tokens or seconds to the accuracy that `against` ends with, and how many times fewer."""
    theirs = list(runs[against].values())
    wanted = float(np.mean([run.right[name][-1].mean() for run in theirs]))
    end = float(np.mean([run.end(axis) for run in theirs]))
    place = first_reach(list(runs[arm].values()), name, axis, wanted)
    times = round(end / place, 3) if place else None  # an arm may be there before it begins
    return {"accuracy": round(wanted, 5), "at": place, "times_fewer": times}


def curve(seeds: dict[int, Run], name: str) -> dict[str, list[list[float]]]:
    """[tokens, seconds, accuracy] of every evaluation, by seed."""
    return {
        str(seed): [
            [float(tokens), float(seconds), round(float(right.mean()), 4)]
            for tokens, seconds, right in zip(
                run.axes["tokens"], run.axes["seconds"], run.right[name], strict=True
            )
        ]
        for seed, run in sorted(seeds.items())
    }


def markdown(task: str, figures: dict[str, Any], against: str) -> str:
    """The table for people."""
    ends = figures["ends"]
    lines = [
        f"## {task}: at {ends['tokens'] / 1e6:.2f} M tokens, at {ends['seconds']:.0f} s",
        "",
        f"| arm | seeds | set | at equal tokens | minus {against} | at equal seconds "
        f"| minus {against} | ends: minus {against} | tokens / seconds to {against}'s end "
        "| varied groups | tokens per varied group | tokens, seconds of a run |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for arm, one in figures["arms"].items():
        for name, found in one["accuracy"].items():
            cells = [f"`{arm}`", str(len(one["seeds"])), name]
            gap = (one.get("difference") or {}).get(name)
            for axis in AXES:
                cells.append(f"{found[axis]['mean']:.3f}")
                cells.append("-" if gap is None else _signed(gap[axis]["end"]))
            cells.append(_ends(one.get("at_the_ends"), name))
            times = [(one.get("reach") or {}).get(name, {}).get(axis, {}) for axis in AXES]
            cells.append(" / ".join(_times(part) for part in times))
            cells.append(f"{one['varied_share']:.2f}")
            each = one["tokens_per_varied_group"]
            cells.append("-" if each is None else f"{each:,}")
            cells.append(f"{one['tokens'] / 1e6:.2f} M, {one['seconds']:.0f} s")
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, ""])


def _signed(found: dict[str, Any]) -> str:
    return f"{found['mean']:+.3f} [{found['low']:+.3f}, {found['high']:+.3f}]"


def _ends(found: dict[str, Any] | None, name: str) -> str:
    if found is None:
        return "-"
    cost = " and ".join(f"{ratio:.2f} x the {axis}" for axis, ratio in found["cost"].items())
    unequal = " (unequal)" if found["cheaper"] is None else ""
    return f"{_signed(found['difference'][name])} for {cost}{unequal}"


def _times(found: dict[str, float | None]) -> str:
    if found.get("at") == 0:
        return "from the start"
    times = found.get("times_fewer")
    return "not reached" if times is None else f"{times:.2f} x fewer"


if __name__ == "__main__":
    main()
