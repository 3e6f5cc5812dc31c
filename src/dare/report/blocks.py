"""The building blocks of a report: plots, tables and words, as plain values.

What is built here goes into the page as JSON; `assets/` draws it. A trace is one of plotly's, with
three additions: `colour` names a colour of the theme, `axis` the values along x (by steps, tokens
or time, as the reader chooses), and `run` the run whose button shows and hides it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dare.curriculum.arrays import Array
from dare.runs.reader import RunData

DASHES = ("solid", "dash", "dot", "dashdot")
RUN_COLOURS = 8
"""Colours that the theme has for runs and methods."""
Block = dict[str, Any]
Trace = dict[str, Any]


def plot(
    name: str,
    title: str,
    caption: str,
    traces: Sequence[Trace],
    *,
    y: str = "",
    x: str = "",
    height: int = 280,
    wide: bool = False,
    legend: bool = False,
    share: bool = False,
    layout: dict[str, Any] | None = None,
) -> Block:
    """A titled figure. `share` fixes y to 0 to 100 %; an empty `x` is the reader's choice."""
    look = {"y": y, "x": x, "height": height, "wide": wide, "legend": legend, "share": share}
    head = {"kind": "plot", "id": name, "title": title, "caption": caption}
    return {**head, "traces": list(traces), **look, "layout": layout or {}}


def table(
    name: str, title: str, caption: str, head: Sequence[str], rows: Sequence[Sequence[str]]
) -> Block:
    """A table of text; the first column names the row."""
    held = {"head": list(head), "rows": [list(row) for row in rows]}
    return {"kind": "table", "id": name, "title": title, "caption": caption, **held}


def note(text: str) -> Block:
    """Words, above all those that say why there is nothing to see."""
    return {"kind": "note", "text": text}


def tiles(entries: Sequence[tuple[str, str, str]]) -> Block:
    """Figures to take in at a glance: label, value, a word on it."""
    return {"kind": "tiles", "id": "tiles", "entries": [list(entry) for entry in entries]}


def section(name: str, title: str, intro: str, blocks: Sequence[Block]) -> dict[str, Any]:
    """A part of the page that is the same for all runs."""
    return {"id": name, "title": title, "intro": intro, "blocks": list(blocks)}


Blocks = Callable[["View"], list[Block]]
Section = Callable[[Sequence["View"]], dict[str, Any]]


def of_each_run(name: str, title: str, intro: str) -> Callable[[Blocks], Section]:
    """Makes a function from a run to blocks a part of the page, which shows one run at a time."""

    def made(blocks: Blocks) -> Section:
        head = {"id": name, "title": title, "intro": intro}
        return lambda views: {**head, "by_run": [blocks(view) for view in views]}

    return made


def curve(x: Any, y: Any, colour: str, name: str, **more: Any) -> Trace:
    """A line over an x of its own."""
    head = {"type": "scatter", "mode": "lines", "x": x, "y": y}
    return {**head, "name": name, "colour": colour, **more}


def line(y: Array, axis: str, colour: str, name: str, **more: Any) -> Trace:
    """A curve over the reader's choice of x."""
    head = {"type": "scatter", "mode": "lines", "y": numbers(y), "axis": axis}
    return {**head, "colour": colour, "name": name, **more}


def area(low: Array, high: Array, colour: str, **more: Any) -> Trace:
    """What lies between two curves, along the one and back along the other."""
    y = [*numbers(high), *numbers(low)[::-1]]
    look = {"fill": "toself", "hoverinfo": "skip", "showlegend": False}
    return {"type": "scatter", "mode": "lines", "y": y, "colour": colour, **look, **more}


def layers(parts: dict[str, Array], axis: str, colours: Sequence[str]) -> list[Trace]:
    """Curves stacked on each other."""
    return [
        line(y, axis, colour, name, stackgroup="one", thin=True)
        for (name, y), colour in zip(parts.items(), colours, strict=True)
    ]


def numbers(values: Array, digits: int = 5) -> list[float | None]:
    """A few digits each, null for what is no number: short, and what JSON can hold."""
    array = np.asarray(values, dtype=np.float64).tolist()
    return [float(f"{value:.{digits}g}") if math.isfinite(value) else None for value in array]


def short(value: float | None, digits: int = 3) -> str:
    """A number as people write it: 1,234, 12.3 M, 0.0012; a dash where there is none."""
    if value is None or not math.isfinite(value):
        return "-"
    size = abs(value)
    for limit, sign in ((1e12, " T"), (1e9, " G"), (1e6, " M")):
        if size >= limit:
            return f"{value / limit:.{digits}g}{sign}"
    if size >= 1000 or (size >= 1 and float(value).is_integer()):
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def percent(value: float | None) -> str:
    """12.3 %, or a dash."""
    return "-" if value is None or not math.isfinite(value) else f"{100 * value:.1f} %"


def duration(seconds: float) -> str:
    """0.3 s, 45 s, 12 min, 3.4 h."""
    if seconds < 10:
        return f"{seconds:.1f} s" if seconds else "0 s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def thinned(count: int, most: int) -> Array:
    """Edges of at most `most` even bins over `count` places: bin i is edges[i] to edges[i + 1]."""
    return np.linspace(0, count, min(count, most) + 1).astype(np.int64)


def spread(count: int, most: int) -> Array:
    """At most `most` places out of `count`, evenly spread, first and last among them."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64))


def binned(values: Array, edges: Array) -> Array:
    """Mean of each bin, NaN left out of it."""
    if len(edges) - 1 == len(values):
        return values
    known = np.isfinite(values)
    total = np.add.reduceat(np.where(known, values, 0.0), edges[:-1])
    count = np.add.reduceat(known.astype(np.float64), edges[:-1])
    return np.divide(total, count, out=np.full(len(total), np.nan), where=count > 0)


_POINTS = 1000
_MANY = 300


class Axes:
    """Values along x by name, each as steps, tokens and time. Plots name the ones they use."""

    def __init__(self, runs: Sequence[RunData]) -> None:
        longest = max((float(run.seconds[-1]) for run in runs if len(run.seconds)), default=0.0)
        self.unit, self._scale = "seconds", 1.0
        if longest > 180:
            self.unit, self._scale = ("minutes", 60.0) if longest < 10800 else ("hours", 3600.0)
        self.runs = len(runs)
        self._held: dict[str, dict[str, Any]] = {}
        most = _POINTS if len(runs) <= 4 else _MANY
        self.edges = [thinned(len(run.metrics), most) for run in runs]
        for place, (run, edges) in enumerate(zip(runs, self.edges, strict=True)):
            parts = (binned(part, edges) for part in (run.step + 1, run.tokens, run.seconds))
            self._add(f"run{place}", *parts)

    def at(self, name: str, run: RunData, steps: Array, *, done: bool = False) -> str:
        """An axis for other steps of the run; `done` counts finished steps, as evaluations do.

        Files count steps from 0, people from 1: the first step shows as 1, like the evaluation
        that follows it.
        """
        spent = []
        for series in (run.tokens, run.seconds):
            known = np.isfinite(series) & np.isfinite(run.step)
            if not known.any():
                spent.append(np.full(len(steps), np.nan))
                continue
            place, value = run.step[known], series[known]
            if done:  # nothing is spent before the first step, and step n is done at n + 1
                place, value = np.append(0, place + 1), np.append(0.0, value)
            spent.append(np.interp(steps, place, value))
        self._add(name, np.asarray(steps, np.float64) + (not done), *spent)
        return name

    def to_dict(self) -> dict[str, Any]:
        """As the page reads it."""
        return self._held

    def _add(self, name: str, step: Array, tokens: Array, seconds: Array) -> None:
        self._held[name] = {
            "step": numbers(step, 9),
            "tokens": numbers(tokens, 7),
            "time": numbers(seconds / self._scale, 7),
        }


@dataclass(frozen=True)
class View:
    """One run of the page, and its lines on the page's axes."""

    run: RunData
    place: int
    axes: Axes

    def line(self, series: Array, colour: str, name: str, **more: Any) -> Trace:
        """A series of the run's training steps."""
        return line(self._thin(series), f"run{self.place}", colour, name, **more)

    def layers(self, parts: dict[str, Array], colours: Sequence[str]) -> list[Trace]:
        """Such series stacked on each other."""
        thin = {name: self._thin(series) for name, series in parts.items()}
        return layers(thin, f"run{self.place}", colours)

    def at(self, name: str, steps: Array, *, done: bool = False) -> str:
        """An axis for other steps of the run, see `Axes.at`."""
        return self.axes.at(f"{name}{self.place}", self.run, steps, done=done)

    def _thin(self, series: Array) -> Array:
        return binned(series, self.axes.edges[self.place])
