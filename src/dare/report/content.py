"""Everything a report shows, from the folders of its runs, as one value that JSON can hold."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from dare.report.axes import Axes
from dare.report.folder import RunData
from dare.report.sections.comparison import colour_places, comparison, method_names
from dare.report.sections.cost import cost
from dare.report.sections.curves import curves
from dare.report.sections.estimator import estimator
from dare.report.sections.evaluation import evaluation
from dare.report.sections.landscape import landscape
from dare.report.sections.levels import levels
from dare.report.sections.overview import overview
from dare.report.sections.rollouts import rollouts
from dare.report.sections.settings import settings


def content(runs: Sequence[RunData]) -> dict[str, Any]:
    """Sections in the order of the page, and the axes they share."""
    axes = Axes(runs)
    methods = method_names(runs)
    colours = [f"run:{place}" for place in colour_places(methods).tolist()]
    several = len(runs) > 1
    sections = [
        overview(runs),
        *([comparison(runs, methods)] if several else []),
        curves(runs, colours, axes),
        landscape(runs, axes),
        estimator(runs, axes),
        levels(runs, axes),
        cost(runs, axes),
        evaluation(runs),
        rollouts(runs),
        settings(runs),
    ]
    return {
        "title": f"{runs[0].name}" if not several else f"{len(runs)} runs",
        "written": round(time.time()),
        "runs": [
            {"name": run.name, "method": method, "seed": run.seed, "colour": colour}
            for run, method, colour in zip(runs, methods, colours, strict=True)
        ],
        "unit": axes.unit,
        "axes": axes.to_dict(),
        "sections": sections,
    }
