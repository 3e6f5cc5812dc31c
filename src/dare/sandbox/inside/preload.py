"""Modules that programs often use, imported once in the process that every program is forked from.

`threading` and `random` are safe to carry across a fork; nothing here starts a thread. What brings
large libraries with it (`asyncio`, `hashlib`) would make every fork slower, for few programs.
"""

from __future__ import annotations

import gc
import importlib
import site
import sys

_MODULES = """
    abc array ast base64 bisect builtins calendar cmath codecs collections
    collections.abc contextlib copy ctypes dataclasses datetime decimal enum fractions functools
    heapq inspect io itertools json math numbers operator os pprint queue random re
    pickle select signal socket statistics string struct symtable sys tempfile textwrap threading
    time traceback types typing unicodedata
"""


def preload(sites: list[str]) -> None:
    """Import the common modules and let programs find the installed packages."""
    for name in _MODULES.split():
        importlib.import_module(name)
    sys.path += sites
    site.setquit()
    site.sethelper()
    sys.path_importer_cache.clear()
    gc.collect()
    gc.freeze()  # the collector of a forked program leaves these pages shared
