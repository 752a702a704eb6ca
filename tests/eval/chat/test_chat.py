"""`python -m eval.chat`: what is typed, piped in and interrupted, in the program as it is run."""

import io
import os
import re
import select
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from configs.files import PRETRAINED
from configs.text import columns
from data.config import TokenizerConfig
from data.tokenizer import load_tokenizer, train_tokenizer
from eval import samples
from eval.attention import snapshots
from eval.attention.capture import capture
from eval.chat import __main__ as chat
from eval.chat import attention as chat_attention
from eval.chat.attention import BLOCKS, attention_map
from eval.chat.session import Conversation
from eval.questions import one_question, source_of
from model import load, save
from model.variants.config import LoraConfig
from model.variants.lora import adapted, add_adapters, weights_hash
from model.variants.surgery import with_rope_scaling
from tests.eval.page.viewer_helpers import snapshot
from tests.eval.scoring import command, save_run
from tests.train.helpers import REPOSITORY

PATIENCE = 120  # seconds until a terminal that says nothing is a failure


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run that was trained on chats, as far as one can see, and one on texts; neither ends by
    itself.
    """
    folder = tmp_path_factory.mktemp("runs")
    tokenizer = train_tokenizer(TokenizerConfig(kind="bpe", vocab_size=320), ["Tiko saw the kite by the river. "] * 9)
    for name, ends in (("chats", [2, 5]), ("texts", 2)):
        fields = {"max_position_embeddings": 128, "eos_token_id": ends}
        run = save_run(folder / name, tokenizer, "eval: {temperature: 0.0}\n", **fields)
        lm = load(run)
        with torch.no_grad():
            lm.lm_head.weight[list(tokenizer.special_ids)] = 0
        save(lm, run / "checkpoints/step_00000010")
    return folder


def said(*arguments, lines=(), new=4):
    """Run the program on lines that are piped in: exit code, stdout, stderr."""
    piped = "".join(f"{line}\n" for line in lines)
    return command(*arguments, "--max-new-tokens", new, main=chat.main, stdin=piped)


def test_another_scaling_of_rope_answers_like_a_model_saved_with_it(runs, tmp_path):
    checkpoint = tmp_path / "step_00000010"
    shutil.copytree(runs / "texts/checkpoints/step_00000010", checkpoint)
    # 256: the default of a config
    save(with_rope_scaling(load(runs / "texts"), "yarn", 2, trained=256), checkpoint)
    asked = {"lines": ["Tiko saw"], "new": 12}
    answers = {
        kind: said(runs / "texts", "--rope-scaling", kind, *factor, **asked)[1]
        for kind, factor in (("none", []), ("linear", ["--rope-factor", "2"]), ("yarn", ["--rope-factor", "2"]))
    }
    assert answers["yarn"] == said(checkpoint, "--temperature", "0", **asked)[1]
    assert answers["none"] == said(runs / "texts", **asked)[1]
    assert len(set(answers.values())) == 3


@pytest.mark.slow
def test_each_piped_line_is_a_turn_and_nothing_else_is_printed(runs):
    program = [sys.executable, "-m", "eval.chat", runs / "chats", "--max-new-tokens", "6"]
    lines = "Who has the kite?\nWhere? caf\xe9\n".encode("latin-1")  # not UTF-8
    done = subprocess.run(program, cwd=REPOSITORY, input=lines, capture_output=True, timeout=PATIENCE)
    assert done.returncode == 0
    assert len(done.stderr.splitlines()) == 2  # that the answer was cut
    assert len(done.stdout.decode().strip()) > 6
    assert not re.search(r"\x1b|> |/help", done.stdout.decode())


@pytest.mark.parametrize("text", ["a fox", "a föx 🦊 ö"])
def test_characters_that_a_char_model_does_not_know_are_named(tmp_path, text):
    tokenizer = train_tokenizer(TokenizerConfig(kind="char"), ["a fox"])
    run = save_run(tmp_path / "letters", tokenizer, "eval: {temperature: 0.0}\n", max_position_embeddings=128)
    for _, _, stderr in (said(run, lines=[text]), command(run, text, "--max-new-tokens", 2, main=samples.main)):
        assert ("has no token for ö🦊 and" in stderr) == ("ö" in text)


def test_temperature_and_seed_are_those_of_the_run_or_the_command_line(runs):
    greedy, other = (said(runs / "chats", "--seed", seed, lines=["Who?"])[1] for seed in (0, 7))
    assert greedy == other  # eval.temperature is 0
    drawn = [said(runs / "chats", "--temperature", 1.5, "--seed", seed, lines=["Who?"])[1] for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert said(runs / "chats", lines=["/temperature 1.5", "Who?"])[1] == drawn[0]


def test_commands_and_what_cannot_be_done_is_one_line_and_the_chat_continues(runs):
    refused = {
        "/tempature 1": "unknown command /tempature: /help",
        "/temperature warm": "could not convert string to float: 'warm'",
        "/attention": "no answer yet",
        "kite " * 3000: "the model sees 128",
    }
    lines = [*refused, "Who?", "/attention 9,0", "/help", "/quit", "never answered"]
    code, out, err = said(runs / "chats", lines=lines)
    *problems, _, no_such_head = err.splitlines()  # between them, that the answer was cut
    assert all(reason in problem for reason, problem in zip(refused.values(), problems, strict=True))
    assert "a head, 0 to 3" in no_such_head
    assert (code, out.endswith(f"\n{chat.HELP}\n"), out.startswith(chat.HELP)) == (0, True, False)
    changed = said(runs / "chats", lines="/temperature|/system Be brief.|Who has it?|/reset|/system".split("|"))[2]
    assert len(changed.splitlines()) == 5  # temperature, system, cut, reset, system
    assert "trained on texts" in said(runs / "texts", lines=["Tiko saw"])[2]


def test_at_a_terminal_a_model_of_the_built_in_world_shows_a_question_that_it_can_answer(monkeypatch, capsys):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setattr("sys.argv", ["eval.chat", str(PRETRAINED / "reader_sft"), "--temperature", "0"])
    typed = iter([lambda: capsys.readouterr().err.splitlines()[-1], lambda: "/quit"])
    monkeypatch.setattr("builtins.input", lambda _: next(typed)())
    chat.main()
    source = source_of(PRETRAINED / "reader_sft")
    right = one_question(source, 0, lambda question: len(question.messages[-1]["content"]) < 650).reply
    assert capsys.readouterr().out == f"{right}\n"


def test_each_adapter_answers_as_if_it_were_opened_alone(runs, tmp_path):
    """Beside the run on texts: a ends its turns as a chat, b does not."""
    opened = {"a": tmp_path / "a", "b": tmp_path / "b", "base": runs / "texts"}
    greedy = ("--temperature", 0)
    for seed, (name, ends) in enumerate((("a", [2, 5]), ("b", 2))):
        lm = load(runs / "texts")
        torch.manual_seed(seed)
        base = str(runs / "texts/checkpoints/step_00000010")
        add_adapters(lm, LoraConfig(rank=2 + seed), base, weights_hash(lm))
        for layer in adapted(lm).values():
            torch.nn.init.normal_(layer.lora_B.weight)
        lm.config = lm.config.model_copy(update={"eos_token_id": ends})
        save(lm, opened[name])
        load_tokenizer(runs / "texts").save(opened[name])
    alone = {name: said(run, *greedy, lines=["Tiko saw"])[1] for name, run in opened.items()}
    assert len(set(alone.values())) == 3
    given = [text for name in "ab" for text in ("--adapter", f"{name}={opened[name]}")]
    lines = ["Tiko saw", "/adapter b", "Tiko saw", "/adapter base", "Tiko saw", "/adapter a", "Tiko saw"]
    code, out, _ = said(runs / "texts", *given, *greedy, lines=lines)
    assert (code, out) == (0, alone["a"] + alone["b"] + alone["base"] + alone["a"])
    # a name of its own
    assert said(runs / "texts", "--adapter", f"base={opened['a']}")[:2] == (2, "")


# The map of an answer


@pytest.fixture
def run(runs, tmp_path):
    return shutil.copytree(runs / "chats", tmp_path / "run")


def test_attention_shows_the_weights_of_the_answer(run, monkeypatch):
    asked = ["Who?", "Tiko has the kite?"]
    code, out, _ = said(run, lines=[*asked, "/attention 1,2"])
    assert code == 0
    rows = re.findall(r"^(\S+) +│(.*)│ (\S+) +(\.\d\d|1\.0)$", out, re.MULTILINE)
    assert len(rows) == 5  # the token before the answer, and its four
    conversation = Conversation(load(run), load_tokenizer(run), temperature=0.0, max_new_tokens=4)
    for text in asked:
        list(conversation.answer(text))
    weights = capture(load(run), torch.tensor([conversation.last.ids]), layers=[1], heads=[2]).weights[0, 0, 0]
    assert [number for *_, number in rows] == [f"{row.max():.2f}"[1:] for row in weights[-5:].numpy()]
    monkeypatch.setattr(chat_attention, "MOST_TOKENS", 16)  # a longer text: what came before counts
    assert said(run, lines=[*asked, "/attention 1,2"])[1] == out


@pytest.mark.slow
def test_the_head_shown_is_the_one_that_training_found_or_else_the_sharpest_here(run):
    lines = ["Who?", "/attention"]
    sharpest = re.compile(r"^L\d H\d, of all heads the one most focused on single tokens further back$", re.MULTILINE)
    first = sharpest.search(said(run, lines=lines)[1])[0]
    look = snapshot(62)  # whose last head has 0.62
    snapshots.write(look, run / "attention")
    for where in (run, run / "checkpoints/step_00000010"):
        assert "L1 H3, the run's strongest induction head (0.62 on random tokens)\n" in said(where, lines=lines)[1]
    snapshots.file_of(run / "attention", look.step).write_bytes(b"broken")
    assert first in said(run, lines=lines)[1]


@pytest.mark.parametrize(("width", "tokens"), [(39, 9), (99, 300), (20, 3000)])
def test_a_map_fits_and_draws_every_weight(width, tokens):
    """Every query looks at the key before it with 0.75, and at the first one with 0.25."""
    queries = min(tokens, 8)
    weights = np.zeros((queries, tokens), dtype=np.float32)
    for row, key in enumerate(range(tokens - queries, tokens)):
        weights[row, 0] += 0.25
        weights[row, max(0, key - 1)] += 0.75
    labels = [f"␣token{i}" if i % 3 else "⏎狐" for i in range(tokens)]
    lines = attention_map(weights, labels, tokens - queries, width)
    assert len(lines) == queries
    assert {columns(line) for line in lines} == {columns(lines[0])}
    assert columns(lines[0]) <= width
    for line in lines[-3:]:
        cells = line.split("│")[1]
        # of 8: .25 and .75
        assert (cells[0], cells.rstrip()[-2:].count(BLOCKS[6])) == (BLOCKS[2], 1)
        assert set(cells[1:].replace(BLOCKS[6], "").strip()) <= {BLOCKS[0]}


def test_bad_input_is_one_line_and_exit_code_2(runs):
    for name, options, reason in (
        ("nothing", [], "does not exist"),
        ("chats", ["--temperature", "-1"], "--temperature is '-1'"),
        ("texts", ["--system", "Be brief."], "trained on texts"),
        ("texts", ["--rope-scaling", "none", "--rope-factor", "4"], "--rope-factor"),
        ("texts", ["--adapter", f"a={runs / 'chats'}"], "holds a whole model"),
    ):
        code, out, err = said(runs / name, *options)
        assert (code, out, err.count("\n"), reason in err) == (2, "", 1, True), err


# A terminal

HELD = """# the third token waits for a Ctrl-C, so that a test need not press it in time
import fcntl, sys, termios, time
from eval.chat import __main__ as chat, session
streamed = session.stream
def held(*given, **options):
    for place, ids in enumerate(streamed(*given, **options)):
        if place == 2:
            print("[held]", file=sys.stderr, flush=True)
            for _ in range(6000):
                time.sleep(0.1)  # in short: a signal that comes to another thread does not end a sleep of this one
        yield ids
fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # keys that send a signal send it here
session.stream = held
chat.main()
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pseudo-terminals of this kind")
def test_ctrl_c_stops_an_answer_and_not_the_program(run):
    import pty

    ours, theirs = pty.openpty()
    place = {"stdin": theirs, "stdout": theirs, "stderr": theirs, "start_new_session": True, "cwd": REPOSITORY}
    program = [sys.executable, "-c", HELD, run, "--max-new-tokens", "20"]
    process = subprocess.Popen(program, env=os.environ | {"TERM": "xterm", "PYTHONIOENCODING": "utf-8"}, **place)
    os.close(theirs)
    screen = b""
    deadline = time.monotonic() + PATIENCE

    def until(text: str) -> str:
        """Read on until this text has come, and return all up to it."""
        nonlocal screen
        while text.encode() not in screen:
            assert time.monotonic() < deadline, f"{text!r} did not come: {screen!r}"
            if select.select([ours], [], [], 1.0)[0]:
                screen += os.read(ours, 65536)
        before, _, screen = screen.partition(text.encode())
        return before.decode("utf-8", "replace")

    try:
        for comes, keys in (("> ", b"Who?\r"), ("[held]", b"\x03"), ("(stopped)", b""), ("> ", b"/attention\r")):
            until(comes)
            os.write(ours, keys)
        assert until("the token with most").count("│") >= 4  # what was written can be looked at
        until("> ")
        os.write(ours, b"/quit\r")
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)
