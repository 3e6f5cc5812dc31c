"""How many rollouts each drawn prompt gets, under a budget that is used up exactly.

A group teaches when it has a right and a wrong rollout. The chance of that grows with the group, by
less with each rollout, so that giving every next rollout to the group whose chance grows most is
the best division of all.
"""

from __future__ import annotations

import numpy as np

from dare.curriculum.arrays import Array
from dare.errors import require


def allocate(chance_QN: Array, least: int, budget: int) -> Array:
    """Group sizes that sum to `budget` and have the greatest sum of chances.

    `chance_QN[q, j]` is the chance that a group of `least + j` rollouts of prompt q is mixed; each
    row grows by less and less. No group is larger than the table is wide.
    """
    count, width = chance_QN.shape
    fix = f"must be between {count * least} and {count * (least + width - 1)}"
    good = count * least <= budget <= count * (least + width - 1)
    require(good, "budget", budget, f"{fix} for {count} prompts")
    gain = np.diff(chance_QN, axis=1)
    # Of equal gains the one that makes the smaller group comes first, then the earlier prompt.
    prompt, place = np.divmod(np.arange(gain.size), max(gain.shape[1], 1))
    order = np.lexsort((prompt, place, -gain.ravel()))[: budget - count * least]
    return least + np.bincount(prompt[order], minlength=count)
