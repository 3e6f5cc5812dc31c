"""Rewards for programs: the last fenced program of a response, run in a sandbox against tests.

    python examples/code_rewards.py

Needs bubblewrap (`apt install bubblewrap`) or a kernel with Landlock; `dare doctor` says what this
machine has. In a recipe: `reward: code`, with a column `tests` in the data. See docs/rewards.md.
"""

from __future__ import annotations

from dare.rewards.code import code_reward, judge

TESTS = [{"input": "3 4\n", "output": "7\n"}, {"input": "-1 1\n", "output": "0\n"}]
RESPONSES = {
    "right": "Read both and add.\n```python\na, b = map(int, input().split())\nprint(a + b)\n```",
    "wrong": "```python\na, b = map(int, input().split())\nprint(a - b)\n```",
    "hangs": "```python\nwhile True:\n    pass\n```",
    "no program": "The sum is 7.",
    "curious": "```python\nprint(open('/etc/shadow').read())\n```",
}


def rewards() -> dict[str, float | None]:
    """One reward for each response; None would mean that the check itself failed."""
    found = code_reward(list(RESPONSES.values()), tests=[TESTS] * len(RESPONSES))
    return dict(zip(RESPONSES, found, strict=True))


def function_verdict(program: str) -> str:
    """Tests may call a function instead; a verdict says why a program failed."""
    calls = [{"fn": "double", "args": [21], "output": 42}]
    return judge(program, calls, kind="function").verdict


if __name__ == "__main__":
    for name, reward in rewards().items():
        print(f"{name}: {reward}")
    print("function:", function_verdict("def double(x):\n    return x + x"))
    print("function:", function_verdict("def double(x):\n    return x / 0"))
