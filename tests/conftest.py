"""Makes `tiny`, the small policy that the tests share, importable from every folder of tests."""

import gc
import os

# The matrices are tiny: more threads would only wait for each other, at twice the time.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_collection_finish() -> None:
    """What is imported by now stays; every run collects garbage, and need not look through it."""
    gc.collect()
    gc.freeze()
