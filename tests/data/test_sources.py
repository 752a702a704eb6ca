"""Sources: which documents a config leads to, in which split, in which shares; what happens to bad
records.
"""

import json
import os
import subprocess
import sys
from collections import Counter

import pytest

from configs.command import InputError
from data.chat import encode_conversations
from data.config import DataConfig, TokenizerConfig
from data.prepare import tokenizer_texts
from data.reading.documents import Ledger, documents, fingerprint, read
from data.reading.records import conversation_of
from data.tokenizer import train_tokenizer
from storyworld import converse, repeated, tell


def config(source, **changes) -> DataConfig:
    return DataConfig.model_validate({"source": source, "tokenizer": {"kind": "byte"}} | changes)


def write_jsonl(path, texts):
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return {"kind": "files", "path": str(path)}


def numbered(n, start=0):
    return [f"document number {i}" for i in range(start, start + n)]


def test_adding_documents_moves_none_between_the_splits(tmp_path):
    few = write_jsonl(tmp_path / "few.jsonl", numbered(200))
    more = write_jsonl(tmp_path / "more.jsonl", numbered(400)[::-1])
    for split in ("train", "validation"):
        before, after = (set(documents(config(source), split)) for source in (few, more))
        assert before
        assert before < after
    # whatever the version, the process and the machine
    assert fingerprint("Headlight") == 18192109848282000828


@pytest.mark.parametrize("wanted", [200_000, 8000])
def test_a_tokenizer_learns_from_as_much_as_was_asked_for_from_all_over(tmp_path, wanted):
    """The sample must not be drawn by the bits that choose the held-out documents."""
    source = write_jsonl(tmp_path / "x.jsonl", [f"{i} " + f"word{i % 50} " * (1 + i % 30) for i in range(3600)])
    (tmp_path / "books").mkdir()
    for i in range(6):  # of which it reads parts
        (tmp_path / "books" / f"{i}.md").write_text(f"{i} book has words\n" * 8000)
    books = {"kind": "files", "path": str(tmp_path / "books")}
    tokenizer = {"kind": "bpe", "train_bytes": wanted}
    for some, last in ((source, 0.8 * 3600), (books, 4 if wanted > 100_000 else 0)):
        data = config(some, tokenizer=tokenizer)
        learned = list(tokenizer_texts(data))
        train = "".join(documents(data, "train"))
        assert 0.8 * wanted < sum(map(len, learned)) < 1.2 * wanted + (400 if some is source else 16_400)
        assert all(text in train for text in learned)
        numbers = [int(text.split()[0]) for text in learned]
        assert numbers == sorted(numbers)
        assert numbers[-1] > last or not last


def test_a_held_out_split_of_a_dataset_is_the_validation_part(tmp_path):
    write_jsonl(tmp_path / "train.jsonl", numbered(50))
    write_jsonl(tmp_path / "test.jsonl", numbered(5, start=50))
    for streaming in (False, True):
        source = {"kind": "hub", "name": str(tmp_path), "validation_split": "test", "streaming": streaming}
        assert list(documents(config(source), "train")) == numbered(50)
        assert list(documents(config(source), "validation")) == numbered(5, start=50)
    chosen = {"kind": "hub", "name": str(tmp_path), "data_files": "test.jsonl", "max_records": 3}
    assert sorted([*documents(config(chosen), "train"), *documents(config(chosen), "validation")]) == numbered(3, 50)


def tool(name, **properties):
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": f"The {name}.", "parameters": parameters}}


def called(name, **arguments):
    return {
        "role": "assistant",
        "tool_calls": [{"type": "function", "function": {"name": name, "arguments": arguments}}],
    }


USER = {"role": "user", "content": "Hi"}
CHATS = [  # every row of a table has the keys of all of them
    {"messages": [USER, called("rain", city="Oslo")], "tools": [tool("rain", city={"type": "string"})]},
    {"messages": [USER, called("add", a=1), {"role": "tool", "content": "2"}, {"role": "assistant", "content": "Two."}],
     "tools": [tool("add", a={"type": "integer", "enum": [1, 2]})]},
    {"messages": [USER, {"role": "assistant", "content": "Hello", "reasoning_content": "Hm."}]},
]  # fmt: skip
MIXED = [{"messages": [USER, called("put", value=value)]} for value in (1, "one", None, [2, None], {"b": 1, "a": None})]


@pytest.mark.parametrize("chats", [CHATS, MIXED], ids=["chats", "arguments of many types"])
def test_the_same_chats_are_the_same_tokens_in_whatever_they_are_kept(tmp_path, chats):
    import datasets
    import pyarrow
    from pyarrow import ipc, parquet

    place = {name: tmp_path / name for name in ("jsonl", "arrow", "parquet", "saved", "split", "snapshot")}
    for folder in place.values():
        folder.mkdir()
    (place["jsonl"] / "a.jsonl").write_text("".join(json.dumps(chat) + "\n" for chat in chats))
    whole = datasets.load_dataset("json", data_files=str(place["jsonl"] / "a.jsonl"), split="train")
    whole.to_parquet(place["parquet"] / "a.parquet")  # as `datasets` writes it
    whole.save_to_disk(place["saved"])
    datasets.DatasetDict(train=whole, test=whole).save_to_disk(place["split"])
    (place["snapshot"] / "data").mkdir()
    for part in ("train", "test"):
        whole.to_parquet(place["snapshot"] / "data" / f"{part}-00000-of-00001.parquet")
    (place["snapshot"] / "README.md").write_text("---\nlicense: mit\n---\n# Chats\n")
    if chats is CHATS:  # as pyarrow writes it, which cannot mix types
        table = pyarrow.Table.from_pylist(chats)
        parquet.write_table(table, place["parquet"] / "a.parquet")
        with ipc.new_file(str(place["arrow"] / "a.arrow"), table.schema) as writer:
            writer.write_table(table)
    sources = {name: {"kind": "files", "path": str(folder)} for name, folder in place.items() if any(folder.iterdir())}
    for name in ("jsonl", "parquet", "snapshot"):
        for streaming in (False, True):
            sources[f"hub {name} {streaming}"] = {"kind": "hub", "name": str(place[name]), "streaming": streaming}

    tokenizer = train_tokenizer(TokenizerConfig(kind="byte"), [])
    ids = {}
    for name, source in sources.items():
        found = [document.content for document in read(config(source, records="conversations"))]
        ids[name] = [row for row, _ in encode_conversations(tokenizer, found)]
    assert len(ids["jsonl"]) == len(chats)
    assert {name: rows == ids["jsonl"] for name, rows in ids.items()} == dict.fromkeys(ids, True)
    assert "null" not in tokenizer.decode(ids["parquet"][0], skip_special_tokens=False)


def test_chats_are_read_by_the_names_that_the_config_gives(tmp_path):
    (tmp_path / "x.jsonl").write_text("".join(json.dumps({"data": ["Hi", f"Hello {i}"]}) + "\n" for i in range(20)))
    source = {"kind": "files", "path": str(tmp_path / "x.jsonl")}
    names = {"messages": "data"}
    found = [document.content for document in read(config(source, records="conversations", chat_fields=names))]
    assert [conversation.messages[1].content for conversation in found] == [f"Hello {i}" for i in range(20)]
    with pytest.raises(ValueError, match="chat_fields"):
        config(source, chat_fields=names)


def test_the_validation_part_of_a_folder_is_left_out_and_may_be_held_out(tmp_path):
    for name, start in (("train", 0), ("test", 60), ("val", 120)):
        write_jsonl(tmp_path / f"{name}.jsonl", numbered(60, start))
    source = {"kind": "files", "path": str(tmp_path)}
    assert len([*read(config(source))]) == 60
    held_out = config(source | {"validation_path": str(tmp_path / "val.jsonl")})
    assert list(documents(held_out, "train")) == numbered(60)
    assert list(documents(held_out, "validation")) == numbered(60, start=120)


@pytest.mark.slow
def test_an_unreachable_hub_is_one_clear_error(tmp_path):
    (tmp_path / "c.yaml").write_text(f"output_dir: {tmp_path}\ndata: {{source: {{kind: hub, name: some/dataset}}}}\n")
    code = (
        # only the waiting is cut short
        "import time; real = time.sleep; time.sleep = lambda s: real(0)\n"
        "import sys; sys.argv[0] = 'prepare'\n"
        "from configs.command import exit_on_bad_input; from data.prepare import main; exit_on_bad_input(main)"
    )
    environment = os.environ | {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path)}
    command = [sys.executable, "-c", code, str(tmp_path / "c.yaml")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "some/dataset cannot be read from the Hugging Face Hub" in done.stderr.strip().splitlines()[-1]
    assert "Traceback" not in done.stderr


# The built-in world


def test_the_built_in_world_has_two_levels_conversations_and_repeats():
    world = {"kind": "storyworld", "documents": 40, "validation_documents": 10}
    short, long = (list(documents(config(world | {"level": level}), "train")) for level in (1, 2))
    assert short == [tell(0, i).text for i in range(40)]
    assert long == [tell(0, i, level=2).text for i in range(40)]
    some = list(documents(config(world | {"repeats": 0.25}), "train"))
    assert [text in short for text in some] == [True, True, True, False] * 10
    assert some[3] == repeated(0, 3, words=range(4, 41)).text
    chats = list(documents(config(world, records="conversations"), "validation"))
    assert chats == [conversation_of(converse(0, i, "validation")) for i in range(10)]


# Mixing


def parts(tmp_path, sizes, weights):
    made = []
    for i, (count, weight) in enumerate(zip(sizes, weights, strict=True)):
        texts = [f"part {i} document {n} " + "x" * (n * 7 % 40) for n in range(count)]
        made.append({"weight": weight, "source": write_jsonl(tmp_path / f"{i}.jsonl", texts)})
    return made


@pytest.mark.parametrize("weights", [[1.0, 1.0], [3.0, 1.0], [1.0, 2.0, 7.0]])
def test_a_mix_has_the_shares_of_text_that_the_weights_say(tmp_path, weights):
    mix = {"kind": "mix", "parts": parts(tmp_path, [800] * len(weights), weights)}
    found = list(documents(config(mix), "train"))
    assert len(found) == len(set(found))  # nothing is repeated
    sizes = Counter()
    for text in found:
        sizes[int(text.split()[1])] += len(text)
        total = sum(sizes.values())
        if total > 5000:  # not only at the end, but all along
            for i, weight in enumerate(weights):
                assert sizes[i] / total == pytest.approx(weight / sum(weights), abs=0.03)


def test_a_small_part_is_repeated_until_the_last_has_ended(tmp_path):
    mix = {"kind": "mix", "parts": parts(tmp_path, [400, 20], [1.0, 1.0]), "stopping_strategy": "all_exhausted"}
    counts = Counter(documents(config(mix), "train"))
    by_part = [[n for text, n in counts.items() if text.startswith(f"part {i} ")] for i in (0, 1)]
    assert set(by_part[0]) == {1}
    assert min(by_part[1]) > 5
    held_out = list(documents(config(mix), "validation"))
    assert len(held_out) == len(set(held_out))
    assert not set(held_out) & set(counts)


# One long text, several books, lines that make articles


def test_of_two_books_the_end_of_each_is_held_out_and_one_that_is_there_twice_counts_once(tmp_path):
    """By whole files, 53 % were held out where 10 % were asked for."""
    texts = [f"Book {i}.\n\n" + "".join(f"Line {n} of book {i}.\n" for n in range(900 + 100 * i)) for i in (0, 1)]
    for i, text in enumerate(texts):
        (tmp_path / f"{i}.txt").write_text(text)
    data = config({"kind": "files", "path": str(tmp_path)})
    whole = [list(documents(data, split)) for split in ("train", "validation")]
    assert ["".join(both) for both in zip(*whole, strict=True)] == texts
    for text, end in zip(texts, whole[1], strict=True):
        assert len(end) == pytest.approx(0.1 * len(text), abs=1)
    (tmp_path / "2.txt").write_text(texts[0])
    for drop in (False, True):
        ledger = Ledger()
        twice = list(read(config({"kind": "files", "path": str(tmp_path)}, drop_duplicates=drop), ledger))
        assert (ledger.duplicates, len(twice)) == (1, 2 * (3 - drop))


def test_rows_are_joined_to_the_articles_that_they_are_lines_of(tmp_path):
    fox = ["", " = Fox = \n", "", " It runs . \n", " = = Food = = \n", " Berries . \n", ""]
    owl = [" = Owl = \n", " It flies . \n"]
    source = write_jsonl(tmp_path / "wiki.jsonl", fox + owl) | {"document_start": "^ = [^=]+ = $"}
    expected = [" = Fox = \n\n It runs . \n = = Food = = \n Berries . \n\n", " = Owl = \n It flies . \n"]
    found = [*documents(config(source), "train"), *documents(config(source), "validation")]
    assert sorted(found) == sorted(expected)


# Bad records, empty ones, duplicates


def test_bad_records_stop_or_are_listed(tmp_path):
    lines = [json.dumps({"text": text}) for text in numbered(1000)]
    lines[400:400], lines[700:700] = ['{"text": 3}'], ['{"text": ']
    (tmp_path / "x.jsonl").write_text("\n".join(lines))
    source = {"kind": "files", "path": str(tmp_path / "x.jsonl")}
    with pytest.raises(InputError, match=r"x.jsonl:401: "):
        list(read(config(source)))
    ledger = Ledger()
    assert len(list(read(config(source, on_bad_record="skip"), ledger))) == 1000
    assert (ledger.records, ledger.bad) == (1002, 2)
    assert [line.split(": ")[0] for line in ledger.bad_records] == [f"{tmp_path}/x.jsonl:{n}" for n in (401, 701)]
    (tmp_path / "x.jsonl").write_text("\n".join(['{"body": "\\u001b[2J"}'] * 30 + lines))
    with pytest.raises(InputError, match="more than 1 %: .*x.jsonl:1:"):
        list(read(config(source, on_bad_record="skip")))


def test_duplicates_are_counted_and_by_choice_dropped(tmp_path):
    source = write_jsonl(tmp_path / "x.jsonl", [*numbered(20), *numbered(10), "", ""])
    for drop in (False, True):
        ledger = Ledger()
        found = [d.content for d in read(config(source, drop_duplicates=drop), ledger)]
        assert (ledger.duplicates, ledger.empty, ledger.records) == (10, 2, 32)
        assert found == numbered(20) + ([] if drop else numbered(10))
