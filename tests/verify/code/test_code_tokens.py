"""Printed tokens: exact where they are exact, tolerant only where a float is expected."""

from __future__ import annotations

import pytest

from dare_verify.code.trials import difference


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        ("5", "5"),
        ("5 \n\n", "5"),
        ("  1   2\n3", "1 2 3\n"),
        ("1\r\n2\r\n", "1\n2\n"),
        ("", "\n"),
        ("0.3333333", "0.33333333333"),
        ("1", "1.0"),
        ("1.0", "1.000"),
        ("-0.0", "0.0"),
        (".5", "0.5"),
        ("5e-1", "0.5"),
        ("1000000007.50000001", "1000000007.5"),
        ("1e-9", "0.0"),
        ("nan", "nan"),
        ("1e5", "1E5"),
    ],
)
def test_the_same(printed: str, expected: str) -> None:
    assert difference(printed.encode(), expected.encode()) is None


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        ("5.0", "5"),
        ("5.0000000001", "5"),
        ("+5", "5"),
        ("05", "5"),
        ("0011", "11"),
        ("yes", "YES"),
        ("1 2 3", "1 2"),
        ("1 2", "1 2 3"),
        ("", "0"),
        ("1,2", "1 2"),
        ("nan", "0.5"),
        ("inf", "0.5"),
        ("0.5001", "0.5"),
        ("1_0.5", "10.5"),
        ("\u0665.5", "5.5"),
        ("1000000008.0", "1000000007.0"),
        ("-7.0", "7.0"),
        ("1e999", "1e998"),
        ("12345678901234567890", "12345678901234567891"),
        (str(2**70), str(2**70 + 1)),
        ("True", "1"),
        ("0x10", "16"),
    ],
)
def test_different(printed: str, expected: str) -> None:
    assert difference(printed.encode(), expected.encode()) is not None


def test_integers_of_any_length_are_compared_digit_by_digit() -> None:
    digits = b"7" * 10_000
    assert difference(digits + b" 1", digits + b"  1") is None
    assert difference(digits + b"1", digits + b"2") is not None
