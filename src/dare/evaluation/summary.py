"""The figures of one benchmark, from its records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dare.evaluation.figures import by_group, figures, pass_curve
from dare.evaluation.records import Record, columns_of

_RIGHT = 1.0 - 1e-9


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
        (record["id"], place, score >= _RIGHT, label)
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
