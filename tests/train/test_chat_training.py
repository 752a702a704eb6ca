"""Fine-tuning on conversations through the real program: from a pretrained run's weights and tokenizer."""

import json
import re

import pytest
from transformers import AutoModelForCausalLM

from data import load_tokenizer
from data.chat import prompt_ids
from eval.samples import complete
from model import load
from tests.train.helpers import metrics, pretrain, write_config
from train.config import load_run_config


@pytest.fixture(scope="module")
def chat(tmp_path_factory):
    """A pretrained run `base`, and the config of a chat run that starts from it."""
    folder = tmp_path_factory.mktemp("chat")
    pretrain(write_config(folder, name="base", train={"max_steps": 4}))

    def turns(i):
        yield from [
            ("user", f"What is {i} and {i}?"),
            ("assistant", f"{i + i}."),
            ("user", "Sure?"),
            ("assistant", "Yes."),
        ]

    records = [{"conversations": [{"role": r, "content": c} for r, c in turns(i)]} for i in range(400)]
    (folder / "chat.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    config = write_config(
        folder,
        name="sft",
        init_from=str(folder / "runs/base"),
        data={
            "source": {"kind": "files", "path": str(folder / "chat.jsonl")},
            "records": "conversations",
            "tokenizer": {"kind": "pretrained", "path": str(folder / "runs/base")},
            "sequence_length": 160,
            "isolate_documents": True,
        },
        train={"tokens_per_step": 1280, "max_steps": 16},
    )
    pretrain(config)
    return folder, config


def test_it_learns_in_full_rows_and_stops_at_the_end_of_a_turn(chat):
    folder, _ = chat
    lines, (directory,) = metrics(folder / "runs/sft"), (folder / "runs/sft/checkpoints").glob("step_00000016")
    losses = [line["loss"] for line in lines if line["split"] == "val"]
    assert losses[-1] < losses[0] - 0.5
    for line in (line for line in lines if line["split"] == "train"):
        assert 0 <= line["padding_share"] < 0.1  # two conversations of about 75 tokens fill a row of 160
        assert line["tokens"] > 0
    (base,) = (folder / "runs/base/checkpoints").glob("step_00000004")
    assert (directory / "tokenizer.json").read_bytes() == (base / "tokenizer.json").read_bytes()
    tokenizer = load_tokenizer(directory)
    assert tokenizer.stop_ids == [tokenizer.eos_id, tokenizer.special_id("<|im_end|>")]
    theirs = AutoModelForCausalLM.from_pretrained(directory)
    assert theirs.generation_config.eos_token_id == load(directory).config.eos_token_id == tokenizer.stop_ids
    assert load(base).config.eos_token_id == tokenizer.eos_id


def test_samples_of_a_chat_are_answers(chat):
    folder, config = chat
    said = pretrain(config, "name=asked", "eval.prompts=['', 'What is 2 and 2?']", "train.max_steps=1", "eval.every=1")
    lines = (folder / "runs/asked/samples.jsonl").read_text(encoding="utf-8").splitlines()
    *_, own, other = [json.loads(line) for line in lines]
    assert other["prompt"] == "What is 2 and 2?"
    number = int(re.fullmatch(r"What is (\d+) and \d+\?", own["prompt"])[1])  # a held-out question of the user's data
    assert own["expected"] == f"{2 * number}."
    lm, tokenizer = load(folder / "runs/asked"), load_tokenizer(folder / "runs/sft")
    ids = prompt_ids(tokenizer, [{"role": "user", "content": own["prompt"]}])
    assert own["text"] == complete(lm, tokenizer, ids, 8, chat=True).content
    assert f"asked:   {own['prompt']}\nwrites:  " in said.stdout
    assert f"\nthe data's answer: {own['expected']}\n" in said.stdout


def test_a_moved_tokenizer_is_the_same_run(chat):
    _, config = chat
    one = load_run_config(config)
    other = load_run_config(config, ["data.tokenizer.path=elsewhere", "data.source.path=elsewhere.jsonl"])
    assert one.identity() == other.identity()
    assert one.identity() != load_run_config(config, ["data.records=text"]).identity()


def test_joined_rows_train_on_the_same_tokens(chat):
    """75 tokens in rows of 96: one each, a fifth padding; four rows joined hold five. An epoch is the same tokens."""
    folder, config = chat
    for name, joined in (("alone", 1), ("joined", "auto")):
        small = ["data.sequence_length=96", "train.tokens_per_step=1536", "train.max_steps=3", "eval.every=3"]
        said = pretrain(config, f"name={name}", f"data.rows_joined={joined}", *small).stdout
        assert ("joined into one" in said) == (name == "joined")
    alone, joined = (metrics(folder / "runs" / name) for name in ("alone", "joined"))
    assert alone[0]["loss"] == joined[0]["loss"]  # the held-out rows are the same
    shares = [[line["padding_share"] for line in lines if line["split"] == "train"] for lines in (alone, joined)]
    assert min(shares[0]) > 0.15
    assert max(shares[1]) < 0.06
    assert "left out" not in said  # every conversation fits
    short = pretrain(config, "name=cut", "data.sequence_length=64", "train.tokens_per_step=1024", "train.max_steps=1")
    cut = re.search(r"train: of (\d+) conversations, (\d+) were cut at a turn and 0 left out", short.stdout)
    assert cut is not None
    assert cut[1] == cut[2] != "0"
    done = pretrain(config, "name=odd", "data.rows_joined=7", code=2)
    assert "data.rows_joined (7) must divide the 8 rows of a step" in done.stderr


def test_a_step_is_smaller_where_the_text_does_not_fill_it(chat):
    """A user's first thirty chats, in a config for thousands: half of a step's rows, or a quarter, or an eighth, …"""
    folder, config = chat
    few = folder / "few.jsonl"
    few.write_text("".join((folder / "chat.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)[:30]))
    said = pretrain(config, "name=few", f"data.source={few}", "train.tokens_per_step=10240", "train.max_steps=2").stdout
    rows, taken = map(
        int, re.search(r"makes (\d+) rows of 160 tokens, fewer than the 64 .* a step takes (\d+)", said).groups()
    )
    assert taken <= rows < 2 * taken
    assert f"2 steps of {taken * 160:,} tokens ({taken} rows of 160, " in said
    losses = [line["loss"] for line in metrics(folder / "runs/few") if line["split"] == "train"]
    assert all(losses)


@pytest.mark.parametrize("split", ["train", "validation"])
def test_where_no_trained_token_is_left_a_run_ends_in_a_line(chat, split):
    """An answer of weight 0, and one behind a long question: cut after the first, nothing is left to train on."""
    folder, config = chat
    messages = [
        {"role": "user", "content": "Sure?"},
        {"role": "assistant", "content": "Yes.", "weight": 0},
        {"role": "user", "content": "And then? " * 40},
        {"role": "assistant", "content": "Late."},
    ]
    late = folder / "late.jsonl"
    late.write_text("".join(json.dumps({"messages": [*messages]}) + "\n" for _ in range(40)))
    paths = {"train": (late, folder / "chat.jsonl"), "validation": (folder / "chat.jsonl", late)}[split]
    source = f"{{kind: files, path: {paths[0]}, validation_path: {paths[1]}}}"
    done = pretrain(config, f"name=nothing-{split}", f"data.source={source}", code=2)
    assert f"has an answer to train on within a row of 160 tokens, {split} part: raise it" in done.stderr
    assert len(done.stderr.splitlines()) == 1
