# %% [markdown]
# # Read a run folder
# Cells for a notebook (VS Code, Jupyter with jupytext), or a script:
# `python examples/read_run.py runs/quickstart/dare`. The files are described in docs/training.md.

# %%
"""Read what a run wrote: learning curve, groups that teach, the hardest prompts, one rollout."""

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

run = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/quickstart/dare")


def lines(name: str) -> list[dict[str, Any]]:
    """One JSON object a line; a last line that is still being written is left out."""
    text = (run / name).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


# %% Does it learn? Accuracy on the held-out problems
for evaluation in lines("eval.jsonl"):
    print(f"step {evaluation['step']}: accuracy {evaluation['accuracy']:.3f}")

# %% Do the groups teach, and where do the tokens go?
metrics = lines("metrics.jsonl")
for step in metrics[:: max(1, len(metrics) // 5)]:
    teach, tokens = step["varied_groups"], step["generated_tokens_total"]
    print(f"step {step['step']}: {teach:.0%} of groups mixed, {tokens:,} tokens so far")

# %% Was the difficulty right? Predicted against realised failure rates of drawn prompts
pairs = [
    (said, came)
    for step in lines("selections.jsonl")
    for said, came in zip(step["difficulty"], step["failure_rate"], strict=True)
    if came is not None  # nobody could score that group
]
error = sum(abs(said - came) for said, came in pairs) / len(pairs)
print(f"mean distance over {len(pairs)} drawn prompts: {error:.3f}")

# %% The hardest prompts for the current policy
table = pq.read_table(run / "difficulty.parquet").sort_by([("difficulty", "descending")])
texts = {row["id"]: row["prompt"] for row in pq.read_table(run / "prompts.parquet").to_pylist()}
for row in table.slice(0, 5).to_pylist():
    print(f"{row['difficulty']:.2f}  {row['visits']} visits  {texts[row['id']]!r}")

# %% One rollout to read
samples = lines("samples.jsonl")
if samples:
    print(json.dumps(samples[-1], indent=1, ensure_ascii=False)[:600])
