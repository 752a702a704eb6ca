"""train.sft: architecture and tokenizer come from init_from, and what cannot be fine-tuned is said
in a line.
"""

import json
import re

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from data import load_tokenizer
from data.chat import prompt_ids
from data.prepare import open_prepared, prepare
from eval.chat.session import open_conversation
from eval.samples import complete
from model import load
from model.variants.surgery import add_rows
from tests.train.foreign import foreign_directory
from tests.train.helpers import at_each_step, losses, method_config, metrics, pretrain, refusal, write_config
from train.config import load_run_config
from train.machine.distributed import World
from train.methods.sources import TextBatches
from train.objective import NextToken
from train.pretrain import main as pretrain_main
from train.sft import main


def chat_config(folder, base, turns=None, **sections):
    turns = turns or [("user", "Which sound does it make?"), ("assistant", "Meow.")]
    said = lambda i, role, text: {"role": role, "content": f"{i}. {text}" if role == "user" else text}  # noqa: E731
    records = [{"messages": [said(i, *turn) for turn in turns]} for i in range(200)]
    data = {"rows_joined": 1} | sections.pop("data", {})
    sections = {"model": {"hidden_dropout": 0.1}, "train": {"max_steps": 30}, "eval": {}} | sections
    return method_config(folder, "sft", base, records, name="chat", data=data, **sections)


def test_it_takes_over_architecture_and_tokenizer_and_learns_the_answer(tmp_path, base):
    done = pretrain(chat_config(tmp_path, base, eval={"prompts": ["Which sound does it make?"]}), script=main)
    run = tmp_path / "runs/chat"
    shape = load_run_config(run / "config.yaml").model
    assert (shape.hidden_size, shape.num_hidden_layers, shape.hidden_dropout) == (32, 2, 0.1)
    val = losses(run)
    assert val[-1] < 0.5 * val[0]
    gone = chat_config(tmp_path, base)
    moved = base.rename(base.with_name("moved"))
    try:  # it has weights and a tokenizer of its own by now
        assert pretrain(gone, script=main).stdout.strip() in done.stdout
        assert "finished at step 32" in pretrain(gone, "train.max_steps=32", script=main).stdout
    finally:
        moved.rename(base)


@pytest.fixture(scope="module")
def chat(tmp_path_factory, base):
    """A run `sft` that was fine-tuned on chats of two turns, about 75 tokens each, and its config."""
    folder = tmp_path_factory.mktemp("chat")
    turns = [("user", "Which sound?"), ("assistant", "Meow."), ("user", "Sure?"), ("assistant", "Yes.")]
    data = {"sequence_length": 192, "isolate_documents": True, "rows_joined": "auto"}
    config = chat_config(folder, base, turns, data=data)
    pretrain(config, "name=sft", "train.tokens_per_step=1536", "train.max_steps=16", script=main)
    return folder, config


def test_it_stops_at_the_end_of_a_turn_and_its_samples_are_answers(chat):
    folder, config = chat
    directory = folder / "runs/sft/checkpoints/step_00000016"
    lm = load(directory)
    tokenizer = load_tokenizer(directory)
    assert tokenizer.stop_ids == [tokenizer.eos_id, tokenizer.special_id("<|im_end|>")]
    theirs = AutoModelForCausalLM.from_pretrained(directory)
    assert theirs.generation_config.eos_token_id == lm.config.eos_token_id == tokenizer.stop_ids

    given = ["eval.prompts=['', 'Which sound?']", "train.max_steps=1", "eval.every=1", "train.tokens_per_step=1536"]
    pretrain(config, "name=asked", *given, script=main)
    lines = (folder / "runs/asked/samples.jsonl").read_text(encoding="utf-8").splitlines()
    *_, own, other = [json.loads(line) for line in lines]
    assert other["prompt"] == "Which sound?"
    assert own["expected"] in ("Meow.", "Yes.")  # to a held-out question of the user's data
    ids = prompt_ids(tokenizer, [{"role": "user", "content": other["prompt"]}])
    assert other["text"] == complete(load(folder / "runs/asked"), tokenizer, ids, 8, chat=True).content


def test_a_moved_tokenizer_is_the_same_run(chat):
    here, elsewhere = (f"data.tokenizer={{kind: pretrained, path: {place}}}" for place in ("here", "elsewhere"))
    of = lambda *given: load_run_config(chat[1], given).identity()  # noqa: E731
    assert of(here) == of(elsewhere, "data.source.path=elsewhere.jsonl") != of(here, "data.records=text")


def test_conversations_fill_joined_rows_and_long_ones_are_cut_at_a_turn(chat):
    """75 tokens in rows of 96: one each, a fifth padding; four rows joined hold five.

    An epoch is the same tokens.
    """
    folder, config = chat
    for name, joined in (("alone", 1), ("joined", "auto")):
        small = ["data.sequence_length=96", "train.tokens_per_step=1536", "train.max_steps=3", "eval.every=3"]
        pretrain(config, f"name={name}", f"data.rows_joined={joined}", *small, script=main)
    alone, joined = (metrics(folder / "runs" / name) for name in ("alone", "joined"))
    assert alone[0]["loss"] == joined[0]["loss"]  # the held-out rows are the same
    shares = [[line["padding_share"] for line in lines if line["split"] == "train"] for lines in (alone, joined)]
    assert min(shares[0]) > 2 * max(shares[1])
    short = ["name=cut", "data.sequence_length=64", "train.tokens_per_step=1024", "train.max_steps=1"]
    said = pretrain(config, *short, script=main).stdout
    assert re.search(r"of ([1-9]\d*) conversations, \1 were cut at a turn and 0 left out", said)


def test_learned_positions_serve_rows_that_are_joined_and_end_in_padding(tmp_path):
    """34 chats of 60 tokens, six in a row of 384: the last row has four, and 144 tokens of padding
    for 96 positions.
    """
    records = [{"messages": [{"role": role, "content": f"{i:03}{'?' * 16}"} for role in ("user", "assistant")]}
               for i in range(40)]  # fmt: skip
    file = tmp_path / "records.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    data = {"source": {"kind": "files", "path": str(file)}, "records": "conversations", "isolate_documents": True}
    data |= {"sequence_length": 96, "rows_joined": 4, "shuffle": False}
    model = {"position_embedding": "learned", "max_position_embeddings": 96, "loadable_elsewhere": False}
    train = {"max_steps": 4, "tokens_per_step": 1536}
    pretrain(write_config(tmp_path, model=model, data=data, train=train, eval={"hooks": []}), script=pretrain_main)
    assert metrics(tmp_path / "runs/tiny", "train")[-1]["padding_share"] > 0


def test_the_balance_of_experts_is_a_mean_over_all_tokens_where_few_are_trained_on(tmp_path, base):
    """The loss is a mean over the trained tokens, the balance one over all: in the figures and in
    the gradient.
    """
    turns = (("user", "?" * 40), ("assistant", "Yes"))
    chats = []
    for i in range(40):
        chats.append({"messages": [{"role": role, "content": f"{i} {text}"} for role, text in turns]})
    (tmp_path / "records.jsonl").write_text("".join(json.dumps(record) + "\n" for record in chats))
    source = {"kind": "files", "path": str(tmp_path / "records.jsonl")}
    model = {"num_experts": 4, "moe_intermediate_size": 16, "router_aux_loss_coef": 1.0}
    data = {"source": source, "records": "conversations", "sequence_length": 96}
    train = {"max_steps": 1, "tokens_per_step": 768, "processes": 1, "micro_batch_size": 4}
    expected = {}

    def compute(run):
        batch = run.source.batch(0, run.lm)
        output = run.lm.outputs(**batch.tensors)
        tokens = (batch["input_ids"] != run.data.tokenizer.pad_id).sum()
        balance = output.auxiliary["load_balancing"] / tokens
        (output.loss_sum / output.token_count + balance).backward()
        gradients = [parameter.grad for parameter in run.lm.parameters()]
        expected.update(load_balancing=float(balance), grad_norm=float(torch.nn.utils.get_total_norm(gradients)))
        run.lm.zero_grad()
        assert output.token_count < tokens / 3

    with at_each_step(compute):
        pretrain(write_config(tmp_path, model=model, data=data, train=train, eval={"hooks": []}), script=pretrain_main)
    [line] = metrics(tmp_path / "runs/tiny", "train")
    assert {name: line[name] for name in expected} == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("processes", [1, 2, 8])
def test_a_step_is_as_large_where_the_text_does_not_fill_it(chat, processes):
    """A user's first thirty chats, in a config for thousands: a step reads them again, on any
    number of processes.
    """
    folder, config = chat
    few = folder / "few.jsonl"
    few.write_text("".join((folder / "records.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)[:30]))
    source = f"data.source={{kind: files, path: {few}, validation_path: {folder / 'records.jsonl'}}}"
    loaded = load_run_config(config, [source, "train.tokens_per_step=12288", "data.rows_joined=1"])
    data = prepare(loaded.data, folder / "runs", show_progress=False)
    whole = TextBatches(loaded, data).batch(0, None)
    shares = [TextBatches(loaded, data, World(rank, processes)).batch(0, None) for rank in range(processes)]
    assert [row for share in shares for row in share.row_ids] == whole.row_ids == list(range(64))
    assert torch.equal(torch.cat([share["input_ids"] for share in shares]), whole["input_ids"])


def test_max_tokens_are_reached_where_the_text_does_not_fill_a_step(tmp_path):
    """4,096 tokens in steps of 1,024, of a text of 700: rows of 32, of which the last of an epoch
    has 2 in padding.
    """
    (tmp_path / "text.txt").write_text("a" * 698, encoding="utf-8")
    (tmp_path / "held_out.txt").write_text("b" * 98, encoding="utf-8")
    source = {"kind": "files", "path": str(tmp_path / "text.txt"), "validation_path": str(tmp_path / "held_out.txt")}
    train = {"max_steps": None, "max_tokens": 4096, "tokens_per_step": 1024}
    said = pretrain(
        write_config(tmp_path, data={"source": source}, train=train, eval={"hooks": []}), script=pretrain_main
    )
    assert "makes 22 rows of 32 tokens, and a step has 32" in said.stdout
    assert 4096 - 6 * 4 <= metrics(tmp_path / "runs/tiny", "train")[-1]["tokens"] <= 4096


@pytest.mark.parametrize(
    ("shape", "vocabulary", "lora"),
    [
        ("qwen2", "padded", None),
        ("llama", "plain", None),
        ("smollm2", "exact", {"rank": 4}),
        pytest.param("qwen2", "plain", {"rank": 4}, marks=pytest.mark.slow),
        pytest.param("llama", "padded", {"rank": 4}, marks=pytest.mark.slow),
        pytest.param("smollm2", "exact", None, marks=pytest.mark.slow),
    ],
)
def test_a_foreign_directory_is_fine_tuned_and_talked_to(tmp_path, shape, vocabulary, lora):
    foreign, rows = foreign_directory(tmp_path / "foreign", shape, vocabulary)
    before = AutoModelForCausalLM.from_pretrained(foreign)
    config = chat_config(tmp_path, foreign, **({"lora": lora} if lora else {}))
    done = pretrain(config, "train.max_steps=60", "train.optimizer.lr=0.05", script=main)
    assert f"added to the tokenizer of {foreign}, in " in done.stdout
    run = tmp_path / "runs/chat"
    val = losses(run)
    assert val[-1] < 0.2 * val[0]

    lm = load(run)
    checkpoint = run / "checkpoints/step_00000060"
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    assert len(tokenizer) == lm.config.vocab_size
    assert (lm.config.vocab_size == rows) == (vocabulary == "padded")
    if vocabulary == "plain":  # its chats begin turns with added tokens
        # equal at first, and then trained
        assert len(lm.model.embed_tokens.weight[rows:].unique(dim=0)) > 1
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
    # merged
    pretrain(config, "train.max_steps=1", f"init_from={run}", "lora=null", "name=on", script=main)


def test_rows_are_added_without_changing_what_was_there(tmp_path):
    foreign, rows = foreign_directory(tmp_path / "foreign", "llama", "exact")
    lm = load(foreign)
    ids = torch.arange(40)[None]
    before = lm(ids)
    add_rows(lm, rows + 20)
    # a product of another size may round otherwise
    torch.testing.assert_close(lm(ids)[..., :rows], before)
    torch.testing.assert_close(lm(ids)[..., rows:], before.mean(-1, keepdim=True).expand(-1, -1, 20))


def test_training_on_takes_shape_and_tokenizer_from_the_directory_unless_the_yaml_says_otherwise(tmp_path):
    """A config that was written for another model: with init_from on the command line its shape and
    tokenizer yield.
    """
    foreign, _ = foreign_directory(tmp_path / "foreign", "smollm2", "exact")
    config = write_config(tmp_path, model={"hidden_dropout": 0.1}, train={"max_steps": 2})
    pretrain(config, f"init_from={foreign}", script=pretrain_main)
    lm = load(tmp_path / "runs/tiny")
    assert (lm.config.hidden_size, lm.config.num_attention_heads, lm.config.hidden_dropout) == (36, 9, 0.1)
    # the run has both by now
    pretrain(config, f"init_from={foreign}", "train.max_steps=3", script=pretrain_main)
    said = refusal(config, f"init_from={foreign}", "name=b", "model.num_attention_heads=4", script=pretrain_main)
    assert "init_from: num_attention_heads is 4 here and 9 in" in said


def test_the_gradient_is_that_of_the_sum_over_the_number_of_trained_tokens(tmp_path, base):
    """Not over all tokens, nor over rows; in micro-batches of other numbers of trained tokens too."""
    config = chat_config(tmp_path, base, model={"hidden_dropout": 0.0}, eval={"hooks": []})
    pretrain(config, "train.max_steps=1", "train.micro_batch_size=2", "train.tokens_per_step=576", script=main)
    run = load_run_config(config, ["train.tokens_per_step=576"])
    [manifest] = (tmp_path / "runs/.prepared").glob("*/manifest.json")
    lm = load(base).train()
    batch = TextBatches(run, open_prepared(manifest.parent)).batch(0, lm)
    loss_sum = NextToken().loss(lm.outputs, batch).sum
    count = NextToken().count(batch)
    (loss_sum / count).backward()
    norm = torch.stack([parameter.grad.norm() for parameter in lm.parameters()]).norm()
    (line,) = metrics(tmp_path / "runs/chat", "train")
    assert 0 < count < batch["input_ids"].numel() / 2
    assert line["grad_norm"] == pytest.approx(norm.item(), rel=1e-4)
