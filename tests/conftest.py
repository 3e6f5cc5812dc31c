"""Makes `tiny`, the small policy that the tests share, importable from every folder of tests."""

import gc
import os

from hypothesis import settings

# The matrices are tiny: more threads would only wait for each other, at twice the time.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A busy machine takes longer and must find the same.
settings.register_profile("any load", deadline=None)
settings.load_profile("any load")


def pytest_collection_finish() -> None:
    """What is imported by now stays; every run collects garbage, and need not look through it."""
    gc.collect()
    gc.freeze()
