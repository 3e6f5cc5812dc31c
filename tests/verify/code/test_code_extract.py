"""The last whole block of Python is the program."""

from __future__ import annotations

import pytest

from dare_verify.code import extract_program

BLOCK = "```python\nprint(1)\n```"


@pytest.mark.parametrize(
    ("completion", "program"),
    [
        (BLOCK, "print(1)\n"),
        ("```py\nprint(1)\n```", "print(1)\n"),
        ("```Python3\nprint(1)\n```", "print(1)\n"),
        ("~~~python\nprint(1)\n~~~", "print(1)\n"),
        ("``` python\nprint(1)\n```  ", "print(1)\n"),
        ("```python title=a.py\nprint(1)\n```", "print(1)\n"),
        ("Text\r\n```python\r\nprint(1)\r\n```\r\n", "print(1)\n"),
        ("```\nprint(1)\n```", "print(1)\n"),
        (f"{BLOCK}\nBetter:\n```python\nprint(2)\n```\nDone.", "print(2)\n"),
        (f"{BLOCK}\nIt prints\n```\n1\n```", "print(1)\n"),
        (f"{BLOCK}\n```bash\npython a.py\n```", "print(1)\n"),
        (f"{BLOCK}\nIt prints\n```text\n1", "print(1)\n"),
        ("1. So:\n   ```python\n   if 1:\n       print(1)\n   ```", "if 1:\n    print(1)\n"),
        ("````python\nx = '''\n```\n'''\n````", "x = '''\n```\n'''\n"),
        ("```python\nx = '''\n~~~\n'''\n```", "x = '''\n~~~\n'''\n"),
    ],
)
def test_program(completion: str, program: str) -> None:
    assert extract_program(completion) == program


@pytest.mark.parametrize(
    "completion",
    [
        "",
        "print(1)",
        "`print(1)`",
        "```python\nprint(1)",
        "```python",
        "```python\n```",
        "```python\n   \n```",
        "```cpp\nint main() {}\n```",
        f"{BLOCK}\nBetter:\n```python\nprint(2",
        "```python print(1) ```",
    ],
)
def test_no_program(completion: str) -> None:
    assert extract_program(completion) is None


def test_a_completion_without_fences_may_be_the_program() -> None:
    assert extract_program("print(1)\n", bare=True) == "print(1)\n"
    assert extract_program("```python\nprint(1)", bare=True) is None
    assert extract_program("  \n", bare=True) is None
