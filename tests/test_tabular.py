"""The tabular policy is the truth that other tests lean on: check it against brute force."""

import itertools

import numpy as np
import pytest

from dare.simulation.tabular import STOP, TabularPolicy, Tree


def brute_force(policy: TabularPolicy, prompt: int) -> dict[tuple[int, ...], float]:
    """Probability of each response by walking token strings, with a nucleus written out by hand."""
    tree, result = policy.tree, {}
    node_of = {(): 0}
    for path, nodes in zip(tree.token_ST.tolist(), tree.node_ST.tolist(), strict=True):
        for length in range(1, tree.depth):
            if nodes[length] >= 0:
                node_of[tuple(path[:length])] = nodes[length]
    for size in range(1, tree.depth + 1):
        for tokens in itertools.product(range(tree.vocabulary), repeat=size):
            ends = tokens[-1] == STOP or size == tree.depth
            if not ends or STOP in tokens[:-1]:
                continue
            chance = 1.0
            for position, token in enumerate(tokens):
                logits = policy.logits_PNV[prompt, node_of[tokens[:position]]]
                p = np.exp(logits / policy.temperature)
                p /= p.sum()
                kept, mass = [], 0.0
                for candidate in sorted(range(len(p)), key=lambda v: -p[v]):
                    if mass >= policy.top_p:
                        break
                    kept.append(candidate)
                    mass += p[candidate]
                chance *= p[token] / mass if token in kept else 0.0
            result[tokens] = chance
    return result


@pytest.mark.parametrize("top_p", [1.0, 0.95, 0.6])
def test_response_probabilities_equal_a_walk_over_all_strings(top_p):
    policy = TabularPolicy.random(3, depth=3, seed=1, temperature=0.6, top_p=top_p)
    for prompt in range(3):
        expected = brute_force(policy, prompt)
        got = policy.response_probability()[prompt]
        assert len(expected) == len(got)
        for row, chance in enumerate(got):
            length = policy.tree.length_S[row]
            tokens = tuple(policy.tree.token_ST[row, :length].tolist())
            assert chance == pytest.approx(expected[tokens], abs=1e-12)
        assert got.sum() == pytest.approx(1.0)
        wrong = sum(
            expected[tuple(policy.tree.token_ST[s, : policy.tree.length_S[s]].tolist())]
            for s in np.flatnonzero(~policy.correct_PS[prompt])
        )
        assert policy.true_difficulty()[prompt] == pytest.approx(wrong)


def test_difficulties_spread_over_the_range():
    difficulty = TabularPolicy.random(400, seed=0).true_difficulty()
    assert np.quantile(difficulty, 0.1) < 0.15
    assert np.quantile(difficulty, 0.9) > 0.85


def test_samples_follow_the_enumerated_law():
    policy = TabularPolicy.random(2, seed=3, temperature=0.6, top_p=0.95)
    rng = np.random.default_rng(0)
    rows = np.repeat([0, 1], 40_000)
    index = policy.sample_responses(rows, rng)
    for prompt in range(2):
        counts = np.bincount(index[rows == prompt], minlength=len(policy.tree.node_ST))
        expected = policy.response_probability()[prompt] * 40_000
        assert counts[expected == 0].sum() == 0
        inside = expected > 5
        statistic = ((counts - expected)[inside] ** 2 / expected[inside]).sum()
        degrees = inside.sum() - 1
        assert statistic < degrees + 4 * np.sqrt(2 * degrees)


def test_scoring_what_was_sampled_gives_back_its_log_prob():
    policy = TabularPolicy.random(5, seed=4, temperature=0.6, top_p=0.95)
    batch = policy.sample(np.repeat(np.arange(5), 20), np.random.default_rng(1))
    np.testing.assert_array_equal(policy.score(batch), batch.total_logprob_R)


def test_a_response_outside_the_nucleus_scores_minus_infinity():
    wide = TabularPolicy.random(1, seed=0, temperature=1.0, top_p=1.0)
    narrow = TabularPolicy(wide.tree, wide.logits_PNV, wide.correct_PS, 1.0, 0.5)
    batch = wide.rollouts(np.zeros(len(wide.tree.node_ST), int), np.arange(len(wide.tree.node_ST)))
    outside = narrow.response_probability()[0] == 0
    assert outside.any()
    np.testing.assert_array_equal(np.isneginf(narrow.score(batch)), outside)


def test_gradient_step_ascends_the_log_likelihood_it_names():
    policy = TabularPolicy.random(2, depth=3, seed=0, temperature=0.7)
    batch = policy.sample(np.repeat([0, 1], 3), np.random.default_rng(0))
    coefficient = np.random.default_rng(1).normal(size=len(batch.tokens))

    def objective(logits):
        moved = TabularPolicy(policy.tree, logits, policy.correct_PS, 0.7)
        again = moved.rollouts(batch.prompt_R, policy.response_index(batch))
        # logprobs are stored in float32; the table gives them in full
        table = moved.token_logprob(nucleus=False)
        response = policy.response_index(batch)
        node, token = policy.tree.node_ST[response], policy.tree.token_ST[response]
        held = node >= 0
        rows = np.repeat(batch.prompt_R, again.length_R)
        return float((coefficient * table[rows, node[held], token[held]]).sum())

    stepped = policy.gradient_step(batch, coefficient, 1.0).logits_PNV - policy.logits_PNV
    rng = np.random.default_rng(2)
    for _ in range(5):
        direction = rng.normal(size=stepped.shape)
        h = 1e-5
        numeric = objective(policy.logits_PNV + h * direction)
        numeric = (numeric - objective(policy.logits_PNV - h * direction)) / (2 * h)
        assert numeric == pytest.approx(float((stepped * direction).sum()), rel=1e-6)


def test_drift_is_dialled():
    policy = TabularPolicy.random(50, seed=0)
    shifts = []
    for amount in (0.0, 0.1, 1.0):
        moved = policy.drifted(amount, np.random.default_rng(0))
        shifts.append(np.abs(moved.true_difficulty() - policy.true_difficulty()).mean())
    assert shifts[0] == 0
    assert 0 < shifts[1] < shifts[2]


def test_the_tree_numbers_every_prefix_once():
    tree = Tree.build(3, 4)
    used = tree.node_ST[tree.node_ST >= 0]
    assert set(used.tolist()) == set(range(tree.nodes))
    assert tree.nodes == 1 + 2 + 4 + 8
