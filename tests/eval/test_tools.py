"""Tools in a chat: what they answer, and that no call, however wrong, is run as code or ends the program."""

import io
import json
import sys
import time

import pytest
import torch

from configs.command import exit_on_bad_input
from data.chat import TRAINED, encode_conversations
from data.config import TokenizerConfig
from data.reading.records import conversation_of
from data.tokenizer import train_tokenizer
from eval.chat import __main__ as chat
from eval.tools.calls import SCHEMAS, calculate, look_up, respond
from model import LanguageModel, save
from tests.conftest import tiny_config

STORY = 'Tiko saw a kite. "It is mine," said Belna. Tikos are birds! Did Tiko fly it? Yes.'
CALL = {"name": "calculator", "arguments": {"expression": "6 * 7"}}
LOST = {"name": "look_up", "arguments": {"name": "Nobody"}}


def test_the_calculator_computes():
    assert [calculate(text) for text in ("6 * 7", " -(2 + 3) ** 2", "7 // 2 + 7 % 2", "1 / 3", "2 ** -1", "1e3")] == [
        *("42", "-25", "4", "0.333333333333", "0.5", "1000"),
    ]


@pytest.mark.parametrize(
    "expression",
    [
        *("__import__('os').system('true')", "x", "(lambda: 1)()", "[1]", "True + 1", "1j", "'a' * 3", "1 if 1 else 2"),
        *("~1", "1 < 2", "6 *", "", "f'{1}'", "1 / 0", "0 ** -1", "9 ** 9 ** 9", "1e400", "(-8) ** 0.5", "10 ** 31"),
        *("7" * 5000, "(" * 99 + "1" + ")" * 99 + "+", "-" * 199 + "x", "1e30 * 10", "2\x00"),
    ],
)
def test_everything_else_is_refused_at_once(expression):
    began = time.perf_counter()
    with pytest.raises(ValueError, match="[a-z]"):
        calculate(expression)
    assert time.perf_counter() - began < 1


def test_the_look_up_gives_whole_sentences_and_whole_names():
    assert look_up("Tiko", STORY) == "Tiko saw a kite. Did Tiko fly it?"
    with pytest.raises(ValueError, match="nothing that was said mentions Jurim"):
        look_up("Jurim", STORY)


@pytest.mark.parametrize(
    ("call", "response"),
    [
        (json.dumps(CALL), "42"),
        (json.dumps(CALL | {"arguments": '{"expression": "6 * 7"}'}), "42"),  # as OpenAI writes arguments
        ('{"name": "look_up", "arguments": {"name": "Belna"}}', '"It is mine," said Belna.'),
        ("6 * 7", "error: the call is not JSON"),
        ("42", "error: message 1: `tool_calls` must hold"),
        ("{", "error: the call is not JSON"),
        ("[" * 100_000, "error: "),
        ('{"name": "shell", "arguments": {}}', "error: no tool is called 'shell': use calculator, look_up"),
        ('{"name": "calculator", "arguments": {"expression": 42}}', "error: calculator takes one argument, expression"),
        ('{"name": "calculator", "arguments": []}', "error: message 1: the arguments of calculator must be"),
        ('{"name": "calculator", "arguments": {"expression": "open(1)"}}', "error: Call is not allowed"),
    ],
)
def test_a_wrong_call_gets_one_line(call, response):
    found = respond(call, STORY)
    assert found.startswith(response)
    assert "\n" not in found


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A model that knows one conversation by heart: a call, an error, a right call and an answer."""
    said = [
        {"role": "user", "content": "How many?"},
        {"role": "assistant", "content": "", "tool_calls": [LOST, CALL]},
        {"role": "tool", "content": "error: nothing that was said mentions Nobody\n42"},
        {"role": "assistant", "content": "It is 42."},
    ]
    texts = [json.dumps(SCHEMAS), json.dumps(said), "You can call these tools:"]
    tokenizer = train_tokenizer(TokenizerConfig(kind="bpe", vocab_size=420), texts * 9)
    record = conversation_of({"messages": [{"role": "system", "content": ""}, *said], "tools": list(SCHEMAS)})
    ((ids, flags),) = encode_conversations(tokenizer, [record])
    torch.manual_seed(0)
    fields = {"vocab_size": tokenizer.vocab_size, "max_position_embeddings": 512, "hidden_size": 64}
    lm, input_ids = LanguageModel(tiny_config(**fields, eos_token_id=tokenizer.stop_ids)), torch.tensor([ids])
    labels = torch.where(torch.tensor((flags & TRAINED).astype(bool)), input_ids, -100)
    optimizer = torch.optim.AdamW(lm.parameters(), lr=5e-3)
    for _ in range(150):
        loss_sum, count = lm(input_ids, labels=labels)
        (loss_sum / count).backward()
        optimizer.step()
        optimizer.zero_grad()
    folder = tmp_path_factory.mktemp("tools") / "run"
    save(lm.eval(), folder)
    tokenizer.save(folder)
    return folder


def talk(monkeypatch, capsys, *arguments, line="How many?"):
    monkeypatch.setattr(sys, "argv", ["chat", *map(str, arguments), "--temperature", "0"])
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{line}\n"))
    with pytest.raises(SystemExit) as stopped:
        exit_on_bad_input(chat.main)
    return stopped.value.code, *capsys.readouterr()


def test_calls_are_executed_and_the_model_answers_what_they_gave(run, monkeypatch, capsys):
    code, out, err = talk(monkeypatch, capsys, run, "--tools")
    assert code == 0
    assert out.splitlines()[-1] == "It is 42."
    assert "(tool: error: nothing that was said mentions Nobody⏎42)" in err
    code, out, err = talk(monkeypatch, capsys, run)
    assert "(tool" not in err


def test_a_model_of_texts_has_no_tools(run, monkeypatch, capsys, tmp_path):
    from data.tokenizer import load_tokenizer
    from model import load

    lm, tokenizer = load(run), load_tokenizer(run)
    lm.config = lm.config.model_copy(update={"eos_token_id": tokenizer.eos_id})
    save(lm, tmp_path / "texts")
    tokenizer.save(tmp_path / "texts")
    code, _, err = talk(monkeypatch, capsys, tmp_path / "texts", "--tools")
    assert (code, err.count("\n")) == (2, 1)
    assert "--tools: this model was trained on texts, not on chats" in err
