"""Between verl's rows and the curriculum's: no model, no queue, no Ray."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np
import torch

from dare.curriculum import Conditioning, TrainBatch
from dare.data.row import text_of
from dare.errors import InvalidInput, require
from dare.integrations.loop import Asked
from dare.templates import DEFAULT, Message, load_template

ASKED, CLIP_LOW, CLIP_HIGH = "dare_asked", "dare_clip_low", "dare_clip_high"
"""Columns that the plug-in adds to verl's."""


class Told(NamedTuple):
    """What came of a batch, one entry a rollout: the arguments of `LoopCurriculum.tell`."""

    ids: list[str]
    rewards: list[float]
    tokens: list[Any]
    conditioning: list[int]
    success: list[float | None] | None


def records(dataset: Any) -> Iterator[dict[str, Any]]:
    """verl's rows as the curriculum's: text of the prompt, its source, its answer or tests."""
    for place in range(len(dataset)):
        row = dataset[place]
        where, turns = f"data.train_files: row {place}", list(row["raw_prompt"])
        text = all(isinstance(turn["content"], str) for turn in turns)
        require(text, where, turns[0]["content"], "prompts are text only; drop the row")
        fix = "has an agent loop of its own; the curriculum's sets budgets and hints: drop it"
        require(not row.get("agent_name"), f"{where}: agent_name", row.get("agent_name"), fix)
        truth = (row.get("reward_model") or {}).get("ground_truth")
        record = {"prompt": text_of(turns), "source": row.get("data_source")}
        yield {**record, "tests" if _is_tests(truth) else "answer": truth}


def columns(asked: Sequence[Asked], messages: Sequence[Sequence[Message]], tests: Any) -> Any:
    """What verl's batch of prompts has beside the data set's columns; `tests`: who has some.

    A `uid` begins with the curriculum's id; verl splits its keys at `_`.
    """
    plans = [
        {
            "max_tokens": one.max_tokens,
            "plain": one.rollouts - one.helped,
            "help": int(one.help),
            "helped": helped_messages(turns, one, tested) if one.helped else None,
        }
        for one, turns, tested in zip(asked, messages, tests, strict=True)
    ]
    return {
        "uid": _objects([f"{one.id}-{uuid4().hex}" for one in asked]),
        "__rollout_n__": _objects([one.rollouts for one in asked]),
        "agent_name": _objects(["dare_agent"] * len(asked)),
        ASKED: _objects(plans),
    }


def helped_messages(turns: Iterable[Mapping[str, str]], one: Asked, tested: bool) -> list[Message]:
    """The conversation that the helped rollouts of a prompt are shown."""
    template = load_template(DEFAULT)
    if tested:  # a program: no box is asked for
        template = replace(template, hint=load_template("code").hint)
    hinted = one.help == Conditioning.HINTED
    return template.messages(
        list(turns), think_longer=not hinted, fragments=one.hint if hinted else None
    )


def told(keys: Sequence[str], data: Any, success: str | None) -> Told:
    """From the queue's columns; a key is {uid}_{rollout of the prompt}_{output of the rollout}."""
    names = [key.rsplit("_", 2) for key in keys]
    help_R = []
    for key, (_, session, output), plan in zip(keys, names, list(data[ASKED]), strict=True):
        require(output == "0", "rollout", key, "has more than one output: use the agent loop given")
        plan = getattr(plan, "data", plan)
        helped = int(session) >= plan["plain"]
        help_R.append(plan["help"] if helped else int(Conditioning.PLAIN))
    rewards = [float(row.sum()) for row in data["rm_scores"].unbind()]
    right = None
    if success is not None:
        right = [_success(extra, success) for extra in list(data["extra_fields"])]
    else:
        outside = next((reward for reward in rewards if not 0 <= reward <= 1), None)
        fix = "must be in [0, 1], or trainer.v1.dare.success names what tells right from wrong"
        require(outside is None, "reward", outside, fix)
    tokens = [row.numpy() for row in data["responses"].unbind()]
    return Told([uid.split("-")[0] for uid, _, _ in names], rewards, tokens, help_R, right)


def trained(
    batch: TrainBatch, places: Sequence[int], masks: Sequence[torch.Tensor], mode: str
) -> dict[str, torch.Tensor]:
    """Advantage of every token that counts, and each row's clips; rows not in `places` are padding.

    verl's mean counts rows, or tokens; times the curriculum's weight and the number of rows it is
    one over groups, whatever their sizes and however mini-batches cut them. verl divides by
    padding too where it counts rows (`seq-mean-...`), and not where it counts tokens.
    """
    counted = len(masks) if mode.startswith("seq-mean") else len(places)
    advantage = np.zeros(len(masks), np.float32)
    low, high = np.full((2, len(masks)), 0.2, np.float32)  # of padding, which has no token
    advantage[places] = batch.advantage_R * batch.weight_R * counted
    low[places], high[places] = batch.clip_low_R, batch.clip_high_R
    tokens = [mask * float(a) for mask, a in zip(masks, advantage, strict=True)]
    advantages = torch.nested.as_nested_tensor(tokens, layout=torch.jagged)
    return {
        "advantages": advantages,
        "returns": advantages,
        CLIP_LOW: torch.from_numpy(low)[:, None],
        CLIP_HIGH: torch.from_numpy(high)[:, None],
    }


def _success(extra: Any, name: str) -> float | None:
    known = getattr(extra, "data", extra).get("reward_extra_info") or {}
    if name not in known:
        fix = f"is not in the reward's extra information; it has {', '.join(known) or 'nothing'}"
        raise InvalidInput("trainer.v1.dare.success", name, fix)
    return None if known[name] is None else float(known[name])


def _is_tests(truth: Any) -> bool:
    """Whether a ground truth is no answer but tests: a mapping, or one as JSON."""
    if isinstance(truth, str) and truth.lstrip().startswith("{"):
        try:
            truth = json.loads(truth)
        except ValueError:
            return False
    return isinstance(truth, Mapping)


def _objects(values: Sequence[Any]) -> Any:
    found = np.empty(len(values), object)
    found[:] = values
    return found
