"""Files: written whole or not at all, and those of strangers read with care."""

from __future__ import annotations

import errno
import json
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from dare.errors import InvalidInput, first_line, require

# libyaml's are ten times faster; PyYAML can be built without.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
_DEPTH = 100


def check_out(path: Path, *endings: str, folder: bool = False, field: str = "--out") -> None:
    """Refuse an --out that could not be written, before any work: a file of one of the endings, or
    a folder."""
    ends = not endings or str(path).endswith(endings)
    require(ends, field, str(path), f"must end in {' or '.join(endings)}")
    whole = path.absolute()
    fix = "is no name that a file can have: it is too long, or has signs that none can have"
    require(nameable(whole), field, str(path), fix)
    if folder:
        there = os.path.isdir(path) or not os.path.exists(path)
        require(there, field, str(path), "is a file; name a folder")
    else:
        require(not os.path.isdir(path), field, str(path), "is a folder; name a file in it")
    places = [whole, *whole.parents] if folder else [*whole.parents]
    above = next(place for place in places if os.path.exists(place))
    fits = os.path.isdir(above) and os.access(above, os.W_OK | os.X_OK)
    require(fits, field, str(path), f"{above} cannot be written to")


def nameable(path: Path) -> bool:
    """Whether the system can have a file of this name at all."""
    try:
        parts = [os.fsencode(part) for part in path.parts]
    except UnicodeEncodeError:  # half of a character
        return False
    short = len(os.fsencode(path)) < 4096 and all(len(part) < 256 for part in parts)
    return short and not any(b"\0" in part for part in parts)


def write_whole(path: Path, content: str | bytes) -> None:
    """A file that is complete or as it was before; its folder is made."""
    # Before anything is opened; half of a character becomes its code.
    data = content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    # Cut, since the name itself may be as long as a name can be.
    temporary = path.with_name(f"{path.name[:50]}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(data)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def write_json(path: Path, value: Any, *, allow_nan: bool = True) -> None:
    """A value as JSON, whole or not at all."""
    write_whole(path, json.dumps(value, allow_nan=allow_nan, indent=1) + "\n")


def read_whole(path: Path) -> bytes:
    """All of a file. A pipe would be waited for and a device may never end: those are an
    OSError, as what cannot be read is."""
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise OSError(errno.EINVAL, "it is a pipe or a device", str(path))
    return path.read_bytes()


def read_json(path: Path) -> Any:
    """What a JSON file of a run holds; None where there is no file."""
    return _read(path, "JSON", json.loads)


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping that a YAML file of a run holds; empty where there is no file, or none in it."""
    held = _read(path, "YAML", load_yaml)
    return held if isinstance(held, dict) else {}


def _read(path: Path, kind: str, parse: Any) -> Any:
    try:
        return parse(read_whole(path).decode())
    except FileNotFoundError:
        return None
    # ValueError: what is no text, or in YAML a date that is none
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        mark = getattr(error, "problem_mark", None)
        line = getattr(error, "lineno", None) if mark is None else mark.line + 1
        place = "" if line is None else f" at line {line}"
        fix = f"cannot be read as {kind}{place} ({type(error).__name__})"
        raise InvalidInput("run", str(path), fix) from None


def user_yaml(path: Path, field: str) -> Any:
    """What a YAML file holds that the user named in `field`."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InvalidInput(field, str(path), "there is no such file") from None
    except OSError as error:
        raise InvalidInput(field, str(path), f"cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        fix = f"is not YAML: byte {error.start} is not UTF-8; save it as UTF-8 text"
        raise InvalidInput(field, str(path), fix) from None
    return typed_yaml(text, field, str(path))


def typed_yaml(text: str, field: str, shown: str) -> Any:
    """What a text that the user wrote says; `shown` stands for it in the line of an error."""
    try:
        return load_yaml(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a date that is none
        mark = getattr(error, "problem_mark", None)
        place = "" if mark is None or "\n" not in text.strip() else f" at line {mark.line + 1}"
        why = getattr(error, "problem", None) or first_line(error)
        raise InvalidInput(field, shown, f"is not YAML{place}: {why}") from None


def load_yaml(text: str) -> Any:
    """YAML as plain values. Lists in lists in lists, aliases that stand for far more than is
    written, a key that is given twice, and a tag that its value does not fit, are a YAMLError."""
    depth = 0
    for event in yaml.parse(text, _LOADER):  # the fast loader would end the process instead
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEPTH:
            raise yaml.MarkedYAMLError(problem="is nested too deep", problem_mark=event.start_mark)
    loader = _LOADER(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        try:
            size = _size(node, {})
        except RecursionError:
            size = float("inf")
        if size > 10 * max(len(text), 100):
            raise yaml.YAMLError("its aliases stand for far more than is written")
        _check_once(node, set())
        return _constructed(loader, node)
    finally:
        loader.dispose()


def _constructed(loader: Any, node: yaml.Node) -> Any:
    """Of `!!bool x`, `!!int _` and `!!timestamp x` PyYAML takes for granted that the tag is right,
    and fails on them in ways of its own."""
    try:
        value = loader.construct_document(node)
        str(value)  # 0x with thousands of digits is a number that no line could show
    except ValueError as error:  # which says what is wrong, as of a date that is none
        raise yaml.YAMLError(first_line(error)) from error
    except (ArithmeticError, AttributeError, LookupError, TypeError) as error:
        raise yaml.YAMLError("a tag, as !!int, does not fit its value") from error
    return value


def dump_yaml(values: Any) -> str:
    """Plain values as YAML, in their order."""
    return yaml.dump(values, Dumper=_DUMPER, sort_keys=False, allow_unicode=True)


def _size(node: yaml.Node, known: dict[int, float]) -> float:
    """Values that a node stands for, written out; infinite for one that holds itself."""
    if id(node) not in known:
        known[id(node)] = float("inf")
        held = node.value if isinstance(node, yaml.CollectionNode) else []
        inside = [one for pair in held for one in (pair if isinstance(pair, tuple) else (pair,))]
        known[id(node)] = 1 + sum(_size(one, known) for one in inside)
    return known[id(node)]


def _check_once(node: yaml.Node, known: set[int]) -> None:
    """YAML takes the last of several values of a key, and says nothing."""
    if id(node) in known or not isinstance(node, yaml.CollectionNode):
        return
    known.add(id(node))
    seen = set[tuple[str, str]]()
    for one in node.value:
        key, value = one if isinstance(one, tuple) else (None, one)
        if isinstance(key, yaml.ScalarNode):
            if (key.tag, key.value) in seen:
                problem = f"{key.value!r} is given twice; keep one"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            seen.add((key.tag, key.value))
        _check_once(value, known)
