"""How right and how fast the math verifier is, on public golds and rollouts.

    python benchmarks/math_rewards.py [--data DIR] [--out FILE.json] [--show]

DIR holds the data sets as JSON lines; those that are absent are skipped. Measures: golds that do
not verify against themselves, agreement with the labels of two sets of rollouts, items a second,
and by how much a batch of 1,000 is delayed by 16 pathological answers, and by 16 that a worker
never finishes. Ends with one JSON line.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import time
from pathlib import Path
from typing import Any

from dare.rewards.builtin import gsm8k_answer
from dare_verify.math import MathVerifier, default

GOLDS = (
    "gsm8k/train", "gsm8k/test", "math500/test", "math/train", "math/test", "minerva_math/test",
    "aime24/test", "amc23/test", "aime_1983_2023/train", "aimo_validation/aime",
    "aimo_validation/amc", "deepscaler/full_39808", "dapo_math/train_17917",
    "orz/orz_57k_sample_2048", "deepmath/sample_39",
)  # fmt: skip

PATHOLOGICAL = (
    r"9^{9^{9^{9}}}", r"2^{2^{2^{2^{2^{2}}}}}", r"10^{10^{10}}", r"(10^{100})!", r"(((7!)!)!)!",
    r"\sum_{k=1}^{10^{9}} \frac{1}{k^2+\sqrt{k}}", r"\prod_{k=1}^{100000} (k+\sqrt{k})",
    "(" * 400 + "x" + ")" * 400, r"\sqrt{" * 200 + "2" + "}" * 200, r"\log(" * 60 + "5" + ")" * 60,
    "+".join(rf"\sqrt{{{k}}}" for k in range(2, 900)), "(x+y+z)^{200}(x-y)^{300}",
    r"\int_0^1 \int_0^1 \frac{e^{x y} \sin(x+y)}{\sqrt{1+x^4 y^4}} dx dy",
    r"\sum_{n=1}^{5000} \frac{\sin(n^3)}{n!}",
    r"\int_0^{\infty} \frac{\ln(1+x^{7})}{x^{3}+x^{5}+1} dx",
    "1" * 5000 + "^{" + "7" * 50 + "}",
)  # fmt: skip

# Labels of math100 that are wrong: (gold, label). 4:30 p.m. is 4:30 p.m. and 10{,}000 is 10000.
WRONG_LABELS = {(r"\text{4:30 p.m.}", False), ("10{,}000", False)}


def read(path: Path) -> list[dict[str, Any]]:
    """The rows of a file of JSON lines, packed or not; none where it is absent."""
    for name in (
        path,
        path.with_name(path.name + ".jsonl"),
        path.with_name(path.name + ".jsonl.gz"),
    ):
        if name.is_file():
            opener = gzip.open if name.suffix == ".gz" else open
            with opener(name, "rt", encoding="utf-8") as lines:
                return [json.loads(line) for line in lines]
    return []


def check_golds(data: Path, show: bool) -> dict[str, Any]:
    """Golds by data set: how many, how many fail against themselves, how many are only text."""
    table: dict[str, Any] = {}
    for name in GOLDS:
        rows = read(data / name)
        if not rows:
            continue
        golds = [row["answer"] for row in rows]
        failed = default.check_golds(golds)
        boxed = default.verify_batch([rf"\boxed{{{gold}}}" for gold in golds], golds)
        text_only = [row for row in default.check_golds(golds, deep=True) if row not in failed]
        table[name] = {
            "golds": len(golds),
            "failed": len(failed),
            "boxed_not_true": sum(verdict is not True for verdict in boxed),
            "text_only": len(text_only),
        }
        print(f"{name}: {table[name]}")
        for row, reason in failed if not show else [*failed, *text_only]:
            print(f"    row {row}: {golds[row]!r:.100}: {reason}")
    return table


def math100(data: Path) -> tuple[list[str], list[str], list[bool]]:
    """Completions, golds and labels of Qwen2.5-Math's 100 x 8 samples."""
    rows = read(data / "rollouts" / "qwen2.5math_math100_8samples")
    texts = [text for row in rows for text in row["responses"]]
    golds = [row["answer"] for row in rows for _ in row["responses"]]
    return texts, golds, [label for row in rows for label in row["correct"]]


def gsm8k(data: Path) -> tuple[list[str], list[str], list[bool]]:
    """Completions, golds and labels of the four models of GSM8K; their answers follow `A:`."""
    texts, golds, labels = [], [], []
    for row in read(data / "rollouts" / "gsm8k_openai_example_solutions"):
        for sample in row.values():
            if isinstance(sample, dict):
                texts.append(sample["solution"].replace("\nA:", "\n####"))
                golds.append(row["ground_truth"].replace("\nA:", "\n####"))
                labels.append(sample["is_correct"])
    return texts, golds, labels


def agreement(
    rollouts: tuple[list[str], list[str], list[bool]], show: bool, **options: Any
) -> dict[str, Any]:
    """How often the verdict is the label."""
    texts, golds, labels = rollouts
    if not texts:
        return {}
    start = time.perf_counter()
    verdicts = default.verify_batch(texts, golds, **options)
    seconds = time.perf_counter() - start
    apart = [row for row in range(len(texts)) if verdicts[row] is not labels[row]]
    extract = options.get("extract")
    for row in apart if show else []:
        answer = extract(texts[row]) if extract else texts[row][-150:]
        print(f"    {row}: gold {golds[row][-60:]!r} answer {answer!r} verdict {verdicts[row]}")
    honest = [row for row in apart if (golds[row], labels[row]) not in WRONG_LABELS]
    return {
        "rows": len(texts),
        "agreement": round(1 - len(apart) / len(texts), 5),
        "agreement_less_wrong_labels": round(1 - len(honest) / len(texts), 5),
        "unscored": verdicts.count(None),
        "seconds": round(seconds, 3),
    }


def mixed_batch(count: int = 1000) -> tuple[list[str], list[str]]:
    """Answers of which one in five needs a worker, all different."""
    texts, golds = [], []
    for k in range(count):
        if k % 5 == 0:
            texts.append(rf"\boxed{{\frac{{{k}\sqrt{{{k + 2}}}}}{{{k + 2}}}}}")
            golds.append(rf"\frac{{{k}}}{{\sqrt{{{k + 2}}}}}")
        else:
            texts.append(rf"so it is \boxed{{\frac{{{k}}}{{7}}}}")
            golds.append(f"{k}/7")
    return texts, golds


def delay(verifier: MathVerifier) -> dict[str, float]:
    """Seconds for the batch alone, and by how much 16 pathological answers in it prolong it."""
    texts, golds = mixed_batch()
    clean, dirty = [], []
    for _ in range(3):
        start = time.perf_counter()
        verdicts = verifier.verify_batch(texts, golds)
        clean.append(time.perf_counter() - start)
        if not all(verdicts):
            raise SystemExit("a right answer was not accepted")
        hostile = list(texts)
        for place, bad in enumerate(PATHOLOGICAL):
            hostile[place * 60 + 7] = rf"\boxed{{{bad}}}"
        start = time.perf_counter()
        mixed = verifier.verify_batch(hostile, golds)
        dirty.append(time.perf_counter() - start)
        honest = [a for a, text in zip(mixed, hostile, strict=True) if text in texts]
        if not all(honest) or any(a for a, t in zip(mixed, hostile, strict=True) if t not in texts):
            raise SystemExit("pathological answers changed other verdicts")
    return {
        "batch_s": round(statistics.median(clean), 3),
        "pathological_delay_s": round(max(dirty) - min(clean), 3),
        "items_per_s": round(len(texts) / statistics.median(clean)),
    }


def injected_delay(verifier: MathVerifier) -> float:
    """The same for 16 items that keep a worker spinning until it is killed."""
    texts, golds = mixed_batch()
    start = time.perf_counter()
    verifier.verify_batch(texts, golds)
    alone = time.perf_counter() - start
    verifier.fault = lambda row: "spin" if row % 60 == 7 and row < 960 else None
    start = time.perf_counter()
    found = verifier.verify_batch(texts, golds)
    together = time.perf_counter() - start
    verifier.fault = None
    if found.count(None) != 16 or found.count(True) != len(texts) - 16:
        raise SystemExit("injected failures changed other verdicts")
    return round(together - alone, 3)


def orz(data: Path, name: str, show: bool) -> dict[str, Any]:
    """Verdicts against the authors' strict checker, which rejects other spellings of the gold."""
    rows = read(data / "rollouts" / name)
    found = default.verify_batch(
        [rf"\boxed{{{row['extracted']}}}" for row in rows], [row["expected"] for row in rows]
    )
    apart = [
        (row["expected"], row["extracted"], verdict)
        for row, verdict in zip(rows, found, strict=True)
        if verdict is not row["is_match_strict"]
    ]
    for gold, answer, verdict in apart if show else []:
        print(f"    gold {gold!r} answer {answer!r} verdict {verdict}")
    return {
        "rows": len(rows),
        "accepted": found.count(True),
        "accepted_by_strict": sum(row["is_match_strict"] for row in rows),
        "newly_accepted": sum(verdict is True for _, _, verdict in apart),
        "newly_rejected": sum(verdict is False for _, _, verdict in apart),
        "unscored": found.count(None),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    shared = Path(__file__).resolve().parents[2] / "shared" / "data"
    parser.add_argument("--data", type=Path, default=shared)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--show", action="store_true", help="print every disagreement")
    options = parser.parse_args()
    default.verify_batch([r"\boxed{\sqrt{8}}"], [r"2\sqrt{2}"])  # start the workers
    result: dict[str, Any] = delay(default)
    result["injected_delay_s"] = injected_delay(default)
    golds = check_golds(options.data, options.show)
    result["golds"] = golds
    result["golds_checked"] = sum(entry["golds"] for entry in golds.values())
    result["golds_failed"] = sum(entry["failed"] for entry in golds.values())
    for name, rollouts, extra in (
        ("math100", math100(options.data), {}),
        ("gsm8k", gsm8k(options.data), {"extract": gsm8k_answer}),
    ):
        found = agreement(rollouts, options.show, **extra)
        result[name] = found
        result[f"agreement_{name}"] = found.get("agreement")
        result[f"agreement_{name}_less_wrong_labels"] = found.get("agreement_less_wrong_labels")
    for name in ("math500_orz7b_t0", "math500_orz7b_t1"):
        result[name] = orz(options.data, name, options.show)
    result["stats"] = default.stats()
    line = json.dumps(result)
    if options.out:
        options.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(line)


if __name__ == "__main__":
    main()
