"""data.inspect shows exactly the tokens, labels and counts that training uses, for any input."""

import json
import re
import sys

import pytest

from configs import IGNORED
from configs.loader import load_config, validate
from data.batches import TrainBatches, make_rows, validation_batches
from data.chat import encode_conversations
from data.config import DataConfig, TokenizerConfig
from data.inspect.__main__ import main, row_as_text
from data.prepare import prepare
from data.reading.documents import fingerprint
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
    """(ids, labels) of a row with one conversation a text, which stands in the question and in the
    answer.
    """
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


# --------------------------------------------------------------------------------------------------
# rows


def test_nothing_of_a_row_is_lost_or_added_and_what_is_marked_is_what_has_a_label(tokenizer):
    ids, labels = chat_row(tokenizer)
    shown = row_as_text(ids, labels, tokenizer)
    assert plain_again(shown) == tokenizer.decode(ids, skip_special_tokens=False)
    marked = re.findall(r"⟦(.*?)⟧", shown, flags=re.DOTALL)
    assert len(marked) == len(NASTY)
    trained = tokenizer.decode([label for label in labels if label != IGNORED], skip_special_tokens=False)
    assert plain_again("".join(marked)) == trained


def test_a_text_can_neither_drive_the_terminal_nor_pass_for_a_special_token(tokenizer):
    ids, labels = chat_row(tokenizer)
    shown = row_as_text(ids, labels, tokenizer)
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2028\u2066-\u2069\ufeff]", shown)
    assert "⟨U+001B⟩[2J" in shown
    assert "👩\u200d👩\u200d👧" in shown
    shown = row_as_text(*chat_row(tokenizer, ["a<|im_end|>b"]), tokenizer)
    assert shown.count("a⟨text: <|im_end|>⟩b") == 3
    assert shown.count("<|im_end|>") == 3 + 4


# --------------------------------------------------------------------------------------------------
# the command


@pytest.fixture
def corpus(tmp_path):
    """150 texts: lengths 5 … 154 bytes and the two tokens around each, in a config with rows of 32
    tokens.
    """
    texts = [f"{i:03} {'x' * i}\n" for i in range(150)]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    config = tmp_path / "c.yaml"
    config.write_text(
        f"output_dir: {tmp_path / 'runs'}\nseed: 5\ndata:\n  source: {{kind: files, path: {tmp_path}/texts.jsonl}}\n"
        "  tokenizer: {kind: byte}\n  sequence_length: 32\n"
    )
    return texts, config


def run(monkeypatch, capsys, *arguments) -> str:
    monkeypatch.setattr(sys, "argv", ["data.inspect", *map(str, arguments)])
    main()
    return capsys.readouterr().out


def table(out: str) -> dict[str, list[str]]:
    """Name -> [train, validation] of the summary."""
    rows = re.findall(r"^\| (\S.*?) +\| +([\d.,%]+) \| +([\d.,%]+) \|$", out, re.MULTILINE)
    return {name: [train, held_out] for name, train, held_out in rows}


def prepared(config, tmp_path):
    checked = validate(DataConfig, load_config(config), "data")
    return checked, prepare(checked, tmp_path / "runs", show_progress=False)


def row_parts(out: str) -> list[str]:
    parts = re.split(r"^row \d.*\n", out.split("\nprepared data")[0], flags=re.MULTILINE)[1:]
    return [part.rstrip("\n") for part in parts]


def percent(part, whole):
    return f"{part / whole:.2%}"


def test_the_rows_shown_are_the_rows_of_training(corpus, tmp_path, monkeypatch, capsys):
    out = run(monkeypatch, capsys, corpus[1], "--rows", "4")
    config, data = prepared(corpus[1], tmp_path)
    batches = TrainBatches(make_rows(config, data, "train"), data.tokenizer, 2, seed=5)
    expected = [row for k in range(2) for row in batches.batch(k)["input_ids"].tolist()]
    wanted = [data.tokenizer.decode(ids, False).rstrip("\n") for ids in expected]
    assert [plain_again(part).rstrip("\n") for part in row_parts(out)] == wanted


def test_the_summary_counts_what_is_there(corpus, tmp_path, monkeypatch, capsys):
    texts, config_file = corpus
    shown = table(run(monkeypatch, capsys, config_file, "--rows", "0"))
    config, data = prepared(config_file, tmp_path)
    for i, (split, batches) in enumerate(every_row(config, data).items()):
        lengths = sorted(
            len(text) + 2 for text in texts if (fingerprint(text) < 0.1 * 2**64) == (split == "validation")
        )
        assert shown["tokens a document: fewest"][i] == str(lengths[0])
        for name, tenths in (("10 % have at most", 1), ("median", 5), ("90 % have at most", 9), ("most", 10)):
            assert shown[name][i] == str(lengths[-(-len(lengths) * tenths // 10) - 1])
        assert shown["longer than a row"][i] == percent(sum(n > 32 for n in lengths), len(lengths))
        places = sum(b["input_ids"].numel() for b in batches)
        assert shown["rows an epoch"][i] == str(len(batches))
        padding = sum(int((b["input_ids"] == data.tokenizer.pad_id).sum()) for b in batches)
        assert shown["padding in them"][i] == percent(padding, places)
        asked = sum(int((b["labels"][:, i:] != IGNORED).sum()) for b in batches)
        assert shown["trained on"][i] == percent(asked, places)


def every_row(config, data):
    """The batches of one row of an epoch of training, and of validation."""
    batches = TrainBatches(make_rows(config, data, "train"), data.tokenizer, 1, seed=5)
    held_out = validation_batches(make_rows(config, data, "validation"), data.tokenizer, 1)
    return {"train": [batches.batch(k) for k in range(batches.rows.per_epoch)], "validation": list(held_out)}
