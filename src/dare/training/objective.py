"""The loss of a step's micro-batches, and what is told of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dare.curriculum.arrays import Array
from dare.policy.correction import Gap, corrected
from dare.policy.loss import LossInputs, clipped_loss
from dare.policy.score import batch_logprobs
from dare.training.config import DareConfig
from dare.training.update import Prepared

_GIVEN = [field.name for field in fields(LossInputs)]
_TOTALS = ("clipped", "clipped_high", "kl", "weight", "ratio", "entropy")


class Objective:
    """The clipped objective over the updates of one step; `scores` where the curriculum is told
    what their passes say of the rollouts."""

    def __init__(self, args: DareConfig, prepared: Prepared, *, scores: bool) -> None:
        self._args, self._mass, self._scores = args, prepared.mass, scores
        self.own_pass = prepared.own_pass
        self.known: dict[str, Any] = {}
        """What the last pass found out of its micro-batch, for where it is read again."""
        self.gap = Gap()
        self.loss, self._totals = 0.0, dict.fromkeys(_TOTALS, 0.0)

    def __call__(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        """The loss of one micro-batch: its share of the mean over the whole update."""
        args, own_pass = self._args, self.own_pass
        tokens = inputs["batch"].to(args.device)
        read = self._scores and (own_pass is None or own_pass.asks(inputs["rows"]))
        unknown = "drawn" in inputs and bool(inputs["sampled"].isnan().any())
        wanted = args.sampling if read or unknown else None
        logprob, kept = batch_logprobs(model, tokens, args.temperature, wanted)
        given = {name: inputs[name].to(logprob.device) for name in _GIVEN if name in inputs}
        # Sampled by the very policy that is updated: its log-probs of now are the behaviour's.
        late = given["behaviour"].isnan()
        given["behaviour"] = torch.where(late, logprob.detach(), given["behaviour"])
        self.known = {"behaviour": given["behaviour"]}
        if "drawn" in inputs:
            given["correction"] = self._correction(inputs, logprob.detach(), kept)
        if wanted is not None and own_pass is not None:
            own_pass.note(inputs["rows"], logprob, kept)
        output = clipped_loss(
            logprob,
            LossInputs(**given),
            args.beta,
            loss_type=args.loss_type,
            level=args.importance_sampling_level,
        )
        for name in _TOTALS:
            self._totals[name] += float(getattr(output, name))
        return output.loss

    def _correction(self, inputs: dict[str, Any], logprob: Tensor, kept: Tensor | None) -> Tensor:
        """Weights for what an engine drew in the policy's place. As of the behaviour, the policy's
        log-probs are those of its first pass, here of the distribution drawn from."""
        drawn, sampled, length = (
            inputs[name].to(logprob.device) for name in ("drawn", "sampled", "length")
        )
        late = sampled.isnan()
        if kept is not None:
            sampled = torch.where(late, logprob - kept[0], sampled)
        gap = self.gap if len(inputs["rows"]) and "measured" not in inputs else None
        self.known |= {"sampled": sampled, "measured": True}
        return corrected(sampled, drawn, length, self._args.correction, gap)

    @property
    def row(self) -> Array:
        """What this process has added up, to gather."""
        return np.array([self.loss, *self._totals.values()])

    def figures(self, rows: Sequence[Array], gaps: Sequence[Array]) -> dict[str, float]:
        """The step's figures, from the rows of all processes."""
        loss, *sums = np.sum(rows, axis=0).tolist()
        totals, updates = dict(zip(_TOTALS, sums, strict=True)), self._args.updates_per_generation
        found = {"loss": loss / len(rows) / updates}
        for name in ("clipped", "clipped_high", "kl"):  # of all rollouts, read or not
            found[f"objective_{name}"] = totals[name] / updates / self._mass
        if totals["weight"] > 0:  # of those that were read
            for name in ("ratio", "entropy"):
                found[f"objective_{name}"] = totals[name] / totals["weight"]
        return found | Gap.figures(list(gaps))
