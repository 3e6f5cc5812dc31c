"""What a caller may hand to the judge, checked before anything runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dare.errors import InvalidInput, require, suggest

KINDS: dict[str, tuple[str, ...]] = {  # with the keys that each test must have
    "stdin": ("output",),
    "function": ("fn", "args", "output"),
    "assert": ("code",),
}
_OPTIONS = (
    *("program", "tests", "kind", "time_limit_s", "memory_mb", "sandbox"),
    *("stop_early", "total_limit_s"),
)


def check_tests(tests: Any, kind: Any, field: str = "tests") -> None:
    """Raise InvalidInput unless these are tests of that kind."""
    require(isinstance(kind, str) and kind in KINDS, "kind", kind, suggest(str(kind), KINDS))
    listed = isinstance(tests, Sequence) and not isinstance(tests, (str, bytes))
    require(listed and tests, field, tests, "must be a list of at least one dict")
    for place, test in enumerate(tests):
        here = f"{field}[{place}]"
        require(isinstance(test, Mapping), here, test, "must be a dict")
        missing = [name for name in KINDS[kind] if name not in test]
        words = f"a {kind} test needs {', '.join(KINDS[kind])}; {', '.join(missing)} is missing"
        require(not missing, here, test, words)


def as_items(items: Any, tests: Any, options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The calls of `judge` that a batch stands for; raises InvalidInput before any is made."""
    given = _rows(items, "items")
    if tests is not None:
        same = isinstance(tests, Sequence) and len(tests) > 0 and isinstance(tests[0], Mapping)
        each = [tests] * len(given) if same else _rows(tests, "tests")
        words = f"there are {len(given)} programs, and as many lists of tests are needed"
        require(len(each) == len(given), "tests", f"{len(each)} lists", words)
        given = [{"program": row, "tests": own} for row, own in zip(given, each, strict=True)]
    kind = options.get("kind", "stdin")
    kinds = [kind] * len(given) if isinstance(kind, str) else _rows(kind, "kind")
    words = f"one kind, or one for each of the {len(given)} programs"
    require(len(kinds) == len(given), "kind", kind, words)
    return [
        _checked({**options, "kind": own, **_dict(row, place)}, place)
        for place, (row, own) in enumerate(zip(given, kinds, strict=True))
    ]


def _rows(value: Any, field: str) -> list[Any]:
    listed = isinstance(value, Sequence) and not isinstance(value, (str, bytes))
    require(listed, field, value, "must be a list")
    return list(value)


def _dict(row: Any, place: int) -> Mapping[str, Any]:
    if isinstance(row, Mapping) and {"program", "tests"} <= row.keys():
        return row
    fix = "each must be a dict with program and tests; or give judge_batch(programs, tests)"
    raise InvalidInput(f"items[{place}]", row, fix)


def _checked(call: dict[str, Any], place: int) -> dict[str, Any]:
    for name in call:
        require(name in _OPTIONS, f"items[{place}]", name, suggest(str(name), _OPTIONS))
    program = call["program"]
    where = f"items[{place}].program"
    require(program is None or isinstance(program, str), where, program, "must be a text")
    check_tests(call["tests"], call["kind"], f"items[{place}].tests")
    return call
