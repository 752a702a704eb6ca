"""Fine-tuning on conversations through the real program: from a pretrained run's weights and tokenizer."""

import json

import pytest

from tests.train.helpers import metrics, pretrain, write_config
from train.config import load_run_config


@pytest.fixture(scope="module")
def chat(tmp_path_factory):
    """A pretrained run `base`, and the config of a chat run that goes on from it."""
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


def test_it_learns_to_answer(chat):
    folder, _ = chat
    losses = [line["loss"] for line in metrics(folder / "runs/sft") if line["split"] == "val"]
    assert losses[-1] < losses[0] - 0.5


def test_the_figures_are_those_of_full_rows(chat):
    folder, _ = chat
    train = [line for line in metrics(folder / "runs/sft") if line["split"] == "train"]
    for line in train:
        assert 0 <= line["padding_share"] < 0.1  # two conversations of about 75 tokens fill a row of 160
        assert line["tokens"] > 0
    raw = [json.loads(text) for text in (folder / "runs/sft/metrics.jsonl").read_text().splitlines()]
    assert all(0 <= line["data_wait_share"] <= 1 for line in raw if line["split"] == "train")


def test_the_tokenizer_is_the_pretrained_runs(chat):
    folder, _ = chat
    files = [next((folder / "runs" / name).glob("checkpoints/step_*/tokenizer.json")) for name in ("base", "sft")]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_a_moved_tokenizer_is_the_same_run(chat):
    _, config = chat
    one = load_run_config(config)
    other = load_run_config(config, ["data.tokenizer.path=elsewhere", "data.source.path=elsewhere.jsonl"])
    assert one.identity() == other.identity()
    assert one.identity() != load_run_config(config, ["data.records=text"]).identity()


def test_a_row_too_short_for_any_conversation_says_so(chat):
    _, config = chat
    done = pretrain(config, "name=short", "data.sequence_length=16", code=2)
    assert "none of" in done.stderr
    assert "conversations fits into a row of 16 tokens, train part: raise it" in done.stderr
