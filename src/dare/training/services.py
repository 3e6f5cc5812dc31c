"""What some estimators ask of the policy: a prefix's entropy (EDCO), a judgement (LLM-judge)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from dare.config import CurriculumConfig
from dare.curriculum import Services
from dare.curriculum.arrays import Array
from dare.curriculum.estimators import estimator_class
from dare.curriculum.estimators.base import Measured
from dare.curriculum.estimators.baselines import INSTRUCTION, Replies
from dare.teacher.file import PROBES, load_head
from dare.teacher.head import TeacherHead
from dare.training.collect import Collector
from dare.training.company import packed, unpacked
from dare_decoder import Sampling
from dare_decoder.batching import IntArray
from dare_hints import hint

_LOG = logging.getLogger(__name__)

PREFIX_TOKENS, PREFIX_TEMPERATURE = 64, 0.6
JUDGE_TOKENS, JUDGE_TEMPERATURE = 32, 0.3


class PolicyServices:
    """Generates for estimators; each process does its share, all get the same answer (METHOD 9)."""

    def __init__(self, collector: Collector, step: Callable[[], int]) -> None:
        self._store, self._collector, self._step = collector.store, collector, step
        self._policy, self._tokenizer = collector.policy, collector.policy.tokenizer

    def complete(self, given: Services, settings: CurriculumConfig, *, cold: bool) -> Services:
        """The services that were not given, from the policy itself; `cold` where the curriculum
        still has its cold start before it."""
        teacher, embeddings, kind = given.teacher, given.embeddings, estimator_class(settings)
        always = "embeddings" in kind.needs
        first = kind.uses_prior and settings.cold_start.references > 0 and cold
        if embeddings is None and (always or first):
            plain = [self._store.tokens(row) for row in range(len(self._store))]
            embeddings = self._policy.embed(plain)
        if "teacher" in kind.needs and teacher is None and embeddings is not None:
            width = np.shape(embeddings)[1]
            given_width = None if given.embeddings is None else width
            teacher = self.teacher(settings.estimator.teacher, given_width)
            if teacher is None:
                _LOG.warning(
                    "no teacher was given: prompts are compared by the similarity of their "
                    "embeddings; train one with `dare teacher` and set estimator.teacher"
                )
                teacher = TeacherHead.init(width)

        def solutions(rows: Array) -> Measured:
            return self._collector.read_solutions(rows, settings.max_tokens)

        own = solutions if self._store.has_solutions else None
        return replace(
            given,
            embeddings=embeddings,
            teacher=teacher,
            decode=given.decode or self._store.decode,
            hint=given.hint or hint,
            solutions=given.solutions or own,
            states=given.states or self._collector.read_states,
            lengths=self._store.lengths if given.lengths is None else given.lengths,
            entropy=given.entropy or self.entropy,
            ask=given.ask or self.ask,
        )

    def teacher(self, path: str | None, given_width: int | None = None) -> TeacherHead | None:
        """The head in that file, if it reads this policy's embeddings or given ones of a width."""
        if path is None:
            return None
        saved = load_head(path)
        if given_width is not None:
            saved.check_width(given_width, path)
            return saved.head
        texts = [self._store.encode_prompt(text) for text in PROBES]
        probes = self._policy.embed(texts)
        saved.check_probes(probes, path)
        if saved.probes is None:
            _LOG.warning(
                "%s was trained on given embeddings: whether they are this policy's is not checked",
                path,
            )
        return saved.head

    def entropy(self, rows: Array) -> Measured:
        """Mean token entropy of one prefix of at most 64 tokens a prompt, sampled at T = 0.6."""
        mine, prompts = self._share(rows, self._store.tokens)
        written = self._generate(prompts, mine, PREFIX_TOKENS, PREFIX_TEMPERATURE, "entropy")
        values = self._policy.entropy(prompts, written, PREFIX_TEMPERATURE)
        sizes = np.array([len(tokens) for tokens in written], dtype=float)
        shared = self._collector.company.exchange(np.column_stack([values, sizes]))
        return Measured(shared[:, 0], int(shared[:, 1].sum()))

    def ask(self, rows: Array) -> Replies:
        """The policy's replies to the judge's question, at most 32 tokens each at T = 0.3."""
        mine, prompts = self._share(rows, self._question)
        written = self._generate(prompts, mine, JUDGE_TOKENS, JUDGE_TEMPERATURE, "judge")
        texts = self._tokenizer.batch_decode(written, skip_special_tokens=True)
        company = self._collector.company
        sizes = np.array([len(tokens) for tokens in written], np.int64)
        everyone = company.gather(texts=packed(texts), sizes=sizes)
        replies = company.in_order([unpacked(one["texts"]) for one in everyone])
        return Replies(replies, sum(int(one["sizes"].sum()) for one in everyone))

    def _question(self, row: int) -> IntArray:
        turns = self._store.messages(row, 0, [])
        turns[-1]["content"] = f"{INSTRUCTION}\n\n{turns[-1]['content']}"
        return self._store.encode(turns)

    def _share(
        self, rows: Array, tokens: Callable[[int], IntArray]
    ) -> tuple[Array, list[IntArray]]:
        mine = self._collector.company.share(len(rows))
        return mine, [tokens(int(rows[place])) for place in mine]

    def _generate(
        self, prompts: list[IntArray], noise: Array, most: int, temperature: float, purpose: str
    ) -> list[IntArray]:
        key, sampling = (self._step(), purpose), Sampling(temperature, 1.0)
        each = np.arange(len(prompts))
        return self._collector.generate(prompts, each, noise, most, key, sampling).tokens
