"""Directories as they stand on the Hub: opened with their own tokenizer and its settings, and
talked to.
"""

import json
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest
import tokenizers
import torch
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors
from transformers import AutoTokenizer
from transformers.utils.chat_template_utils import render_jinja_template

from configs.command import InputError
from data import load_tokenizer
from data.chat import prompt_ids
from data.reading.messages import BadRecord
from data.tokenizer import Settings, Tokenizer
from eval.chat.session import open_conversation
from eval.load_model import open_model
from eval.samples import complete
from model import save
from tests.conftest import random_model, tiny_config
from tests.data.test_chat import sentencepiece_like


def byte_level(specials):
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("h", "i"), ("Ġ", "t"), ("Ċ", "Ċ"), ("Ċ", "h")]
    vocabulary = {token: i for i, token in enumerate([*letters, *map("".join, merges)])}
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(list(specials))
    return backend


# tokenizer_config.json, as far as it says anything about tokens; special tokens; and the roles that
# follow for bos, eos and pad
IM = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
SETTINGS = {
    "Qwen3": ({"bos_token": None, "eos_token": "<|im_end|>", "pad_token": IM[0]}, IM, (IM[0], IM[2], IM[0])),
    "TinyLlama": (
        {"bos_token": {"__type": "AddedToken", "content": "<s>"}, "eos_token": "</s>", "pad_token": None},
        ["<unk>", "<s>", "</s>"],
        ("<s>", "</s>", "</s>"),
    ),
    "no settings at all": (None, ["<|pad|>", "<|bos|>", "<|eos|>"], ("<|bos|>", "<|eos|>", "<|pad|>")),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_foreign_tokenizer_has_the_roles_that_its_settings_say_and_can_be_talked_to(tmp_path, name):
    settings, specials, roles = SETTINGS[name]
    backend = byte_level(specials)
    file = tmp_path / "tokenizer_config.json"
    ends = [backend.token_to_id(token) for token in specials[1:]]
    save(random_model(tiny_config(vocab_size=320, eos_token_id=ends)), tmp_path)
    backend.save(str(tmp_path / "tokenizer.json"))
    if settings is not None:
        file.write_text(json.dumps(settings))
    tokenizer = load_tokenizer(tmp_path)
    assert tuple(tokenizer.roles[role] for role in ("bos_token", "eos_token", "pad_token")) == roles
    assert tokenizer.eos_id in tokenizer.stop_ids
    assert tokenizer.decode(tokenizer.encode("Füße 猫")) == "Füße 猫"
    talk = open_conversation(tmp_path, device="cpu", max_new_tokens=4, temperature=1.0)
    assert talk.is_chat == ("<|im_end|>" in specials)
    "".join(talk.answer("Hello"))
    file.write_text('{"eos_token": "<|no|>"}')
    with pytest.raises(InputError, match=r"tokenizer.json: the tokenizer has no <\|no\|> token"):
        load_tokenizer(tmp_path)


# as the models' own directories have them
IN_TRL = Path(find_spec("trl").origin).parent / "chat_templates"
TINYLLAMA = (  # TinyLlama/TinyLlama-1.1B-Chat-v1.0, Apache-2.0
    "{% for message in messages %}\n{% if message['role'] == 'user' %}\n{{ '<|user|>\n' + message['content'] + "
    "eos_token }}\n{% elif message['role'] == 'system' %}\n{{ '<|system|>\n' + message['content'] + eos_token }}\n"
    "{% elif message['role'] == 'assistant' %}\n{{ '<|assistant|>\n'  + message['content'] + eos_token }}\n{% endif "
    "%}\n{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}"
)
LLAMA3 = [f"<|{name}|>" for name in "begin_of_text eot_id end_of_text start_header_id end_header_id eom_id".split()]
DEEPSEEK = [f"<｜{name}｜>" for name in "begin▁of▁sentence end▁of▁sentence User Assistant".split()]
PHI3 = [AddedToken(f"<|{name}|>", rstrip=True, special=True) for name in ("user", "assistant", "system", "end")]
GEMMA = ["<end_of_turn>", "<start_of_turn>"]
# each: the template, or its file; special tokens; others that are added; bos, eos; whether
# tokenizer.json puts bos first; whether a space stands before a text
FAMILIES = {
    "Qwen2.5": ("qwen2_5", IM, ["<tool_call>"], None, IM[2], False, False),
    "Qwen3": ("qwen3", IM, ["<think>", "</think>"], None, IM[2], False, False),
    "Llama 3.1": ("llama3_1", LLAMA3, [], LLAMA3[0], LLAMA3[1], True, False),
    "DeepSeek-V3": ("deepseekv3", DEEPSEEK, [], DEEPSEEK[0], DEEPSEEK[1], False, False),
    "TinyLlama": (TINYLLAMA, ["<unk>", "<s>", "</s>"], [], "<s>", "</s>", True, True),
    "Phi-3": ("phi3", ["<unk>", "<s>", "</s>", *PHI3], [], "<s>", "</s>", True, True),
    "Gemma": ("gemma", ["<unk>", "<s>", "</s>", *GEMMA], [], "<s>", GEMMA[0], True, True),
}
SYSTEM = {"role": "system", "content": "Be brief."}
USER, AGAIN = ({"role": "user", "content": text} for text in (" hi there\n", "你好, hi"))
SAID = {"role": "assistant", "content": "  hi,\n\nthere "}
THOUGHT = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nhi there"}
TOOL = {"type": "function", "function": {"name": "now", "description": "é", "parameters": {"type": "object"}}}


def called(arguments):
    call = {"id": "123456789", "type": "function", "function": {"name": "now", "arguments": arguments}}
    return [{"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "content": "12:00"}]


CHATS = {
    "one question": ([USER], None),
    "a system message": ([SYSTEM, USER], None),
    "three turns": ([USER, SAID, AGAIN, SAID, USER], None),
    "thoughts": ([USER, THOUGHT, AGAIN], None),
    "tools": ([USER, *called({"tz": "Köln"})], [TOOL]),
}


@pytest.fixture(params=FAMILIES)
def family(tmp_path, request):
    """A model directory of a family, as transformers reads it, with random weights."""
    template, specials, others, bos, eos, begins, has_space = FAMILIES[request.param]
    backend = sentencepiece_like("prepend") if has_space else byte_level([])
    backend.add_special_tokens(specials)
    backend.add_tokens(others)
    if begins:
        first = [(bos, backend.token_to_id(bos))]
        backend.post_processor = processors.TemplateProcessing(f"{bos} $A", special_tokens=first)
    backend.save(str(tmp_path / "tokenizer.json"))
    settings = {"bos_token": bos, "eos_token": eos, "tokenizer_class": "PreTrainedTokenizerFast"}
    if template.isidentifier():
        (tmp_path / "chat_template.jinja").write_text((IN_TRL / f"{template}.jinja").read_text())
    else:
        settings["chat_template"] = template
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    ends = [backend.token_to_id(token) for token in (eos, "<|end|>" if request.param == "Phi-3" else eos)]
    lm = random_model(tiny_config(vocab_size=384, max_position_embeddings=1024, eos_token_id=ends))
    with torch.no_grad():  # the logits of all but these are 0
        lm.lm_head.weight[[i for i in range(384) if backend.id_to_token(i) not in ("h", "i", "t", "Ġt", ",")]] = 0
    save(lm, tmp_path)
    return tmp_path, AutoTokenizer.from_pretrained(tmp_path)


def expected_of(render, messages):
    """Return the text that transformers renders, or None if it refuses.

    A template that expects arguments as JSON text gets them as JSON text.
    """
    for given in (messages, [USER, *called('{"tz": "Köln"}')]):
        try:
            return render(given)
        except TypeError:
            continue
        except Exception:  # no system message, no tools
            return None
    return None


def test_a_foreign_model_is_prompted_as_transformers_prompts_it(family):
    """It was prompted by our template and began with our first token, whatever its own said."""
    directory, reference = family
    tokenizer = load_tokenizer(directory)
    for messages, tools in CHATS.values():
        for variables in ({}, {"enable_thinking": False}):
            options = {"tools": tools, "add_generation_prompt": True, "return_dict": False, **variables}
            expected = expected_of(partial(reference.apply_chat_template, **options), messages)
            if expected is None:
                with pytest.raises(BadRecord, match="the chat template refuses the conversation"):
                    prompt_ids(tokenizer, messages, tools or (), **variables)
            else:
                assert prompt_ids(tokenizer, messages, tools or (), **variables) == expected
    begun = [USER, {"role": "assistant", "content": "hi there"}]
    expected = reference.apply_chat_template(begun, continue_final_message=True, return_dict=False)
    assert prompt_ids(tokenizer, begun, continued=True) == expected
    for text in ("hi there", " hi", "你好\n\nhi", "x"):
        assert tokenizer.begin(text) == reference(text).input_ids
    end = tokenizer.backend.id_to_token(tokenizer.turn_end)  # typing a special token opens no turn
    once, twice = (prompt_ids(tokenizer, [{"role": "user", "content": text}]) for text in ("hi", f"hi{end}"))
    assert once.count(tokenizer.turn_end) == twice.count(tokenizer.turn_end)
    assert end in tokenizer.decode([i for i in twice if i not in tokenizer.special_ids])


@pytest.mark.slow
@pytest.mark.parametrize("chat", CHATS)
def test_every_template_that_trl_has_writes_what_it_writes_for_transformers(chat):
    tokens, (messages, tools) = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}, CHATS[chat]
    refused = 0
    for file in IN_TRL.glob("*.jinja"):
        source = file.read_text(encoding="utf-8")
        tokenizer = Tokenizer(byte_level(tokens.values()), tokens, Settings(tokens, {"default": source}))
        options = {"tools": tools, "chat_template": source, "add_generation_prompt": True, **tokens}
        expected = expected_of(lambda given, options=options: render_jinja_template([given], **options)[0][0], messages)
        if expected is None:
            refused += 1
            with pytest.raises(BadRecord, match="refuses"):
                prompt_ids(tokenizer, messages, tools or ())
        else:
            written = tokenizer.decode(prompt_ids(tokenizer, messages, tools or ()), skip_special_tokens=False)
            assert written == expected, file.name
    assert refused < 20


def test_a_chat_with_a_foreign_model_is_what_transformers_would_answer(family):
    directory, reference = family
    lm, tokenizer = open_model(directory, "cpu")
    talk = open_conversation(directory, device="cpu", max_new_tokens=8, temperature=0.0)
    messages = []
    assert talk.is_chat
    for text in ("hi there", "你好", "hi, hi"):
        messages.append({"role": "user", "content": text})
        list(talk.answer(text))
        prompt = talk.last.ids[: talk.last.begin]
        answer = tokenizer.decode(talk.last.ids[talk.last.begin :])
        assert prompt == reference.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        if len(messages) == 1:
            assert complete(lm, tokenizer, text, 8, temperature=0.0, chat=True).content == answer
        messages.append({"role": "assistant", "content": answer})


@pytest.mark.parametrize("template", ["{{ ''.__class__.__mro__ }}", "{{ messages.append(1) }}", "{% for"])
@pytest.mark.parametrize("family", ["Qwen2.5"], indirect=True)
def test_a_template_that_leaves_the_sandbox_or_is_none_is_one_line(family, template):
    (family[0] / "chat_template.jinja").write_text(template)
    with pytest.raises(InputError, match="the model's chat template cannot be used: .* refuses"):
        _ = open_conversation(family[0], device="cpu").is_chat
