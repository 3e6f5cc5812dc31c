"""How small a difference between two methods can so many seeds and problems show?

    python benchmarks/methods_gpu_power.py [--out docs/results/methods_gpu_power.json]

Simulated ends of two arms, paired by seed and problem, with the interval of `methods_gpu_table.py`.
Two arms answer a share `DISCORDANT` of the problems otherwise, as two runs of one arm do in
docs/results/methods_gpu. A problem leans to one arm by `LEAN` in all seeds, and a run is better or
worse than its arm by `RUN`: both are assumptions, and the half-widths with two or three seeds hang
on the second. For each size: the median half-width where the arms are equal, and how often the
interval lies above 0 where one is so much ahead. Ends with one JSON line.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from dare.curriculum.arrays import Array
from dare.evaluation.intervals import two_way

DISCORDANT, LEAN, RUN = 0.20, 0.07, 0.005
SIZES = ((3, 500), (3, 2000), (3, 4170), (4, 4170))
AHEAD = (0.015, 0.025, 0.035)
TRIALS = 2000


def differences(seeds: int, problems: int, ahead: float, rng: np.random.Generator) -> Array:
    """1, 0 or -1 of each seed and problem: the one arm alone is right, both alike, the other."""
    lean_P = rng.normal(0.0, LEAN, problems)
    of_run_S = rng.normal(0.0, RUN * np.sqrt(2.0), seeds)
    gap_SxP = ahead + lean_P[None, :] + of_run_S[:, None]
    better = np.clip((DISCORDANT + gap_SxP) / 2.0, 0.0, 1.0)
    worse = np.clip((DISCORDANT - gap_SxP) / 2.0, 0.0, 1.0)
    draw = rng.random((seeds, problems))
    return np.where(draw < better, 1.0, np.where(draw < better + worse, -1.0, 0.0))


def main() -> None:
    """Simulate every size, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rng, sizes = np.random.default_rng(0), []
    for seeds, problems in SIZES:
        found = {
            ahead: [two_way(differences(seeds, problems, ahead, rng)) for _ in range(TRIALS)]
            for ahead in (0.0, *AHEAD)
        }
        bounds = {
            ahead: np.array([one[1:] for one in all_], float) for ahead, all_ in found.items()
        }
        figures: dict[str, Any] = {
            "seeds": seeds,
            "problems": problems,
            "half_width": round(float(np.median(np.ptp(bounds[0.0], axis=1))) / 2.0, 4),
            "seen": {
                str(ahead): round(float(np.mean(bounds[ahead][:, 0] > 0)), 3) for ahead in AHEAD
            },
        }
        sizes.append(figures)
        print(figures, flush=True)
    settings = {"discordant": DISCORDANT, "lean": LEAN, "run": RUN, "trials": TRIALS}
    made = {**settings, "sizes": sizes}
    if options.out:
        options.out.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(made))


if __name__ == "__main__":
    main()
