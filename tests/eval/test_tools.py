"""Tools in a chat: what they answer, and that no call, however wrong, is run as code or ends the
program.
"""

import json
import shutil
import time
from random import Random

import pytest
import torch

from data.chat import TRAINED, encode_conversations, prompt_ids
from data.config import TokenizerConfig
from data.reading.records import conversation_of
from data.tokenizer import load_tokenizer, train_tokenizer
from eval.chat import __main__ as chat
from eval.questions import is_right, question_of
from eval.tools import MOST_CALLS, SCHEMAS, answers, calculate, respond, sums, write_answers
from eval.tools import __main__ as command
from model import load, save
from tests.conftest import tiny_config
from tests.eval import scoring

CALL = {"name": "calculator", "arguments": {"expression": "6 * 7"}}
WRONG = {"name": "calculator", "arguments": {"expression": "6 * x"}}
ERROR = "error: Name is not allowed: use numbers and + - * / // % **"
SAID = [
    {"role": "user", "content": "How many?"},
    {"role": "assistant", "content": "", "tool_calls": [WRONG, CALL]},
    {"role": "tool", "content": f"{ERROR}\n42"},
    {"role": "assistant", "content": "It is 42."},
]


def test_the_calculator_computes_and_everything_else_is_refused_at_once():
    texts = ("6 * 7", " -(2 + 3) ** 2", "7 // 2 + 7 % 2", "1 / 3", "2 ** -1", "1e3")
    assert [*map(calculate, texts)] == ["42", "-25", "4", "0.333333333333", "0.5", "1000"]
    began = time.perf_counter()
    for expression in (
        *("__import__('os').system('true')", "x", "True + 1", "1j", "'a' * 3", "6 *", "", "1 / 0", "9 ** 9 ** 9"),
        *("1e400", "(-8) ** 0.5", "10 ** 31", "7" * 5000, "(" * 99 + "1" + ")" * 99 + "+", "-" * 199 + "x", "2\x00"),
    ):
        with pytest.raises(ValueError, match="[a-z]"):
            calculate(expression)
    assert time.perf_counter() - began < 5


def test_a_wrong_call_gets_one_line():
    for call, response in (
        (json.dumps(CALL), "42"),
        # as OpenAI writes arguments
        (json.dumps(CALL | {"arguments": '{"expression": "6 * 7"}'}), "42"),
        ("6 * 7", "error: the call is not JSON"),
        ("[" * 100_000, "error: "),
        ('{"name": "\\ud800", "arguments": {}}', "error: "),
        ('{"name": "shell", "arguments": {}}', "error: no tool is called 'shell': use calculator"),
        (json.dumps(CALL | {"arguments": {"expression": 42}}), "error: calculator takes one argument, expression"),
    ):
        found = respond(call)
        assert found.startswith(response)
        assert "\n" not in found
        found.encode()  # a tokenizer refuses half a character


SYSTEM = {"role": "system", "content": ""}


def encoded(tokenizer):
    """The conversation as training has it."""
    record = conversation_of({"messages": [SYSTEM, *SAID], "tools": list(SCHEMAS)})
    return encode_conversations(tokenizer, [record])[0]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A model that knows one conversation by heart: a call, an error, a right call and an answer."""
    texts = [json.dumps(SCHEMAS), json.dumps(SAID), "You can call these tools:"]
    tokenizer = train_tokenizer(TokenizerConfig(kind="bpe", vocab_size=420), texts * 9)
    ids, flags = encoded(tokenizer)
    fields = {"vocab_size": tokenizer.vocab_size, "max_position_embeddings": 512, "hidden_size": 64}
    config = tiny_config(**fields, eos_token_id=tokenizer.stop_ids)
    lm = scoring.learned(config, [(ids, (flags & TRAINED).astype(bool))], steps=150, lr=5e-3)
    folder = tmp_path_factory.mktemp("tools") / "run"
    save(lm, folder)
    tokenizer.save(folder)
    return folder


@pytest.fixture
def opened(run):
    return load(run), load_tokenizer(run)


def started(main, *arguments, line=""):
    return scoring.command(*arguments, main=main, stdin=f"{line}\n")


def test_calls_are_executed_and_the_model_answers_what_they_gave(run, opened, tmp_path):
    code, out, err = started(chat.main, run, "--temperature", 0, "--tools", line="How many?")
    assert (code, out.splitlines()[-1], f"(tool: {ERROR}⏎42)" in err) == (0, "It is 42.", True)
    lm, tokenizer = opened
    lm.config = lm.config.model_copy(update={"eos_token_id": tokenizer.eos_id})
    save(lm, tmp_path)
    tokenizer.save(tmp_path)
    code, _, err = started(chat.main, tmp_path, "--tools")
    assert (code, err.count("\n"), "was trained on texts, not on chats" in err) == (2, 1, True)


GREEDY = {"max_new_tokens": 400}


def prompts_of(tokenizer, *texts):
    """With the tools described, as the model of `run` has seen it."""
    return [prompt_ids(tokenizer, [SYSTEM, {"role": "user", "content": text}], SCHEMAS) for text in texts]


def test_answers_with_calls_are_the_ids_of_training_and_what_a_tool_wrote_is_not_the_models_own(opened):
    """The last line end belongs to no turn."""
    (prompt,), (ids, flags) = prompts_of(opened[1], "How many?"), encoded(opened[1])
    one, same = write_answers(*opened, [prompt], **GREEDY, copies=2, tools=True)
    assert one == same
    assert [*prompt, *one.ids] == ids[:-1]
    assert one.own == [bool(flag & TRAINED) for flag in flags[len(prompt) : -1]]
    assert (one.calls, one.errors, one.rounds, one.reply(opened[1])) == (2, 1, 1, "It is 42.")
    (alone,) = write_answers(*opened, [prompt], **GREEDY)
    assert all(alone.own)
    assert alone.ids == one.ids[: one.own.index(False)]


def test_what_is_drawn_after_a_tool_is_drawn_with_the_models_probabilities(opened):
    """Each log-probability is what one pass over the whole sequence gives: rounding, through a
    cache, is below 1e-4.
    """
    lm, tokenizer = opened
    prompts = prompts_of(tokenizer, "How many?", "How many? How many?")
    settings = {**GREEDY, "temperature": 1.0, "copies": 3, "rngs": list(map(Random, range(6))), "tools": True}
    written = write_answers(lm, tokenizer, prompts, **settings)
    assert any(answer.rounds for answer in written)
    for number, answer in enumerate(written):
        ids = torch.tensor([[*prompts[number // 3], *answer.ids]])
        with torch.no_grad():
            scores = lm(ids)[0, :-1].float().log_softmax(-1)
        wanted = scores.gather(1, ids[0, 1:, None])[-len(answer.ids) :, 0]
        own = torch.tensor(answer.own)
        torch.testing.assert_close(torch.tensor(answer.log_probs)[own], wanted[own], rtol=1e-4, atol=1e-4)
        assert not torch.tensor(answer.log_probs)[~own].any()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_answer_beside_longer_ones_is_what_it_is_alone(opened, temperature):
    """Its random numbers are its own. Nor does a neighbour that fills the context cut it: the short
    one goes on in the next round.
    """
    lm, tokenizer = opened
    prompts = prompts_of(tokenizer, "How many?", "How many? " * 12)
    room = lm.config.max_position_embeddings - len(prompts[0]) - 3
    prompts.append(prompts[0] + [tokenizer.pad_id] * room)  # three tokens are left

    def written(*numbers):
        rngs = [Random(number) for number in numbers]
        some = [prompts[number] for number in numbers]
        return write_answers(lm, tokenizer, some, **GREEDY, temperature=temperature, rngs=rngs, tools=True)

    together = written(0, 1, 2)
    alone = [written(number)[0] for number in range(3)]
    assert [answer.ids for answer in alone] == [answer.ids for answer in together]
    assert together[0].reply(tokenizer) == "It is 42." or temperature
    assert len(together[2].ids) <= 3


def test_a_model_that_calls_forever_is_stopped_and_no_answer_is_longer_than_it_may_be(opened, monkeypatch):
    lm, tokenizer = opened
    begin, *ends = (tokenizer.special_id(token) for token in ("<tool_call>", "</tool_call>", "<|im_end|>"))
    turn = [begin, *tokenizer.encode("\n{\n"), *ends]  # the same in every turn

    def generate(lm, ids, max_new_tokens, log_probs, **_):
        new = torch.tensor([turn[:max_new_tokens]])
        log_probs += torch.full(new.shape, -0.5).unbind(dim=1)
        return torch.cat([ids, new], dim=1)

    monkeypatch.setattr(answers, "generate", generate)
    settings = {**GREEDY, "max_new_tokens": 10_000, "tools": True}
    lm.config = lm.config.model_copy(update={"max_position_embeddings": 10_000})
    (answer,) = write_answers(lm, tokenizer, [[1, 2]], **settings)
    assert (answer.rounds, answer.calls, answer.errors, answer.waits) == (MOST_CALLS, MOST_CALLS, MOST_CALLS, True)
    assert sum(answer.own) == (MOST_CALLS + 1) * len(turn)
    assert tokenizer.decode(answer.ids).count("error: the call is not JSON") == MOST_CALLS
    assert answer.reply(tokenizer) == "…"  # its last call is no reply
    for room in range(1, 60, 7):
        (answer,) = write_answers(lm, tokenizer, [[1, 2]], **settings | {"max_new_tokens": room})
        assert len(answer.ids) == len(answer.own) == len(answer.log_probs) <= room
        assert answer.own[-1]  # no response without room for an answer to it
        assert answer.reply(tokenizer).endswith("…")


def test_a_run_is_asked_with_tools_and_without(run, tmp_path):
    chat = json.dumps({"messages": [SYSTEM, SAID[0], SAID[-1]]})
    files = {key: tmp_path / f"{key}.jsonl" for key in ("path", "validation_path")}
    for file in files.values():
        file.write_text(f"{chat}\n" * 5, encoding="utf-8")
    shutil.copytree(run, tmp_path / "run")

    def asked(records, *options):
        data = {"source": {"kind": "files", **{key: str(file) for key, file in files.items()}}, "records": records}
        (tmp_path / "run/config.yaml").write_text(json.dumps({"data": data}), encoding="utf-8")
        return started(command.main, tmp_path / "run", *options)

    code, out, err = asked("conversations", "--max-new-tokens", 300, "--questions", 3)
    assert (code, err) == (0, "")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in out.splitlines()]
    assert rows[0] == ["3 questions", "right", "calling", "failed calls"]
    assert rows[2] == ["calculator", "100.0%", "100.0%", "50.0%"]
    assert (rows[3][0], rows[3][2:]) == ("no tools", ["0.0%", "0.0%"])
    code, _, err = asked("text")
    assert (code, err.count("\n"), "only conversations hold questions" in err) == (2, 1, True)


def test_every_sum_is_right_and_the_file_of_sums_is_one_that_training_reads(tmp_path):
    chats = [sums.sums_chat(1, index, 0.5) for index in range(300)]
    assert 120 <= sum(len(record["messages"]) == 4 for record in chats) <= 180
    for record in chats:
        asked, *between, reply = record["messages"]
        if between:
            expression = between[0]["tool_calls"][0]["arguments"]["expression"]
            assert expression in asked["content"]
            assert reply["content"] == f"It is {eval(expression)}."
    assert sums.sums_chat(1, 5, 0.5) == chats[5] != sums.sums_chat(2, 5, 0.5)
    file = tmp_path / "new/sums.jsonl"
    assert started(sums.main, file, "--chats", 20)[0] == 0
    before = file.read_bytes()
    records = [json.loads(line) for line in before.decode().splitlines()]
    assert len({record["messages"][0]["content"] for record in records}) == 20
    assert all(conversation_of(record).tools for record in records)
    assert (started(sums.main, file)[0], file.read_bytes()) == (2, before)  # never overwritten


def test_the_last_question_of_a_conversation_is_what_the_user_said_last():
    messages = [{"role": "user", "content": "Hi!"}, {"role": "assistant", "content": "Hello!"}, *SAID]
    question = question_of(conversation_of({"messages": messages, "tools": list(SCHEMAS)}))
    assert [message["content"] for message in question.messages] == ["Hi!", "Hello!", "How many?"]
    assert is_right(question, "It is 42.")
    assert question.tools == SCHEMAS
    assert question_of(conversation_of({"messages": messages[1:2]})) is None
    # a call is not the last word
    assert question_of(conversation_of({"messages": messages[:4]})) is None
