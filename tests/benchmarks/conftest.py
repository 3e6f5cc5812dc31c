"""Scripts of benchmarks/ import each other by name, as they do when one of them is run."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
