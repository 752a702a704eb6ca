"""Stages of one life: what is measured is what it says, and runs that start from each other are
found.
"""

import json

import pytest
import torch
import torch.nn.functional as F

from configs import IGNORED
from data.batches import Batch
from data.config import StoryworldSource, TokenizerConfig
from data.tokenizer import train_tokenizer
from eval.compare import stages
from eval.compare.runs import read_runs
from eval.compare.stages import divergence, moved
from eval.language_modeling import mean_loss
from model import LanguageModel
from storyworld import converse, interview
from tests.conftest import tiny_config
from tests.eval.compare.test_compare import command
from tests.train.helpers import pretrain, write_config
from train import sft


def tiny(seed: int) -> LanguageModel:
    torch.manual_seed(seed)
    return LanguageModel(tiny_config(vocab_size=64, max_position_embeddings=32)).eval()


def test_divergence_and_change_are_torchs():
    ours = tiny(0)
    theirs = tiny(1)
    ids = torch.randint(0, 64, (5, 20), generator=torch.Generator().manual_seed(1))
    labels = torch.full_like(ids, IGNORED)
    labels[:, 3:9] = ids[:, 3:9]
    given = Batch({"input_ids": ids, "labels": labels}, [*range(5)]).split(1)
    assert divergence(ours, ours, given) == 0
    with torch.no_grad():
        p, q = (F.log_softmax(lm(ids)[:, 2:8], -1).flatten(0, 1) for lm in (ours, theirs))
    expected = F.kl_div(q, p, log_target=True, reduction="batchmean").item()
    assert divergence(ours, theirs, given) == pytest.approx(expected, rel=1e-5)
    assert expected > 0.001
    assert mean_loss(ours, given) == pytest.approx(F.nll_loss(p, ids[:, 3:9].flatten()).item(), rel=1e-5)
    after = tiny(0)
    with torch.no_grad():
        after.attention_modules()[1].q_proj.weight *= 1.25
    found = {(layer, name): share for layer, name, share in moved(after, ours)}
    assert found[1, "q_proj"] == pytest.approx(0.25, rel=1e-5)
    assert {value for place, value in found.items() if place != (1, "q_proj")} == {0.0}
    assert (0, "down_proj") in found


def test_what_is_asked_is_what_the_assistant_says():
    source = StoryworldSource(validation_documents=8)
    told = [message["content"] for i in range(8) for message in converse(0, i, "validation")["conversations"]]
    tokenizer = train_tokenizer(TokenizerConfig(kind="bpe", vocab_size=512), told)
    labels = stages.right_answers(tokenizer, source, 2048)[0]["labels"]
    talk = interview(0, 0, "validation", held_out_names=False)["conversations"]
    said = "".join(f"{one['content']}<|im_end|>" for one in talk if one["role"] == "assistant")
    assert tokenizer.backend.decode(labels[labels != IGNORED].tolist(), skip_special_tokens=False) == said


@pytest.mark.slow
def test_runs_that_start_from_each_other_are_stages_in_the_comparison(runs, tmp_path, monkeypatch):
    """Stories, then two runs of fine-tuning from them, one after the other."""
    for size in ("QUESTIONS", "CONVERSATIONS", "STORIES"):
        monkeypatch.setattr(stages, size, 4)
    source = {"kind": "storyworld", "documents": 60, "validation_documents": 6}
    data = {"source": source, "sequence_length": 256, "tokenizer": {"kind": "bpe", "vocab_size": 400}}
    both = {"train": {"max_steps": 2, "tokens_per_step": 2048, "checkpoint_every": 0}}
    both["model"] = {"max_position_embeddings": 1024}
    pretrain(write_config(tmp_path, name="told", data=data, **both))
    chats = {"source": source | {"chats": "questions"}, "records": "conversations", "sequence_length": 1024}
    told, asked, again = (tmp_path / "runs" / name for name in ("told", "asked", "again"))
    for run, start in ((asked, told), (again, asked)):
        pretrain(write_config(tmp_path, name=run.name, init_from=str(start), data=chats, **both), script=sft.main)

    done = command(told, asked, again, "--out", tmp_path / "out")
    out = tmp_path / "out"
    assert (out / "comparison_stages.png").is_file()
    first, second, third = json.loads((out / "histories.json").read_text())["stages"]
    assert (first["kl_answers"], first["moved"]) == (0, [])
    assert third["kl_answers"] > 0
    assert all(value > 0 for _, _, value in second["moved"])
    # from the numbers of the file, as notebook 13 does
    assert stages.table([first, second, third]) in done.stdout
    command(told, asked, again, "--out", out, "--skip-stages")
    assert not (out / "comparison_stages.png").exists()

    def chain(*paths):
        return [(run.name, origin and origin.name) for run, origin in stages.chain(read_runs(paths))]

    assert chain(told, again) == []
    assert chain(runs / "mha-seed0", again, asked) == [("again", "asked"), ("asked", None)]
    assert chain(runs / "mha-seed0", runs / "mqa-seed0") == []
