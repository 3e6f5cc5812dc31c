"""A tabular policy whose responses can all be enumerated, so the truth is known exactly.

Every prompt has its own table of logits over a small vocabulary, one row per prefix. A response
ends with token 0 (stop) or at the longest length. Correctness is a fixed random subset of the
complete responses. Sampling applies temperature and a nucleus, as a real policy's would, so the
log-prob of a response under the *sampling* distribution and the failure rate are exact sums over
the tree of prefixes. `drifted` moves the logits by a dialled amount; `gradient_step` trains them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dare.curriculum.arrays import Array, offsets_of
from dare.curriculum.rollouts import RolloutBatch

STOP = 0


@dataclass(frozen=True)
class Tree:
    """All prefixes and all complete responses over V tokens with at most L of them.

    Prefix nodes are numbered breadth first. A response is a path of (node, token) pairs.
    """

    vocabulary: int
    depth: int
    nodes: int
    node_ST: Array
    """Per response and position the prefix node, -1 after its end."""
    token_ST: Array

    @classmethod
    def build(cls, vocabulary: int, depth: int) -> Tree:
        """Enumerate the tree; (V - 1)^L + ... responses, so keep both small."""
        paths: list[tuple[list[int], list[int]]] = []
        frontier: list[tuple[int, list[int], list[int]]] = [(0, [], [])]
        nodes = 1
        for level in range(depth):
            grown: list[tuple[int, list[int], list[int]]] = []
            for node, seen, tokens in frontier:
                for token in range(vocabulary):
                    path = ([*seen, node], [*tokens, token])
                    if token == STOP or level == depth - 1:
                        paths.append(path)
                    else:
                        grown.append((nodes, *path))
                        nodes += 1
            frontier = grown
        node_ST = np.full((len(paths), depth), -1)
        token_ST = np.zeros((len(paths), depth), np.int64)
        for row, (seen, tokens) in enumerate(paths):
            node_ST[row, : len(seen)] = seen
            token_ST[row, : len(tokens)] = tokens
        return cls(vocabulary, depth, nodes, node_ST, token_ST)

    @property
    def length_S(self) -> Array:
        """Tokens of each response."""
        return (self.node_ST >= 0).sum(axis=1)


@dataclass(frozen=True)
class TabularPolicy:
    """Logits [prompt, prefix, token] with the decoding rules that make them a distribution."""

    tree: Tree
    logits_PNV: Array
    correct_PS: Array
    temperature: float = 1.0
    top_p: float = 1.0

    @classmethod
    def random(
        cls,
        prompts: int,
        *,
        vocabulary: int = 3,
        depth: int = 4,
        spread: float = 1.0,
        hardness: tuple[float, float] = (0.6, 0.6),
        seed: int = 0,
        temperature: float = 1.0,
        top_p: float = 1.0,
    ) -> TabularPolicy:
        """Random logits; each prompt's failure rate is near a draw from Beta(*hardness)."""
        rng = np.random.default_rng(seed)
        tree = Tree.build(vocabulary, depth)
        logits = spread * rng.standard_normal((prompts, tree.nodes, vocabulary))
        empty = np.zeros((prompts, len(tree.node_ST)), bool)
        policy = cls(tree, logits, empty, temperature, top_p)
        # Responses join the right ones in random order while their probability still fits.
        target = 1.0 - rng.beta(*hardness, size=prompts)
        order = np.argsort(rng.random(empty.shape), axis=1)
        mass = np.cumsum(np.take_along_axis(policy.response_probability(), order, 1), axis=1)
        correct = np.zeros_like(empty)
        np.put_along_axis(correct, order, mass <= target[:, None], 1)
        return replace(policy, correct_PS=correct)

    def token_logprob(self, nucleus: bool = True) -> Array:
        """log pi(token | prefix) at the temperature, [P, N, V]; -inf outside the nucleus."""
        scaled = self.logits_PNV / self.temperature
        logprob = scaled - _logsumexp(scaled)
        if not nucleus or self.top_p >= 1.0:
            return logprob
        order = np.argsort(-logprob, axis=-1)
        ranked = np.take_along_axis(np.exp(logprob), order, -1)
        # The smallest set that reaches top_p: a token stays while the mass before it is short.
        kept_ranked = np.cumsum(ranked, -1) - ranked < self.top_p
        kept = np.zeros_like(kept_ranked)
        np.put_along_axis(kept, order, kept_ranked, -1)
        masked = np.where(kept, scaled, -np.inf)
        return masked - _logsumexp(masked)

    def response_logprob(self, nucleus: bool = True) -> Array:
        """Total log-prob of every response of every prompt, [P, S]."""
        tree = self.tree
        logprob = self.token_logprob(nucleus)
        steps = logprob[:, tree.node_ST, tree.token_ST]
        return np.where(tree.node_ST >= 0, steps, 0.0).sum(axis=-1)

    def response_probability(self) -> Array:
        """Probability of every response under the sampling distribution; rows sum to 1."""
        return np.exp(self.response_logprob())

    def true_difficulty(self) -> Array:
        """Exact failure rate of every prompt."""
        wrong = self.response_probability() * ~self.correct_PS
        return np.clip(wrong.sum(axis=1), 0.0, 1.0)

    def sample(self, rows: Array, rng: np.random.Generator) -> RolloutBatch:
        """One rollout for each row given (repeat a row for a group), with exact log-probs."""
        return self.rollouts(rows, self.sample_responses(rows, rng))

    def sample_responses(self, rows: Array, rng: np.random.Generator) -> Array:
        """Index of a sampled response for each row."""
        total = np.cumsum(self.response_probability(), axis=1)[rows]
        draw = rng.random(len(rows))[:, None] * total[:, -1:]
        return (total < draw).sum(axis=1)

    def rollouts(self, rows: Array, response_R: Array) -> RolloutBatch:
        """These responses as a batch, scored and with the log-probs of this policy."""
        tree = self.tree
        node, token = tree.node_ST[response_R], tree.token_ST[response_R]
        held = node >= 0
        per_token = self.token_logprob(nucleus=False)[rows[:, None], node, token]
        total = self.response_logprob()[rows, response_R]
        return RolloutBatch(
            prompt_R=np.asarray(rows, np.int64),
            tokens=token[held].astype(np.int32),
            logprobs=per_token[held].astype(np.float32),
            offsets=offsets_of(held.sum(axis=1)),
            total_logprob_R=total,
            reward_R=self.correct_PS[rows, response_R].astype(np.float32),
            conditioning_R=np.zeros(len(rows), np.uint8),
            finish_R=np.zeros(len(rows), np.uint8),
        )

    def response_index(self, batch: RolloutBatch) -> Array:
        """Which enumerated response each rollout is, from its tokens."""
        depth, base = self.tree.depth, self.tree.vocabulary + 1
        digits = self.tree.token_ST + 1
        digits = np.where(self.tree.node_ST >= 0, digits, 0)
        power = base ** np.arange(depth)
        codes = digits @ power
        position = np.arange(len(batch.tokens)) - np.repeat(batch.offsets[:-1], batch.length_R)
        row = np.repeat(np.arange(len(batch)), batch.length_R)
        value = (batch.tokens.astype(np.int64) + 1) * power[position]
        wanted = np.bincount(row, weights=value, minlength=len(batch)).astype(np.int64)
        order = np.argsort(codes)
        return order[np.searchsorted(codes[order], wanted)]

    def score(self, batch: RolloutBatch) -> Array:
        """Total log-prob of each rollout under this policy; -inf outside its nucleus."""
        return self.response_logprob()[batch.prompt_R, self.response_index(batch)]

    def drifted(self, amount: float, rng: np.random.Generator) -> TabularPolicy:
        """The policy after its logits moved in random directions, `amount` in standard deviation.

        Drifts compose like steps of training: n of size a wander about a sqrt(n).
        """
        noise = amount * rng.standard_normal(self.logits_PNV.shape)
        return replace(self, logits_PNV=self.logits_PNV + noise)

    def gradient_step(
        self, batch: RolloutBatch, coefficient_T: Array, learning_rate: float
    ) -> TabularPolicy:
        """Ascend sum_t coefficient_t log pi(token_t | prefix_t), flat over the batch's tokens."""
        response = self.response_index(batch)
        node, token = self.tree.node_ST[response], self.tree.token_ST[response]
        held = node >= 0
        rows = np.repeat(batch.prompt_R, batch.length_R)
        probability = np.exp(self.token_logprob(nucleus=False))[rows, node[held]]
        gradient = -probability * coefficient_T[:, None]
        gradient[np.arange(len(rows)), token[held]] += coefficient_T
        logits = self.logits_PNV.copy()
        scale = learning_rate / self.temperature
        np.add.at(logits, (rows, node[held]), scale * gradient)
        return replace(self, logits_PNV=logits)


def _logsumexp(values: Array) -> Array:
    top = values.max(axis=-1, keepdims=True)
    return top + np.log(np.exp(values - top).sum(axis=-1, keepdims=True))
