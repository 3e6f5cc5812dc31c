"""What scores say: accuracy with an interval, pass@k, tokens, truncation, by level and subject; as
tables for the terminal and for Markdown."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from dare.evaluation.intervals import mean_rate, pass_at_k
from dare.evaluation.records import CUT, RIGHT, Record
from dare.table import Table
from dare.text import legible, natural

Array = npt.NDArray[Any]
MOST_K = 64


@dataclass(frozen=True)
class Responses:
    """Scored responses as columns, one entry a response; NaN where there is no number."""

    problem_R: Array
    """Which problem, counted from 0; the numbering may have gaps."""
    score_R: Array
    tokens_R: Array
    truncated_R: Array

    @classmethod
    def from_lists(
        cls,
        problem: Sequence[int],
        score: Sequence[float | None],
        tokens: Sequence[int | None],
        truncated: Sequence[bool | None],
    ) -> Responses:
        """From plain lists, None where something is not known."""
        columns = [np.array(column, dtype=float) for column in (score, tokens, truncated)]
        return cls(np.asarray(problem, dtype=np.int64), *columns)

    def take(self, mask: Array) -> Responses:
        """Those where the mask holds."""
        return Responses(
            self.problem_R[mask], self.score_R[mask], self.tokens_R[mask], self.truncated_R[mask]
        )

    def by_problem(self) -> tuple[Array, Array, Array]:
        """Per problem: scored responses, right ones, and the mean score (NaN without any)."""
        _, place = np.unique(self.problem_R, return_inverse=True)
        count = int(place.max()) + 1 if len(place) else 0
        scored = ~np.isnan(self.score_R)
        samples = np.bincount(place[scored], minlength=count)
        total = np.bincount(place[scored], weights=self.score_R[scored], minlength=count)
        right = np.bincount(place[scored], weights=self.score_R[scored] >= RIGHT, minlength=count)
        mean = np.divide(total, samples, out=np.full(count, np.nan), where=samples > 0)
        return samples, right.astype(np.int64), mean


def basic(responses: Responses) -> dict[str, Any]:
    """Accuracy (mean over problems of their scored responses), tokens, truncation, unscored."""
    _, _, mean_P = responses.by_problem()
    return {
        "accuracy": mean_of(mean_P),
        "tokens": mean_of(responses.tokens_R),
        "truncated": mean_of(responses.truncated_R),
        "responses": len(responses.problem_R),
        "unscored": int(np.isnan(responses.score_R).sum()),
    }


def with_problems(responses: Responses) -> dict[str, Any]:
    """`basic`, and the mean score of each problem: two evaluations can then be held in pairs."""
    _, _, mean_P = responses.by_problem()
    scores = [None if np.isnan(mean) else round(mean, 6) for mean in mean_P.tolist()]
    return {**basic(responses), "by_problem": scores}


def figures(responses: Responses) -> dict[str, Any]:
    """`basic` with its interval, problems, solved problems, and tokens of right and wrong ones."""
    samples_P, right_P, mean_P = responses.by_problem()
    low, high, kind = interval(mean_P, samples_P)
    scored = ~np.isnan(responses.score_R)
    right = scored & (responses.score_R >= RIGHT)
    return {
        **basic(responses),
        "low": low,
        "high": high,
        "interval": kind,
        "problems": len(samples_P),
        "solved": int((right_P > 0).sum()),
        "tokens_right": mean_of(responses.tokens_R[right]),
        "tokens_wrong": mean_of(responses.tokens_R[scored & ~right]),
        # Unscored is not wrong; this is how low the accuracy would be if it were.
        "accuracy_unscored_as_wrong": _floor(responses),
    }


def pass_curve(responses: Responses, most: int = MOST_K) -> dict[str, list[Any]]:
    """Unbiased pass@k for every k up to the samples there are, with intervals over problems.

    A problem counts for k where it has at least k scored responses; `problems` says how many do.
    """
    samples_P, right_P, _ = responses.by_problem()
    most = min(most, int(samples_P.max(initial=0)))
    if most < 1:
        return {"k": [], "mean": [], "low": [], "high": [], "problems": []}
    value_PxK = pass_at_k(samples_P, right_P, most)
    columns = [column[~np.isnan(column)] for column in value_PxK.T]
    found = [mean_rate(column) for column in columns]
    return {
        "k": list(range(1, most + 1)),
        "mean": [_round(one.mean) for one in found],
        "low": [_round(one.low) for one in found],
        "high": [_round(one.high) for one in found],
        "problems": [len(column) for column in columns],
    }


def by_group(
    responses: Responses,
    group_P: Sequence[str | None],
    of: Callable[[Responses], dict[str, Any]] = figures,
) -> dict[str, Any]:
    """Figures of each group of problems; those without a group are left out."""
    names = sorted({name for name in group_P if name is not None}, key=natural)
    # A name's place; -1 stands for none, so that no list is searched for every response.
    code = {name: place for place, name in enumerate(names)}
    code_P = np.array([-1 if name is None else code[name] for name in group_P], dtype=np.int64)
    code_R = code_P[responses.problem_R]
    return {name: of(responses.take(code_R == code[name])) for name in names}


def interval(mean_P: Array, samples_P: Array) -> tuple[float | None, float | None, str]:
    """The 95 % interval of an accuracy, over problems, and how it was made.

    One response a problem: Wilson's. Several: Wilson's for as many trials as the problems are
    worth, since responses to one problem are alike (`mean_rate`). Student's t where scores are no
    shares.
    """
    known = ~np.isnan(mean_P)
    if not known.any():
        return None, None, "none"
    rates = mean_P[known]
    found = mean_rate(rates, float(samples_P[known].sum()))
    shares = float(rates.min()) >= 0.0 and float(rates.max()) <= 1.0
    kind = "wilson" if samples_P.max() <= 1 else "wilson over problems"
    return found.low, found.high, kind if shares else "student"


def mean_of(values: Array) -> float | None:
    """The mean of the numbers there are, or None."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else None


def _floor(responses: Responses) -> float | None:
    filled = replace(responses, score_R=np.nan_to_num(responses.score_R, nan=0.0))
    return mean_of(filled.by_problem()[2])


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 6)


def columns_of(records: Sequence[Record]) -> Responses:
    """The responses of these records as columns."""
    problem = [row for row, record in enumerate(records) for _ in record["scores"]]
    finish = [reason for record in records for reason in record["finish"]]
    return Responses.from_lists(
        problem,
        [score for record in records for score in record["scores"]],
        [size for record in records for size in record["tokens"]],
        [None if reason is None else reason in CUT for reason in finish],
    )


def summarise(records: Sequence[Record]) -> dict[str, Any]:
    """Accuracy, pass@k, tokens, truncation; by level, by subject, by name; against labels."""
    responses = columns_of(records)
    samples = max((len(record["scores"]) for record in records), default=0)
    named = any("names" in record for record in records)
    found = {
        **figures(responses),
        "samples": samples,
        # Responses with names come from several models; a curve over them would mean nothing.
        "pass_at_k": pass_curve(responses) if samples > 1 and not named else None,
        "by_level": by_group(responses, [record["level"] for record in records]),
        "by_subject": by_group(responses, [record["subject"] for record in records]),
    }
    if named:
        found["by_name"] = _by_name(records)
    if any("labels" in record for record in records):
        found["labels"] = against_labels(records)
    return found


def against_labels(records: Sequence[Record]) -> dict[str, Any]:
    """Our verdicts beside those that the responses came with, and where they differ."""
    pairs = [
        (record["id"], place, score >= RIGHT, label)
        for record in records
        for place, (score, label) in enumerate(
            zip(record["scores"], record.get("labels", []), strict=False)
        )
        if score is not None and label is not None
    ]
    apart = [pair for pair in pairs if pair[2] is not pair[3]]
    return {
        "responses": len(pairs),
        "right_by_labels": sum(label for *_, label in pairs),
        "right_here": sum(right for _, _, right, _ in pairs),
        "agreement": 1 - len(apart) / len(pairs) if pairs else None,
        "right_here_only": sum(right for _, _, right, _ in apart),
        "right_by_labels_only": sum(label for *_, label in apart),
        "disagreements": [
            {"id": name, "response": place, "here": right, "label": label}
            for name, place, right, label in apart
        ],
    }


def _by_name(records: Sequence[Record]) -> dict[str, Any]:
    """Figures of each named response (one column of the file a name)."""
    names = sorted({name for record in records for name in record.get("names", []) if name})
    found = {}
    for wanted in names:
        only = []
        for record in records:
            kept = [i for i, name in enumerate(record.get("names", [])) if name == wanted]
            lists = {key: [record[key][i] for i in kept] for key in ("scores", "tokens", "finish")}
            only.append({**record, **lists})
        found[wanted] = figures(columns_of(only))
    return found


SHOWN_K = (1, 2, 4, 8, 16, 32, 64)


def tables_of(figures: Mapping[str, Any]) -> list[Table]:
    """All tables that these figures fill."""
    found = figures["benchmarks"]
    tables = [_overview(figures), _curves(found)]
    for name, one in found.items():
        for key, words in (
            ("by_level", "level"),
            ("by_subject", "subject"),
            ("by_name", "response"),
        ):
            if one.get(key):
                tables.append(_groups(f"{name} by {words}", words, one[key]))
    tables.append(_labels(found))
    return [table for table in tables if table.rows]


def markdown(figures: Mapping[str, Any]) -> str:
    """eval.md."""
    settings = figures["settings"]
    shown = ", ".join(f"{key} {value}" for key, value in settings.items() if value is not None)
    return f"# Evaluation\n\n{as_text(shown)}\n\n{page_of(tables_of(figures))}"


def page_of(tables: Sequence[Table]) -> str:
    """Tables as Markdown; names in them may come from anybody's data and stay text."""
    safe = [
        Table(as_text(one.title), _safe(one.head), [_safe(row) for row in one.rows])
        for one in tables
    ]
    return "\n".join(table.markdown() for table in safe)


def as_text(text: str) -> str:
    """One line that a viewer of Markdown shows as it is: no HTML, no control characters."""
    plain = " ".join(legible(text).split())
    return html.escape(plain, quote=False)


def _safe(cells: Sequence[str]) -> list[str]:
    return [as_text(cell) for cell in cells]


def percent(value: float | None) -> str:
    """'71.8', or a dash."""
    return "-" if value is None else f"{100 * value:.1f}"


def within(mean: float | None, low: float | None, high: float | None) -> str:
    """'71.8 [67.7, 75.6]'."""
    if mean is None or low is None or high is None:
        return percent(mean)
    return f"{100 * mean:.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def tokens_of(one: Mapping[str, Any]) -> str:
    """The mean length of a response, or a dash."""
    return "-" if one["tokens"] is None else f"{one['tokens']:.0f}"


def _overview(figures: Mapping[str, Any]) -> Table:
    head = ["benchmark", "problems", "k", "accuracy", "solved", "tokens", "cut off", "unscored"]
    rows = []
    for name, one in figures["benchmarks"].items():
        problems = str(one["problems"])
        if one.get("missing"):
            problems += f" of {one['problems'] + one['missing']}"
        unscored = one["unscored"] / one["responses"] if one["responses"] else None
        rows.append(
            [
                *(name, problems, str(one["samples"])),
                within(one["accuracy"], one["low"], one["high"]),
                percent(one["solved"] / one["problems"]),
                tokens_of(one),
                *(percent(one["truncated"]), percent(unscored)),
            ]
        )
    if len(rows) > 1:
        rows.append(["mean", "", "", percent(figures["mean_accuracy"]), "", "", "", ""])
    title = "Accuracy in % over k responses a problem, with 95 % intervals"
    return Table(title, head, rows)


def _curves(found: Mapping[str, Any]) -> Table:
    curves = {name: one["pass_at_k"] for name, one in found.items() if one.get("pass_at_k")}
    title = "pass@k in %: solved with k responses; all k up to 64 and intervals are in eval.json"
    return curve_table(title, "benchmark", curves)


def curve_table(title: str, head: str, curves: Mapping[str, Any]) -> Table:
    """pass@k of each curve at some k."""
    most = max((len(curve["k"]) for curve in curves.values()), default=0)
    ks = [k for k in SHOWN_K if k <= most]
    rows = []
    for name, curve in curves.items():
        cells = [percent(value) for value in curve["mean"]]
        rows.append([name, *(cells[k - 1] if k <= len(cells) else "-" for k in ks)])
    return Table(title, [head, *(f"k={k}" for k in ks)], rows)


def _groups(title: str, words: str, groups: Mapping[str, Any]) -> Table:
    head = [words, "problems", "accuracy", "tokens", "cut off"]
    rows = [
        [
            *(name, str(one["problems"]), within(one["accuracy"], one["low"], one["high"])),
            tokens_of(one),
            percent(one["truncated"]),
        ]
        for name, one in groups.items()
    ]
    return Table(title, head, rows)


def _labels(found: Mapping[str, Any]) -> Table:
    head = ["benchmark", "labelled", "agreement", "right by label", "right here"]
    head += ["here only", "label only"]
    rows = [
        [
            *(name, str(labels["responses"]), percent(labels["agreement"])),
            *(str(labels["right_by_labels"]), str(labels["right_here"])),
            *(str(labels["right_here_only"]), str(labels["right_by_labels_only"])),
        ]
        for name, one in found.items()
        if (labels := one.get("labels"))
    ]
    return Table("Beside the verdicts that the responses came with", head, rows)
