"""train.sft: architecture and tokenizer come from init_from, and what cannot be fine-tuned is said in a line."""

import json

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

from eval.chat.session import open_conversation
from model import load
from tests.train.foreign import SHAPES, foreign_directory
from tests.train.helpers import metrics, pretrain, refusal, write_config
from train.pretrain import main as pretrain_main
from train.sft import main


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A pretrained run of another shape than any chat config here says."""
    folder = tmp_path_factory.mktemp("base")
    pretrain(write_config(folder, name="base", model={"hidden_size": 48, "num_hidden_layers": 3}))
    return folder / "runs/base"


def chat_config(folder, base, turns=None, **sections):
    turns = turns or [("user", "Which sound does it make?"), ("assistant", "Meow.")]
    said = lambda i, role, text: {"role": role, "content": f"{i}. {text}" if role == "user" else text}  # noqa: E731
    records = [{"messages": [said(i, *turn) for turn in turns]} for i in range(200)]
    (folder / "chat.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    data = {"source": {"kind": "files", "path": str(folder / "chat.jsonl")}, "records": "conversations"}
    data |= {"sequence_length": 96, "rows_joined": 1} | sections.pop("data", {})
    model = {"hidden_dropout": 0.1} | sections.pop("model", {})
    train = {"tokens_per_step": 768, "max_steps": 30}
    return write_config(folder, name="chat", init_from=str(base), data=data, model=model, train=train, **sections)


def test_it_takes_over_architecture_and_tokenizer_and_learns_the_answer(tmp_path, base):
    done = pretrain(chat_config(tmp_path, base, eval={"prompts": ["Which sound does it make?"]}), script=main)
    run = tmp_path / "runs/chat"
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert (config["model"]["hidden_size"], config["model"]["num_hidden_layers"]) == (48, 3)
    assert config["model"]["hidden_dropout"] == 0.1
    assert config["data"]["tokenizer"]["kind"] == "pretrained"
    losses = [m["loss"] for m in metrics(run) if m["split"] == "val"]
    assert losses[-1] < 0.5 * losses[0]
    assert "`python -m train.sft`" in (run / "report.md").read_text()
    assert pretrain(chat_config(tmp_path, base), script=main).stdout.strip() in done.stdout  # finished
    gone = chat_config(tmp_path, base)
    moved = base.rename(base.with_name("moved"))
    try:  # it has weights and a tokenizer of its own by now
        assert pretrain(gone, script=main).stdout.strip() in done.stdout
        assert "finished at step 32" in pretrain(gone, "train.max_steps=32", script=main).stdout
    finally:
        moved.rename(base)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": {"records": "text"}}, "data.records is text, but fine-tuning needs conversations"),
        ({"init_from": None}, "init_from: fine-tuning starts from a trained model: name a run"),
        ({"init_from": "nowhere"}, "init_from: "),
        ({"turns": [("user", "Hello?"), ("user", "Anybody?")]}, "assistant"),
    ],
)
def test_what_cannot_be_fine_tuned_is_said_in_one_line(tmp_path, base, changes, message):
    changes = dict(changes)
    config = chat_config(tmp_path, base, changes.pop("turns", None), **({"data": changes.pop("data", {})}))
    said = refusal(config, *(f"{key}={json.dumps(value)}" for key, value in changes.items()), script=main)
    assert message in said
    assert not (tmp_path / "runs/chat").exists()


def test_a_model_that_only_headlight_loads_is_fine_tuned_as_such(tmp_path):
    only_here = {"no_rope_layers": [1, 0], "loadable_elsewhere": False}
    pretrain(write_config(tmp_path, name="base", model=only_here, train={"max_steps": 1}))
    pretrain(chat_config(tmp_path, tmp_path / "runs/base"), "train.max_steps=1", script=main)
    assert load(tmp_path / "runs/chat/checkpoints/step_00000001").config.loadable_elsewhere is False


SOME = [("qwen2", "padded"), ("llama", "plain"), ("smollm2", "exact")]
EACH = [(shape, vocabulary) for shape in SHAPES for vocabulary in ("padded", "exact", "plain")]


@pytest.mark.parametrize("lora", [None, {"rank": 4}], ids=["whole", "lora"])
@pytest.mark.parametrize(
    ("shape", "vocabulary"), [one if one in SOME else pytest.param(*one, marks=pytest.mark.slow) for one in EACH]
)
def test_a_foreign_directory_is_fine_tuned_and_talked_to(tmp_path, shape, vocabulary, lora):
    foreign, rows = foreign_directory(tmp_path / "foreign", shape, vocabulary)
    before = AutoModelForCausalLM.from_pretrained(foreign)
    config = chat_config(tmp_path, foreign, **({"lora": lora} if lora else {}))
    done = pretrain(config, "train.max_steps=60", "train.optimizer.lr=0.05", script=main)
    assert f"added to the tokenizer of {foreign}, in " in done.stdout
    run = tmp_path / "runs/chat"
    losses = [m["loss"] for m in metrics(run) if m["split"] == "val"]
    assert losses[-1] < 0.2 * losses[0]

    lm, checkpoint = load(run), run / "checkpoints/step_00000060"
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    assert len(tokenizer) == lm.config.vocab_size
    assert (lm.config.vocab_size == rows) == (vocabulary == "padded")
    if vocabulary == "plain":  # its chats begin turns with added tokens
        assert len(lm.model.embed_tokens.weight[rows:].unique(dim=0)) > 1  # equal at first, and then trained
    if lora is None:
        theirs = AutoModelForCausalLM.from_pretrained(checkpoint)
    else:
        from peft import PeftModel

        before.resize_token_embeddings(len(tokenizer), mean_resizing=False)
        theirs = PeftModel.from_pretrained(before, checkpoint).eval()
    ids = torch.arange(lm.config.vocab_size)[-64:][None]  # the added ones among them
    with torch.no_grad():
        torch.testing.assert_close(lm(ids), theirs(ids).logits, rtol=0, atol=0 if lora is None else 1e-4)
    talk = open_conversation(run, device="cpu", max_new_tokens=8, temperature=0.0)
    assert talk.is_chat
    assert "".join(talk.answer("7. Which sound does it make?")) == "Meow."

    resumed = pretrain(config, "train.max_steps=62", "train.optimizer.lr=0.05", script=main)
    assert "resumed from" in resumed.stdout
    pretrain(config, "train.max_steps=1", f"init_from={run}", "lora=null", "name=on", script=main)  # merged


def test_rows_are_added_without_changing_what_was_there(tmp_path):
    foreign, rows = foreign_directory(tmp_path / "foreign", "llama", "exact")
    lm, ids = load(foreign), torch.arange(40)[None]
    before = lm(ids)
    lm.add_rows(rows + 20)
    torch.testing.assert_close(lm(ids)[..., :rows], before)  # a product of another size may round otherwise
    torch.testing.assert_close(lm(ids)[..., rows:], before.mean(-1, keepdim=True).expand(-1, -1, 20))


def test_training_on_takes_shape_and_tokenizer_from_the_directory_unless_the_yaml_says_otherwise(tmp_path):
    """A config that was written for another model: with init_from on the command line its shape and tokenizer yield."""
    foreign, _ = foreign_directory(tmp_path / "foreign", "smollm2", "exact")
    config = write_config(tmp_path, model={"hidden_dropout": 0.1}, train={"max_steps": 2})
    pretrain(config, f"init_from={foreign}", script=pretrain_main)
    lm = load(tmp_path / "runs/tiny")
    assert (lm.config.hidden_size, lm.config.num_attention_heads, lm.config.hidden_dropout) == (36, 9, 0.1)
    assert AutoTokenizer.from_pretrained(tmp_path / "runs/tiny/checkpoints/step_00000002")("Meow").input_ids[1:] == (
        AutoTokenizer.from_pretrained(foreign)("Meow").input_ids
    )
    pretrain(config, f"init_from={foreign}", "train.max_steps=3", script=pretrain_main)  # the run has both by now
    said = refusal(config, f"init_from={foreign}", "name=b", "model.num_attention_heads=4", script=pretrain_main)
    assert "init_from: num_attention_heads is 4 here and 9 in" in said
    said = refusal(config, f"init_from={foreign}", "name=b", "data.tokenizer={kind: char}", script=pretrain_main)
    assert "is not the tokenizer of this run's data" in said
