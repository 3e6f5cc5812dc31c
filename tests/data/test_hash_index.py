"""The index of keys does what a dictionary would."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dare.data.repeats import HashIndex, Repeats, key_of


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(0, 40), max_size=30), max_size=12))
def test_it_agrees_with_a_dictionary(batches):
    index, known, number = HashIndex(), {}, 0
    for batch in batches:
        values = list(range(number, number + len(batch)))
        expected = []
        for key, value in zip(batch, values, strict=True):
            expected.append(known.get(key, -1))
            known.setdefault(key, value)
        number += len(batch)
        found = index.add(np.array(batch, np.uint64), np.array(values, np.int64))
        assert found.tolist() == expected
    assert len(index) == len(known)
    keys = np.arange(45, dtype=np.uint64)
    assert index.find(keys).tolist() == [known.get(key, -1) for key in range(45)]


def test_runs_stay_few_and_the_memory_is_16_bytes_a_key():
    index, rng = HashIndex(), np.random.default_rng(0)
    for start in range(0, 200_000, 2_000):
        index.add(rng.integers(0, 2**63, 2_000).astype(np.uint64), np.arange(start, start + 2_000))
    assert len(index._runs) <= 8
    held = sum(keys.nbytes + values.nbytes for keys, values in index._runs)
    assert held == 16 * len(index)


def test_repeats_tell_text_and_answer_apart():
    repeats = Repeats()
    texts = ["What is $1+1$?", "What is 1+1 ?", "What is $1+1$?", "Other"]
    keys = [key_of("whatis1+1"), key_of("whatis1+1"), key_of("whatis1+1"), key_of("other")]
    found = repeats.add(10, keys, texts, ["2", "2", "3", None])
    assert found[0] is None
    assert found[3] is None
    assert (found[1].first, found[1].same_text, found[1].same_answer) == (10, False, True)
    assert (found[2].first, found[2].same_text, found[2].same_answer) == (10, True, False)
