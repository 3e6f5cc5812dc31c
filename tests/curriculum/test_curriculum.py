"""The curriculum as a whole: budgets, replay, help, estimates, refresh, bad input."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from worlds import (
    SOLUTION,
    batch,
    describe,
    frozen,
    records,
    roll,
    run,
    same,
    scorer,
    services,
    small,
    table,
    truth,
)

from dare import Curriculum, CurriculumConfig, InvalidInput, PromptTable, RolloutBatch
from dare.curriculum import Conditioning, RolloutBuffer, ScoreRequest, Services, Tier
from dare.curriculum.buffer import choose_stale
from dare.curriculum.estimators import Outcome
from dare.teacher.head import TeacherHead
from dare_hints import hint

PLAIN, THINK, HINT = Conditioning.PLAIN, Conditioning.THINK_LONGER, Conditioning.HINTED


def started(config: CurriculumConfig, count: int = 80, given: Services | None = None) -> Curriculum:
    """A curriculum past its cold start, which was probed: no step has been trained yet."""
    config = replace(config, cold_start=replace(config.cold_start, train=False))
    curriculum = Curriculum(table(count), config, given or services(count))
    plan = curriculum.plan()
    if not plan.train:
        curriculum.observe(roll(plan, curriculum.prompts, truth(curriculum.prompts)))
    return curriculum


def whole_and_varied(buffer: RolloutBuffer, group: int) -> bool:
    members = [i for i, g in enumerate(buffer["group"].tolist()) if g == group]
    rewards = {buffer["reward"][i] for i in members}
    return len(rewards) > 1 and len(members) == buffer["group_size"][members[0]]


# --- budget, replay, batch ------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [32, 61, 64])
@pytest.mark.parametrize(
    ("preset", "sigma"),
    [
        ("dare", 1.0),
        ("dare", 0.5),
        ("classic", 1.0),
        ("classic", 0.5),
        ("paper", 0.7),
        ("grpo", 0.5),
    ],
)
def test_fresh_and_replayed_rollouts_fill_the_budget_exactly(
    preset: str, sigma: float, budget: int
) -> None:
    config = small(preset, rollout_budget=budget, fresh_share=sigma)
    curriculum = Curriculum(table(60), config, services(60))
    prompts = curriculum.prompts
    replayed = 0
    for _ in range(9):
        plan = curriculum.plan()
        for group in plan.replay.tolist():
            assert whole_and_varied(curriculum.buffer, group)
        assert len(set(plan.replay.tolist())) == len(plan.replay)
        if plan.train:
            held = int(np.isin(curriculum.buffer["group"], plan.replay).sum())
            assert held == plan.replay_rollouts <= budget - round(sigma * budget)
            assert plan.fresh_rollouts + held == budget
            assert plan.group_size_P.min() >= 2
            assert len(plan.rows()["prompt"]) == plan.fresh_rollouts
            assert len(set(plan.ids)) == len(plan.ids)
            replayed += held
        observed = curriculum.observe(roll(plan, prompts, truth(prompts)))
        if observed is not None:
            assert len(observed.rollouts) == budget
    assert (replayed > 0) == (sigma < 1)


def test_torn_and_one_sided_groups_are_never_replayed() -> None:
    # K = 8 tears every hard group (16); a world of always right prompts has no varied group.
    config = small("paper", **{"fresh_share": 0.5, "selection.eta": 0.9})
    curriculum = started(config)
    run(curriculum, 6)
    torn = [
        group
        for group in set(curriculum.buffer["group"].tolist())
        if not whole_and_varied(curriculum.buffer, group)
    ]
    assert torn
    assert not set(torn) & set(curriculum.plan().replay.tolist())
    easy = Curriculum(table(80), config, services())
    assert all(described[-2] == 0 for described in run(easy, 5, np.zeros(80)))


@pytest.mark.parametrize("preset", ["dare", "classic"])
@pytest.mark.parametrize("sigma", [1.0, 0.5])
def test_the_batch_is_what_the_objective_needs(sigma: float, preset: str) -> None:
    every = {"advantage.std_floor": 1e-3, "advantage.thin_below": 0.0}
    curriculum = started(small(preset, fresh_share=sigma, **every))
    run(curriculum, 4)
    plan, buffer = curriculum.plan(), curriculum.buffer
    fail = truth(curriculum.prompts)

    def lost(row: dict[str, Any]) -> bool:
        return bool(row["prompt"] in plan.prompt_P[::2] and row["index"] < 2)

    fresh = roll(plan, curriculum.prompts, fail, unscored=lost)
    uids = [
        int(uid)
        for group in plan.replay.tolist()
        for uid, g in zip(buffer["uid"].tolist(), buffer["group"].tolist(), strict=True)
        if g == group
    ]
    now = curriculum.difficulty()
    old = buffer.batch(buffer.position(uids))
    result = curriculum.observe(fresh)
    assert result is not None
    count = len(fresh)
    # Fresh rollouts come first and untouched, then the replayed groups with their stored tokens.
    assert result.fresh_R.tolist() == [True] * count + [False] * len(uids)
    assert ((result.uid_R == -1) == np.isnan(result.rollouts.reward_R)).all()
    assert np.array_equal(
        buffer.batch(buffer.position(result.uid_R[result.uid_R >= 0])).prompt_R,
        result.rollouts.prompt_R[result.uid_R >= 0],
    )
    assert sorted(result.uid_R[count:].tolist()) == sorted(uids)
    assert result.rollouts.tokens.tolist() == [*fresh.tokens.tolist(), *old.tokens.tolist()]
    assert np.array_equal(result.rollouts.logprobs, np.append(fresh.logprobs, old.logprobs))
    # Weights: 1 / (prompts x scored rollouts of the group), nothing for the unscored.
    reward = result.rollouts.reward_R.astype(float)
    usable = {}
    for group in sorted(set(result.group_R.tolist())):
        members = np.flatnonzero(result.group_R == group)
        scored = members[~np.isnan(reward[members])]
        assert len(set(result.rollouts.prompt_R[members].tolist())) == 1
        if len(scored) >= 2:
            usable[group] = scored
    assert result.weight_R.sum() == pytest.approx(1)
    for group, scored in usable.items():
        assert result.weight_R[scored] == pytest.approx(1 / (len(usable) * len(scored)))
        prompt = int(result.rollouts.prompt_R[scored[0]])
        place = np.flatnonzero(plan.prompt_P == prompt)
        is_fresh = result.fresh_R[scored[0]]
        d = plan.difficulty_P[place[0]] if is_fresh else now[prompt]
        d = d if curriculum.config.tiers else 0.5  # without tiers all are medium
        tier = Tier.EASY if d < 0.3 else Tier.HARD if d > 0.8 else Tier.MEDIUM
        assert (result.tier_R[scored] == tier).all(), group
        assert result.clip_high_R[scored] == pytest.approx(0.6 if tier == Tier.EASY else 0.2)
        assert result.clip_low_R[scored] == pytest.approx(0.2)
        length = result.rollouts.length_R[scored]
        shaped = []
        for r, n in zip(reward[scored], length, strict=True):
            term = n / max(length)
            if d < 0.3 and r == 1:
                r -= 1e-4 * min(max((0.3 - d) / 0.3, 0), 1) * term
            if d > 0.8 and r == 0:
                r += 1e-4 * min(max((d - 0.8) / 0.2, 0), 1) * term
            shaped.append(r)
        mean = sum(shaped) / len(shaped)
        std = math.sqrt(sum((s - mean) ** 2 for s in shaped) / len(shaped))
        varied = len(set(reward[scored].tolist())) > 1  # length terms alone are no signal
        expected = [(s - mean) / (std + 1e-3) if varied else 0.0 for s in shaped]
        np.testing.assert_allclose(result.advantage_R[scored], expected, atol=1e-6)
    unscored = np.isnan(reward)
    assert unscored.any()
    assert (result.weight_R[unscored] == 0).all()
    assert (result.advantage_R[unscored] == 0).all()


def test_metrics_tell_what_tiers_and_help_do() -> None:
    curriculum = started(small("classic", fresh_share=0.5, **{"selection.eta": 0.9}))
    run(curriculum, 4)
    plan, prompts = curriculum.plan(), curriculum.prompts
    fresh = roll(plan, prompts, truth(prompts), unscored=lambda row: bool(row["index"] == 1))
    fresh = replace(fresh, finish_R=(np.arange(len(fresh)) % 3 == 0).astype(np.uint8))
    made = curriculum.observe(fresh)
    assert made is not None
    found = curriculum.metrics()
    tier_of = dict(zip(plan.prompt_P.tolist(), plan.tier_P.tolist(), strict=True))
    for tier in Tier:
        name = tier.name.lower()
        mine = [i for i, p in enumerate(fresh.prompt_R.tolist()) if tier_of[p] == tier]
        rewards = [float(r) for r in fresh.reward_R[mine] if not math.isnan(r)]
        assert found[f"reward_{name}"] == pytest.approx(sum(rewards) / len(rewards))
        assert found[f"truncated_{name}"] == pytest.approx(
            sum(i % 3 == 0 for i in mine) / len(mine)
        )
        rows = zip(made.tier_R, made.advantage_R, made.weight_R, strict=True)
        mass = [(t == tier, abs(a) * w) for t, a, w in rows]
        share = sum(m for own, m in mass if own) / sum(m for _, m in mass)
        assert found[f"advantage_{name}"] == pytest.approx(share)
    kinds = dict(zip(fresh.conditioning_R.tolist(), fresh.reward_R.tolist(), strict=True))
    for kind in Conditioning:
        assert (f"reward_{kind.name.lower()}" in found) == (kind in kinds)
    plain = [r for r, c in zip(fresh.reward_R, fresh.conditioning_R, strict=True) if c == PLAIN]
    assert found["reward_plain"] == pytest.approx(np.nanmean(plain))


def test_a_group_with_one_scored_rollout_is_left_out() -> None:
    curriculum = started(small("grpo"))
    plan = curriculum.plan()
    alone = int(plan.prompt_P[0])
    rollouts = roll(
        plan,
        curriculum.prompts,
        np.full(80, 0.5),
        unscored=lambda row: row["prompt"] == alone and row["index"] > 0,
    )
    result = curriculum.observe(rollouts)
    assert result is not None
    assert (result.weight_R[result.rollouts.prompt_R == alone] == 0).all()
    others = result.rollouts.prompt_R != alone
    assert result.weight_R[others] == pytest.approx(1 / (7 * 8))
    assert result.weight_R.sum() == pytest.approx(1)


def test_the_rows_of_a_plan_list_every_rollout() -> None:
    curriculum = started(small("classic", **{"selection.eta": 1.0}))
    run(curriculum, 3)
    plan = curriculum.plan()
    expected = []
    for place, prompt in enumerate(plan.prompt_P.tolist()):
        kinds = [PLAIN] * int(plan.plain_P[place])
        kinds += [plan.extra_conditioning_P[place]] * int(plan.extra_P[place])
        expected += [(prompt, place, kind, plan.max_tokens_P[place]) for kind in kinds]
    rows = plan.rows()
    names = ("prompt", "place", "conditioning", "max_tokens")
    assert list(zip(*(rows[name].tolist() for name in names), strict=True)) == expected
    counts = plan.tier_counts()
    assert sum(counts.values()) == len(plan.prompt_P)
    assert counts["hard"] > 0


# --- determinism ----------------------------------------------------------------------------------

PRESETS = [
    "dare",
    "classic",
    "paper",
    "grpo",
    "dapo",
    "greso",
    "mopps",
    "previous-fr",
    "current-fr",
]


@pytest.mark.parametrize("preset", PRESETS)
def test_planning_twice_is_planning_once(preset: str) -> None:
    curriculum, twin = started(small(preset)), started(small(preset))
    for _ in range(6):
        plan = curriculum.plan()
        state = frozen(curriculum.state_dict())
        assert curriculum.plan() is plan
        assert same(curriculum.state_dict(), state)
        assert describe(twin.plan()) == describe(plan)
        rollouts = roll(plan, curriculum.prompts, truth(curriculum.prompts))
        curriculum.observe(rollouts)
        twin.observe(rollouts)
    assert same(curriculum.state_dict(), twin.state_dict())


@pytest.mark.parametrize("preset", PRESETS)
def test_a_reordered_data_set_gives_the_same_plans(preset: str) -> None:
    rows = records(70)
    order = np.random.default_rng(0).permutation(70)
    straight = Curriculum(PromptTable.from_records(rows), small(preset), services(70))
    shuffled = Curriculum(
        PromptTable.from_records([rows[i] for i in order]), small(preset), services(70)
    )
    assert run(straight, 4) == run(shuffled, 4)


def test_seeds_differ_and_split_batches_do_not() -> None:
    one, other = started(small("grpo", seed=1)), started(small("grpo", seed=2))
    assert one.plan().ids != other.plan().ids
    twin = started(small("grpo", seed=1))
    rollouts = roll(one.plan(), one.prompts, truth(one.prompts))
    half = len(rollouts) // 2
    cut = int(rollouts.offsets[half])
    parts = []
    for rows, tokens in ((slice(0, half), slice(0, cut)), (slice(half, None), slice(cut, None))):
        parts.append(
            RolloutBatch(
                prompt_R=rollouts.prompt_R[rows],
                tokens=rollouts.tokens[tokens],
                logprobs=rollouts.logprobs[tokens],
                offsets=np.concatenate([[0], np.cumsum(rollouts.length_R[rows])]),
                total_logprob_R=rollouts.total_logprob_R[rows],
                reward_R=rollouts.reward_R[rows],
                conditioning_R=rollouts.conditioning_R[rows],
                finish_R=rollouts.finish_R[rows],
            )
        )
    one.observe(rollouts)
    twin.plan()
    twin.observe(RolloutBatch.concatenate(parts))
    assert same(one.state_dict(), twin.state_dict())


# --- help for hard prompts ------------------------------------------------------------------------


def plain_successes(curriculum: Curriculum) -> set[int]:
    buffer = curriculum.buffer
    columns = (buffer["prompt"], buffer["reward"], buffer["conditioning"])
    return {int(p) for p, r, c in zip(*columns, strict=True) if r == 1 and c == PLAIN}


@pytest.mark.parametrize(
    ("extra", "without"),
    [("hint-or-think", THINK), ("hint-or-plain", PLAIN), ("think", THINK), ("plain", PLAIN)],
)
def test_hints_need_a_hard_prompt_and_a_plain_success(extra: str, without: int) -> None:
    draw = {"selection.eta": 0.9, "hard.above": 0.6}
    config = small("classic", fresh_share=1.0, **{"hard.extra": extra}, **draw)
    curriculum = started(config)
    fail = np.where(np.arange(80) % 2, 0.9, 1.0)  # half of the prompts are never solved
    hinted = helped = 0
    for _ in range(8):
        plan = curriculum.plan()
        known = plain_successes(curriculum)
        for place, prompt in enumerate(plan.prompt_P.tolist()):
            hard = plan.difficulty_P[place] > 0.6
            size = int(plan.group_size_P[place])
            assert plan.extra_P[place] == (max(0, size - 8) if hard else 0)
            if not plan.extra_P[place]:
                assert plan.hints[place] == []
                continue
            helped += 1
            kind = plan.extra_conditioning_P[place]
            if extra.startswith("hint") and prompt in known:
                hinted += 1
                assert kind == HINT
                assert plan.hints[place]
                assert all(part in SOLUTION for part in plan.hints[place])
            else:
                assert kind == without
                assert plan.hints[place] == []
        curriculum.observe(roll(plan, curriculum.prompts, fail))
    assert helped > 10
    assert (hinted > 0) == extra.startswith("hint")


def test_presets_say_what_a_hard_prompt_without_a_success_gets() -> None:
    assert CurriculumConfig.preset("dare").hard.extra == "hint-or-think"
    assert CurriculumConfig.preset("paper").hard.extra == "hint-or-think"  # its appendix
    assert CurriculumConfig.preset("paper-release").hard.extra == "hint-or-plain"


@pytest.mark.parametrize("kind", [THINK, HINT])
def test_a_success_with_help_is_no_source_of_hints(kind: int) -> None:
    config = small("classic", **{"cold_start.references": 0, "hard.above": 0.4})
    curriculum = Curriculum(table(4), config, services())
    first = curriculum.plan()
    assert first.tier_counts()["hard"] == 4
    prompt = first.prompt_P.tolist()
    rewards = [0.0, 0.0, 1.0]
    curriculum.observe(
        batch([p for p in prompt for _ in rewards], rewards * 4, conditioning=[0, 0, kind] * 4)
    )
    plan = curriculum.plan()
    assert plan.extra_P.sum() > 0
    assert plan.hints == [[] for _ in prompt]
    assert (plan.extra_conditioning_P == THINK).all()


@pytest.mark.parametrize("gold", [None, "gold"])
def test_a_prompt_with_tests_is_hinted_by_an_outline_of_its_program(gold: str | None) -> None:
    """With an answer beside the tests it is the answer that a hint keeps out."""
    program = "def f(a):\n    a = sorted(a)\n    n = len(a)\n    return a[n // 2] + a[0]\n"
    said = "We sort the numbers first, then we take the one in the middle, 3 * 4 = 12."
    text = f"{said}\n```python\n{program}```\n"
    rows = [{"prompt": f"question {i}", "tests": ["assert f([1])"], "answer": gold} for i in "abcd"]
    settings = {"cold_start.references": 0, "hard.above": 0.4, "fresh_share": 1.0}
    given = Services(decode=lambda tokens: text, hint=hint)
    curriculum = Curriculum(PromptTable.from_records(rows), small("classic", **settings), given)
    curriculum.observe(roll(curriculum.plan(), curriculum.prompts, np.full(4, 0.8)))
    successes = plain_successes(curriculum)
    plan = curriculum.plan()
    expected = [said] if gold else [said, "It calls sorted", "It begins with `a = sorted(a)`"]
    hinted = 0
    for place, prompt in enumerate(plan.prompt_P.tolist()):
        helped = prompt in successes and plan.extra_P[place] > 0
        assert plan.hints[place] == (expected if helped else [])
        assert plan.extra_conditioning_P[place] == (HINT if helped else THINK)
        hinted += helped
    assert hinted


@pytest.mark.parametrize("missing", ["decode", "hint", "answers", "text"])
def test_without_what_a_hint_needs_there_is_none(missing: str) -> None:
    given = {
        "decode": Services(hint=hint),
        "hint": Services(decode=lambda tokens: "We add 2 and 3 first."),
        "answers": services(),
        "text": Services(decode=lambda tokens: " \n", hint=hint),
    }[missing]
    settings = {"cold_start.references": 0, "hard.above": 0.4, "fresh_share": 1.0}
    config = small("classic", **settings)
    curriculum = Curriculum(table(4, answers=missing != "answers"), config, given)
    curriculum.observe(roll(curriculum.plan(), curriculum.prompts, np.full(4, 0.9)))
    assert plain_successes(curriculum)
    assert curriculum.plan().hints == [[], [], [], []]


# --- what feeds an estimate -----------------------------------------------------------------------


@pytest.mark.parametrize("preset", PRESETS)
def test_unscored_rollouts_are_like_lost_ones(preset: str) -> None:
    given, lost = started(small(preset)), started(small(preset))
    fail = truth(given.prompts)

    def gone(row: dict[str, Any]) -> bool:
        return bool(row["prompt"] % 4 == 0 or row["index"] == 1)

    for _ in range(4):
        plan = given.plan()
        assert describe(lost.plan()) == describe(plan)
        given.observe(roll(plan, given.prompts, fail, unscored=gone))
        lost.observe(roll(plan, given.prompts, fail, drop=gone))
        expected = sum(
            gone({"prompt": p, "index": i})
            for p, n in zip(plan.prompt_P.tolist(), plan.group_size_P.tolist(), strict=True)
            for i in range(n)
        )
        assert given.metrics()["unscored"] == expected
        assert lost.metrics()["unscored"] == 0
    assert same(given.state_dict()["arrays"], lost.state_dict()["arrays"])
    silent = plan.prompt_P[plan.prompt_P % 4 == 0]
    before = started(small(preset))
    assert (given.visits_P[silent] == before.visits_P[silent]).all()
    assert not np.isnan(given.buffer["reward"]).any()


@pytest.mark.parametrize("preset", ["dare", "classic"])
def test_a_step_without_any_reward_teaches_nothing(preset: str) -> None:
    curriculum = started(small(preset, fresh_share=1.0))
    before = curriculum.difficulty()
    visits = curriculum.visits_P.copy()
    plan = curriculum.plan()
    result = curriculum.observe(
        roll(plan, curriculum.prompts, truth(curriculum.prompts), unscored=lambda row: True)
    )
    assert result is not None
    assert result.weight_R.tolist() == [0.0] * 64
    assert np.array_equal(curriculum.difficulty(), before)
    assert np.array_equal(curriculum.visits_P, visits)
    assert curriculum.step == 1
    nothing = RolloutBatch.from_lists([], [], [], [])
    assert len(curriculum.observe(nothing).rollouts) == 0  # type: ignore[union-attr]
    assert curriculum.step == 2


def test_a_cold_start_without_any_reward_leaves_every_prompt_in_the_middle() -> None:
    curriculum = Curriculum(table(40), small("classic"), services(40))
    plan = curriculum.plan()
    curriculum.observe(roll(plan, curriculum.prompts, np.zeros(40), unscored=lambda row: True))
    assert curriculum.difficulty().tolist() == [0.5] * 40
    assert curriculum.plan().train


def test_teacher_references_without_any_reward_do_not_break_the_step() -> None:
    given = Services(
        teacher=TeacherHead.init(4, 8), embeddings=np.random.default_rng(0).random((30, 4))
    )
    curriculum = Curriculum(table(30), small("dots", **{"estimator.references": 6}), given)
    plan = curriculum.plan()
    assert not plan.train
    curriculum.observe(roll(plan, curriculum.prompts, np.zeros(30), unscored=lambda row: True))
    assert curriculum.difficulty().tolist() == [0.5] * 30


@pytest.mark.parametrize("preset", ["dare", "classic", "previous-fr"])
def test_helped_rollouts_never_feed_the_estimate(preset: str) -> None:
    wide = {"hard.above": 0.6, "buffer.rollouts_per_prompt": 999, "selection.eta": 0.5}
    config = small(preset, tiers=True, fresh_share=1.0, **wide)
    full, bare = started(config), started(config)
    fail = np.full(80, 0.9)
    dropped = 0

    def helped(row: dict[str, Any]) -> bool:
        return bool(row["conditioning"] != PLAIN)

    for _ in range(6):
        plan = full.plan()
        dropped += int((plan.rows()["conditioning"] != PLAIN).sum())
        bare._pending = plan  # the same prompts for both
        full.observe(roll(plan, full.prompts, fail))
        bare.observe(roll(plan, full.prompts, fail, drop=helped))
        np.testing.assert_allclose(full.difficulty(), bare.difficulty(), rtol=1e-12)
        assert np.array_equal(full.visits_P, bare.visits_P)
    assert dropped > 20


def test_a_hard_group_with_hints_is_estimated_from_its_plain_half_under_the_paper_preset() -> None:
    # K = 8 and a group of 8 plain + 8 hinted: the plain ones, which alone count, must survive.
    config = small("paper", **{"cold_start.references": 0, "hard.above": 0.4})
    curriculum = Curriculum(table(4), config, services())
    prompts = curriculum.plan().prompt_P.tolist()
    rewards = [1.0] + [0.0] * 7 + [1.0] * 8
    helped = [PLAIN] * 8 + [HINT] * 8
    curriculum.observe(
        batch([p for p in prompts for _ in rewards], rewards * 4, conditioning=helped * 4)
    )
    assert curriculum.difficulty().tolist() == pytest.approx([7 / 8] * 4)
    assert plain_successes(curriculum) == set(prompts)


def test_cold_start_spreads_the_references_by_similarity() -> None:
    given = services(50)
    config = small("classic", **{"cold_start.temperature": "paper", "cold_start.train": False})
    curriculum = Curriculum(table(50), config, given)
    plan = curriculum.plan()
    assert plan.kind == "probe"
    assert len(plan.prompt_P) == 16
    assert plan.plain_P.tolist() == [8] * 16
    assert plan.extra_P.tolist() == [0] * 16
    rollouts = roll(plan, curriculum.prompts, truth(curriculum.prompts))
    assert curriculum.observe(rollouts) is None
    assert curriculum.step == 0
    z = np.asarray(given.embeddings, dtype=np.float32).astype(float)
    rates = {
        p: 1 - float(np.mean(rollouts.reward_R[rollouts.prompt_R == p]))
        for p in plan.prompt_P.tolist()
    }
    for row in range(50):
        if row in rates:
            continue
        attention = {p: math.exp(float(z[row] @ z[p]) / math.sqrt(6)) for p in rates}
        told = sum(attention[p] * rates[p] for p in rates) / sum(attention.values())
        assert curriculum.difficulty()[row] == pytest.approx(told, abs=1e-5)
    flat = Curriculum(table(50), config)
    flat.observe(roll(flat.plan(), flat.prompts, truth(flat.prompts)))
    unseen = flat.visits_P == 0
    assert flat.difficulty()[unseen] == pytest.approx(np.mean(list(rates.values())))


# --- current-FR -----------------------------------------------------------------------------------


def test_current_fr_trains_on_fresh_groups_of_the_target_interval() -> None:
    config = small("current-fr", rollout_budget=32)
    curriculum = Curriculum(table(100), config, services())
    fail = np.full(100, 0.5)
    for _ in range(3):
        rates: dict[int, float] = {}
        probes = 0
        while not (plan := curriculum.plan()).train:
            rollouts = roll(plan, curriculum.prompts, fail)
            for prompt in plan.prompt_P.tolist():
                assert prompt not in rates
                rates[prompt] = 1 - float(np.mean(rollouts.reward_R[rollouts.prompt_R == prompt]))
            assert curriculum.observe(rollouts) is None
            probes += 1
            assert probes <= 16
        buffer = curriculum.buffer
        replayed = set(buffer["prompt"][np.isin(buffer["group"], plan.replay)].tolist())
        assert replayed
        assert all(0.4 <= rates[prompt] <= 0.6 for prompt in replayed)
        assert (buffer["step"][np.isin(buffer["group"], plan.replay)] == curriculum.step).all()
        assert not replayed & set(plan.prompt_P.tolist())
        assert plan.fresh_rollouts + plan.replay_rollouts == 32
        result = curriculum.observe(roll(plan, curriculum.prompts, fail))
        assert result is not None
        assert len(result.rollouts) == 32
        assert result.weight_R.sum() == pytest.approx(1)


@pytest.mark.parametrize("count", [1, 3, 40])
@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_current_fr_does_not_hang_where_nothing_qualifies(rate: float, count: int) -> None:
    curriculum = Curriculum(table(count), small("current-fr"), services())
    plans = run(curriculum, 2, np.full(count, rate))
    assert sum(plan[1] == "train" for plan in plans) == 2
    assert len(plans) <= 2 * 17


def test_current_fr_fills_the_budget_even_where_everything_qualifies() -> None:
    curriculum = Curriculum(table(4), small("current-fr"), services())
    plan = curriculum.plan()
    rewards = [1.0, 0.0] * 4
    prompts = plan.prompt_P.tolist()
    curriculum.observe(batch([p for p in prompts for _ in rewards], rewards * len(prompts)))
    plan = curriculum.plan()
    assert plan.train
    assert plan.fresh_rollouts + plan.replay_rollouts == 64


# --- refresh --------------------------------------------------------------------------------------


class Recorder:
    """A scorer that keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[ScoreRequest] = []

    def __call__(self, request: ScoreRequest) -> np.ndarray:
        self.asked.append(request)
        return scorer(request)


@pytest.mark.parametrize("budget", [0, 1, 30, 100, 10**6])
def test_refresh_keeps_to_its_budget_and_makes_scores_current(budget: int) -> None:
    curriculum = started(small("classic"))
    run(curriculum, 4, refresh=None)
    buffer, recorder = curriculum.buffer, Recorder()
    stale = buffer.plain & (buffer["scored_step"] < curriculum.step)
    costs = [
        int(buffer["length"][stale & (buffer["prompt"] == p)].sum())
        for p in set(buffer["prompt"][stale].tolist())
    ]
    uid, content = buffer["uid"].copy(), buffer.batch(np.arange(len(buffer)))
    spent = curriculum.refresh(recorder, budget)
    assert spent <= budget
    asked = {u for request in recorder.asked for u in request.uid_R.tolist()}
    assert spent == sum(int(n) for u, n in zip(uid, content.length_R, strict=True) if u in asked)
    for i, u in enumerate(uid.tolist()):
        assert (u in asked) == (stale[i] and buffer["scored_step"][i] == curriculum.step)
    # A prompt is aligned whole or not at all.
    for p in set(buffer["prompt"][stale].tolist()):
        mine = uid[stale & (buffer["prompt"] == p)].tolist()
        assert len(asked & set(mine)) in (0, len(mine))
    if budget >= sum(costs):
        assert asked == set(uid[stale].tolist())
        assert (buffer["scored_step"][buffer.plain] == curriculum.step).all()
    for request in recorder.asked:
        for i, u in enumerate(request.uid_R.tolist()):
            at = int(np.flatnonzero(uid == u)[0])
            assert buffer.log_ratio[at] == pytest.approx(0.8 * math.sin(u))
            mine = request.rollouts.tokens[
                request.rollouts.offsets[i] : request.rollouts.offsets[i + 1]
            ]
            assert np.array_equal(
                mine, content.tokens[content.offsets[at] : content.offsets[at + 1]]
            )


def test_refresh_spends_what_it_can_on_prompts_that_fit() -> None:
    curriculum = started(small("classic"))
    run(curriculum, 4, refresh=None)
    buffer, recorder = curriculum.buffer, Recorder()
    stale = buffer.plain & (buffer["scored_step"] < curriculum.step)
    costs = [
        int(buffer["length"][stale & (buffer["prompt"] == p)].sum())
        for p in set(buffer["prompt"][stale].tolist())
    ]
    for budget in (min(costs), 2 * max(costs)):
        spent = curriculum.refresh(recorder, budget)
        assert spent > 0
        assert spent > budget - max(costs)


def held(lengths: list[int], scored: list[int]) -> RolloutBuffer:
    """Two rollouts a prompt, of these lengths, last scored at these steps."""
    buffer = RolloutBuffer(8, 100)
    prompt = [p for p in range(len(lengths)) for _ in range(2)]
    buffer.add(batch(prompt, [0.0, 1.0] * len(lengths), length=[lengths[p] for p in prompt]), 0)
    for p, step in enumerate(scored):
        buffer.rescore([2 * p, 2 * p + 1], [-1.0, -1.0], step)
    return buffer


def chosen(buffer: RolloutBuffer, chance: Any, step: int, budget: int) -> list[int]:
    request = choose_stale(buffer, lambda rows: np.asarray(chance)[rows], step, budget)
    assert int(request.rollouts.offsets[-1]) <= budget
    return sorted(set(request.rollouts.prompt_R.tolist()))


def test_stale_and_likely_prompts_go_first() -> None:
    even = [0.25] * 4
    buffer = held([5] * 4, [1, 6, 3, 9])
    assert [chosen(buffer, even, 10, 10 * n) for n in (1, 2, 3, 4)] == [
        [0],
        [0, 2],
        [0, 1, 2],
        [0, 1, 2, 3],
    ]
    same_age = held([5] * 4, [2] * 4)
    likely = [0.1, 0.4, 0.2, 0.3]
    assert [chosen(same_age, likely, 10, 10 * n) for n in (1, 2, 3)] == [[1], [1, 3], [1, 2, 3]]
    # At equal worth, short ones: more estimates for the same tokens.
    assert chosen(held([9, 3, 3, 3], [2] * 4), even, 10, 18) == [1, 2, 3]
    # What was scored in this step, or cannot be afforded, is left.
    assert chosen(held([5] * 4, [10, 2, 10, 10]), even, 10, 1000) == [1]
    assert chosen(buffer, even, 10, 0) == []


def test_a_prompt_that_costs_too_much_does_not_block_the_others() -> None:
    # Prompt 0 is worth most even per token but does not fit; prompt 1 does.
    assert chosen(held([50, 5], [0, 0]), [0.99, 0.01], 10, 40) == [1]


def test_refresh_weighs_prompts_by_their_chance_in_the_whole_population() -> None:
    config = small("classic", **{"cold_start.references": 0})
    curriculum = Curriculum(table(600), config, services())
    prior = np.full(600, 0.99)
    prior[:6] = 0.01
    curriculum.estimator.set_prior(prior)
    # In the buffer: all six easy prompts, and one of six hundred hard ones.
    rows = [0, 1, 2, 3, 4, 5, 6]
    rewards = [[1.0] * 8] * 6 + [[0.0] * 8]
    curriculum.buffer.add(
        batch([p for p in rows for _ in range(8)], [r for group in rewards for r in group]), 0
    )
    failures = np.array([0.0] * 6 + [8.0])
    curriculum.estimator.observe(Outcome(0, np.array(rows), np.full(7, 8.0), failures))
    tier = curriculum.tiers.assign(curriculum.difficulty())
    chance = curriculum.selector.probability(curriculum.difficulty(), tier)
    assert chance[0] > 10 * chance[6]
    curriculum.step = 1
    recorder = Recorder()
    curriculum.refresh(recorder, 24)  # one prompt
    asked = set(recorder.asked[0].rollouts.prompt_R.tolist())
    assert len(asked) == 1
    assert asked <= {0, 1, 2, 3, 4, 5}


@pytest.mark.parametrize("preset", ["dare", "classic"])
def test_scores_of_the_training_pass_are_free_and_fresh_ones_are_skipped(preset: str) -> None:
    curriculum = started(small(preset, fresh_share=0.5))
    run(curriculum, 3, refresh=None)
    plan = curriculum.plan()
    result = curriculum.observe(roll(plan, curriculum.prompts, truth(curriculum.prompts)))
    assert result is not None
    replayed = result.uid_R[~result.fresh_R]
    assert len(replayed)
    curriculum.record_scores(result.uid_R, np.full(len(result.uid_R), -7.0), plan.step)
    buffer = curriculum.buffer
    place = buffer.position(replayed)
    assert (buffer["current"][place[place >= 0]] == -7.0).all()
    assert (buffer["scored_step"][place[place >= 0]] == plan.step).all()
    others = ~np.isin(buffer["uid"], replayed)
    assert np.array_equal(buffer["current"][others], buffer["behaviour"][others])


# --- figures --------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", ["dare", "classic"])
def test_metrics_and_table_say_what_happened(preset: str) -> None:
    curriculum = started(small(preset, fresh_share=1.0))
    fail = truth(curriculum.prompts)
    run(curriculum, 2)
    plan, told = curriculum.plan(), curriculum.difficulty()
    rollouts = roll(plan, curriculum.prompts, fail)
    curriculum.observe(rollouts)
    found = curriculum.metrics()
    assert found["step"] == 2
    assert found["probe"] == 0
    assert found["prompts"] == len(plan.prompt_P)
    assert found["rollouts"] == 64
    assert found["generated_tokens"] == int(rollouts.offsets[-1])
    assert found["reward"] == pytest.approx(float(np.mean(rollouts.reward_R)))
    tiers = [found["tier_easy"], found["tier_medium"], found["tier_hard"]]
    assert tiers == np.bincount(plan.tier_P, minlength=3).tolist()
    errors = []
    for prompt in plan.prompt_P.tolist():
        mine = (rollouts.prompt_R == prompt) & (rollouts.conditioning_R == PLAIN)
        errors.append(abs(told[prompt] - (1 - float(np.mean(rollouts.reward_R[mine])))))
    assert found["prediction_error"] == pytest.approx(np.mean(errors), abs=1e-6)
    assert curriculum.coverage == pytest.approx(np.mean(curriculum.visits_P > 0))
    columns = curriculum.table()
    assert columns["id"] == curriculum.prompts.ids()
    assert np.array_equal(columns["visits"], curriculum.visits_P)
    assert np.array_equal(columns["difficulty"], curriculum.difficulty())
    untried = "cold-start" if curriculum.estimator.uses_prior else "forecast"
    assert set(columns["estimate"][columns["visits"] == 0].tolist()) <= {untried}
    assert (columns["last_step"] == -1).tolist() == (columns["visits"] == 0).tolist()
    columns["difficulty"][:] = -1
    assert (curriculum.difficulty() >= 0).all()


@pytest.mark.parametrize("preset", ["dare", "classic"])
def test_estimates_learn_the_truth(preset: str) -> None:
    curriculum = started(small(preset), 40)
    fail = truth(curriculum.prompts)
    before = np.abs(curriculum.difficulty() - fail).mean()
    run(curriculum, 120, refresh=None)
    assert curriculum.coverage == 1.0
    assert np.abs(curriculum.difficulty() - fail).mean() < min(0.08, before / 2)


# --- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", ["dare", "classic"])
def test_foreign_rollouts_are_refused_and_change_nothing(preset: str) -> None:
    curriculum = started(small(preset))
    run(curriculum, 2)
    plan = curriculum.plan()
    state, described = frozen(curriculum.state_dict()), describe(plan)
    stranger = next(p for p in range(80) if p not in plan.prompt_P)
    known = int(plan.prompt_P[0])
    for bad, field, shown in (
        ([known, stranger], "prompt id", curriculum.prompts.ids([stranger])[0]),
        ([known, 80], "prompt row", "80"),
        ([-1, known], "prompt row", "-1"),
    ):
        with pytest.raises(InvalidInput) as error:
            curriculum.observe(batch(bad, [1.0, 0.0]))
        assert error.value.field == field
        assert shown in str(error.value)
        assert error.value.fix
        assert same(curriculum.state_dict(), state)
        assert describe(curriculum.plan()) == described


def test_bad_scores_are_refused_and_change_nothing() -> None:
    curriculum = started(small("classic"))
    run(curriculum, 2, refresh=None)
    state = frozen(curriculum.state_dict())
    for bad in (
        lambda request: np.full(len(request.uid_R), np.nan),
        lambda request: np.full(len(request.uid_R), np.inf),
        lambda request: np.zeros(len(request.uid_R) + 1),
    ):
        with pytest.raises(InvalidInput, match="scores"):
            curriculum.refresh(bad, 10**6)
        assert same(curriculum.state_dict(), state)


def test_an_empty_prompt_set_is_refused() -> None:
    whole = table(2)
    nothing = PromptTable(
        key_P=whole.key_P[:0],
        source_P=whole.source_P[:0],
        level_P=whole.level_P[:0],
        sources=(),
        levels=(),
    )
    with pytest.raises(InvalidInput, match="at least one prompt"):
        Curriculum(nothing)


@pytest.mark.parametrize("preset", ["dare", "classic"])
def test_embeddings_of_another_size_are_refused(preset: str) -> None:
    with pytest.raises(InvalidInput, match="5 rows"):
        Curriculum(table(5), small(preset), services(6))


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("preset", PRESETS)
def test_very_small_data_sets_train(preset: str, count: int) -> None:
    curriculum = Curriculum(table(count), small(preset), services(count))
    for described in run(curriculum, 4):
        if described[1] == "train":
            rollouts = sum(described[5]) + sum(described[6]) + described[-2]
            if curriculum.config.prompts_per_step:  # whole groups, and no more
                assert rollouts <= min(64, 16 * count)
            else:
                assert rollouts == 64
