"""LiveCodeBench's columns: public tests as JSON, private ones packed as a pickled string."""

from __future__ import annotations

import base64
import binascii
import json
import pickletools
import zlib
from typing import Any

from dare.errors import InvalidInput

_MOST_BYTES = 1 << 30


def unpack(row: dict[str, Any], where: str) -> dict[str, Any]:
    """The row with all of its tests in the column `tests`; one that has it already stays as is."""
    if "public_test_cases" not in row:
        return row
    try:
        tests = json.loads(row["public_test_cases"])
        private = row.get("private_test_cases")
        if private:
            tests += json.loads(_text(private))
    except (ValueError, TypeError, zlib.error, binascii.Error) as error:
        fix = f"the tests cannot be unpacked: {error}"
        raise InvalidInput(where, row.get("id"), fix) from None
    return {**row, "tests": tests}


def _text(packed: str) -> str:
    """The one string in the pickle. Its parts are listed, not loaded: a pickle can run code."""
    if packed.lstrip()[:1] == "[":
        return packed
    engine = zlib.decompressobj()
    data = engine.decompress(base64.b64decode(packed), _MOST_BYTES)
    strings = [value for _, value, _ in pickletools.genops(data) if isinstance(value, str)]
    if len(strings) != 1:
        raise ValueError(f"{len(strings)} strings where one was expected")
    return strings[0]
