"""What does a group of rollouts teach? Its gradient beside that of accuracy on other problems.

    python benchmarks/gradients_gpu.py --model FOLDER --train mixture.jsonl.gz \
        --test others.jsonl.gz --out gradients [--problems 1024] [--test-problems 1024]

Rows hold `problem` and `answer`. Every problem of --train is rolled out 16 times: the first half
says how hard it is, as an estimate would, and the second half is a group that it could be drawn
for. A group's gradient is what training would add up: advantages by the group's mean and deviation,
each response's mean over its tokens. The gradient of --test is that of accuracy itself, of nearly
greedy responses: of warm ones it is mostly that of being surer of what is mostly right.

An update under Adam has the same length whatever the gradient's, so that a batch teaches by its
direction: `progress` is the mean product of its gradient with the test's over the root of its mean
square, relative to a uniform draw of --groups groups. It grows with the batch as long as noise is
what limits it. Products are taken in Adam's metric (each coordinate over its root mean square) and
plainly. Gradients are kept as --width sums with random signs, whose products are unbiased.

OUT holds rollouts (`groups.npz`) and products (`products.npz`), so that `--analyse` draws other
batches without a GPU. Ends with one JSON line.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from methods_gpu_data import read_lines
from probe_gpu import PROMPT, encoded
from scipy import special
from transformers import AutoModelForCausalLM, AutoTokenizer

from dare.data.repeats import normal_form
from dare.policy.generate import GenerationRequest
from dare.policy.policy import Policy
from dare.policy.score import batch_logprobs
from dare.rewards import math_reward
from dare_decoder import Sampling

GROUP = 8
METRICS = ("adam", "plain")


def main() -> None:
    """Rollouts, gradients, products; then what draws would have made of them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model")
    parser.add_argument("--train", type=Path)
    parser.add_argument("--test", type=Path)
    parser.add_argument("--leave-out", type=Path, help="problems that neither file gives")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--analyse", action="store_true", help="only draw from what OUT holds")
    parser.add_argument("--problems", type=int, default=1024)
    parser.add_argument("--test-problems", type=int, default=1024)
    parser.add_argument("--longest", type=int, default=768)
    parser.add_argument("--temperature", type=float, default=0.6)
    parser.add_argument("--top-p", type=float, default=0.95)
    parser.add_argument("--test-temperature", type=float, default=0.3, help="nearly greedy")
    parser.add_argument("--prompt", default=PROMPT)
    parser.add_argument("--width", type=int, default=1 << 18)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--groups", type=int, default=32, help="drawn in a step")
    options = parser.parse_args()
    figures: dict[str, Any] = {}
    if not options.analyse:
        options.out.mkdir(parents=True, exist_ok=True)
        figures = measure(options)
    figures |= analyse(options.out, options.groups)
    (options.out / "figures.json").write_text(json.dumps(figures, indent=1) + "\n")
    print(json.dumps(figures))


# ---- rollouts and gradients ----


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Roll out, take every mixed group's gradient, keep their products."""
    cuda = torch.cuda.is_available()
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    model: Any = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
    model.to("cuda" if cuda else "cpu").eval()
    policy = Policy(
        model, tokenizer, precision=torch.bfloat16 if cuda else None, generation_rows=1024
    )
    sampling = {
        "train": Sampling(options.temperature, options.top_p),
        "test": Sampling(options.test_temperature, 1.0),
    }
    halves = {
        "train": (options.train, options.problems, 2),
        "test": (options.test, options.test_problems, 1),
    }
    kept: dict[str, Any] = {}
    groups: list[Group] = []
    seconds: dict[str, float] = {}
    known: set[str] = set()
    if options.leave_out:
        known |= {normal_form(row["problem"]) for row in read_lines(options.leave_out)}
    for name, (path, count, times) in halves.items():
        rows = rows_of(path, count, options.seed, known)
        known |= {normal_form(row["problem"]) for row in rows}
        prompts = [
            encoded(tokenizer, options.prompt.format(problem=row["problem"])) for row in rows
        ]
        began = time.perf_counter()
        right, tokens = rolled_out(policy, prompts, rows, times * GROUP, sampling[name], options)
        seconds[f"generate_{name}"] = round(time.perf_counter() - began, 1)
        kept |= {
            f"{name}_right": right,
            f"{name}_length": np.array([[len(one) for one in row] for row in tokens]),
            f"{name}_prompt": np.array([len(prompt) for prompt in prompts]),
        }
        for place, prompt in enumerate(prompts):
            score = right[place, -GROUP:].astype(float)
            if 0 < score.sum() < GROUP:
                answers = tokens[place][-GROUP:]
                groups.append(Group(name == "test", place, prompt, answers, score))
    began = time.perf_counter()
    products = products_of(policy, groups, options)
    seconds["gradients"] = round(time.perf_counter() - began, 1)
    kept["group_test"] = np.array([one.test for one in groups])
    kept["group_place"] = np.array([one.place for one in groups])
    np.savez_compressed(options.out / "groups.npz", allow_pickle=False, **kept)
    np.savez_compressed(options.out / "products.npz", allow_pickle=False, **products)
    return {"seconds": seconds, "device": torch.cuda.get_device_name() if cuda else "cpu"}


class Group:
    """The rollouts of one prompt, some right and some wrong."""

    def __init__(
        self, test: bool, place: int, prompt: Any, answers: Sequence[Any], score: np.ndarray
    ) -> None:
        self.test, self.place, self.prompt, self.answers = test, place, prompt, answers
        centred = score - score.mean()
        length = np.array([max(1, len(answer)) for answer in answers])
        # Of a test problem the gradient of its success rate; of others what training adds up.
        self.weight = centred if test else centred / centred.std() / length


def rows_of(path: Path, count: int, seed: int, known: set[str]) -> list[dict[str, Any]]:
    """So many problems of a file, at random, none of which is known."""
    rows = [row for row in read_lines(path) if normal_form(row["problem"]) not in known]
    if len(rows) < count:
        raise SystemExit(f"{path}: {len(rows)} new problems, but {count} are wanted")
    return [rows[place] for place in np.random.default_rng(seed).permutation(len(rows))[:count]]


def rolled_out(
    policy: Policy,
    prompts: list[Any],
    rows: list[dict[str, Any]],
    times: int,
    sampling: Sampling,
    options: argparse.Namespace,
) -> tuple[np.ndarray, list[list[Any]]]:
    """[problems, times] of 0 and 1, and the responses."""
    total = len(rows) * times
    owner = np.repeat(np.arange(len(rows)), times)
    budgets = np.full(total, options.longest)
    request = GenerationRequest(prompts, owner, budgets, np.arange(total), options.seed, 0)
    made = policy.generate(request, sampling).tokens
    texts = policy.tokenizer.batch_decode([one.tolist() for one in made], skip_special_tokens=True)
    found = math_reward(texts, answer=[rows[place]["answer"] for place in owner])
    right = np.array([float(one or 0.0) for one in found]).reshape(len(rows), times)
    return right, [list(made[place * times : (place + 1) * times]) for place in range(len(rows))]


def products_of(
    policy: Policy, groups: list[Group], options: argparse.Namespace
) -> dict[str, np.ndarray]:
    """Products of every pair of groups' gradients, in each metric."""
    parameters = [one for one in policy.module.parameters() if one.requires_grad]
    sketch = Sketch(parameters, options.width, options.seed)
    policy.release()
    scales = [torch.zeros_like(one, dtype=torch.float32) for one in parameters]
    order = np.random.default_rng(options.seed).permutation(len(groups))[:128]
    for group in (groups[place] for place in order):
        for total, slope in zip(scales, gradient(policy, group, parameters, options), strict=True):
            total.addcmul_(slope, slope)
    for total in scales:
        # A coordinate that these groups hardly touch must not count for more than all others.
        floor = 1e-4 * total.mean() + 1e-30
        total.clamp_(min=float(floor)).pow_(-0.25)
    found = {metric: torch.empty(len(groups), options.width) for metric in METRICS}
    for place, group in enumerate(groups):
        slopes = gradient(policy, group, parameters, options)
        found["plain"][place] = sketch.of(slopes).cpu()
        found["adam"][place] = sketch.of(slopes, scales).cpu()
    return {metric: (one @ one.T).numpy() for metric, one in found.items()}


def gradient(
    policy: Policy, group: Group, parameters: list[Any], options: argparse.Namespace
) -> list[torch.Tensor]:
    """Of the weighted log-probs of one group's responses."""
    for parameter in parameters:
        parameter.grad = None
    answers = [np.asarray(one) for one in group.answers]
    rows = np.arange(len(answers))
    batch = policy.layout.batch([group.prompt] * len(answers), answers, rows).to(policy.device)
    weight = np.repeat(group.weight, [len(one) for one in answers])
    with policy.autocast():
        heat = options.test_temperature if group.test else options.temperature
        logprob, _ = batch_logprobs(policy.module, batch, heat)
        gain = (logprob * torch.from_numpy(weight).to(logprob)).sum()
    gain.backward()
    return [torch.zeros_like(one) if one.grad is None else one.grad.float() for one in parameters]


class Sketch:
    """Sums of a vector's coordinates with random signs: products survive in expectation."""

    def __init__(self, parameters: list[Any], width: int, seed: int) -> None:
        self._width = width
        device = parameters[0].device
        random = torch.Generator(device).manual_seed(seed)
        self._signs = [
            torch.randint(0, 2, (one.numel(),), generator=random, device=device, dtype=torch.int8)
            .mul_(2)
            .sub_(1)
            for one in parameters
        ]

    def of(
        self, parts: list[torch.Tensor], scales: list[torch.Tensor] | None = None
    ) -> torch.Tensor:
        """The sketch of a vector given in parts, each coordinate times its scale."""
        total = torch.zeros(self._width, device=parts[0].device)
        for place, (part, sign) in enumerate(zip(parts, self._signs, strict=True)):
            values = part.flatten() * sign
            if scales is not None:
                values *= scales[place].flatten()
            whole = len(values) // self._width * self._width
            if whole:
                total += values[:whole].view(-1, self._width).sum(0)
            if whole < len(values):
                total[: len(values) - whole] += values[whole:]
        return total


# ---- draws ----


def analyse(folder: Path, groups: int) -> dict[str, Any]:
    """Progress of a step by draw, by size, and what groups teach by their difficulty."""
    with np.load(folder / "groups.npz", allow_pickle=False) as found:
        data = {name: found[name] for name in found.files}
    with np.load(folder / "products.npz", allow_pickle=False) as found:
        products = {name: found[name].astype(np.float64) for name in found.files}
    made: dict[str, Any] = {
        "problems": len(data["train_right"]),
        "test_problems": len(data["test_right"]),
        "mixed": int((~data["group_test"]).sum()),
        "test_mixed": int(data["group_test"].sum()),
        "rate": round(float(data["train_right"].mean()), 3),
        "test_rate": round(float(data["test_right"].mean()), 3),
    }
    for metric, product in products.items():
        scene = Scene(data, product)
        made[metric] = {
            "draws": {
                name: interval(scene, lambda one, d=draw: one.relative(d, groups, groups))
                for name, draw in draws(data).items()
            },
            "sizes": {
                name: {
                    str(size): interval(
                        scene, lambda one, d=draw, s=size: one.relative(d, s, groups)
                    )
                    for size in (8, 16, 32, 64, 128)
                }
                for name, draw in draws(data).items()
                if name in ("uniform", "value 16")
            },
            "by_rate": scene.by_rate(),
            "cosine": {
                name: interval(scene, lambda one, c=chosen: 1e5 * one.cosine(c))
                for name, chosen in kinds(data).items()
            },
            "shared": interval(scene, lambda one: 1e5 * one.shared()),
        }
    made["tokens_of_a_group"] = {
        name: round(float(draw @ data["train_length"][:, -GROUP:].sum(1)))
        for name, draw in draws(data).items()
    }
    made["mixed_share"] = {
        name: round(float(draw @ mixed(data["train_right"][:, -GROUP:])), 3)
        for name, draw in draws(data).items()
    }
    return made


def mixed(right: np.ndarray) -> np.ndarray:
    """Which groups have right and wrong rollouts."""
    count = right.sum(1)
    return (count > 0) & (count < right.shape[1])


def draws(data: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Chances of the training problems, from the first half of their rollouts alone."""
    first = data["train_right"][:, :-GROUP]
    count, size = first.sum(1), first.shape[1]
    length = data["train_length"][:, :-GROUP].mean(1)
    a, b = count + 0.5, size - count + 0.5
    same = special.beta(a + GROUP, b) + special.beta(a, b + GROUP)
    value = 1 - same / special.beta(a, b)  # the chance that a group is mixed, under Beta(a, b)
    rate = count / size
    weights = {
        "uniform": np.ones(len(first)),
        "value 4": value**4,
        "value 16": value**16,
        "value 16 a token": value**16 / length,
        "never right so far": (count == 0) * 1.0,
        "hard": ((rate > 0) & (rate < 0.4)) * 1.0,
        "middle": ((rate >= 0.4) & (rate <= 0.6)) * 1.0,
        "easy": ((rate > 0.6) & (rate < 1)) * 1.0,
        "always right so far": (count == size) * 1.0,
        "short": (length < np.median(length)) * 1.0,
        "long": (length >= np.median(length)) * 1.0,
    }
    return {name: one / one.sum() for name, one in weights.items() if one.sum() > 0}


def kinds(data: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Which of the mixed groups are of a kind: by their own rollouts, not by those before."""
    place = data["group_place"][~data["group_test"]]
    right = data["train_right"][place, -GROUP:].sum(1)
    length = data["train_length"][place, -GROUP:]
    cut = (length == data["train_length"].max()).any(1)
    return {
        "all": right > 0,
        "one right": right == 1,
        "two right": right == 2,
        "three to five right": (right >= 3) & (right <= 5),
        "six or seven right": right >= 6,
        "every response ends": ~cut,
        "some are cut off": cut,
    }


class Scene:
    """Products of groups, and how often each problem counts (once, or as a bootstrap drew it)."""

    def __init__(
        self,
        data: dict[str, np.ndarray],
        product: np.ndarray,
        times: tuple[np.ndarray, np.ndarray] | None = None,
    ) -> None:
        self._data, self._product = data, product
        test, place = data["group_test"], data["group_place"]
        counts = (len(data["train_right"]), len(data["test_right"]))
        self.times = times or (np.ones(counts[0]), np.ones(counts[1]))
        self._place = place[~test]
        again = self.times[1][place[test]]
        self._toward = product[np.ix_(~test, test)] @ again / counts[1]
        self._among = product[np.ix_(~test, ~test)]
        self._tests = again.sum() / counts[1]
        self._test_square = float(product.diagonal()[test] @ again / again.sum())

    def again(self, rng: np.random.Generator) -> Scene:
        """With problems drawn anew."""
        drawn = [rng.multinomial(len(one), np.full(len(one), 1 / len(one))) for one in self.times]
        return Scene(self._data, self._product, (drawn[0].astype(float), drawn[1].astype(float)))

    def progress(self, draw: np.ndarray, groups: int) -> float:
        """Of a batch of so many groups; those that are not mixed add nothing."""
        chance = draw * self.times[0]
        chance = chance / chance.sum()
        of_group = chance[self._place]
        own = self._among.diagonal()
        pairs = of_group @ self._among @ of_group - (of_group**2) @ own
        pairs /= 1 - float((chance**2).sum())
        square = groups * (of_group @ own) + groups * (groups - 1) * pairs
        return float(groups * (of_group @ self._toward) / np.sqrt(max(square, 1e-300)))

    def relative(self, draw: np.ndarray, groups: int, usual: int) -> float:
        """To a uniform draw of the usual size."""
        even = np.full(len(draw), 1 / len(draw))
        return self.progress(draw, groups) / self.progress(even, usual)

    def cosine(self, chosen: np.ndarray) -> float:
        """Of a group and a test problem: the mean product over the root of the mean squares."""
        times = self.times[0][self._place] * chosen
        own = times @ self._among.diagonal() / times.sum()
        toward = times @ self._toward / times.sum() / self._tests
        return float(toward / np.sqrt(own * self._test_square))

    def shared(self) -> float:
        """The mean product of two groups over the mean square: what more groups do not average
        away. Their gradient is mostly noise while there are fewer than one over this."""
        times, own = self.times[0][self._place], self._among.diagonal()
        pairs = times @ self._among @ times - times**2 @ own
        return float(pairs / (times.sum() ** 2 - times @ times) / (times @ own / times.sum()))

    def by_rate(self) -> list[dict[str, float]]:
        """What mixed groups teach, by how many of their own rollouts were right: product with the
        test's gradient and square, each relative to the mean over mixed groups."""
        right = self._data["train_right"][:, -GROUP:].sum(1)[self._place]
        own = self._among.diagonal()
        return [
            {
                "right": count,
                "groups": int((right == count).sum()),
                "toward": round(
                    float(self._toward[right == count].mean() / self._toward.mean()), 3
                ),
                "square": round(float(own[right == count].mean() / own.mean()), 3),
            }
            for count in range(1, GROUP)
            if (right == count).any()
        ]


def interval(scene: Scene, figure: Any, times: int = 200) -> list[float]:
    """A figure and the 95 % range that drawing the problems anew gives it."""
    again: Iterator[Scene] = (scene.again(np.random.default_rng(n)) for n in range(times))
    low, high = np.quantile([figure(one) for one in again], [0.025, 0.975])
    return [round(float(value), 3) for value in (figure(scene), low, high)]


if __name__ == "__main__":
    main()
