"""Prepared rows on disk: Parquet or JSON lines, complete or not there at all."""

from __future__ import annotations

import glob
import gzip
import json
import math
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Self, cast

from dare.data.schema import FIELDS
from dare.errors import InvalidInput
from dare_verify.math.extract import gold_answer

ENDINGS = (".parquet", ".jsonl", ".jsonl.gz")
BESIDE = (".report.json", ".dropped.jsonl")


def beside(out: Path, ending: str) -> Path:
    """A file next to the output: data.parquet -> data.parquet.report.json."""
    return out.with_name(out.name + ending)


def to_json(value: Any) -> str:
    """JSON of a row or a part of one; what JSON cannot say becomes null or text."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, default=str)
    except ValueError:
        return json.dumps(_finite(value), ensure_ascii=False, default=str)


class RowWriter:
    """Writes rows to a hidden file that takes its name when `keep` is called."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.hidden = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        self.rows = 0
        self._parquet = path.suffix == ".parquet"
        self._file: IO[bytes] | None = None
        self._writer: Any = None
        self._kind: type | None = None

    def __enter__(self) -> Self:
        above = self.path.absolute().parents
        self._new_folders = [folder for folder in above if not folder.exists()]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._remove_orphans()
        if not self._parquet:
            raw = self.hidden.open("wb")
            # No name and no time inside, so that the same rows give the same bytes.
            packed = gzip.GzipFile("", "wb", 6, raw, mtime=0) if self.path.suffix == ".gz" else raw
            self._file, self._raw = cast(IO[bytes], packed), raw
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # what is thrown away need not be complete
            self.finish()
        self.hidden.unlink(missing_ok=True)
        for folder in self._new_folders:
            with suppress(OSError):  # it holds something
                folder.rmdir()

    def write(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append rows of the schema."""
        batch = list(rows)
        if not batch:
            return
        if self._parquet:
            self._write_parquet(batch)
        else:
            self.write_lines(map(_short, batch))
        self.rows += len(batch)

    def write_lines(self, values: Iterable[Mapping[str, Any]]) -> None:
        """Append objects of any form as JSON lines."""
        self.write_text("".join([f"{to_json(value)}\n" for value in values]))

    def write_text(self, text: str) -> None:
        """Append a text."""
        cast(IO[bytes], self._file).write(text.encode("utf-8", "backslashreplace"))

    def flush(self) -> None:
        """Make what was written readable under the hidden name."""
        cast(IO[bytes], self._file).flush()

    def keep(self) -> None:
        """Complete the file and give it its name."""
        self.finish()
        os.replace(self.hidden, self.path)

    def finish(self) -> None:
        """Complete the file under its hidden name."""
        writer, self._writer = self._writer, None
        file, self._file = self._file, None
        if writer is not None:
            writer.close()
        if file is not None:
            try:
                file.close()
            finally:
                self._raw.close()

    def _remove_orphans(self) -> None:
        """Remove hidden files of this name whose process was killed before it could."""
        for path in self.path.parent.glob(f".{glob.escape(self.path.name)}.*.tmp"):
            number = path.name.split(".")[-2]
            if number.isdecimal() and not _runs(int(number)):
                path.unlink(missing_ok=True)

    def _write_parquet(self, batch: list[Mapping[str, Any]]) -> None:
        import pyarrow as pa
        from pyarrow import parquet

        if self._kind is None:
            self._kind = type(batch[0]["prompt"])
        for row in batch:
            if type(row["prompt"]) is not self._kind:
                fix = "some prompts are strings, some are messages; only .jsonl takes both"
                raise InvalidInput(f"prompt of row {row['id']}", row["prompt"], fix)
        turns = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
        prompt = pa.string() if self._kind is str else turns
        schema = pa.schema([(name, prompt if name == "prompt" else pa.string()) for name in FIELDS])
        columns = {name: [_cell(name, row[name]) for row in batch] for name in FIELDS}
        if self._writer is None:
            self._writer = parquet.ParquetWriter(self.hidden, schema, compression="zstd")
        self._writer.write_table(pa.table(columns, schema=schema))


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True  # another user's
    return True


def _cell(name: str, value: Any) -> Any:
    """Columns have one type; tests and extra have many, so they are JSON."""
    if name in ("tests", "extra"):
        return to_json(value) if value else None
    return value


def _short(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in FIELDS if row[name] is not None and row[name] != {}}


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, int) and value.bit_length() > 10_000:
        return gold_answer(value)  # longer than `str` will write
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
