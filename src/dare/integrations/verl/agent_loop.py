"""A rollout of the curriculum's: its own token budget, and help for the last of a group.

A helped rollout is trained on the conversation that it was shown, so that the policy's log-probs
before the update are those of its behaviour and nothing has to be corrected for.
"""

from __future__ import annotations

from typing import Any

from verl.experimental.agent_loop.agent_loop import register
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop

from dare.integrations.verl.rows import ASKED


@register("dare_agent")
class DareAgentLoop(SingleTurnAgentLoop):
    """verl's single turn, as the plan has it."""

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> Any:
        """One rollout; `session_id` is its number in the group."""
        plan = kwargs[ASKED]
        if kwargs["session_id"] >= plan["plain"]:
            kwargs["raw_prompt"] = plan["helped"]
        limits = {**sampling_params, "max_tokens": min(plan["max_tokens"], self.response_length)}
        return await super().run(limits, **kwargs)
