"""What a name like `module:Class` in the settings stands for."""

from __future__ import annotations

import re
import traceback
from importlib import import_module
from typing import Any

from dare.errors import InvalidInput, first_line, require

NAMED = re.compile(r"[^\W\d][\w.]*:[^\W\d]\w*")
"""Code by its name. Nothing else is imported: by it `own_code` finds what a user is asked about."""


def imported(field: str, name: str, form: str = "module:Class", shipped: str = "") -> Any:
    """The object behind the name, or an error that names the field and why it is not there."""
    fix = f"{shipped}write it as {form}, the module beside the recipe"
    require(NAMED.fullmatch(name), field, name, fix)
    module, _, attribute = name.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # of a module that is run: what it likes, sys.exit() too
        why = first_line(error)
        if not isinstance(error, (ImportError, AttributeError, SyntaxError)):
            place = traceback.extract_tb(error.__traceback__)[-1]
            why = f"{type(error).__name__}: {why}, in {place.filename}, line {place.lineno}"
        raise InvalidInput(field, name, f"cannot be imported ({why}); {fix}") from None


def raised_by(kind: type, error: BaseException) -> str | None:
    """Where the code of an own class has raised the error; None where it was not there."""
    if kind.__module__.partition(".")[0] in ("dare", "dare_decoder"):
        return None
    codes = [getattr(one, "__code__", None) for one in vars(kind).values()]
    files = {code.co_filename for code in codes if code is not None}
    own = [one for one in traceback.extract_tb(error.__traceback__) if one.filename in files]
    return f"was raised in {own[-1].filename}, line {own[-1].lineno}" if own else None
