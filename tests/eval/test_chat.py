"""`python -m eval.chat`: what is typed, piped in and interrupted, in the program as it is run."""

import io
import os
import re
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from configs.text import columns
from data.config import TokenizerConfig
from data.tokenizer import load_tokenizer, train_tokenizer
from eval.attention import snapshots
from eval.attention.capture import capture
from eval.chat import __main__ as chat
from eval.chat import attention as chat_attention
from eval.chat.attention import BLOCKS, attention_map
from eval.chat.session import Conversation
from model import load, save
from model.config import LoraConfig
from model.lora import adapted, add_adapters, weights_hash
from tests.conftest import random_model, tiny_config
from tests.eval.scoring import command
from tests.eval.viewer_helpers import snapshot
from tests.train.helpers import REPOSITORY

PATIENCE = 120  # seconds until a terminal that says nothing is a failure


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run that was trained on chats, as far as one can see, and one on texts."""
    folder = tmp_path_factory.mktemp("runs")
    tokenizer = train_tokenizer(TokenizerConfig(kind="bpe", vocab_size=320), ["Tiko saw the kite by the river. "] * 9)
    for name, ends in (("chats", [2, 5]), ("texts", 2)):
        torch.manual_seed(0)
        lm = random_model(tiny_config(vocab_size=320, max_position_embeddings=128, eos_token_id=ends))
        with torch.no_grad():
            lm.lm_head.weight[list(tokenizer.special_ids)] = 0  # so that it does not end by itself
        checkpoint = folder / name / "checkpoints/step_00000010"
        save(lm, checkpoint)
        tokenizer.save(checkpoint)
        (folder / name / "checkpoints/latest").write_text("step_00000010\n", encoding="utf-8")
        (folder / name / "config.yaml").write_text("eval: {temperature: 0.0}\n", encoding="utf-8")
    return folder


@pytest.fixture
def said(monkeypatch, capsys):
    """Run the program on lines that are piped in: exit code, stdout, stderr."""

    def run(*arguments, lines=()):
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        return command(capsys, *arguments, main=chat.main)

    return run


# Texts longer than those of training


def test_another_scaling_of_rope_answers_like_a_model_saved_with_it(runs, said, tmp_path):
    checkpoint = tmp_path / "step_00000010"
    shutil.copytree(runs / "texts/checkpoints/step_00000010", checkpoint)
    save(load(runs / "texts").with_rope_scaling("yarn", 2, trained=256), checkpoint)  # 256: the default of a config
    more, lines = ["--max-new-tokens", "12", "--temperature", "0"], ["Tiko saw"]
    answers = {
        kind: said(runs / "texts", *more, "--rope-scaling", kind, *factor, lines=lines)[1]
        for kind, factor in (("none", []), ("linear", ["--rope-factor", "2"]), ("yarn", ["--rope-factor", "2"]))
    }
    assert answers["yarn"] == said(checkpoint, *more, lines=lines)[1]
    assert answers["none"] == said(runs / "texts", *more, lines=lines)[1]
    assert len(set(answers.values())) == 3


# Piped lines


@pytest.mark.slow
def test_each_piped_line_is_a_turn_and_nothing_else_is_printed(runs):
    program = [sys.executable, "-m", "eval.chat", runs / "chats", "--max-new-tokens", "6"]
    lines = "Who has the kite?\nWhere? caf\xe9\n".encode("latin-1")  # not UTF-8
    done = subprocess.run(program, cwd=REPOSITORY, input=lines, capture_output=True, timeout=PATIENCE)
    assert done.returncode == 0
    assert len(done.stderr.splitlines()) == 2  # that the answer was cut
    out = done.stdout.decode()
    assert len(out.strip()) > 6
    assert not re.search(r"\x1b|> |/help", out)


def test_a_run_that_was_trained_on_texts_continues_them(runs, said):
    code, out, err = said(runs / "texts", "--max-new-tokens", 5, lines=["Tiko saw"])
    assert code == 0
    assert "trained on texts" in err
    assert out.strip()
    assert "texts" not in said(runs / "chats", lines=["Tiko saw"])[2]


def test_temperature_and_seed_are_those_of_the_run_or_the_command_line(runs, said):
    greedy, other = (said(runs / "chats", "--seed", seed, lines=["Who?"])[1] for seed in (0, 7))
    assert greedy == other  # eval.temperature is 0
    drawn = [said(runs / "chats", "--temperature", 1.5, "--seed", seed, lines=["Who?"])[1] for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert said(runs / "chats", lines=["/temperature 1.5", "Who?"])[1] == drawn[0]


def test_commands(runs, said):
    lines = "/temperature|/system Be brief.|Who has it?|/reset|/system|/help".split("|")
    code, out, err = said(runs / "chats", "--max-new-tokens", 4, lines=[*lines, "/quit", "never answered"])
    assert code == 0
    assert out.endswith(f"\n{chat.HELP}\n")
    assert len(err.splitlines()) == 5  # temperature, system, cut, reset, system


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("/tempature 1", "did you mean /temperature?"),
        ("/temperature warm", "/temperature takes a number"),
        ("/temperature -1", "temperature (-1.0)"),
        ("/attention", "no answer yet"),
        ("kite " * 3000, "the model sees 128"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_the_chat_continues(runs, said, line, reason):
    code, out, err = said(runs / "chats", "--max-new-tokens", 3, lines=[line, "Who?", "/attention 9,0"])
    assert code == 0
    refused, _, no_such_head = err.splitlines()  # between them, that the answer was cut
    assert reason in refused
    assert "a head, 0 to 3" in no_such_head
    assert out.strip()


# Several adapters on one base

FEW = ("--temperature", 0, "--max-new-tokens", 6)


@pytest.fixture
def adapters(runs, tmp_path):
    """Two directories of adapters beside the run on texts: a ends its turns as a chat, b does not."""
    for seed, (name, ends) in enumerate((("a", [2, 5]), ("b", 2))):
        lm = load(runs / "texts")
        torch.manual_seed(seed)
        add_adapters(lm, LoraConfig(rank=2 + seed), str(runs / "texts/checkpoints/step_00000010"), weights_hash(lm))
        for layer in adapted(lm).values():
            torch.nn.init.normal_(layer.lora_B.weight)
        lm.config = lm.config.model_copy(update={"eos_token_id": ends})
        save(lm, tmp_path / name)
        load_tokenizer(runs / "texts").save(tmp_path / name)
    return tmp_path


def test_each_answers_as_if_it_were_opened_alone(runs, said, adapters):
    alone = {name: said(adapters / name, *FEW, lines=["Tiko saw"])[1] for name in "ab"}
    alone["base"] = said(runs / "texts", *FEW, lines=["Tiko saw"])[1]
    assert len(set(alone.values())) == 3
    given = [text for name in "ab" for text in ("--adapter", f"{name}={adapters / name}")]
    lines = ["Tiko saw", "/adapter b", "Tiko saw", "/adapter base", "Tiko saw", "/adapter a", "Tiko saw", "/adapter"]
    code, out, remarks = said(runs / "texts", *given, *FEW, lines=lines)
    assert (code, out) == (0, alone["a"] + alone["b"] + alone["base"] + alone["a"])
    assert "adapters in use: b; a new conversation (base, a, b)" in remarks
    assert "adapters in use: a (base, a, b)" in remarks


def test_adapters_that_do_not_fit_are_one_line(runs, said, adapters):
    torch.manual_seed(7)
    save(random_model(tiny_config(vocab_size=320, max_position_embeddings=128)), adapters / "other")
    load_tokenizer(runs / "texts").save(adapters / "other")
    for run, given, message in (
        (runs / "texts", f"base={adapters / 'a'}", "a name of its own"),
        (runs / "texts", f"a={runs / 'chats'}", "holds a whole model"),
        (adapters / "other", f"a={adapters / 'a'}", "another base"),
    ):
        code, out, problem = said(run, "--adapter", given)
        assert (code, out, len(problem.splitlines())) == (2, "", 1), problem
        assert message in problem


# The map of an answer


def test_attention_shows_the_weights_of_the_answer_and_draws_them(runs, said, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(runs / "chats", run)
    code, out, _ = said(run, "--max-new-tokens", 5, lines=["Who?", "Tiko has the kite?", "/attention 1,2"])
    assert code == 0
    rows = re.findall(r"^(\S+) +│(.*)│ (\S+) +(\.\d\d|1\.0)$", out, re.MULTILINE)
    assert len(rows) == 6  # the token before the answer, and its five
    answered = chat_again(run)
    weights = capture(load(run), torch.tensor([answered]), layers=[1], heads=[2]).weights[0, 0, 0]
    assert [number for *_, number in rows] == [f"{row.max():.2f}"[1:] for row in weights[-6:].numpy()]
    for name in ("chat.png", "chat_L1H2.png"):
        assert (run / "attention" / name).read_bytes().startswith(b"\x89PNG")
        assert str(run / "attention" / name) in out


def chat_again(run) -> list[int]:
    conversation = Conversation(load(run), load_tokenizer(run), temperature=0.0, max_new_tokens=5)
    for text in ("Who?", "Tiko has the kite?"):
        list(conversation.answer(text))
    return conversation.last.ids


@pytest.mark.slow
def test_the_head_shown_is_the_one_that_training_found_or_else_the_sharpest_here(runs, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # pictures of a checkpoint directory come here
    run = tmp_path / "run"
    shutil.copytree(runs / "chats", run)
    given = {"lines": ["Who?", "/attention"]}
    sharpest = re.compile(r"^L\d H\d, of all heads the one most focused on single tokens further back$", re.MULTILINE)
    found = sharpest.search(said(run, "--max-new-tokens", 4, **given)[1])
    look = snapshot(62)  # whose last head has 0.62
    snapshots.write(look, run / "attention")
    strongest = "L1 H3, the run's strongest induction head (0.62 on random tokens)\n"
    for where in (run, run / "checkpoints/step_00000010"):
        assert strongest in said(where, "--max-new-tokens", 4, **given)[1]
    snapshots.file_of(run / "attention", look.step).write_bytes(b"broken")
    assert found[0] in said(run, "--max-new-tokens", 4, **given)[1]


def test_a_conversation_longer_than_a_picture_shows_its_last_tokens(runs, said, tmp_path, monkeypatch):
    run = tmp_path / "run"
    shutil.copytree(runs / "chats", run)
    lines, shown = ["Who has the kite by the river?", "/attention 0,1"], []
    for most in (16, 256):
        monkeypatch.setattr(chat_attention, "MOST_TOKENS", most)
        shown.append(said(run, "--max-new-tokens", 5, lines=lines)[1])
    assert shown[0] == shown[1]  # the weights are the same: what came before counts


def map_of(tokens: int, queries: int, width: int, **given) -> list[str]:
    """A head of which every query looks at the key before it with 0.75, and at the first one with 0.25."""
    weights = np.zeros((queries, tokens), dtype=np.float32)
    for row, key in enumerate(range(tokens - queries, tokens)):
        weights[row, 0] += 0.25
        weights[row, max(0, key - 1)] += 0.75
    labels = [f"␣token{i}" if i % 3 else "⏎狐" for i in range(tokens)]
    return attention_map(weights, labels, tokens - queries, width, **given)


@pytest.mark.parametrize(("width", "tokens"), [(39, 9), (39, 300), (99, 9), (99, 300), (20, 3000)])
def test_a_map_fits_and_draws_every_weight(width, tokens):
    lines = map_of(tokens, min(tokens, 8), width)
    assert len(lines) == min(tokens, 8)
    assert {columns(line) for line in lines} == {columns(lines[0])}
    assert columns(lines[0]) <= width
    for line in lines[-3:]:
        cells = line.split("│")[1]
        assert (cells[0], cells.rstrip()[-2:].count(BLOCKS[6])) == (BLOCKS[2], 1)  # of 8: .25 and .75
        assert set(cells[1:].replace(BLOCKS[6], "").strip()) <= {BLOCKS[0]}
        assert line.endswith(" .75")


# Bad input


def test_bad_input_is_one_line_and_exit_code_2(runs, said, tmp_path):
    broken = {name: tmp_path / name for name in ("cut", "no_tokenizer", "latest")}
    for folder in broken.values():
        shutil.copytree(runs / "chats", folder)
    weights = broken["cut"] / "checkpoints/step_00000010/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    (broken["no_tokenizer"] / "checkpoints/step_00000010/tokenizer.json").unlink()
    (broken["latest"] / "checkpoints/latest").write_text("step_00000020")
    for arguments, reason in (
        ([tmp_path / "nothing"], "is neither a run"),
        ([broken["cut"]], "model.safetensors"),
        ([broken["no_tokenizer"]], "tokenizer.json"),
        ([broken["latest"]], "step_00000020"),
        ([runs / "chats", "--temperature", "-1"], "--temperature is '-1'"),
        ([runs / "texts", "--system", "Be brief."], "trained on texts"),
        ([runs / "texts", "--rope-scaling", "none", "--rope-factor", "4"], "--rope-factor"),
    ):
        code, out, err = said(*arguments)
        assert (code, out, err.count("\n")) == (2, "", 1), err
        assert reason in err


# A terminal


class Terminal:
    """The program in a pseudo-terminal."""

    def __init__(self, *arguments):
        import pty

        self.ours, theirs = pty.openpty()
        place = {"stdin": theirs, "stdout": theirs, "stderr": theirs, "start_new_session": True}
        environment = os.environ | {"TERM": "xterm", "PYTHONIOENCODING": "utf-8"}
        program = [sys.executable, *map(str, arguments)]
        self.process = subprocess.Popen(program, cwd=REPOSITORY, env=environment, **place)
        os.close(theirs)
        self.screen = b""  # what came since the last `until`

    def type(self, keys: str) -> None:
        os.write(self.ours, keys.encode())

    def until(self, text: str, again: str = "") -> str:
        """Read on until this text has come, and return all up to it.

        again: keys that are typed anew whenever a second brings nothing: readline notices a Ctrl-C that comes just
        before it waits for keys only with the next one.
        """
        import select

        deadline, wanted = time.monotonic() + PATIENCE, text.encode()
        while wanted not in self.screen:
            assert time.monotonic() < deadline, f"{text!r} did not come: {self.screen!r}"
            if select.select([self.ours], [], [], 1.0)[0]:
                self.screen += os.read(self.ours, 65536)
            elif again:
                self.type(again)
        before, _, self.screen = self.screen.partition(wanted)
        return before.decode("utf-8", "replace")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pseudo-terminals of this kind")
def test_ctrl_c_stops_an_answer_and_not_the_program(runs, tmp_path):
    shutil.copytree(runs / "chats", tmp_path / "r")
    screen = Terminal("-m", "tests.eval.chat_held", tmp_path / "r", "--max-new-tokens", 20)
    try:
        screen.until("> ")
        screen.type("Who?\r")
        screen.until("[held]")  # so an answer is running
        screen.type("\x03")
        screen.until("(stopped)")
        screen.until("> ")
        screen.type("/attention\r")
        assert screen.until("chat_L").count("│") >= 4  # what was written can be looked at
        screen.until("> ")
        screen.type("not to be sent")
        screen.until("not to be sent")
        screen.type("\x03")
        screen.until("(Ctrl-D or /quit leaves)", again="\x03")
        screen.until("> ")
        screen.type("/quit\r")
        assert screen.process.wait(PATIENCE) == 0
    finally:
        screen.process.kill()
        screen.process.wait()
        os.close(screen.ours)
