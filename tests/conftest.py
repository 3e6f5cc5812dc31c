"""Makes `tiny`, the small policy that the tests share, importable from every folder of tests."""

import os

# The matrices are tiny: more threads would only wait for each other, at twice the time.
os.environ.setdefault("OMP_NUM_THREADS", "1")
