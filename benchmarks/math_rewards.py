"""How right and how fast the math verifier is, on public golds and rollouts.

    python benchmarks/math_rewards.py [--data DIR] [--out FILE.json] [--show]

DIR holds the data sets as JSON lines; those that are absent are skipped. Measures: golds that do
not verify against themselves, agreement with the labels of two sets of rollouts, items a second,
and by how much a batch of 1,000 is delayed by 16 pathological answers, and by 16 that a worker
never finishes; then the same pairs judged by math-verify alone and by TRL's `accuracy_reward`,
each in a process that can be killed. Ends with one JSON line.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import json
import logging
import multiprocessing
import resource
import statistics
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from dare.rewards.builtin import gsm8k_answer
from dare_verify.math import MathVerifier, default
from dare_verify.math.extract import gold_answer

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


Pair = tuple[str, str, bool]  # completion, gold, whether it is right
LIMIT_S = 30.0  # more than the contenders' own limits together: 25 s are TRL's
MEMORY = 8 << 30
GOLD_STEP = 40  # of the golds, every fortieth is boxed and judged


def _dare(completion: str, gold: str) -> bool | None:
    return default.verify_batch([completion], [gold])[0]


def _math_verify(completion: str, gold: str) -> bool | None:
    library: Any = importlib.import_module("math_verify")
    return bool(library.verify(library.parse(f"${gold}$"), library.parse(completion)))


def _trl(completion: str, gold: str) -> bool | None:
    return _trl_bare(completion, f"${gold}$")


def _trl_bare(completion: str, gold: str) -> bool | None:
    library: Any = importlib.import_module("trl.rewards")
    message = [{"role": "assistant", "content": completion}]
    found = library.accuracy_reward([message], [gold])[0]
    return None if found is None else found == 1.0


# A gold is handed over in dollar signs, as math-verify asks; `bare` is a data set's as it stands.
CONTENDERS: dict[str, Callable[[str, str], bool | None]] = {
    "dare": _dare,
    "math-verify": _math_verify,
    "trl": _trl,
    "trl, bare golds": _trl_bare,
}


def _serve(name: str, pipe: Connection) -> None:
    """A contender's process: (completion, gold) in, (verdict, seconds) out."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    logging.disable(logging.ERROR)
    judge = CONTENDERS[name]
    for gold in ("1", r"2\sqrt{2}", r"\frac{x}{2}"):  # tables that are built on first use
        judge(rf"\boxed{{{gold}+0}}", gold)
    pipe.send("ready")
    while True:
        completion, gold = pipe.recv()
        start = time.perf_counter()
        try:
            verdict = judge(completion, gold)
        except Exception:  # out of memory among others: nobody got a verdict
            verdict = None
        pipe.send((verdict, time.perf_counter() - start))


OUTCOMES: dict[Any, str] = {
    True: "false_accepts",
    False: "false_rejects",
    None: "unscored",
    "hang": "hangs",
    "died": "died",
}


def contend(name: str, pairs: list[Pair], show: bool) -> dict[str, Any]:
    """The verdicts of one contender on pairs whose verdict is known, one pair after another."""
    context = multiprocessing.get_context("spawn")
    process: Any = None
    counts: Counter[str] = Counter()
    seconds = []
    for completion, gold, right in pairs:
        if process is None:
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(name, theirs))
            process.start()
            theirs.close()
            ours.recv()
        try:
            ours.send((completion, gold))
            verdict, took = ours.recv() if ours.poll(LIMIT_S) else ("hang", LIMIT_S)
        except EOFError:
            verdict, took = "died", 0.0
        if verdict in ("hang", "died"):
            process.kill()
            process.join()
            process = None
        seconds.append(took)
        if verdict is not right:
            counts[OUTCOMES[verdict]] += 1
            if show:
                print(f"    {name}: gold {gold!r:.90} {completion[-90:]!r} verdict {verdict}")
    if process is not None:
        process.kill()
        process.join()
    return {
        **{kind: counts[kind] for kind in OUTCOMES.values()},
        "ms": round(1000 * statistics.mean(seconds), 2),
        "median_ms": round(1000 * statistics.median(seconds), 2),
        "slowest_s": round(max(seconds), 2),
    }


def labelled(data: Path) -> dict[str, list[Pair]]:
    """Pairs whose verdict is known, by where they come from."""
    found: dict[str, list[Pair]] = {
        "MATH, 100 x 8 answers": [
            pair
            for pair in zip(*math100(data), strict=True)
            if (pair[1], pair[2]) not in WRONG_LABELS
        ],
        "GSM8K, 4 x 1,319 answers": [
            (
                rf"The answer is $\boxed{{{gsm8k_answer(text) or ''}}}$.",
                gold_answer(gold) or "",
                right,
            )
            for text, gold, right in zip(*gsm8k(data), strict=True)
        ],
    }
    # Right by the authors' strict checker, or accepted here: the 128 of the latter were read.
    rows = [
        row
        for name in ("math500_orz7b_t0", "math500_orz7b_t1")
        for row in read(data / "rollouts" / name)
    ]
    texts = [rf"The answer is $\boxed{{{row['extracted']}}}$." for row in rows]
    accepted = default.verify_batch(texts, [row["expected"] for row in rows])
    found["MATH-500, 2 x 500 answers"] = [
        (text, row["expected"], bool(row["is_match_strict"] or verdict))
        for text, row, verdict in zip(texts, rows, accepted, strict=True)
    ]
    golds = [str(row["answer"]) for name in GOLDS for row in read(data / name)]
    found["golds in a box"] = [
        (rf"The answer is $\boxed{{{gold_answer(gold)}}}$.", str(gold_answer(gold)), True)
        for gold in golds[::GOLD_STEP]
        if gold_answer(gold)
    ]
    battery = Path(__file__).resolve().parents[1] / "tests" / "verify" / "math" / "pairs.jsonl"
    found["tests of this verifier"] = [
        (rf"Therefore $\boxed{{{row['answer']}}}$.", row["gold"], row["verdict"])
        for row in read(battery)
    ]
    found["pathological answers"] = [(rf"\boxed{{{bad}}}", "5", False) for bad in PATHOLOGICAL]
    return {name: pairs for name, pairs in found.items() if pairs}


def compare(data: Path, show: bool) -> dict[str, Any]:
    """Every contender on every set of pairs; those whose library is absent are left out."""
    table: dict[str, Any] = {}
    for name, pairs in labelled(data).items():
        table[name] = {"pairs": len(pairs), "right": sum(right for _, _, right in pairs)}
        for contender in CONTENDERS:
            library = {"d": "dare_verify", "m": "math_verify", "t": "trl"}[contender[0]]
            if importlib.util.find_spec(library):
                table[name][contender] = contend(contender, pairs, show)
                print(f"{name}: {contender}: {table[name][contender]}", flush=True)
    return table


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
    result["contenders"] = compare(options.data, options.show)
    line = json.dumps(result)
    if options.out:
        options.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(line)


if __name__ == "__main__":
    main()
