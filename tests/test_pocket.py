"""The policy that ships with the package: it loads, talks, and finds hard problems hard."""

import json

import pytest

from dare import pocket, tasks
from dare.templates import template_of

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def tokenizer():
    return pocket.load_tokenizer()


@pytest.fixture(scope="module")
def model():
    return pocket.load_policy().eval()


def replies(model, tokenizer, problems, samples):
    chats = [[{"role": "user", "content": problem["prompt"]}] for problem in problems]
    texts = tokenizer.apply_chat_template(chats, add_generation_prompt=True, tokenize=False)
    inputs = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
    torch.manual_seed(0)
    # One thread: for a model this small a second one costs more than it brings on a busy machine.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    out = model.generate(
        input_ids=inputs["input_ids"],
        attention_mask=inputs["attention_mask"],
        do_sample=True,
        max_new_tokens=64,
        num_return_sequences=samples,
    )
    torch.set_num_threads(threads)
    return tokenizer.batch_decode(out[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)


def test_the_folder_is_small_and_complete():
    files = {file.name: file.stat().st_size for file in pocket.path().iterdir()}
    assert sum(files.values()) <= 2_000_000
    assert {"config.json", "model.safetensors", "tokenizer.json", "README.md"} <= set(files)


def test_the_model_is_a_small_float32_llama(model):
    assert json.loads((pocket.path() / "config.json").read_text())["model_type"] == "llama"
    assert sum(p.numel() for p in model.parameters()) < 1_000_000
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert all(bool(p.isfinite().all()) for p in model.parameters())


def test_the_tokenizer_gives_every_problem_back(tokenizer):
    for problem in tasks.generate(500, 3) + tasks.generate(200, 3, split="test"):
        for text in (problem["prompt"], problem["solution"]):
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
            assert tokenizer.decode(ids) == text
            assert tokenizer.unk_token_id not in ids


def test_the_tokenizer_gives_other_text_back(tokenizer):
    printable = "\n" + "".join(map(chr, range(32, 127)))
    plain = template_of(None)
    asked = [plain.longer("2*3 mod 97"), plain.hinted("2*3 mod 97", ["2*3=6*5=30"])]
    for text in (printable, *asked):
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert tokenizer.decode(ids) == text
    assert all(len(tokenizer(text)["input_ids"]) < 40 for text in asked)
    assert tokenizer.unk_token_id in tokenizer("é")["input_ids"]


def test_the_chat_template_knows_three_roles(tokenizer):
    chat = [
        {"role": "system", "content": "Be right."},
        {"role": "user", "content": "2*3 mod 97"},
    ]
    text = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    assert text == "<|system|>Be right.<|end|><|user|>2*3 mod 97<|end|><|assistant|>"
    chat.append({"role": "assistant", "content": r"\boxed{6}"})
    text = tokenizer.apply_chat_template(chat, tokenize=False)
    assert text.endswith(r"<|assistant|>\boxed{6}<|end|>")


def test_padding_and_end_are_different_tokens(tokenizer, model):
    assert tokenizer.pad_token_id != tokenizer.eos_token_id
    assert model.generation_config.pad_token_id == tokenizer.pad_token_id
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    assert tokenizer.padding_side == "left"
    assert model.config.vocab_size == len(tokenizer)


def test_left_padding_does_not_change_the_answer(tokenizer, model):
    prompts = [
        "<|user|>2*3 mod 97<|end|><|assistant|>",
        "<|user|>2*3*4*5 mod 97<|end|><|assistant|>",
    ]
    both = tokenizer(prompts, return_tensors="pt", padding=True, add_special_tokens=False)
    alone = tokenizer(prompts[:1], return_tensors="pt", add_special_tokens=False)
    with torch.inference_mode():
        tokens = [
            model.generate(
                input_ids=batch["input_ids"],
                attention_mask=batch["attention_mask"],
                do_sample=False,
                max_new_tokens=12,
            )[0]
            for batch in (both, alone)
        ]
    assert tokenizer.decode(tokens[0], skip_special_tokens=True) == tokenizer.decode(
        tokens[1], skip_special_tokens=True
    )


def test_easy_problems_are_mostly_solved_and_hard_ones_mostly_not(tokenizer, model):
    rate = {}
    for level in (1, 8):
        problems = tasks.generate(64, 5, levels=[level], split="test")
        texts = replies(model, tokenizer, problems, samples=1)
        pairs = zip(texts, problems, strict=True)
        rate[level] = sum(tasks.reward(t, p["answer"]) for t, p in pairs) / 64
    assert rate[1] > 0.75
    assert rate[8] < 0.4


def test_problems_are_solved_both_directly_and_with_steps(tokenizer, model):
    problems = tasks.generate(8, 6, levels=[1])
    texts = replies(model, tokenizer, problems, samples=16)
    direct = sum(text.startswith(r"\boxed") for text in texts)
    assert 16 < direct < 96
    assert any(text.count("=") == 1 for text in texts)
