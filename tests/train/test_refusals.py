"""Refusals of every training command: one line on stderr, exit code 2, no file. And `--help`."""

import json
import re

import pytest
import torch

from tests.processes import run_module
from tests.train.helpers import METHODS, REPOSITORY, method_config, pretrain, refusal, write_config
from train import budget, sweep
from train.config import load_run_config
from train.run.command_line import MORE_HELP

REWARD = "grpo.reward=tests.train.grpo_helpers"
FACTS = "data.source={kind: storyworld, documents: 40, validation_documents: 8, recall: {}}"
HEADS = "model.num_key_value_heads"
LONG = ("data.sequence_length=600", "train.tokens_per_step=600", "model.max_position_embeddings=600")
# the command, a telling part of the line, and what is wrong; FOLDER is that of `sources`
REFUSED = [
    ("pretrain", "unknown key `sed`, did you mean `seed`?", "sed=1"),
    ("pretrain", "num_attention_heads (5) must divide", "model.num_attention_heads=5"),
    ("pretrain", "use 1, 2, 4", f"{HEADS}=3"),
    ("pretrain", "no such file: nowhere.txt", "data.source.path=nowhere.txt"),
    ("pretrain", "longer than model.max_position_embeddings", "data.sequence_length=1024"),
    ("pretrain", "both limit the run", "train.max_minutes=1"),
    ("pretrain", "needs CUDA", "train.precision=tf32"),
    ("pretrain", "not available here", "train.device=cuda"),
    ("pretrain", "nowhere: does not exist", "init_from=nowhere"),
    ("pretrain", "the tokenizer has 320", "model.vocab_size=100"),
    ("pretrain", "/proc/nowhere: No such file", "output_dir=/proc/nowhere"),
    ("pretrain", "flash has no dropout", "model.attn_implementation=flash", "model.attention_dropout=0.1"),
    ("pretrain", "not a complete checkpoint", "resume=somewhere"),
    ("pretrain", "a training step of", "model.hidden_size=131072", "model.num_attention_heads=1024"),
    ("pretrain", "use python -m train.dpo", "data.records=pairs"),
    ("pretrain", "use validation, questions, samples, attention", "eval.hooks=[validations]"),
    ("pretrain", "ModuleNotFoundError", "eval.hooks=['nowhere.at.all:f']", "--trust-hooks"),
    ("pretrain", "AttributeError", "eval.hooks=['tests.train.test_hooks:missing']", "--trust-hooks"),
    ("pretrain", "must be a function", "eval.hooks=['os:sep']", "--trust-hooks"),
    ("pretrain", "below 2**63", f"train.max_steps={10**30}"),
    ("pretrain", "out of memory", f"model.hidden_size={10**9}"),
    ("pretrain", "1048576", f"data.tokenizer.vocab_size={10**9}"),
    ("pretrain", "cannot share the 8 rows", f"train.processes={10**9}"),
    ("pretrain", "no file name can hold", 'output_dir="runs\\0"'),
    ("pretrain", "no file name can hold", 'output_dir="runs\\ud800"'),
    ("pretrain", "a user that does not exist", "data.source=~nosuchuser/x"),
    ("pretrain", "has layers 0 to 1", "eval.attention.every=4", "eval.attention.layers=[2]"),
    ("pretrain", "lora needs a trained model", "lora={rank: 4}"),
    ("lora", "no layer of the blocks is named 'query'", "lora.target_modules=[query]"),
    ("lora", "lora cannot be combined with train.parallel=fsdp2", "train.parallel=fsdp2"),
    ("lora", "set model.rope_theta=", "model.rope_theta=500.0"),
    ("lora", "rope_scaling is ", "model.rope_scaling={rope_type: linear, factor: 2.0}"),
    ("sft", "train.sft needs conversations", "data.records=text"),
    ("sft", "starts from a trained model", "init_from=null"),
    ("sft", "assistant", "data.source.path=FOLDER/questions.jsonl"),
    ("sft", "an answer to train on within a row of 96", "data.source.path=FOLDER/late.jsonl"),
    ("sft", "cannot train a config with `dpo`: use python -m train.dpo", "dpo={beta: 0.2}"),
    ("dpo", "train.dpo needs pairs", "data.records=conversations"),
    ("dpo", "starts from a trained model", "init_from=null"),
    ("dpo", "use 192 or 384", "train.tokens_per_step=96"),
    ("dpo", "train.parallel: ", "train.parallel=fsdp2"),
    ("distill", "needs this section", "distill=null"),
    ("distill", "nowhere: does not exist", "distill.teacher=nowhere"),
    ("distill", "at once", "init_from=null", *LONG),
    ("distill", "another tokenizer than this run", "distill.teacher=FOLDER/runs/char"),
    ("grpo", "needs this section", "grpo=null"),
    ("grpo", "starts from a trained model", "init_from=null"),
    ("grpo", "use exact_match, contains_answer", "grpo.reward=best"),
    ("grpo", "must be a function", "grpo.reward=os:sep"),
    ("grpo", "raised KeyError", f"{REWARD}:raising"),
    ("grpo", "returned inf for row 0", f"{REWARD}:infinite"),
    ("grpo", "grpo.group_size (3)", "grpo.group_size=3"),
    ("grpo", "train.grpo needs conversations", FACTS),
    ("grpo", "no question fits beside grpo.max_new_tokens", "grpo.max_new_tokens=90"),
    ("grpo", "no question with its tools fits beside", "grpo.tools=[calculator]"),
    ("grpo", "ends with a question and its answer", "data.source.path=FOLDER/greetings.jsonl"),
    ("grpo", "right replies are '空'", "data.source.path=FOLDER/rlaif.jsonl", "grpo.reward=contains_answer"),
    ("sweep", "did you mean", "model.heads=1,2"),
    ("sweep", f"`{HEADS}=3`: ", f"{HEADS}=1,3"),
    ("sweep", "write section.key=value", "=1,2"),
    ("sweep", "seeds are not swept: --seeds 3", "seed=1,2,3"),
    ("sweep", "nothing is swept"),
    ("sweep", "`rungs.a`: ", "rungs={a: {model.heads: 2}}"),
    ("budget", "--mfu", "--mfu", "1.5"),
]
COMMANDS = {"sweep": sweep.main, "budget": budget.main, "lora": METHODS["pretrain"][0]}


@pytest.fixture(scope="module")
def sources(base, tmp_path_factory):
    """A run with another tokenizer than the base, and chats in which one side is silent, speaks too
    late, or always says the same, as in MiniMind's rlaif.jsonl.
    """
    folder = tmp_path_factory.mktemp("sources")
    config = write_config(folder, train={"max_steps": 2}, eval={"hooks": []})
    pretrain(config, "name=char", "data.tokenizer={kind: char}")
    question = {"role": "user", "content": "And then? " * 40}
    answer = {"role": "assistant", "content": "Yes."}
    # cut at a turn: nothing is left
    late = [question | {"content": "Sure?"}, answer | {"weight": 0}, question, answer]
    chats = {"questions": [question], "greetings": [answer], "late": late}
    chats["rlaif"] = [question | {"content": "?"}, answer | {"content": "空"}]
    for name, messages in chats.items():
        text = json.dumps({"messages": messages}) + "\n"
        # every text has a number, or the first one only
        replaced = 1 if name == "rlaif" else -1
        lines = (text.replace('content": "', f'content": "{number}. ', replaced) for number in range(400))
        (folder / f"{name}.jsonl").write_text("".join(lines))
    return folder


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: " ".join((case[0], *case[2:])))
def test_what_cannot_be_used_is_one_line_and_nothing_is_written(tmp_path, base, sources, case, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    command, words, *wrong = case
    if command in ("sft", "dpo", "distill", "grpo"):
        config = method_config(tmp_path, command, base)
        wrong += ["--trust-hooks"] * (command == "grpo")
    else:
        config = write_config(tmp_path, **({"init_from": str(base), "lora": {"rank": 4}} if command == "lora" else {}))
    script = COMMANDS.get(command) or METHODS[command][0]
    assert words in refusal(config, *(each.replace("FOLDER", str(sources)) for each in wrong), script=script)
    assert not [file for name in ("metrics.jsonl", "step_*") for file in tmp_path.rglob(name)]


@pytest.mark.parametrize("method", METHODS)
def test_help_shows_the_main_keys_and_without_a_config_it_says_what_to_type(method):
    assert MORE_HELP.strip() in run_module(f"train.{method}", "--help").stdout
    done = run_module(f"train.{method}")
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: name a config: python -m train.{method} ")
    assert done.stderr.count("\n") == 1


def test_every_example_of_the_help_is_accepted():
    examples = re.findall(r"[\w.]+=[\w./]+", MORE_HELP.partition("All keys")[0])
    config = load_run_config(REPOSITORY / "configs/base.yaml", examples)
    assert (config.name, config.data.source.kind, config.train.max_steps) == ("mine", "files", 500)
