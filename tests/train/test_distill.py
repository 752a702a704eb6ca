"""train.distill: equal to trl's GKD loss, exact after a stop, and what cannot teach is said in a
line.
"""

import warnings

import pytest
import torch

from configs import IGNORED
from data.batches import Batch
from data.prepare import open_prepared
from model import LanguageModel, ModelConfig, load
from model.loss import CHUNK
from tests.train.helpers import check_exact_resume, losses, pretrain, pretrain_rank, run_world, write_config
from train.config import load_run_config
from train.distill import Distillation, main
from train.methods.config import DistillConfig
from train.methods.sources import OwnText

SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    folder = tmp_path_factory.mktemp("teacher")
    pretrain(write_config(folder, name="teacher", train={"max_steps": 30}, eval={"hooks": []}))
    return folder / "runs/teacher"


def student_config(folder, teacher, distill=None, **sections):
    distill = {"teacher": str(teacher)} | (distill or {})
    train = {"max_steps": 6, "checkpoint_every": 3, "trace": True}
    model = SMALL | {"hidden_dropout": 0.1} | sections.pop("model", {})
    eval_ = {"hooks": ["validation"], "every": 0}
    return write_config(folder, name="student", distill=distill, train=train, model=model, eval=eval_, **sections)


def opened(teacher, vocab_size=None, **settings):
    """(a student, its teacher, the objective, a batch of random text)"""
    torch.manual_seed(1)
    wise = load(teacher).requires_grad_(False)
    lm = LanguageModel(ModelConfig(vocab_size=vocab_size or wise.lm_head.out_features, **SMALL)).eval()
    with torch.no_grad():
        for parameter in lm.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    ids = torch.randint(0, lm.lm_head.out_features, (3, 20))
    labels = ids.clone()
    labels[:, :5] = IGNORED
    batch = Batch({"input_ids": ids, "labels": labels}, [0, 1, 2])
    return lm, wise, Distillation(DistillConfig(teacher=str(teacher), **settings), lm, wise), batch


@pytest.mark.slow  # importing trl takes some seconds
@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_loss_and_gradients_are_trls(teacher, beta, temperature, monkeypatch):
    """float32 on both sides, in other orders of summation: 1e-5 of the largest gradient."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # trl says that its GKD is experimental
        from trl.experimental.gkd import GKDTrainer

    monkeypatch.setitem(CHUNK, "cpu", 7)  # several chunks, the last one not full
    lm, wise, objective, batch = opened(teacher, beta=beta, temperature=temperature, hard_share=0.0)
    loss, figures, _ = objective.loss(lm.outputs, batch)
    loss.backward()
    found = {name: parameter.grad.clone() for name, parameter in lm.named_parameters()}
    lm.zero_grad()

    logits = (model(batch["input_ids"])[:, :-1] for model in (lm, wise))
    expected = GKDTrainer.generalized_jsd_loss(
        *logits, batch["labels"][:, 1:], beta=beta, temperature=temperature, reduction="sum"
    )
    expected.backward()
    torch.testing.assert_close(figures["divergence"], expected.detach(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(loss, expected * temperature**2, rtol=1e-5, atol=1e-5)
    for name, parameter in lm.named_parameters():
        theirs = parameter.grad * temperature**2
        torch.testing.assert_close(found[name], theirs, rtol=1e-4, atol=1e-5 * float(theirs.abs().max()) + 1e-9)


def test_a_student_that_is_its_teacher_is_not_moved(teacher):
    """The divergence from oneself is 0 and flat, whichever it is; the tolerance is float32's."""
    lm = load(teacher)
    _, wise, _, batch = opened(teacher)
    for beta in (0.0, 0.5, 1.0):
        settings = DistillConfig(teacher=str(teacher), beta=beta, hard_share=0.0)
        loss, figures, _ = Distillation(settings, lm, wise).loss(lm.outputs, batch)
        loss.backward()
        assert abs(float(loss.detach())) < 1e-4
        assert float(figures["agreement"]) == int((batch["labels"][:, 1:] != IGNORED).sum())
        assert max(float(p.grad.abs().max()) for p in lm.parameters()) < 1e-4
        assert all(p.grad is None for p in wise.parameters())


def test_the_ordinary_loss_has_its_share_and_none_in_text_of_its_own(teacher):
    lm, _, objective, batch = opened(teacher, hard_share=0.5)
    loss, figures, _ = objective.loss(lm.outputs, batch)
    ordinary, count = lm(**batch.tensors)
    assert objective.count(batch) == int(count)
    torch.testing.assert_close(figures["text_loss"], ordinary)
    torch.testing.assert_close(loss, 0.5 * figures["divergence"] + 0.5 * ordinary)
    own = Batch(batch.tensors | {"is_own": torch.ones(3, dtype=torch.bool)}, batch.row_ids)
    loss, figures, _ = objective.loss(lm.outputs, own)
    torch.testing.assert_close(loss.detach(), figures["divergence"])


def test_the_prompt_ends_where_the_first_answer_begins(tmp_path, teacher):
    config = student_config(tmp_path, teacher, {"on_policy": 1.0})
    pretrain(config, "train.max_steps=1", script=main)
    [manifest] = (tmp_path / "runs/.prepared").glob("*/manifest.json")
    source = OwnText(load_run_config(config), open_prepared(manifest.parent))
    bos = source.tokenizer.bos_id
    ids = torch.tensor([9, bos, 3, 4, 5, 6, bos, 7])
    labels = torch.tensor([9, -100, -100, -100, 5, 6, -100, 7])
    assert source.prompt(ids, labels) == [bos, 3, 4]
    assert source.prompt(ids, ids) == [bos]  # of a story, everything is trained on
    assert source.prompt(ids[2:6], ids[2:6]) == [3]  # the middle of a long document
    assert source.prompt(ids, torch.full_like(ids, IGNORED)) == [bos]


@pytest.mark.parametrize("on_policy", [0.0, 0.5])
def test_a_stopped_run_goes_on_exactly(tmp_path, teacher, on_policy):
    check_exact_resume(student_config(tmp_path, teacher, {"on_policy": on_policy, "max_new_tokens": 8}), main)


def test_a_students_own_text_is_no_longer_than_its_teacher_reads(tmp_path):
    short = write_config(tmp_path, name="teacher", model={"max_position_embeddings": 32}, train={"max_steps": 1})
    pretrain(short)
    config = student_config(tmp_path, tmp_path / "runs/teacher", {"on_policy": 1.0, "max_new_tokens": 64})
    pretrain(config, "train.max_steps=2", script=main)


def test_two_processes_write_the_text_of_one(tmp_path, teacher):
    config = student_config(tmp_path, teacher, {"on_policy": 1.0, "max_new_tokens": 8}, model={"hidden_dropout": 0.0})
    changes = ["train.max_steps=3", "train.tokens_per_step=128", "train.log_every=1"]
    assert run_world(2, pretrain_rank, config, ["name=two", *changes], None, main) == [0, 0]
    pretrain(config, "name=one", "train.processes=1", *changes, script=main)
    one, two = (losses(tmp_path / "runs" / name, "train") for name in ("one", "two"))
    assert two == pytest.approx(one, rel=1e-4)


def test_a_student_may_begin_from_a_model_of_its_own(tmp_path, teacher):
    tokenizer = {"kind": "pretrained", "path": str(teacher)}
    pretrain(write_config(tmp_path, name="begin", model=SMALL, data={"tokenizer": tokenizer}, eval={"hooks": []}))
    config = student_config(tmp_path, teacher, model={"hidden_size": 64})  # taken over: 16
    pretrain(config, f"init_from={tmp_path / 'runs/begin'}", script=main)
    assert load(tmp_path / "runs/student").config.hidden_size == 16
