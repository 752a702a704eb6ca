"""The hook in_context in real runs: the score of the checkpoint, with and without heads."""

import math

import pytest
import torch

from data import load_tokenizer
from data.prepare import prepare
from eval.attention import snapshots
from eval.attention.controls import ablated
from eval.hooks import in_context
from model import load
from tests.train.helpers import metrics, pretrain, trace, write_config
from train.config import load_run_config

TEXTS = {"kind": "files", "path": "*.txt"}
HOOKS = ["validation", "attention", {"name": "in_context", "early": [0]}]


def config_of(folder, longest):
    """Documents of 40 to `longest` characters, half of them held out."""
    for number in range(20):
        text = " ".join(str(number * i * i % 97) for i in range(200))
        length = 40 + number * 7 % 20 * (longest - 40) // 19
        (folder / f"{number}.txt").write_text(text[:length], encoding="utf-8")
    data = {"source": TEXTS | {"path": str(folder / "*[0-9].txt")}, "validation_fraction": 0.5, "sequence_length": 64}
    looks = {"hooks": HOOKS, "attention": {"every": 4}}
    return write_config(folder, data=data, eval=looks, train={"trace": True})


def test_the_score_is_late_minus_early_loss_of_long_held_out_documents(tmp_path, monkeypatch):
    monkeypatch.setattr(in_context, "INDUCTION", 0.03)  # that a head of so short a run has
    config = config_of(tmp_path, longest=150)
    assert "hook is off" not in pretrain(config).stdout
    run = tmp_path / "runs/tiny"
    lines = metrics(run, "hooks/in_context")
    assert [line["step"] for line in lines] == [0, 4, 8, 12]
    assert abs(lines[0]["score"]) < 0.05  # every token is as likely as any other
    lm = load(run)
    data = load_run_config(run / "config.yaml").data
    stream = prepare(data, tmp_path / "runs").stream("validation")
    ids = stream.read(0, len(stream)).tolist()
    bos = load_tokenizer(run).bos_id
    starts = [i for i, token in enumerate(ids) if token == bos]
    sizes = [end - start for start, end in zip(starts, [*starts[1:], len(ids)], strict=True)]
    assert min(sizes) < 64 < 128 < max(sizes)  # so some have no row, and some have two
    rows = [start + 64 * row for start, size in zip(starts, sizes, strict=True) for row in range(size // 64)]

    def score():
        early = []
        late = []
        for start in rows:
            row = torch.tensor(ids[start : start + 64])
            with torch.no_grad():
                log_probs = lm(row[None])[0].double().log_softmax(-1)
            losses = [-log_probs[t - 1, row[t]].item() for t in range(1, 64)]  # of tokens 1 to 63
            early += losses[3:7]  # tokens 4 to 7
            late += losses[55:62]  # tokens 56 to 62
        return math.fsum(late) / len(late) - math.fsum(early) / len(early)

    last = lines[-1]
    assert last["score"] == pytest.approx(score(), abs=1e-5)
    newest = snapshots.newest(run)

    def without(heads):
        with ablated(lm, heads):
            return pytest.approx(score(), abs=1e-5)

    heads = [(layer, head) for layer in (0, 1) for head in range(4)]
    induction = [head for head in heads if newest.scores["induction"][head] >= in_context.INDUCTION]
    assert last["induction_heads"] == len(induction) > 0
    assert last["without_induction_heads"] == without(induction)
    groups = {ablation.what: ablation.heads for ablation in newest.ablations}
    assert last["without_strongest"] == without(groups["strongest induction heads"])
    draws = [without(group).expected for name, group in groups.items() if name.startswith("random")]
    assert last["without_random"] == pytest.approx(math.fsum(draws) / len(draws), abs=1e-5)
    pretrain(config, "name=unseen", "eval.hooks=[]")
    assert trace(run) == trace(run.with_name("unseen"))


def test_a_text_without_long_documents_switches_it_off(tmp_path):
    done = pretrain(config_of(tmp_path, longest=60))
    assert "in_context hook is off" in done.stdout
    assert "no held-out document has 64 tokens" in done.stdout
