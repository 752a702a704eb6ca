"""What data.inspect shows is what training sees: every token, every label, every count; and it cannot be tricked."""

import json
import os
import pty
import re
import subprocess
import sys

import numpy as np
import pytest

from configs.command import InputError
from configs.loader import load_config, validate
from data import inspect as inspect_module
from data.batches import TrainBatches, make_rows, validation_batches
from data.chat import encode_conversations
from data.config import DataConfig, TokenizerConfig
from data.inspect import Painter, histogram, is_colored, main
from data.packing import IGNORED
from data.prepare import prepare
from data.reading.documents import fingerprint, split_of
from data.reading.records import conversation_of
from data.tokenizer import train_tokenizer
from tests.processes import run_module

NASTY = [
    "plain words\nand\n\nline ends\n",
    "\ttabs  and  blanks   \r\n",
    "\x1b[31mred\x1b[2J\x07\x08\x9b1m\x00",
    "right \u202e to left \u2066\u2028 and \ufeff",
    "⟦not trained⟧ ⟨U+001B⟩ ⏎⇥␍ (3 × padding)",
    "──── <|bos|> document 1 ────\n<|im_end|> <|pad|> <tool_call>",
    "你好，世界 👩\u200d👩\u200d👧 e\u0301",
    "",
]


def plain_again(shown: str) -> str:
    """Undo every mark of a row: the text that its ids stand for, special tokens included."""
    shown = shown.replace("⏎\n", "⏎")
    shown = re.sub(r"\n?──── document 0: [^\n]*\n", "", shown)
    shown = re.sub(r"\n?──── (<\|bos\|>) document \d+ ─*\n", r"\1", shown)
    shown = re.sub(r"\n?\((\d+) × padding\)$", lambda match: "<|pad|>" * int(match[1]), shown)
    shown = re.sub("[⟦⟧]", "", shown)
    shown = re.sub(r"⟨text: (.*?)⟩", r"\1", shown)
    shown = shown.replace("⏎", "\n").replace("⇥", "\t").replace("␍", "\r")
    return re.sub(r"⟨U\+(\w+)⟩", lambda match: chr(int(match[1], 16)), shown)


def chat_row(tokenizer, texts=NASTY, padding=5):
    """(ids, labels) of a row with one conversation a text, which stands in the question and in the answer."""
    turns = [[("system", text), ("user", text), ("assistant", text + "!"), ("user", "more?")] for text in texts]
    records = [{"messages": [{"role": role, "content": text} for role, text in turn]} for turn in turns]
    pairs = encode_conversations(tokenizer, [conversation_of(record) for record in records])
    ids = [token_id for one, _ in pairs for token_id in one]
    labels = [i if flag & 1 else IGNORED for one, flags in pairs for i, flag in zip(one, flags, strict=True)]
    return ids + [tokenizer.pad_id] * padding, labels + [IGNORED] * padding


@pytest.fixture(params=["byte", "char", "bpe"])
def tokenizer(request):
    texts = [*NASTY, "system user assistant more? ! \n"] * 5
    return train_tokenizer(TokenizerConfig(kind=request.param, vocab_size=448), texts)


def without_colors(text: str) -> str:
    return re.sub(r"\x1b\[[\d;]*m", "", text)


# ---------------------------------------------------------------------------------------------------------
# rows


def test_nothing_of_a_row_is_lost_and_nothing_is_added(tokenizer):
    ids, labels = chat_row(tokenizer)
    expected = tokenizer.decode(ids, skip_special_tokens=False)
    assert plain_again(Painter(tokenizer, False, True).row(ids, labels)) == expected
    assert plain_again(without_colors(Painter(tokenizer, True, True).row(ids, labels))) == expected


def test_what_is_marked_as_trained_is_what_has_a_label(tokenizer):
    ids, labels = chat_row(tokenizer)
    trained = tokenizer.decode([label for label in labels if label != IGNORED], skip_special_tokens=False)
    assert len(trained) > 100
    marked = re.findall(r"⟦(.*?)⟧", Painter(tokenizer, False, True).row(ids, labels), flags=re.DOTALL)
    assert len(marked) == len(NASTY)
    assert plain_again("".join(marked)) == trained
    colored = Painter(tokenizer, True, True).row(ids, labels)
    green = re.sub(r"\x1b\[(32[\d;]*)m(.*?)\x1b\[0m(\n?)|.|\n", lambda m: (m[2] or "") + (m[3] or ""), colored)
    assert plain_again(green.replace("\n", "").replace("⏎", "⏎\n")) == trained


def test_every_document_of_a_row_has_its_number_and_padding_is_one_mark(tokenizer):
    ids, labels = chat_row(tokenizer, padding=37)
    shown = Painter(tokenizer, False, True).row(ids, labels)
    assert re.findall(r"^──── <\|bos\|> document (\d+) ─+$", shown, re.MULTILINE) == [*"12345678"]
    assert shown.splitlines()[-1] == "(37 × padding)"
    tail = Painter(tokenizer, False, False).row(tokenizer.encode("tabs"), tokenizer.encode("tabs"))
    assert tail.startswith("──── document 0: it began in another row ─")
    assert tail.endswith("─\ntabs")


def test_the_ids_shown_are_those_of_the_row_and_fit_the_terminal(tokenizer):
    ids, labels = chat_row(tokenizer)
    shown = Painter(tokenizer, False, True, width=72).row_ids(ids, labels)
    shown = re.sub(r"\((\d+) × (\S+)\)", lambda match: f"{match[2]} " * int(match[1]), shown)
    cells = re.findall(r"(⟦?)(\d+):(\S+)", shown)
    assert [int(number) for _, number, _ in cells] == ids
    assert [bool(mark) for mark, _, _ in cells] == [label != IGNORED for label in labels]
    assert max(map(inspect_module.columns, shown.splitlines())) <= 72


@pytest.mark.parametrize("color", [True, False])
def test_a_text_cannot_drive_the_terminal(tokenizer, color):
    ids, labels = chat_row(tokenizer)
    painter = Painter(tokenizer, color, True)
    shown = without_colors(painter.row(ids, labels) + painter.row_ids(ids, labels))
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2028\u2066-\u2069\ufeff]", shown)
    assert "⟨U+001B⟩[2J" in shown
    assert "👩\u200d👩\u200d👧" in shown


def test_what_only_looks_like_a_special_token_is_marked(tokenizer):
    ids, labels = chat_row(tokenizer, ["a<|im_end|>b"])
    shown = Painter(tokenizer, False, True).row(ids, labels)
    assert shown.count("a⟨text: <|im_end|>⟩b") == 3
    assert shown.count("<|im_end|>") == 3 + 4


def test_special_tokens_stand_out_in_color_and_text_that_looks_like_them_does_not(tokenizer):
    ids, labels = chat_row(tokenizer, ["a<|im_end|>b"], padding=0)
    shown = Painter(tokenizer, True, True).row(ids, labels)
    assert shown.count("\x1b[32;7m<|im_end|>\x1b[0m") == 1
    assert shown.count("\x1b[2;7m<|im_end|>\x1b[0m") == 3
    assert shown.count(";7m") == 4 * 2
    assert without_colors(shown) == re.sub("[⟦⟧]", "", Painter(tokenizer, False, True).row(ids, labels))


def test_a_character_cut_by_the_row_is_shown_byte_by_byte():
    tokenizer = train_tokenizer(TokenizerConfig(kind="byte"), [])
    ids = tokenizer.encode("好 middle 好")[1:-1]
    shown = Painter(tokenizer, False, False).row(ids, ids)
    assert shown.splitlines()[-1] == "⟨A5⟩⟨BD⟩ middle ⟨E5⟩⟨A5⟩"


# ---------------------------------------------------------------------------------------------------------
# the command


@pytest.fixture
def corpus(tmp_path):
    """150 texts: lengths 5 … 154 bytes and the two tokens around each, in a config with rows of 32 tokens."""
    texts = [f"{i:03} {'x' * i}\n" for i in range(150)]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return texts, write_config(tmp_path, "texts.jsonl")


def write_config(folder, name, more="", length=32):
    config = folder / "c.yaml"
    config.write_text(
        f"output_dir: {folder / 'runs'}\nseed: 5\ndata:\n  source: {{kind: files, path: {folder / name}}}\n"
        f"  tokenizer: {{kind: byte}}\n  sequence_length: {length}\n{more}"
    )
    return config


def run(monkeypatch, capsys, *arguments) -> str:
    monkeypatch.setattr(sys, "argv", ["data.inspect", *map(str, arguments)])
    assert main() == 0
    return capsys.readouterr().out


def table(out: str) -> dict[str, list[str]]:
    """Name -> [train, validation] of the summary."""
    rows = re.findall(r"^\| (\S.*?) +\| +([\d.,%]+) \| +([\d.,%]+) \|$", out, re.MULTILINE)
    return {name: [train, held_out] for name, train, held_out in rows}


def prepared(config, tmp_path):
    checked = validate(DataConfig, load_config(config), "data")
    return checked, prepare(checked, tmp_path / "runs", show_progress=False)


def percent(part, whole):
    return f"{part / whole:.2%}"


def test_the_rows_shown_are_the_rows_of_training(corpus, tmp_path, monkeypatch, capsys):
    out = run(monkeypatch, capsys, corpus[1], "--ids", "--rows", "4", "data.isolate_documents=true")
    config, data = prepared(corpus[1], tmp_path)
    batches = TrainBatches(make_rows(config, data, "train"), data.tokenizer, 2, seed=5)
    expected = [row for k in range(2) for row in batches.batch(k)["input_ids"].tolist()]
    parts = re.split(r"^train row \d.*\n", out.split("\nprepared data")[0], flags=re.MULTILINE)[1:]
    assert len(parts) == 4
    for part, ids in zip(parts, expected, strict=True):
        as_text, as_ids = re.split(r"\n(?=\d+:)", part, maxsplit=1)
        assert plain_again(as_text).rstrip("\n") == data.tokenizer.decode(ids, False).rstrip("\n")
        assert [int(number) for number in re.findall(r"(\d+):\S", as_ids)] == ids
    assert "data.isolate_documents: true, so a document cannot see" in out


def test_held_out_rows_are_shown_in_order(corpus, tmp_path, monkeypatch, capsys):
    out = run(monkeypatch, capsys, corpus[1], "--ids", "--rows", "1000", "--split", "validation")
    config, data = prepared(corpus[1], tmp_path)
    rows = validation_batches(make_rows(config, data, "validation"), data.tokenizer, 1)
    ids = re.sub(r"\((\d+) × (\S+)\)", lambda match: f"{match[2]} " * int(match[1]), out)
    assert [int(n) for n in re.findall(r"(\d+):\S", ids)] == [i for b in rows for i in b["input_ids"][0].tolist()]


def test_the_summary_counts_what_is_there(corpus, tmp_path, monkeypatch, capsys):
    texts, config_file = corpus
    shown = table(run(monkeypatch, capsys, config_file, "--rows", "0"))
    train = [t for t in texts if split_of(fingerprint(t), 0.1) == "train"]
    held_out = [t for t in texts if split_of(fingerprint(t), 0.1) == "validation"]
    config, data = prepared(config_file, tmp_path)
    for i, part in enumerate([train, held_out]):
        lengths = sorted(len(t) + 2 for t in part)
        tokens = sum(lengths)
        assert shown["documents"][i] == str(len(part))
        assert shown["tokens"][i] == f"{tokens:,}"
        assert shown["bytes of text"][i] == f"{tokens - 2 * len(part):,}"
        assert shown["tokens a document: fewest"][i] == str(lengths[0])
        assert shown["10 % have at most"][i] == str(lengths[-(-len(part) // 10) - 1])
        assert shown["median"][i] == str(lengths[-(-len(part) // 2) - 1])
        assert shown["90 % have at most"][i] == str(lengths[-(-len(part) * 9 // 10) - 1])
        assert shown["most"][i] == str(lengths[-1])
        assert shown["longer than a row"][i] == percent(sum(n > 32 for n in lengths), len(part))
        alone = sum(-(-n // 32) * 32 for n in lengths)
        assert shown["padding if no documents shared a row"][i] == percent(alone - tokens, alone)
    for i, batches in enumerate(every_row(config, data)):
        places = sum(b["input_ids"].numel() for b in batches)
        assert shown["rows an epoch"][i] == str(len(batches))
        padding = sum(int((b["input_ids"] == data.tokenizer.pad_id).sum()) for b in batches)
        assert shown["padding in them"][i] == percent(padding, places)
        asked = sum(int((b["labels"][:, i:] != IGNORED).sum()) for b in batches)
        assert shown["trained on"][i] == percent(asked, places)
    assert "unknown tokens" not in shown


def every_row(config, data):
    """The batches of one row of an epoch of training, and of validation."""
    batches = TrainBatches(make_rows(config, data, "train"), data.tokenizer, 1, seed=5)
    yield [batches.batch(k) for k in range(batches.rows.per_epoch)]
    yield list(validation_batches(make_rows(config, data, "validation"), data.tokenizer, 1))


@pytest.mark.parametrize(("too_long", "cut", "dropped"), [("truncate", 20, 10), ("drop", 0, 30)])
def test_the_summary_of_conversations(too_long, cut, dropped, tmp_path, monkeypatch, capsys):
    """60 that fit, 20 whose first answer fits, 10 that have no answer that fits."""
    question, answer = {"role": "user", "content": "q"}, {"role": "assistant", "content": "short"}
    long = {"role": "assistant", "content": "l" * 100}
    kinds = [[question, answer]] * 60 + [[question, answer, question, long]] * 20 + [[question, long]] * 10
    for name in ("train", "held"):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps({"messages": m}) + "\n" for m in kinds))
    config_file = write_config(
        tmp_path, "train.jsonl", f"  records: conversations\n  too_long: {too_long}\n  rows_joined: 1\n", 64
    )
    config_file.write_text(
        config_file.read_text().replace("train.jsonl}", f"train.jsonl, validation_path: {tmp_path / 'held.jsonl'}}}")
    )
    out = run(monkeypatch, capsys, config_file, "--rows", "1")
    assert "⟦short<|im_end|>⟧⏎\n" in out
    shown = table(out)
    config, data = prepared(config_file, tmp_path)
    for i, batches in enumerate(every_row(config, data)):
        places = 64 * len(batches)
        padding = sum(int((b["input_ids"] == data.tokenizer.pad_id).sum()) for b in batches)
        alone = 64 * (60 + cut)  # as many fit into a row
        assert shown["documents"][i] == "90"
        assert shown["rows an epoch"][i] == str(len(batches))
        assert shown["padding in them"][i] == percent(padding, places)
        assert shown["padding if no documents shared a row"][i] == percent(alone - (places - padding), alone)
        assert shown["trained on"][i] == percent(sum(int((b["labels"] != IGNORED).sum()) for b in batches), places)
        assert shown["longer than a row"][i] == percent(30, 90)
        assert shown["cut to whole turns that fit"][i] == str(cut)
        assert shown["left out: too long for a row"][i] == str(dropped)
    assert "177 exact duplicates kept" in out


def test_what_was_left_out_is_reported_with_file_and_line(tmp_path, monkeypatch, capsys):
    lines = [json.dumps({"text": f"text {i}"}) for i in range(1500)]
    for number in range(12):
        lines[120 * number + 2] = json.dumps({"bo\x1bdy": "x"})
    lines += ['{"text": ""}'] * 3 + ['{"text": "text 0"}'] * 2
    (tmp_path / "x.jsonl").write_text("\n".join(lines))
    out = run(monkeypatch, capsys, write_config(tmp_path, "x.jsonl", "  on_bad_record: skip\n"), "--rows", "0")
    assert "2 exact duplicates kept" in out
    assert "3 empty texts left out" in out
    assert "12 bad records left out:" in out
    listed = re.findall(r"^    \S*x\.jsonl:(\d+): has no field `text` \(it has bo⟨U\+001B⟩dy\)", out, re.MULTILINE)
    assert listed == [str(120 * number + 3) for number in range(10)]
    assert "    … and 2 more" in out
    assert "\x1b" not in out


def test_unknown_characters_are_counted(tmp_path, monkeypatch, capsys):
    """char learns every character of a corpus, so only one that was made elsewhere can lack some."""
    train_tokenizer(TokenizerConfig(kind="char"), ["text 0123456789"]).save(tmp_path / "few")
    (tmp_path / "x.jsonl").write_text("".join(json.dumps({"text": f"text {i} Q"}) + "\n" for i in range(100)))
    pretrained = [f"data.tokenizer.{key}" for key in ("kind=pretrained", f"path={tmp_path / 'few'}")]
    out = run(monkeypatch, capsys, write_config(tmp_path, "x.jsonl"), *pretrained, "--rows", "100")
    train, held_out = map(int, table(out)["unknown tokens"])
    assert train + held_out == 100
    assert "<|unk|><|eos|>" in out


def test_the_histogram_has_every_document_once():
    for lengths in ([7], [5, 5, 6], list(range(100, 300)), [2, 3, 4, 8, 1000, 1024]):
        lines = re.findall(r"([\d,]+) … ([\d,]+) +([\d,]+)", histogram(np.array(lengths)))
        bins = [tuple(int(number.replace(",", "")) for number in line) for line in lines]
        assert [count for _, _, count in bins] == [sum(a <= n <= b for n in lengths) for a, b, _ in bins]
        assert sum(count for _, _, count in bins) == len(lengths)


def test_no_color_where_none_is_wanted(monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert is_colored("auto")
    assert not is_colored("never")
    monkeypatch.setenv("NO_COLOR", "1")
    assert not is_colored("auto")
    assert is_colored("always")
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False, raising=False)
    assert not is_colored("auto")


def test_a_misspelt_key_is_one_clear_line(corpus):
    bad = run_module("data.inspect", corpus[1], "data.recrods=text")
    assert bad.returncode == 2
    assert bad.stderr.count("\n") == 1
    assert "did you mean `data.records`?" in bad.stderr
    assert bad.stdout == ""


@pytest.mark.slow
def test_the_program_in_a_terminal_and_in_a_pipe_that_closes(corpus):
    program = [sys.executable, "-m", "data.inspect"]
    outer, inner = pty.openpty()
    with subprocess.Popen(
        [*program, corpus[1], "--rows", "1"], stdout=inner, env=os.environ | {"TERM": "xterm"}
    ) as one:
        os.close(inner)
        seen = b""
        while chunk := read_or_end(outer):
            seen += chunk
    os.close(outer)
    assert one.returncode == 0
    assert b"\x1b[32mtrained on\x1b[0m" in seen
    assert b"rows an epoch" in seen
    with subprocess.Popen([*program, corpus[1], "--rows", "5000"], stdout=-1, stderr=-1) as piped:
        piped.stdout.readline()
        piped.stdout.close()
        assert piped.stderr.read() == b""
    assert piped.returncode == 141  # as a shell says it of a program that SIGPIPE ended


def read_or_end(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # how Linux says that the other end is closed
        return b""


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--rows=-1", "--rows is '-1': it must be a whole number from 0"),
        ("seed=x", "`seed` is 'x': must be a whole number"),
    ],
)
def test_a_bad_argument_is_one_clear_line(corpus, argument, message, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["data.inspect", str(corpus[1]), argument])
    with pytest.raises(InputError, match=message):
        main()
