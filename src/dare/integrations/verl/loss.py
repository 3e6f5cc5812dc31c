"""verl's own loss with a clip range for each row.

`ppo_loss` reads the range from the actor's configuration and drops columns that it does not know.
Its bounds go into a clamp, which takes a column as well as a number: so the loss is verl's, KL and
entropy and means included, and only the configuration that it sees has the rows' bounds.
"""

from __future__ import annotations

from typing import Any

from verl.workers.utils.losses import ppo_loss

from dare.integrations.verl.rows import CLIP_HIGH, CLIP_LOW


class RowClips:
    """The actor's configuration, but for the bounds."""

    def __init__(self, config: Any, low: Any, high: Any) -> None:
        self._config, self.clip_ratio_low, self.clip_ratio_high = config, low, high

    def __getattr__(self, name: str) -> Any:
        return getattr(self._config, name)


def row_clipped_loss(model_output: Any, data: Any, dp_group: Any = None, *, config: Any) -> Any:
    """Loss and metrics of a micro-batch, as verl's engines want them."""
    # The queue hands columns of one entry a row back as ragged ones.
    clips = data.select(CLIP_LOW, CLIP_HIGH).to_padded_tensor()
    bounds = RowClips(config, clips[CLIP_LOW], clips[CLIP_HIGH])
    return ppo_loss(bounds, model_output, data, dp_group)
