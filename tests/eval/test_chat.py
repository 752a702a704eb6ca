"""`python -m eval.chat`: what is typed, piped in and interrupted, in the program as it is run."""

import codecs
import io
import os
import re
import shutil
import struct
import subprocess
import sys
import time
from contextlib import suppress

import pytest
import torch

from configs.command import exit_on_bad_input
from configs.text import columns
from data.config import TokenizerConfig
from data.tokenizer import load_tokenizer, train_tokenizer
from eval.attention import snapshots
from eval.attention.capture import capture
from eval.chat import __main__ as chat
from eval.chat import attention as chat_attention
from model import load, save
from tests.conftest import random_model, tiny_config
from tests.eval.test_plots import snapshot
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
        monkeypatch.setattr(sys, "argv", ["chat", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        with pytest.raises(SystemExit) as stopped:
            exit_on_bad_input(chat.main)
        done = capsys.readouterr()
        return stopped.value.code, done.out, done.err

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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rope-scaling", "ntk"], "--rope-scaling ntk: unknown: use one of none, linear, yarn"),
        (["--rope-scaling", "yarn", "--rope-factor", "0.5"], "--rope-factor is '0.5': it must be a number from 1"),
        (["--rope-scaling", "yarn", "--rope-factor", "1e6"], "--rope-scaling: the factor is 1e+06"),
        (["--rope-factor", "4"], "--rope-factor is for --rope-scaling"),
        (["--rope-scaling", "none", "--rope-factor", "4"], "--rope-factor is for --rope-scaling"),
    ],
)
def test_a_wrong_scaling_is_refused_with_one_line(runs, said, arguments, message):
    code, out, err = said(runs / "texts", *arguments, lines=["Tiko"])
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err


def test_a_model_without_rope_has_nothing_to_scale(runs, said, tmp_path):
    checkpoint = tmp_path / "step_00000010"
    shutil.copytree(runs / "texts/checkpoints/step_00000010", checkpoint)
    changes = {"position_embedding": "learned", "qk_norm": False, "loadable_elsewhere": False}
    save(random_model(tiny_config(vocab_size=320, **changes)), checkpoint)
    code, _, err = said(checkpoint, "--rope-scaling", "yarn", lines=["Tiko"])
    assert (code, err.count("\n")) == (2, 1)
    assert "--rope-scaling: this model has no RoPE (position_embedding: learned): leave it out" in err


# Piped lines


@pytest.mark.slow
def test_each_piped_line_is_a_turn_and_nothing_else_is_printed(runs):
    command = [sys.executable, "-m", "eval.chat", runs / "chats", "--max-new-tokens", "6"]
    lines = "Who has the kite?\nWhere? caf\xe9\n".encode("latin-1")  # not UTF-8
    done = subprocess.run(command, cwd=REPOSITORY, input=lines, capture_output=True, timeout=PATIENCE)
    assert done.returncode == 0
    assert done.stderr.decode().split("\n") == ["(cut after 6 tokens: --max-new-tokens gives it more)"] * 2 + [""]
    out = done.stdout.decode()
    assert len(out.strip()) > 6
    assert not re.search(r"\x1b|> |/help", out)


def test_a_run_that_was_trained_on_texts_continues_them(runs, said):
    code, out, err = said(runs / "texts", "--max-new-tokens", 5, lines=["Tiko saw"])
    assert code == 0
    assert err.startswith("This run was trained on texts, not on chats: it continues what you type.\n")
    assert out.strip()
    assert said(runs / "chats", lines=["Tiko saw"])[2].count("texts") == 0
    assert said(runs / "texts", "--system", "Be brief.")[::2] == (
        2,
        "error: --system: this model was trained on texts, not on chats: it has no system message\n",
    )


def test_temperature_and_seed_are_those_of_the_run_or_the_command_line(runs, said):
    greedy = said(runs / "chats", lines=["Who?"])[1]
    assert said(runs / "chats", "--seed", 7, lines=["Who?"])[1] == greedy  # eval.temperature is 0
    drawn = [said(runs / "chats", "--temperature", 1.5, "--seed", seed, lines=["Who?"])[1] for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    within = said(runs / "chats", lines=["/temperature 1.5", "Who?", "/temperature"])
    assert (within[1], within[2].count("temperature 1.5\n")) == (drawn[0], 2)


def test_commands(runs, said):
    lines = "/temperature|/system Be brief.|Who has it?|/cache|Where?|/cache|/reset|/system|/help".split("|")
    code, out, err = said(runs / "chats", "--max-new-tokens", 4, lines=[*lines, "/quit", "never answered"])
    assert code == 0
    assert "temperature 0\n" in err
    first, second = re.findall(r"(\d+) tokens were in the cache, (\d+) were run .* holds (\d+)", err)
    tokenizer = load_tokenizer(runs / "chats")
    message = 4 + len(tokenizer.encode("user\nWhere?")) + len(tokenizer.encode("assistant\n"))  # 4 of the template
    assert first[0] == "0"
    assert first[1] == first[2] == second[0]
    assert int(second[1]) == message + 3 + 3  # of the answer; the last answer's last token, and what ended it
    assert out.endswith(f"\n{chat.HELP}\n")
    assert len(err.splitlines()) == 8  # temperature, system, cut, cache, cut, cache, reset, system


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("", "there is nothing to answer: type a message"),
        ("/tempature 1", "unknown command /tempature: did you mean /temperature?"),
        ("/quti", "unknown command /quti: did you mean /quit?"),
        ("/xyz", "unknown command /xyz: /help lists the commands"),
        ("/temperature warm", "/temperature takes a number, for example /temperature 0.5, not 'warm'"),
        ("/temperature -1", "temperature (-1.0) must be 0 (greedy), or 1e-06 to"),
        ("/attention", "there is no answer yet to look at: ask something first"),
        ("/cache", "there is no answer yet"),
        ("kite " * 3000, "tokens, and the model sees 128, its answer included: shorten it"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_the_chat_continues(runs, said, line, reason):
    code, out, err = said(runs / "chats", "--max-new-tokens", 3, lines=[line, "Who?"])
    assert code == 0
    assert reason in err.splitlines()[0]
    assert len(err.splitlines()) == 2  # and that the answer was cut
    assert out.strip()


def test_turns_that_are_forgotten_are_reported(runs, said):
    code, _, err = said(runs / "chats", "--max-new-tokens", 8, lines=["Who has the kite?"] * 12)
    assert code == 0
    assert "(more than 128 tokens by now: the oldest turn is forgotten)" in err
    assert said(runs / "chats", lines=["Who?"])[2] == "(cut: the model's context of 128 tokens is full)\n"


# The map of an answer


def test_attention_shows_the_weights_of_the_answer_and_draws_them(runs, said, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(runs / "chats", run)
    code, out, _ = said(run, "--max-new-tokens", 5, lines=["Who?", "Tiko has the kite?", "/attention 1,2"])
    assert code == 0
    lm, tokenizer = load(run), load_tokenizer(run)
    rows = re.findall(r"^(\S+) +│(.*)│ (\S+) +(\.\d\d|1\.0)$", out, re.MULTILINE)
    assert len(rows) == 6  # the token before the answer, and its five
    answered = chat_again(lm, tokenizer)
    weights = capture(lm, torch.tensor([answered]), layers=[1], heads=[2]).weights[0, 0, 0]
    assert [number for *_, number in rows] == [f"{row.max():.2f}"[1:] for row in weights[-6:].numpy()]
    for name, kind in (("chat.png", "mosaic"), ("chat_L1H2.png", "one head")):
        assert (run / "attention" / name).read_bytes().startswith(b"\x89PNG"), kind
        assert str(run / "attention" / name) in out


def chat_again(lm, tokenizer) -> list[int]:
    from eval.chat.session import Conversation

    conversation = Conversation(lm, tokenizer, temperature=0.0, max_new_tokens=5)
    for text in ("Who?", "Tiko has the kite?"):
        list(conversation.answer(text))
    return conversation.last.ids


@pytest.mark.slow
def test_the_head_shown_is_the_one_that_training_found_or_else_the_sharpest_here(runs, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # pictures of a checkpoint directory come here
    run = tmp_path / "run"
    shutil.copytree(runs / "chats", run)
    short, asked = ("--max-new-tokens", 4), {"lines": ["Who?", "/attention"]}
    found = re.search(
        r"^L(\d) H(\d), of all heads the one most focused on single tokens further back$",
        said(run, *short, **asked)[1],
        re.M,
    )
    weights = capture(load(run), torch.tensor([chat_again(load(run), load_tokenizer(run))])).weights
    assert int(found[1]) < len(weights)
    one = snapshot(layers=2, heads=4)
    one.scores["induction"][:] = 0.1
    one.scores["induction"][1, 3] = 0.62
    snapshots.write(one, run / "attention")
    for where in (run, run / "checkpoints/step_00000010"):
        assert (
            "\nL1 H3, the run's strongest induction head (0.62 on random tokens)\n" in said(where, *short, **asked)[1]
        )
    snapshots.file_of(run / "attention", one.step).write_bytes(b"broken")
    assert found[0] in said(run, *short, **asked)[1]


@pytest.mark.parametrize(
    ("asked", "reason"), [("9,0", "layers are 0 to 1, heads 0 to 3"), ("x", "for example /attention 2,0")]
)
def test_a_head_that_is_not_there_is_one_line(runs, said, asked, reason):
    assert reason in said(runs / "chats", lines=["Who?", f"/attention {asked}"])[2].splitlines()[1]


def test_a_conversation_longer_than_a_picture_shows_its_last_tokens(runs, said, tmp_path, monkeypatch):
    monkeypatch.setattr(chat_attention, "MOST_TOKENS", 16)
    run = tmp_path / "run"
    shutil.copytree(runs / "chats", run)
    lines = ["Who has the kite by the river?", "/attention 0,1"]
    short = said(run, "--max-new-tokens", 5, lines=lines)[1]
    monkeypatch.setattr(chat_attention, "MOST_TOKENS", 256)
    assert (
        said(run, "--max-new-tokens", 5, lines=lines)[1] == short
    )  # the weights are the same: what came before counts


# Bad input


def test_bad_input_is_one_line_and_exit_code_2(runs, said, tmp_path):
    broken = {name: tmp_path / name for name in ("cut", "mixed", "no_tokenizer", "latest")}
    for folder in broken.values():
        shutil.copytree(runs / "chats", folder)
    weights = broken["cut"] / "checkpoints/step_00000010/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    larger = train_tokenizer(
        TokenizerConfig(kind="bpe", vocab_size=384), [chat.__doc__, " ".join(map(str, range(500)))]
    )
    larger.save(broken["mixed"] / "checkpoints/step_00000010")
    (broken["no_tokenizer"] / "checkpoints/step_00000010/tokenizer.json").unlink()
    (broken["latest"] / "checkpoints/latest").write_text("step_00000020")
    for arguments, reason in (
        ([tmp_path / "nothing"], "is neither a run (checkpoints/latest) nor a model directory"),
        ([broken["cut"]], "model.safetensors: cannot be read"),
        ([broken["mixed"]], "the tokenizer has 384 ids, the model 320: they do not belong together"),
        ([broken["no_tokenizer"]], "holds no tokenizer.json"),
        ([broken["latest"]], "names step_00000020, which does not exist"),
        ([runs / "chats", "--temperature", "-1"], "--temperature is '-1': it must be a number from 0"),
        ([runs / "chats", "--top-p", "2"], "--top-p is '2': it must be a number from 1e-06 to 1"),
        ([runs / "chats", "--max-new-tokens", "0"], "--max-new-tokens is '0': it must be a whole number from 1"),
        ([runs / "chats", "--system", "kite " * 3000], "--system: the system message takes"),
    ):
        code, out, err = said(*arguments)
        assert (code, out, err.count("\n")) == (2, "", 1), err
        assert reason in err


# A terminal


class Terminal:
    """The program in a pseudo-terminal of so many columns."""

    def __init__(self, width: int, *command):
        import fcntl
        import pty
        import termios

        self.ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, width, 0, 0))
        environment = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES")}
        self.process = subprocess.Popen(
            [sys.executable, *map(str, command)],
            cwd=REPOSITORY,
            env=environment | {"TERM": "xterm", "PYTHONIOENCODING": "utf-8"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        self.screen, self.read_up_to = "", 0
        self.decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def type(self, keys: str) -> None:
        os.write(self.ours, keys.encode())

    def until(self, text: str, again: str = "") -> str:
        """Read on until this text has come; what was read since the last one.

        again: keys that are typed anew whenever a second brings nothing: readline notices a Ctrl-C that comes just
        before it waits for keys only with the next one.
        """
        import select

        deadline = time.monotonic() + PATIENCE
        while text not in self.screen[self.read_up_to :]:
            ready, _, _ = select.select([self.ours], [], [], 1.0)
            if again and not ready:
                self.type(again)
            try:
                raw = os.read(self.ours, 65536) if ready else b""
            except OSError:  # the program has ended
                raw, deadline = b"", 0.0
            self.screen += re.sub(r"\x1b\[[?0-9;]*[a-zA-Z]", "", self.decode(raw))
            assert raw or time.monotonic() < deadline, f"{text!r} did not come: {self.screen!r}"
        found = self.screen.index(text, self.read_up_to) + len(text)
        new, self.read_up_to = self.screen[self.read_up_to : found], found
        return new

    def ends(self, keys: str) -> int:
        """Type these keys, again if need be, until the program has ended; its exit code."""
        deadline = time.monotonic() + PATIENCE
        while self.process.poll() is None and time.monotonic() < deadline:
            self.type(keys)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(2)
        return self.process.wait(1)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.ours)


@pytest.fixture
def terminal():
    if sys.platform == "win32":
        pytest.skip("Windows has no pseudo-terminals of this kind")
    opened = []

    def start(*command, width=40):
        opened.append(Terminal(width, *command))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


@pytest.mark.slow
def test_ctrl_c_stops_an_answer_and_not_the_program(runs, terminal):
    screen = terminal("-m", "tests.eval.chat_held", runs / "chats", "--max-new-tokens", 20)
    screen.until("> ")
    screen.type("Who?\r")
    screen.until("[held]")  # so an answer is running
    screen.type("\x03")
    screen.until("(stopped)")
    screen.until("> ")
    screen.type("/cache\r")
    read = screen.until("kB")  # the end of the remark; a "> " may also come with readline's echo
    assert "0 tokens were in the cache" in " ".join(read.split())
    screen.until("> ")
    screen.type("not to be sent")
    screen.until("not to be sent")
    screen.type("\x03")
    screen.until("(Ctrl-D or /quit leaves)", again="\x03")
    screen.until("> ")
    assert screen.ends("\x04") == 0


@pytest.mark.slow
def test_everything_fits_a_narrow_terminal(runs, terminal, tmp_path):
    run = tmp_path / "r"
    shutil.copytree(runs / "texts", run)
    screen = terminal("-m", "eval.chat", run, "--max-new-tokens", 30)
    begins = screen.until("> ")
    assert "it continues what you type" in " ".join(begins.split())
    screen.type("Tiko saw\r")
    screen.until("> ")
    screen.type("/attention\r")
    screen.until("chat_L")
    screen.until("> ")
    screen.type("/help\r")
    screen.until("stops an answer")
    screen.until("> ")
    assert screen.ends("/quit\r") == 0
    lines = screen.screen.replace("\r", "").split("\n")
    assert max(columns(line) for line in lines if not line.endswith(".png")) in range(35, 41)
    assert sum("│" in line for line in lines) >= 20
