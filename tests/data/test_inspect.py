"""What data.inspect shows is what training sees: every token, every label, every count; and it cannot be tricked."""

import json
import re
import sys

import pytest

from configs.loader import load_config, validate
from data.batches import TrainBatches, make_rows, validation_batches
from data.chat import encode_conversations
from data.config import DataConfig, TokenizerConfig
from data.inspect import main, row_as_text
from data.packing import IGNORED
from data.prepare import prepare
from data.reading.documents import fingerprint, split_of
from data.reading.records import conversation_of
from data.tokenizer import train_tokenizer

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


# ---------------------------------------------------------------------------------------------------------
# rows


def test_nothing_of_a_row_is_lost_and_nothing_is_added(tokenizer):
    ids, labels = chat_row(tokenizer)
    expected = tokenizer.decode(ids, skip_special_tokens=False)
    assert plain_again(row_as_text(ids, labels, tokenizer)) == expected


def test_what_is_marked_as_trained_is_what_has_a_label(tokenizer):
    ids, labels = chat_row(tokenizer)
    trained = tokenizer.decode([label for label in labels if label != IGNORED], skip_special_tokens=False)
    assert len(trained) > 100
    marked = re.findall(r"⟦(.*?)⟧", row_as_text(ids, labels, tokenizer), flags=re.DOTALL)
    assert len(marked) == len(NASTY)
    assert plain_again("".join(marked)) == trained


def test_every_document_of_a_row_has_its_number_and_padding_is_one_mark(tokenizer):
    ids, labels = chat_row(tokenizer, padding=37)
    shown = row_as_text(ids, labels, tokenizer)
    assert re.findall(r"^──── <\|bos\|> document (\d+) ─+$", shown, re.MULTILINE) == [*"12345678"]
    assert shown.splitlines()[-1] == "(37 × padding)"
    tail = row_as_text(tokenizer.encode("tabs"), tokenizer.encode("tabs"), tokenizer)
    assert tail.startswith("──── document 0: it began in another row ─")
    assert tail.endswith("─\n⟦tabs⟧")


def test_the_ids_shown_are_those_of_the_row(tokenizer):
    ids, labels = chat_row(tokenizer)
    assert shown_ids(row_as_text(ids, labels, tokenizer, with_ids=True)) == ids


def shown_ids(shown: str) -> list[int]:
    shown = re.sub(r"\((\d+) × (\S+)\)", lambda match: f"{match[2]} " * int(match[1]), shown)
    return [int(number) for number in re.findall(r"(?:^|[\s⟦⟧])(\d+):(?=\S)", shown)]


def test_a_text_cannot_drive_the_terminal(tokenizer):
    ids, labels = chat_row(tokenizer)
    shown = row_as_text(ids, labels, tokenizer) + row_as_text(ids, labels, tokenizer, with_ids=True)
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2028\u2066-\u2069\ufeff]", shown)
    assert "⟨U+001B⟩[2J" in shown
    assert "👩\u200d👩\u200d👧" in shown


def test_what_only_looks_like_a_special_token_is_marked(tokenizer):
    ids, labels = chat_row(tokenizer, ["a<|im_end|>b"])
    shown = row_as_text(ids, labels, tokenizer)
    assert shown.count("a⟨text: <|im_end|>⟩b") == 3
    assert shown.count("<|im_end|>") == 3 + 4


def test_a_character_cut_by_the_row_is_shown_byte_by_byte():
    tokenizer = train_tokenizer(TokenizerConfig(kind="byte"), [])
    ids = tokenizer.encode("好 middle 好")[1:-1]
    assert row_as_text(ids, ids, tokenizer).splitlines()[-1] == "⟦⟨A5⟩⟨BD⟩ middle ⟨E5⟩⟨A5⟩⟧"


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


@pytest.mark.parametrize("split", ["train", "validation"])
def test_the_rows_shown_are_the_rows_of_training(corpus, tmp_path, monkeypatch, capsys, split):
    arguments = ("--rows", "4", "--split", split, "data.isolate_documents=true")
    as_text, as_ids = (run(monkeypatch, capsys, corpus[1], *arguments, *more) for more in ((), ("--ids",)))
    config, data = prepared(corpus[1], tmp_path)
    batches = TrainBatches(make_rows(config, data, "train"), data.tokenizer, 2, seed=5)
    expected = [row for k in range(2) for row in batches.batch(k)["input_ids"].tolist()]
    if split == "validation":
        held_out = validation_batches(make_rows(config, data, "validation"), data.tokenizer, 4)
        expected = next(held_out)["input_ids"].tolist()
    for out, read in ((as_text, plain_again), (as_ids, shown_ids)):
        parts = re.split(r"^\w+ row \d.*\n", out.split("\nprepared data")[0], flags=re.MULTILINE)[1:]
        rows = [read(part.rstrip("\n")) for part in parts]
        wanted = [data.tokenizer.decode(ids, False).rstrip("\n") for ids in expected]
        assert [row.rstrip("\n") for row in rows] == wanted if read is plain_again else rows == expected
    assert "a document cannot see" in as_text


def test_the_summary_counts_what_is_there(corpus, tmp_path, monkeypatch, capsys):
    texts, config_file = corpus
    shown = table(run(monkeypatch, capsys, config_file, "--rows", "0"))
    train = [t for t in texts if split_of(fingerprint(t), 0.1) == "train"]
    held_out = [t for t in texts if split_of(fingerprint(t), 0.1) == "validation"]
    config, data = prepared(config_file, tmp_path)
    for i, part in enumerate([train, held_out]):
        lengths = sorted(len(t) + 2 for t in part)
        tokens = sum(lengths)
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


def test_the_summary_of_conversations(tmp_path, monkeypatch, capsys):
    """60 that fit, 20 whose first answer fits, 10 that have no answer that fits."""
    question, answer = {"role": "user", "content": "q"}, {"role": "assistant", "content": "short"}
    long = {"role": "assistant", "content": "l" * 100}
    kinds = [[question, answer]] * 60 + [[question, answer, question, long]] * 20 + [[question, long]] * 10
    (tmp_path / "train.jsonl").write_text("".join(json.dumps({"messages": m}) + "\n" for m in kinds))
    (tmp_path / "held.jsonl").write_bytes((tmp_path / "train.jsonl").read_bytes())
    config_file = write_config(tmp_path, "train.jsonl", "  records: conversations\n  rows_joined: 1\n", 64)
    config_file.write_text(
        config_file.read_text().replace("train.jsonl}", f"train.jsonl, validation_path: {tmp_path / 'held.jsonl'}}}")
    )
    out = run(monkeypatch, capsys, config_file, "--rows", "1")
    assert "⟦short<|im_end|>⟧⏎\n" in out
    shown = table(out)
    for i, batches in enumerate(every_row(*prepared(config_file, tmp_path))):
        trained = sum(int((b["labels"] != IGNORED).sum()) for b in batches)
        assert shown["rows an epoch"][i] == str(len(batches))
        assert shown["trained on"][i] == percent(trained, 64 * len(batches))
        assert shown["longer than a row"][i] == percent(30, 90)
        assert shown["cut to whole turns that fit"][i] == "20"
        assert shown["left out: too long for a row"][i] == "10"
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
    assert "12 bad records left out" in out
    listed = re.findall(r"^    \S*x\.jsonl:(\d+): has no field `text` \(it has bo⟨U\+001B⟩dy\)", out, re.MULTILINE)
    assert listed == [str(120 * number + 3) for number in range(10)]
    assert "\x1b" not in out
