"""The paper's method on one page, in NumPy, on a policy whose true difficulty is known.

    python examples/minimal.py [--steps 80] [--out minimal.html]

Trains the same tabular policy twice from the same start with the same number of rollouts: GRPO
with uniform draws, and DARE with importance weights, a draw by the Beta density and tiers, as in
the paper. The default preset `dare` estimates and draws otherwise and has no tiers; see
docs/method.md, whose sections the numbers in the docstrings are. The policy has one table of logits
a prompt, so nothing learnt on one prompt helps another: this shows how the parts work together, not
how large the gain is on a language model.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from typing import Any

import numpy as np

from dare.simulation.tabular import TabularPolicy

PROMPTS, BUDGET, K = 400, 256, 32  # prompts, rollouts a step (R), rollouts remembered a prompt
EASY, HARD = 0.3, 0.8  # tier thresholds on difficulty, the failure rate of the policy of now
GROUP = np.array([4, 8, 16])  # rollouts of an easy, medium and hard prompt
KAPPA, ETA = 8.0, 0.3  # Beta concentration around 0.5, share drawn uniformly over tiers
LAMBDA, STD_FLOOR, CLIP = 1e-4, 1e-3, 4.0  # length term, added to the std, clip of log-ratios
EPS_LOW, EPS_HIGH = 0.2, np.array([0.6, 0.2, 0.2])  # clip range of the objective, by tier
LEARNING_RATE, EPOCHS = 40.0, 2

Rollout = tuple[int, float, float]  # response, reward, log-prob under the policy that wrote it
Memory = defaultdict[int, list[Rollout]]  # 2: the latest plain rollouts of each prompt


def estimate(memory: Memory, policy: TabularPolicy, prior: float) -> np.ndarray:
    """4: self-normalised importance sampling, shrunk toward the prior by its ESS."""
    now = policy.response_logprob()
    difficulty = np.full(PROMPTS, prior)
    for prompt, rollouts in memory.items():
        response, reward, behaviour = (np.array(column) for column in zip(*rollouts, strict=True))
        weight = np.exp(np.clip(now[prompt, response] - behaviour, -CLIP, CLIP))
        snis = (weight * (1 - reward)).sum() / weight.sum()
        ess = weight.sum() ** 2 / (weight**2).sum()
        difficulty[prompt] = (ess * snis + prior) / (ess + 1)
    return difficulty


def tier_of(difficulty: np.ndarray) -> np.ndarray:
    """6: 0 easy, 1 medium, 2 hard."""
    return (difficulty >= EASY).astype(int) + (difficulty > HARD)


def draw(difficulty: np.ndarray, seen: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """5: all prompts in drawn order. Gumbel noise on log-weights is sampling without replacement.

    Weights are (1 - eta) Beta(kappa) + eta uniform over tiers; unseen prompts get their own share.
    """
    margin = 1 / (2 * (K + 1))
    clamped = np.clip(difficulty, margin, 1 - margin)
    beta = (4 * clamped * (1 - clamped)) ** (KAPPA / 2)
    tier = tier_of(difficulty)
    size = np.bincount(tier, minlength=3)
    weight = (1 - ETA) * beta / beta.sum() + ETA / np.count_nonzero(size) / size[tier]
    order = np.argsort(-np.log(weight) - rng.gumbel(size=PROMPTS))
    new, old = order[~seen[order]], order[seen[order]]
    share = max(0.1, 0.5 * (1 - seen.mean()))
    turn = np.concatenate([(np.arange(len(new)) + 0.5) / share, np.arange(len(old)) / (1 - share)])
    return np.concatenate([new, old])[np.argsort(turn, kind="stable")]


def fill(sizes: np.ndarray) -> np.ndarray:
    """6: as many groups, in drawn order, as fill the rollout budget exactly."""
    whole = int(np.searchsorted(np.cumsum(sizes), BUDGET, side="right"))
    groups = sizes[:whole].copy()
    rest = BUDGET - int(groups.sum())
    if rest >= 2:
        return np.append(groups, rest)
    groups[-1] += rest  # no group of one
    return groups


def roll_out(
    chance: np.ndarray, count: int, first: np.ndarray, hint: int | None, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Responses and their log-probs. 7: a hint is the first token of a past right response."""
    if hint is not None:
        chance = np.where(first == first[hint], chance, 0.0)
    chance = chance / chance.sum()
    response = rng.choice(len(chance), size=count, p=chance)
    return response, np.log(chance[response])


def advantages(reward: np.ndarray, length: np.ndarray, tier: int, difficulty: float) -> np.ndarray:
    """6: short right answers are preferred on easy prompts, long wrong ones on hard prompts.

    Length never counts alone: where all are right or all wrong there is nothing to learn.
    """
    if reward.min() == reward.max():
        return np.zeros(len(reward))
    share = length / length.max()
    shaped = reward.copy()
    if tier == 0:
        shaped -= (reward == 1) * LAMBDA * (EASY - difficulty) / EASY * share
    elif tier == 2:
        shaped += (reward == 0) * LAMBDA * (difficulty - HARD) / (1 - HARD) * share
    return np.asarray((shaped - shaped.mean()) / (shaped.std() + STD_FLOOR))


def update(policy: TabularPolicy, groups: list[dict[str, Any]]) -> TabularPolicy:
    """8: mean over prompts, rollouts, tokens of min(ratio A, clip(ratio) A), a few epochs of it."""
    size = np.array([len(group["response"]) for group in groups])
    rows = np.repeat([group["prompt"] for group in groups], size)
    response = np.concatenate([group["response"] for group in groups])
    length = policy.tree.length_S[response]
    advantage = np.repeat(np.concatenate([group["advantage"] for group in groups]), length)
    high = np.repeat(np.repeat(EPS_HIGH[[group["tier"] for group in groups]], size), length)
    weight = np.repeat(np.repeat(1 / size, size) / length, length) / len(groups)
    behaviour = policy.rollouts(rows, response).logprobs
    for _ in range(EPOCHS):
        batch = policy.rollouts(rows, response)
        ratio = np.exp(batch.logprobs - behaviour)
        clipped = np.where(advantage > 0, ratio > 1 + high, ratio < 1 - EPS_LOW)
        gradient = np.where(clipped, 0.0, ratio * advantage * weight)
        policy = policy.gradient_step(batch, gradient, LEARNING_RATE)
    return policy


def train(method: str, steps: int, seed: int = 0) -> dict[str, list[float]]:
    """One run; returns accuracy, the error of the estimate and the tier mix by step."""
    policy = TabularPolicy.random(PROMPTS, seed=seed, temperature=0.6, top_p=0.95)
    length, first = policy.tree.length_S, policy.tree.token_ST[:, 0]
    memory: Memory = defaultdict(list)
    prior = 0.5
    log = defaultdict(list)
    for step in range(steps):
        rng = np.random.default_rng([seed, step])
        difficulty = estimate(memory, policy, prior)
        seen = np.isin(np.arange(PROMPTS), list(memory))
        truth = policy.true_difficulty()
        log["accuracy"].append(float(1 - truth.mean()))
        if seen.any():
            log["estimation error"].append(float(np.abs(difficulty - truth)[seen].mean()))
        if method == "grpo":
            rows, tiers = rng.permutation(PROMPTS), np.ones(PROMPTS, int)
        else:
            rows = draw(difficulty, seen, rng)
            tiers = tier_of(difficulty[rows])
        chance = policy.response_probability()
        groups = []
        for prompt, tier, size in zip(rows.tolist(), tiers, fill(GROUP[tiers]), strict=False):
            plain = min(size, 8) if tier == 2 else size
            right = [response for response, reward, _ in memory[prompt] if reward == 1]
            response, logprob = roll_out(chance[prompt], plain, first, None, rng)
            reward = policy.correct_PS[prompt, response].astype(float)
            # Only plain rollouts are remembered: they alone speak of the prompt's difficulty.
            new = zip(response.tolist(), reward.tolist(), logprob.tolist(), strict=True)
            memory[prompt] = (memory[prompt] + list(new))[-K:]
            if size > plain:
                hint = right[-1] if right else None
                helped, _ = roll_out(chance[prompt], size - plain, first, hint, rng)
                response = np.concatenate([response, helped])
                reward = policy.correct_PS[prompt, response].astype(float)
            advantage = advantages(reward, length[response], tier, difficulty[prompt])
            group = {"prompt": prompt, "tier": tier, "response": response, "advantage": advantage}
            groups.append(group)
        log["easy"].append(float((tiers[: len(groups)] == 0).mean()))
        log["hard"].append(float((tiers[: len(groups)] == 2).mean()))
        policy = update(policy, groups)
        prior = float(np.mean([1 - r for kept in memory.values() for _, r, _ in kept]))
    return dict(log)


def main() -> None:
    """Train both, print, plot."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--out", default="minimal.html")
    options = parser.parse_args()
    runs = {method: train(method, options.steps) for method in ("grpo", "dare")}
    for method, log in runs.items():
        print(f"{method:5} {'  '.join(f'{name} {value[-1]:.3f}' for name, value in log.items())}")
    try:
        from plotly.subplots import make_subplots
    except ImportError:
        print("no plot: pip install 'dare-rl[report]'")
        return
    names = ["accuracy", "estimation error", "hard"]
    titles = [
        "success rate over all prompts",
        "error of the difficulty estimate",
        "hard prompts drawn",
    ]
    figure = make_subplots(cols=3, subplot_titles=titles)
    for column, name in enumerate(names, start=1):
        for method, colour in (("grpo", "#888888"), ("dare", "#1f4e79")):
            line = {"y": runs[method][name], "name": method, "line": {"color": colour}}
            figure.add_scatter(row=1, col=column, showlegend=column == 1, **line)
    figure.update_xaxes(title="step").update_layout(template="plotly_white", height=380)
    figure.write_html(options.out)
    print(f"wrote {options.out}")


if __name__ == "__main__":
    main()
