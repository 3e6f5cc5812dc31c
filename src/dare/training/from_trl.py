"""TRL's names: arguments that have no field here do no harm or are answered by a sentence that says
what to use, and figures are logged as TRL logs them."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from functools import wraps
from typing import Any, TypeVar

from dare.curriculum.arrays import Array
from dare.errors import InvalidInput, suggest
from dare.policy.correction import GAP_FIGURES

Kind = TypeVar("Kind", bound=type[Any])

_ANY = object()
"""Every value is fine: without the setting that it belongs to it does nothing, in TRL too."""

_LOSSES = ("bnpo", "sapo", "luspo", "vespo")
_TOOLS = "tools and environments are not built yet: a rollout is one response to one prompt"
_ENTROPY = "an entropy bonus is not built; leave it out, a higher temperature keeps exploring"
_SAMPLED = (
    "rollouts are drawn by temperature, top_p and top_k alone, so that their log-probs are known"
)

_CONFIG: dict[str, tuple[tuple[Any, ...], str]] = {
    "use_transformers_continuous_batching": ((_ANY,), ""),  # the paged decoder does that on a GPU
    "use_transformers_paged": ((_ANY,), ""),
    "transformers_continuous_batching_config": (
        (None,),
        "set generation_rows, the rollouts that are decoded at once",
    ),
    "cache_implementation": ((None,), "the decoder has its own cache; leave it out"),
    "generation_kwargs": ((None, {}), _SAMPLED),
    "min_p": ((None, 0.0), _SAMPLED),
    "vllm_structured_outputs_regex": ((None,), _SAMPLED),
    "vllm_group_port": ((_ANY,), ""),  # a server gets its weights by files
    "vllm_importance_sampling_cap": ((None,), "its name is vllm_importance_sampling_clip_max"),
    "repetition_penalty": ((1.0, None), _SAMPLED),
    "max_prompt_length": (
        (None,),
        "prompts are never cut (nor does TRL since 1.0); drop the rows that are too long",
    ),
    "shuffle_dataset": ((True, None), "the curriculum draws prompts: rows have no order to keep"),
    "delta": ((None,), "two-sided clipping is not built; loss_type='cispo' bounds the ratio"),
    "off_policy_mask_threshold": ((None,), "is not built; replay.max_age keeps old rollouts out"),
    "use_bias_correction_kl": ((False,), "the KL term has no such weight; set it to False"),
    "multi_objective_aggregation": (
        ("sum_then_normalize",),
        "rewards are summed by reward_weights, then standardised ('sum_then_normalize')",
    ),
    "sync_ref_model": ((False,), "the reference stays the policy that the run began with"),
    "top_entropy_quantile": ((1.0,), "all tokens of a response are trained on; leave it out"),
    "entropy_coef": ((0.0, 0), _ENTROPY),
    "use_adaptive_entropy": ((False,), _ENTROPY),
    "router_aux_loss_coef": (
        (0.0, 0),
        "no load-balancing loss is added; set it to 0 or leave it out",
    ),
    "cast_lm_head_to_fp32": (
        (False,),
        "log-probs are float32 already; bf16=False computes the head in it too",
    ),
    "ds3_gather_for_generation": ((True,), "weights are always gathered; leave it out"),
    "max_tool_calling_iterations": ((None,), _TOOLS),
    "log_unique_prompts": ((False,), "samples.jsonl has `sample_rows` rollouts a step"),
    "log_completions_hub_repo": ((None,), "upload samples.jsonl of the run folder instead"),
    "log_multimodal": ((_ANY,), ""),
    "pad_to_multiple_of": ((_ANY,), ""),  # sequences are packed
    **dict.fromkeys(
        (
            *("sapo_temperature_neg", "sapo_temperature_pos"),
            *("vespo_k_neg", "vespo_k_pos", "vespo_lambda_neg", "vespo_lambda_pos"),
            *("ref_model_mixup_alpha", "ref_model_sync_steps"),
            *("entropy_coef_delta", "entropy_coef_max", "entropy_coef_min", "entropy_target"),
        ),
        ((_ANY,), ""),
    ),
}
_TRAINER: dict[str, tuple[tuple[Any, ...], str]] = {
    "tools": ((None, []), _TOOLS),
    "environment_factory": ((None,), _TOOLS),
    "rollout_func": ((None,), "name a generator of your own: DareConfig(generator='module:Class')"),
    "quantization_config": (
        (None,),
        "load the quantised model with its adapters yourself and give it as `model`",
    ),
}


def is_trls(name: str) -> bool:
    """Whether TRL's GRPOConfig has a setting of this name that has no field here."""
    return name in _CONFIG


def answer(name: str, value: Any, *, table: Mapping[str, Any] = _CONFIG) -> None:
    """Nothing where TRL's setting would change nothing here either; else what to use instead."""
    harmless, fix = table[name]
    if _ANY not in harmless and not any(value is one or value == one for one in harmless):
        raise InvalidInput(name, value, fix)


MEANT = {
    "lr": "learning_rate",
    **dict.fromkeys(("batch_size", "train_batch_size", "bs"), "per_device_train_batch_size"),
    **dict.fromkeys(("epochs", "num_epochs"), "num_train_epochs"),
    **dict.fromkeys(("steps", "num_steps", "total_steps", "iterations"), "max_steps"),
    **dict.fromkeys(
        ("grad_accum", "grad_acc", "accumulation_steps"), "gradient_accumulation_steps"
    ),
    **dict.fromkeys(("group_size", "n", "num_rollouts", "num_samples"), "num_generations"),
    **dict.fromkeys(
        ("max_tokens", "max_new_tokens", "max_response_length", "max_length"),
        "max_completion_length",
    ),
    **dict.fromkeys(("kl_coef", "kl_coeff", "kl_beta"), "beta"),
    **dict.fromkeys(("clip_range", "cliprange", "clip_epsilon", "clip_eps"), "epsilon"),
    **dict.fromkeys(("grad_clip", "clip_grad", "max_norm"), "max_grad_norm"),
    "warmup": "warmup_steps",
    "temp": "temperature",
    **dict.fromkeys(("out", "out_dir", "save_dir", "folder"), "output_dir"),
    **dict.fromkeys(("model_name", "model_name_or_path", "model_path"), "model"),
    **dict.fromkeys(("dataset", "dataset_name", "train_data", "train_dataset"), "data"),
    **dict.fromkeys(("eval_dataset", "validation_data", "test_data"), "eval_data"),
    **dict.fromkeys(("reward_funcs", "reward_func"), "reward"),
    **dict.fromkeys(("logger", "trackers"), "report_to"),
}
"""Names that people know settings by from elsewhere, too short or too far to look alike."""


def suggest_setting(name: str, known: Iterable[str]) -> str:
    """`suggest`, which also knows what settings are called elsewhere."""
    known = list(known)
    meant = MEANT.get(name.lower())
    return f"did you mean {meant!r}?" if meant in known else suggest(name, known)


def answer_trainer(others: Mapping[str, Any], known: list[str]) -> None:
    """The same for arguments of TRL's trainer."""
    for name, value in others.items():
        if name not in _TRAINER:
            raise InvalidInput(name, value, f"is no argument; {suggest(name, known)}")
        answer(name, value, table=_TRAINER)


def knows_trl(kind: Kind) -> Kind:
    """The dataclass, whose constructor takes TRL's names too and answers them."""
    made: Callable[..., None] = kind.__init__

    @wraps(made)
    def init(self: Any, *args: Any, **given: Any) -> None:
        fields = kind.__dataclass_fields__
        for name in [name for name in given if name not in fields]:
            if not is_trls(name):
                fix = f"is no setting; {suggest_setting(name, fields)}"
                raise InvalidInput(name, given[name], fix)
            answer(name, given.pop(name))
        if given.get("loss_type") in _LOSSES:
            fix = "is not built; choose one of grpo, dapo, dr_grpo, cispo"
            raise InvalidInput("loss_type", given["loss_type"], fix)
        made(self, *args, **given)

    kind.__init__ = init
    return kind


_FIGURES = {
    "length": "completions/mean_length",
    "truncated": "completions/clipped_ratio",
    "objective_kl": "kl",
    "objective_entropy": "entropy",
    "objective_clipped": "clip_ratio/region_mean",
    "objective_clipped_high": "clip_ratio/high_mean",
    **{
        name: name
        for name in (
            *("loss", "reward", "reward_std", "grad_norm", "learning_rate"),
            *("num_tokens", "step_time"),
            *GAP_FIGURES,
        )
    },
}


def logged(record: Mapping[str, Any], theirs: Container[str] = ()) -> dict[str, float]:
    """A step's figures for dashboards: those that TRL has under its names, ours under
    `curriculum/`; `theirs`, the names that reward functions gave, as they are."""
    flat = {k: v for k, v in record.items() if isinstance(v, (int, float))}
    named = {
        _FIGURES.get(name) or (name if name in theirs else f"curriculum/{name}"): value
        for name, value in flat.items()
        if name not in ("step", "time")
    }
    if "objective_clipped" in flat:
        low = flat["objective_clipped"] - flat["objective_clipped_high"]
        named["clip_ratio/low_mean"] = max(0.0, low)
    if "varied_groups" in flat:
        named["frac_reward_zero_std"] = 1.0 - flat["varied_groups"]
    return named


_PRINTED = ("reward", "reward_std", "frac_reward_zero_std", "completions/mean_length", "entropy")
_LONG = ("curriculum/", "completions/", "clip_ratio/", "rewards/")


def few_figures(logs: Mapping[str, Any], step: int) -> dict[str, Any]:
    """Of a step's logs what fits a line: what a person reads first, and what reward functions
    logged by names of their own. Other logs are as they were."""
    if "frac_reward_zero_std" not in logs:
        return dict(logs)
    few = {"step": step, **{name: logs[name] for name in _PRINTED if name in logs}}
    if logs.get("kl"):  # 0 without a KL term
        few["kl"] = logs["kl"]
    few |= {"tokens": logs.get("num_tokens"), "seconds": logs.get("step_time")}
    known = {*_FIGURES.values(), *_PRINTED, "epoch", "total_flos"}
    own = {k: v for k, v in logs.items() if k not in known and not k.startswith(_LONG)}
    return few | own


def length_figures(length_R: Array, cut_R: Array) -> dict[str, float]:
    """Lengths of a step's rollouts, and of those that ended by themselves (0 without any)."""
    found: dict[str, float] = {}
    for kind, lengths in (("", length_R), ("terminated_", length_R[~cut_R])):
        for name in ("mean", "min", "max"):
            value = float(getattr(lengths, name)()) if len(lengths) else 0.0
            found[f"completions/{name}_{kind}length"] = value
    return found
