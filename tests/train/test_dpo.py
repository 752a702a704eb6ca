"""train.dpo: equal to trl's DPOTrainer, exact after a stop, and what cannot be trained on is said
in a line.
"""

import math
import re

import pytest
import torch

from configs import IGNORED
from configs.files import checkpoint_directory
from data.prepare import open_prepared
from model import load
from model.files.checkpoint import save
from model.variants.config import LoraConfig
from model.variants.lora import adapted, add_adapters
from tests.train.foreign import foreign_directory
from tests.train.helpers import losses, method_config, metrics, pretrain, pretrain_rank, run_world, trace
from train.config import load_run_config
from train.dpo import Preference, answer_log_probs, main, preference_loss
from train.methods.config import DPOConfig
from train.methods.reference import as_reference
from train.methods.sources import PairSource


def pair_config(folder, base, records=None, **sections):
    train = {"max_steps": 6, "checkpoint_every": 3, "trace": True} | sections.pop("train", {})
    model = {"hidden_dropout": 0.1, "max_position_embeddings": 96} | sections.pop("model", {})
    return method_config(folder, "dpo", base, records, name="dpo", model=model, train=train, **sections)


@pytest.mark.parametrize("lora", [None, {"rank": 2}], ids=["whole", "lora"])
def test_a_foreign_directory_is_its_own_reference(tmp_path, lora):
    """Also the tokens that were added to it begin as they are in the reference, beside adapters as
    well.
    """
    foreign, _ = foreign_directory(tmp_path / "foreign", "smollm2", "exact")
    config = pair_config(tmp_path, foreign, train={"max_steps": 2}, **({"lora": lora} if lora else {}))
    done = pretrain(config, script=main)
    assert float(re.search(r"step 0: loss ([\d.]+)\n", done.stdout)[1]) == pytest.approx(math.log(2), abs=1e-4)


def test_the_chosen_answers_win(tmp_path, base):
    pretrain(pair_config(tmp_path, base, train={"max_steps": 40}), script=main)
    last = metrics(tmp_path / "runs/dpo", "train")[-1]
    assert last["loss"] < 0.1
    assert last["reward_accuracy"] == 1.0
    assert last["reward_margin"] == pytest.approx(last["reward_chosen"] - last["reward_rejected"], rel=1e-5)
    assert last["reward_margin"] > 2


def test_a_context_that_is_no_multiple_of_64_is_enough(tmp_path, base):
    """A pair of 65 to 96 tokens is not padded beyond the model's 96 positions."""
    records = [{"prompt": f"{i}".ljust(30, "?"), "chosen": "Meow!" * 3, "rejected": "Woof"} for i in range(200)]
    model = {"hidden_dropout": 0.0, "max_position_embeddings": 96}
    pretrain(pair_config(tmp_path, base, records, model=model, train={"max_steps": 2}), script=main)
    first, second = losses(tmp_path / "runs/dpo", "train")
    assert first == pytest.approx(math.log(2), abs=1e-4)
    assert second < first


def test_pairs_on_two_processes_go_on_exactly(tmp_path, base):
    """Stopped in the fifth step and gone on with: the same losses and gradients to the last bit,
    and, but for rounding, those of one process.
    """
    config = pair_config(tmp_path, base, model={"hidden_dropout": 0.0})
    assert run_world(2, pretrain_rank, config, ["name=whole"], None, main) == [0, 0]
    assert run_world(2, pretrain_rank, config, [], 4, main) == [143, 143]
    assert run_world(2, pretrain_rank, config, [], None, main) == [0, 0]
    assert trace(tmp_path / "runs/dpo") == trace(tmp_path / "runs/whole")
    pretrain(config, "name=alone", script=main)
    alone, two = ([float.fromhex(line["loss"]) for line in trace(tmp_path / "runs" / n)] for n in ("alone", "whole"))
    assert two == pytest.approx(alone, rel=1e-3)


def opened(config, base, **settings):
    """(a batch, a model that has moved, the reference, the objective)"""
    run = load_run_config(config)
    pretrain(config, "name=prepared", "train.max_steps=1", script=main)
    [folder] = (config.parent / "runs/.prepared").glob("*/manifest.json")
    source = PairSource(run, open_prepared(folder.parent))
    torch.manual_seed(0)
    lm = load(base).eval()
    reference = load(base).eval().requires_grad_(False)
    with torch.no_grad():
        for parameter in lm.parameters():
            parameter += 0.02 * torch.randn_like(parameter)
    return source.batch(0, lm), lm, reference, Preference(DPOConfig(**settings), lm, reference)


@pytest.mark.slow  # importing trl and making its trainer takes some seconds
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({"beta": 0.3}, {"beta": 0.3, "loss_type": ["sigmoid"]}),
        ({"beta": 0.3, "label_smoothing": 0.2}, {"beta": 0.3, "loss_type": ["robust"], "label_smoothing": 0.2}),
        ({"beta": 0.3, "loss": "ipo"}, {"beta": 0.3, "loss_type": ["ipo"]}),
        ({"beta": 0.3, "sft_weight": 0.5}, {"beta": 0.3, "loss_type": ["sigmoid", "sft"], "loss_weights": [1.0, 0.5]}),
    ],
)
def test_loss_gradients_and_figures_are_trls(tmp_path, base, ours, theirs):
    """float32 on both sides, other orders of summation: 1e-5 of the largest gradient; wrong
    formulas are far off.
    """
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import DPOConfig as TheirConfig
    from trl import DPOTrainer

    batch, lm, _, objective = opened(pair_config(tmp_path, base), base, **ours)
    # trl weighs the tokens of a batch alike, we the answers: with one pair it is the same
    if "sft_weight" in ours:
        batch = batch.split(1)[1]
    loss, figures, _ = objective.loss(lm.outputs, batch)
    count = objective.count(batch)
    (loss / count).backward()

    there = checkpoint_directory(base)
    moved = tmp_path / "moved"
    save(lm, moved)
    tokenizer = AutoTokenizer.from_pretrained(there)
    arguments = TheirConfig(output_dir=str(tmp_path / "trl"), report_to=[], use_cpu=True, bf16=False, **theirs)
    pairs = Dataset.from_list([{"prompt": "a", "chosen": "b", "rejected": "c"}] * 2)
    model, reference = (AutoModelForCausalLM.from_pretrained(f, dtype=torch.float32) for f in (moved, there))
    trainer = DPOTrainer(model, reference, arguments, train_dataset=pairs, processing_class=tokenizer)
    ids, labels = (torch.cat([batch[f"chosen_{name}"], batch[f"rejected_{name}"]]) for name in ("input_ids", "labels"))
    inputs = {"input_ids": ids, "attention_mask": (ids != 0).long(), "completion_mask": (labels != IGNORED).long()}
    trainer.model.eval()
    expected = trainer.compute_loss(trainer.model, inputs)
    expected.backward()

    torch.testing.assert_close(loss / count, expected, rtol=1e-5, atol=1e-6)
    gradients = dict(trainer.model.named_parameters())
    for name, parameter in lm.named_parameters():
        wanted = gradients[name].grad
        torch.testing.assert_close(parameter.grad, wanted, rtol=1e-4, atol=1e-5 * float(wanted.abs().max()) + 1e-9)
    names = {"chosen": "chosen", "rejected": "rejected", "margin": "margins", "accuracy": "accuracies"}
    logged = trainer._metrics["eval"]
    for name, their_name in names.items():
        # differences of long sums
        expected = pytest.approx(logged[f"rewards/{their_name}"][0], rel=1e-4, abs=1e-5)
        assert float(figures[f"reward_{name}"]) / count == expected


def log_probs_of(lm, ids, labels):
    return answer_log_probs(lm.outputs(ids, logits_to_keep=None), lm, labels)


def test_a_model_with_adapters_is_its_own_reference(tmp_path, base):
    """Adapters off is what init_from computes: `==`, also where dropout is on while it trains."""
    batch, _, reference, _ = opened(pair_config(tmp_path, base), base)
    lm = load(base).train()
    add_adapters(lm, LoraConfig(rank=2, dropout=0.5))
    for layer in adapted(lm).values():
        torch.nn.init.normal_(layer.lora_B.weight, std=0.1)
    ids = batch["chosen_input_ids"]
    labels = batch["chosen_labels"]
    with as_reference(None, lm) as without, as_reference(reference, lm) as other:
        found, expected = (log_probs_of(model, ids, labels) for model in (without, other))
    assert torch.equal(found, expected)
    assert lm.training
    assert not torch.allclose(log_probs_of(lm, ids, labels), expected)
    Preference(DPOConfig(), lm, None).loss(lm.outputs, batch).sum.backward()
    assert {name.split(".")[-2] for name, p in lm.named_parameters() if p.grad is not None} == {"lora_A", "lora_B"}


def test_padding_and_the_other_pairs_change_nothing(tmp_path, base):
    batch, lm, _, _ = opened(pair_config(tmp_path, base), base)
    ids = batch["chosen_input_ids"]
    labels = batch["chosen_labels"]
    together = log_probs_of(lm, ids, labels)
    for row in range(len(ids)):
        end = int((labels[row] != IGNORED).nonzero().max()) + 1
        alone = log_probs_of(lm, ids[row : row + 1, :end], labels[row : row + 1, :end])
        torch.testing.assert_close(alone[0], together[row])


def test_the_losses_where_they_are_known():
    ratios = torch.tensor([3.0, -1.0])
    lengths = torch.tensor([3, 1])
    assert float(preference_loss(ratios, lengths, DPOConfig(beta=0.5))) == pytest.approx(math.log1p(math.exp(-2)))
    # chosen 1 a token, rejected -1: two apart, and 1 / (2 * 0.25) = 2 apart is what is wanted
    assert float(preference_loss(ratios, lengths, DPOConfig(beta=0.25, loss="ipo"))) == 0.0


def test_pairs_that_cannot_be_trained_on_are_counted_once(tmp_path, base):
    """Of four pairs one is too long, and one has an answer of weight 0."""
    records = []
    for i in range(200):
        chosen = {"role": "assistant", "content": "Yes" * (31 if i % 4 == 0 else 1), "weight": int(i % 4 != 1)}
        question = [{"role": "user", "content": f"{i}?"}]
        records.append({"prompt": question, "chosen": [chosen], "rejected": [{"role": "assistant", "content": "No"}]})
    done = pretrain(pair_config(tmp_path, base, records), script=main)
    left_out, pairs = map(int, re.search(r"(\d+) of (\d+) pairs are left out", done.stdout).groups())
    assert left_out == pytest.approx(pairs / 2, rel=0.1)  # of the training part
