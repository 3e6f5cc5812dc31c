"""The adapter for other people's loops says what the curriculum says, and refuses what is wrong."""

import numpy as np
import pytest

from dare import Curriculum, CurriculumConfig, InvalidInput, PromptTable, RolloutBatch
from dare.curriculum import Conditioning, Services
from dare.curriculum.estimators.base import Measured
from dare.integrations.loop import LoopCurriculum

ROWS = [{"prompt": f"problem {number}", "answer": str(number)} for number in range(60)]
SMALL = {"rollout_budget": 64}


def build(preset="dare", services=None, **settings):
    return LoopCurriculum(ROWS, CurriculumConfig.preset(preset, **SMALL, **settings), services)


def outcomes(asked, step=0):
    """Ids, rewards and lengths: the higher the row, the rarer a success."""
    row = np.array([one.row for one in asked for _ in range(one.rollouts)])
    rng = np.random.default_rng(step)
    rewards = (rng.random(len(row)) > row / len(ROWS)).astype(float).tolist()
    ids = [one.id for one in asked for _ in range(one.rollouts)]
    return ids, rewards, rng.integers(1, 20, len(row)).tolist()


def steps(loop, count, first=0):
    drawn = []
    for step in range(first, first + count):
        asked = loop.ask()
        drawn.append([(one.id, one.rollouts) for one in asked])
        loop.tell(*outcomes(asked, step))
        loop.updated()
    return drawn


def test_it_asks_for_what_the_curriculum_alone_would_ask():
    loop = build()
    config = CurriculumConfig.preset("dare", **SMALL)
    curriculum = Curriculum(PromptTable.from_records(ROWS), config)
    for step in range(5):
        asked, plan = loop.ask(), curriculum.plan()
        assert [one.id for one in asked] == plan.ids
        assert [one.rollouts for one in asked] == plan.group_size_P.tolist()
        assert [ROWS[one.row]["prompt"] for one in asked] == [
            curriculum.prompts.texts[row] for row in plan.prompt_P
        ]
        ids, rewards, lengths = outcomes(asked, step)
        tokens = [[0] * length for length in lengths]
        rows = curriculum.prompts.rows(ids)
        batch = curriculum.observe(RolloutBatch.from_lists(rows, tokens, None, rewards))
        told = loop.tell(ids, rewards, lengths)
        np.testing.assert_array_equal(told.advantage_R, batch.advantage_R)
        curriculum.refresh(None, 0)
        loop.updated()


def test_asking_fills_the_budget_and_asking_again_changes_nothing():
    loop = build()
    assert loop.ask() == loop.ask()
    assert sum(one.rollouts for one in loop.ask()) == 64


def test_rollouts_may_come_in_any_order_and_some_not_at_all():
    loop, other = build(), build()
    asked = loop.ask()
    ids, rewards, lengths = outcomes(asked)
    order = np.random.default_rng(0).permutation(len(ids))[:-5]
    batch = loop.tell(*([column[place] for place in order] for column in (ids, rewards, lengths)))
    assert len(batch.advantage_R) == len(ids) - 5
    assert other.ask() == asked


def test_a_resumed_loop_asks_for_the_same(tmp_path):
    whole = build()
    expected = steps(whole, 6)
    first, second = build(), build()
    steps(first, 3)
    first.save(tmp_path / "state")
    second.load(tmp_path / "state")
    assert steps(second, 3, first=3) == expected[3:]


def test_what_the_policy_says_is_read_after_the_first_step_and_within_a_budget():
    read = []

    def states(rows):
        read.append(len(rows))
        return Measured(np.column_stack([rows, rows**2]).astype(float), 10 * len(rows))

    loop = build(services=Services(states=states))
    assert loop.updated() == 0
    spent = []
    for step in range(3):
        loop.tell(*outcomes(loop.ask(), step))
        spent.append(loop.updated())
    assert read[0] == len(ROWS)  # all once
    assert spent[0] == 10 * len(ROWS)
    assert spent[1] <= 0.1 * 64 * 20  # then a share of the step's tokens


def test_the_last_rollouts_of_a_helped_prompt_count_as_helped():
    loop = build("paper", **{"cold_start.references": 0})
    curriculum = loop.curriculum
    curriculum.estimator.set_prior(np.full(len(ROWS), 0.95))  # all hard
    asked = loop.ask()
    assert {(one.rollouts, one.helped, one.help) for one in asked} >= {
        (16, 8, Conditioning.THINK_LONGER)
    }
    ids, rewards, lengths = outcomes(asked)
    tokens = [[1] * length for length in lengths]
    batch = loop.tell(ids, rewards, tokens, [[-0.1] * length for length in lengths])
    helped = batch.rollouts.conditioning_R == Conditioning.THINK_LONGER
    assert helped.sum() == sum(one.helped for one in asked)
    assert not helped[:8].any()
    assert helped[8:16].all()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda ids, rewards, tokens: (["zz", *ids[1:]], rewards, tokens), "prompt id"),
        (lambda ids, rewards, tokens: ([*ids, ids[0]], [*rewards, 1], [*tokens, 3]), "prompt id"),
        (lambda ids, rewards, tokens: (ids, rewards[1:], tokens), "reward"),
        (lambda ids, rewards, tokens: (ids, [7.0, *rewards[1:]], tokens), "reward"),
        (lambda ids, rewards, tokens: (ids, rewards, tokens[1:]), "tokens"),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(change, field):
    loop = build()
    asked = loop.ask()
    with pytest.raises(InvalidInput) as error:
        loop.tell(*change(*outcomes(asked)))
    assert error.value.field == field
    assert loop.ask() == asked
    assert len(loop.curriculum.buffer) == 0


def test_a_prompt_that_was_not_asked_for_is_refused():
    loop = build()
    asked = loop.ask()
    other = set(loop.curriculum.prompts.ids()) - {one.id for one in asked}
    with pytest.raises(InvalidInput, match="not asked for"):
        loop.tell([other.pop()], [1.0], [3])


def test_lengths_do_not_do_where_responses_are_read_again():
    loop = build(fresh_share=0.5)
    with pytest.raises(InvalidInput, match="token ids"):
        loop.tell(*outcomes(loop.ask()))


def test_log_probs_are_asked_for_where_the_estimate_reads_them():
    loop = build("grpo+snis")
    ids, rewards, lengths = outcomes(loop.ask())
    with pytest.raises(InvalidInput, match="the policy that sampled"):
        loop.tell(ids, rewards, [[1] * length for length in lengths])
