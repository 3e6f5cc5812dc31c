"""Rows as the trainer takes them: the fields of the schema beside the data set's own columns."""

from __future__ import annotations

from typing import Any

from dare.data.code_prompts import with_call
from dare.data.load import Source, read_rows
from dare.data.schema import FIELDS, check_columns, to_row
from dare.errors import InvalidInput

_TRAINED = tuple(name for name in FIELDS if name not in ("id", "extra"))
# What reward functions are given beside the columns: a column of such a name would hide it.
_GIVEN = ("prompts", "completions", "completion_ids")


def training_rows(source: Source, *, name: str = "data") -> list[dict[str, Any]]:
    """Rows with `prompt`, `source` and, where there are any, answer, tests, level and solution.

    Every other column, and what a preparation put into `extra`, is there under its own name for
    reward functions, unless the rollouts have that name there (`completions`). `name` is the
    source of rows that name none. Whether an answer is needed is for the reward to say.
    """
    columns = None
    if isinstance(source, dict) and source.get("columns"):
        columns = source["columns"]
        check_columns(columns)
        source = {key: value for key, value in source.items() if key != "columns"}
    rows: list[dict[str, Any]] = []
    present: dict[str, None] = {}
    level_named = bool(columns and "level" in columns)
    for raw in read_rows(source):
        row = with_call(to_row(raw, name, columns, need_answer=False), raw)
        own = {key: value for key, value in raw.items() if key not in ("extra", *_TRAINED)}
        fields = {key: row[key] for key in _TRAINED if row[key] is not None}
        made = {**own, **row["extra"], **fields}
        for given in _GIVEN:
            made.pop(given, None)
        rows.append(made)
        present.update(dict.fromkeys(made))
    if level_named and "level" not in present:
        raise InvalidInput("columns.level", (columns or {})["level"], "no row has this column")
    # Rewards are called with whole columns, so every row has every one of them.
    return [{key: row.get(key) for key in present} for row in rows]
