"""RolloutBuffer against a naive list of dicts."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds import batch, examples, frozen, same

from dare import InvalidInput, RolloutBatch
from dare.curriculum import RolloutBuffer

ADD = st.lists(
    st.tuples(
        st.integers(0, 4),  # prompt
        st.integers(0, 5),  # length
        st.sampled_from([None, 0.0, 1.0, 1.0]),
        st.sampled_from([0, 0, 1, 2]),
    ),
    max_size=10,
)


class Naive:
    """The same contract, as plainly as it can be written."""

    def __init__(self, per_prompt: int, groups: int) -> None:
        self.per_prompt, self.groups = per_prompt, groups
        self.held: list[dict[str, Any]] = []
        self.next_uid = self.next_group = self.next_token = 0

    def add(self, rollouts: list[tuple[int, int, float | None, int]], step: int) -> RolloutBatch:
        columns: dict[str, list[Any]] = {n: [] for n in ("p", "t", "l", "r", "c")}
        new = []
        for prompt, length, reward, conditioning in rollouts:
            tokens = list(range(self.next_token, self.next_token + length))
            self.next_token += length
            logprobs = [-0.25 - token / 64 for token in tokens]
            values = (prompt, tokens, logprobs, reward, conditioning)
            for name, value in zip("ptlrc", values, strict=True):
                columns[name].append(value)
            if reward is None:
                continue
            new.append(
                {
                    "uid": self.next_uid,
                    "prompt": prompt,
                    "step": step,
                    "reward": reward,
                    "conditioning": conditioning,
                    "tokens": tokens,
                    "logprobs": logprobs,
                    "behaviour": sum(logprobs),
                    "current": sum(logprobs),
                    "scored_step": step,
                }
            )
            self.next_uid += 1
        # Groups of one step are equally old; the order among them is that of the prompts.
        for prompt in sorted({rollout["prompt"] for rollout in new}):
            group = [rollout for rollout in new if rollout["prompt"] == prompt]
            for rollout in group:
                rollout.update(group=self.next_group, group_size=len(group))
            self.next_group += 1
        self.held += new
        # Plain and helped rollouts have K places each.
        for kind in {(rollout["prompt"], rollout["conditioning"] == 0) for rollout in new}:
            mine = [r for r in self.held if (r["prompt"], r["conditioning"] == 0) == kind]
            for rollout in mine[: max(0, len(mine) - self.per_prompt)]:
                self.held.remove(rollout)
        while len({rollout["group"] for rollout in self.held}) > self.groups:
            oldest = min(rollout["group"] for rollout in self.held)
            self.held = [rollout for rollout in self.held if rollout["group"] != oldest]
        return RolloutBatch.from_lists(
            columns["p"], columns["t"], columns["l"], columns["r"], conditioning=columns["c"]
        )

    def rescore(self, uids: list[int], totals: list[float], step: int) -> None:
        for uid, total in zip(uids, totals, strict=True):
            for rollout in self.held:
                if rollout["uid"] == uid:
                    rollout.update(current=total, scored_step=step)

    def replayable(self) -> list[int]:
        found = []
        for group in sorted({rollout["group"] for rollout in self.held}):
            members = [rollout for rollout in self.held if rollout["group"] == group]
            whole = len(members) == members[0]["group_size"] >= 2
            if whole and len({rollout["reward"] for rollout in members}) > 1:
                found.append(group)
        return found


def agree(buffer: RolloutBuffer, naive: Naive) -> None:
    held = naive.held
    assert len(buffer) == len(held)
    for name in ("uid", "prompt", "group", "group_size", "step", "reward", "scored_step"):
        assert buffer[name].tolist() == [rollout[name] for rollout in held], name
    ratio = [rollout["current"] - rollout["behaviour"] for rollout in held]
    np.testing.assert_allclose(buffer.log_ratio, ratio, atol=1e-9)
    assert buffer.plain.tolist() == [rollout["conditioning"] == 0 for rollout in held]
    assert buffer.replayable().tolist() == naive.replayable()
    whole = buffer.batch(np.arange(len(held)))
    for i, rollout in enumerate(held):
        part = slice(whole.offsets[i], whole.offsets[i + 1])
        assert whole.tokens[part].tolist() == rollout["tokens"]
        assert whole.logprobs[part].tolist() == rollout["logprobs"]
        assert whole.total_logprob_R[i] == pytest.approx(rollout["behaviour"])
        assert whole.conditioning_R[i] == rollout["conditioning"]


@given(st.integers(2, 5), st.integers(1, 6), st.lists(ADD, max_size=8), st.randoms())
@examples(150)
def test_it_is_the_naive_first_in_first_out(
    per_prompt: int, groups: int, adds: list[list[Any]], random: Any
) -> None:
    buffer, naive = RolloutBuffer(per_prompt, groups), Naive(per_prompt, groups)
    for step, rollouts in enumerate(adds):
        before = {rollout["uid"] for rollout in naive.held}
        arrived = range(naive.next_uid, naive.next_uid + sum(r[2] is not None for r in rollouts))
        gone = buffer.add(naive.add(rollouts, step), step)
        left = (before | set(arrived)) - {rollout["uid"] for rollout in naive.held}
        assert gone["uid"].tolist() == sorted(left)
        agree(buffer, naive)
        uids = random.sample(range(naive.next_uid), min(3, naive.next_uid))
        totals = [float(-uid) for uid in uids]
        buffer.rescore(uids, totals, step)
        naive.rescore(uids, totals, step)
        agree(buffer, naive)
        if random.random() < 0.3:
            buffer = reloaded(buffer)
    agree(buffer, naive)
    if len(buffer):
        index = [random.randrange(len(buffer)) for _ in range(4)]
        part = buffer.batch(index)
        expected = [token for i in index for token in naive.held[i]["tokens"]]
        assert part.tokens.tolist() == expected
        wanted = random.sample(naive.replayable(), len(naive.replayable()))
        members = [i for g in wanted for i, r in enumerate(naive.held) if r["group"] == g]
        assert buffer.members(wanted).tolist() == members
    everything = range(naive.next_uid)
    place = {rollout["uid"]: i for i, rollout in enumerate(naive.held)}
    assert buffer.position(everything).tolist() == [place.get(uid, -1) for uid in everything]


def reloaded(buffer: RolloutBuffer) -> RolloutBuffer:
    """Through JSON and plain arrays into a new buffer."""
    state = buffer.state_dict()
    arrays = {name: array.copy() for name, array in state["arrays"].items()}
    other = RolloutBuffer(buffer.rollouts_per_prompt, buffer.groups)
    other.load_state_dict({"arrays": arrays, "next": json.loads(json.dumps(state["next"]))})
    assert same(other.state_dict()["arrays"], state["arrays"])
    for name in ("uid", "group"):
        assert other.state_dict()["next"][name] == state["next"][name]
    return other


def test_many_evictions_and_rewrites_lose_no_token() -> None:
    rng = np.random.default_rng(3)
    buffer, naive = RolloutBuffer(6, 40), Naive(6, 40)
    for step in range(60):
        size = int(rng.integers(1, 50))
        prompts = rng.integers(0, 25, size).tolist()
        lengths = rng.integers(1, 60, size).tolist()
        rewards = rng.integers(0, 2, size).astype(float).tolist()
        rollouts = list(zip(prompts, lengths, rewards, [0] * size, strict=True))
        buffer.add(naive.add(rollouts, step), step)
        if step % 20 == 13:
            buffer = reloaded(buffer)
        if step % 6 == 5:
            agree(buffer, naive)


def big(rng: np.random.Generator, prompts: Any, mean_length: int) -> RolloutBatch:
    """Eight rollouts of each prompt, packed without a Python list of tokens."""
    row = np.repeat(np.asarray(prompts), 8)
    length = rng.integers(mean_length // 2, mean_length * 3 // 2, len(row))
    total = int(length.sum())
    return RolloutBatch(
        prompt_R=row,
        tokens=rng.integers(0, 150_000, total).astype(np.int32),
        logprobs=-rng.random(total, dtype=np.float32),
        offsets=np.concatenate([[0], np.cumsum(length)]),
        total_logprob_R=-rng.random(len(row)),
        reward_R=rng.integers(0, 2, len(row)).astype(np.float32),
        conditioning_R=np.zeros(len(row), np.uint8),
        finish_R=np.zeros(len(row), np.uint8),
    )


def test_memory_stays_near_the_live_tokens() -> None:
    rng = np.random.default_rng(0)
    buffer = RolloutBuffer(16, 300)
    worst = 0.0
    for step in range(30):
        buffer.add(big(rng, rng.choice(200, 40, replace=False), 600), step)
        live = 8 * int(buffer["length"].sum())  # int32 token, float32 log-prob
        worst = max(worst, buffer.nbytes / live)
    assert len(np.unique(buffer["group"])) == 300
    assert worst <= 1.10


def test_a_full_buffer_of_the_paper_fits_into_about_300_megabytes() -> None:
    rng = np.random.default_rng(1)
    buffer = RolloutBuffer(8, 4096)
    for step in range(4):
        buffer.add(big(rng, np.arange(64) + 64 * step, 1000), step)
    assert buffer.nbytes * (4096 / 256) < 300e6


def test_log_probs_may_be_minus_infinity_now_but_not_more() -> None:
    buffer = RolloutBuffer(4, 4)
    buffer.add(batch([0, 0], [1, 0], total=[-2.0, -3.0]), 0)
    buffer.rescore([0, 1], [-np.inf, -3.5], 2)
    assert buffer.log_ratio.tolist() == [-np.inf, -0.5]
    assert buffer["scored_step"].tolist() == [2, 2]
    before = frozen(buffer.state_dict())
    for wrong in ([np.nan, 0.0], [np.inf, 0.0], [0.0]):
        with pytest.raises(InvalidInput, match="scores"):
            buffer.rescore([0, 1], wrong, 3)
    assert same(buffer.state_dict(), before)


def test_scores_of_rollouts_that_left_are_ignored_even_by_an_empty_buffer() -> None:
    buffer = RolloutBuffer(2, 1)
    buffer.rescore([0, 7], [-1.0, -1.0], 1)
    buffer.add(batch([0, 0], [1, 0]), 0)
    buffer.add(batch([1, 1], [1, 0]), 1)
    kept = frozen(buffer.state_dict())
    buffer.rescore([0, 1, 99], [-1.0, -1.0, -1.0], 5)
    assert same(buffer.state_dict(), kept)


def test_responses_without_tokens_are_held_like_any_other() -> None:
    buffer = RolloutBuffer(2, 10)
    buffer.add(batch([0, 0], [1, 0], length=0), 0)
    for step in range(1, 4):
        buffer.add(batch([1, 1], [1, 0]), step)
    assert buffer.batch(np.arange(4)).length_R.tolist() == [0, 0, 3, 3]
    assert len(reloaded(buffer)) == 4


def test_a_saved_state_does_not_change_with_the_buffer() -> None:
    buffer = RolloutBuffer(4, 10)
    buffer.add(batch([0, 0], [1, 0]), 0)
    state = buffer.state_dict()
    before = frozen(state)
    buffer.rescore([0, 1], [-9.0, -9.0], 1)
    buffer.add(batch([1, 1], [1, 0]), 1)
    assert same(state, before)


def test_the_batch_it_was_given_stays_the_callers() -> None:
    buffer = RolloutBuffer(4, 10)
    given_ = batch([0, 0], [1, 0])
    tokens = given_.tokens.copy()
    buffer.add(given_, 0)
    given_.tokens[:] = 0
    assert buffer.batch([0, 1]).tokens.tolist() == tokens.tolist()
    with pytest.raises(ValueError, match="read-only"):
        buffer["reward"][0] = 1


def test_states_that_do_not_hang_together_are_refused_whole() -> None:
    buffer = RolloutBuffer(4, 10)
    buffer.add(batch([0, 0, 1], [1, 0, 1]), 0)
    before = frozen(buffer.state_dict())
    for name in ("reward", "tokens", "logprobs", "uid"):
        broken = frozen(before)
        broken["arrays"][name] = broken["arrays"][name][:-1]
        with pytest.raises(InvalidInput, match="buffer"):
            buffer.load_state_dict(broken)
        assert same(buffer.state_dict(), before)


@pytest.mark.parametrize(("k", "c", "field"), [(1, 5, "rollouts_per_prompt"), (2, 0, "groups")])
def test_sizes_that_cannot_work_are_refused(k: int, c: int, field: str) -> None:
    with pytest.raises(InvalidInput, match="at least") as error:
        RolloutBuffer(k, c)
    assert error.value.field == f"buffer.{field}"
