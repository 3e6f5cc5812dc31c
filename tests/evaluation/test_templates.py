"""Templates are data, and training and evaluation show a policy the same tokens."""

from __future__ import annotations

import pytest

import tiny
from dare.curriculum.rollouts import Conditioning
from dare.errors import InvalidInput
from dare.templates import load_template, template_names, template_of
from dare.templates.encode import encode, prompt_text
from dare.training.prompts import PromptStore


def test_wording_is_the_papers() -> None:
    math = load_template("math")
    assert math.system == (r"Let's think step by step and output the final answer within \boxed{}.")
    assert load_template("gsm8k").system == (
        'Let\'s think step by step and output the final answer after "####".'
    )
    assert math.hinted("What is 1+1?", ["a", "b"]) == (
        "What is 1+1?\n\n"
        "Helpful hint from one previous successful attempt on this same problem:\n"
        "- Guided reasoning skeleton:\n  1. a\n  2. b\n\n"
        "Use the hint as guidance, but still reason carefully and give your own complete solution "
        r"within \boxed{}."
    )
    assert math.longer("q") == (
        "q\n\nThis is a challenging problem. Please think longer and more carefully. Break it down "
        "step by step before giving your final answer."
    )
    assert load_template("gsm8k").longer("q") == math.longer("q")
    assert load_template("gsm8k").hinted("q", ["a"]).endswith('after "####".')
    with pytest.raises(InvalidInput, match="think_longer"):
        math.hinted("q", [])


@pytest.mark.parametrize("name", template_names())
def test_every_template_is_whole(name: str) -> None:
    template = load_template(name)
    assert template.about
    assert "{prompt}" in template.think_longer
    assert "{prompt}" in template.hint
    assert "{steps}" in template.hint
    assert (template.system is None) == (name == "none")


def test_braces_in_prompts_and_hints_stay() -> None:
    shown = load_template("math").hinted(r"{steps} {prompt} \frac{1}{2}", ["{prompt}", "{number}"])
    assert shown.startswith(r"{steps} {prompt} \frac{1}{2}")
    assert "  1. {prompt}\n  2. {number}\n" in shown


def test_a_system_prompt_is_a_name_or_a_text() -> None:
    assert template_of(None) == load_template("none")
    assert template_of("code") is load_template("code")
    assert template_of("You are terse.").system == "You are terse."
    assert template_of("add!").system == "add!"
    with pytest.raises(InvalidInput, match="did you mean 'math'"):
        template_of("mathh")


def test_own_system_messages_are_kept() -> None:
    turns = [{"role": "system", "content": "mine"}, {"role": "user", "content": "q"}]
    assert load_template("math").messages(turns) == turns
    assert turns[1]["content"] == "q"
    helped = load_template("math").messages(turns, think_longer=True)
    assert helped[0]["content"] == "mine"
    assert helped[1]["content"].startswith("q\n\nThis is")


@pytest.mark.parametrize("chat", [True, False])
@pytest.mark.parametrize("system", [None, "math", "add!"])
def test_training_and_evaluation_read_the_same_tokens(chat: bool, system: str | None) -> None:
    tokenizer = tiny.tokenizer(chat=chat)
    store = PromptStore([{"prompt": "1+1=", "answer": "2"}], tokenizer, system)
    alone = encode(tokenizer, template_of(system).messages("1+1="))
    assert store.tokens(0).tolist() == alone.tolist()
    hinted = encode(tokenizer, template_of(system).messages("1+1=", fragments=["one more"]))
    assert store.tokens(0, Conditioning.HINTED, ["one more"]).tolist() == hinted.tolist()


def test_a_base_model_reads_the_contents_one_a_line() -> None:
    messages = load_template("math").messages("1+1=")
    text = prompt_text(tiny.tokenizer(chat=False), messages)
    assert text == f"{load_template('math').system}\n1+1=\n"


def test_a_chat_template_that_refuses_system_messages_gets_them_in_the_first_turn() -> None:
    tokenizer = tiny.tokenizer()
    tokenizer.chat_template = (
        "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}"
        + tiny.TEMPLATE
    )
    assert prompt_text(tokenizer, template_of("be!").messages("1+1=")) == "u:be!\n\n1+1=\na:"
    with pytest.raises(Exception, match="no system"):
        prompt_text(tokenizer, [{"role": "system", "content": "only"}])
