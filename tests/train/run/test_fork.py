"""A fork is the run that it continues, to the last bit, except for its change."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from data import load_tokenizer
from eval.attention import capture, snapshots
from eval.attention.clamp import clamped
from eval.attention.snapshots import read_all
from model import LanguageModel, load
from tests.conftest import random_model, tiny_config
from tests.train.checkpoints import edit_state
from tests.train.helpers import (
    METHODS,
    method_config,
    metrics,
    pretrain,
    pretrain_rank,
    refusal,
    run_world,
    stopped_at,
    trace,
    write_config,
)
from train import fork as front_door
from train.config import load_run_config
from train.run.fork import main

LOOKS = {"every": 3, "early": [0], "max_tokens": 12}
PLAIN = {"hooks": [], "attention": {"every": 0, "max_tokens": 12}}
STEPS = {"trace": True, "processes": 1}


@pytest.fixture(scope="module")
def life(tmp_path_factory):
    """A run of 12 steps with checkpoints at 4, 8 and 12, which no test changes."""
    folder = tmp_path_factory.mktemp("life")
    pretrain(write_config(folder, name="life", train=STEPS | {"keep_last": 9}, eval=PLAIN))
    return folder / "runs/life"


def fork(run: Path, name: str, *arguments, code: int = 0) -> Path:
    pretrain(run, *arguments, f"name={name}", script=main, code=code)
    return run.with_name(name)


def weights(run: Path, step: int = 12) -> dict[str, torch.Tensor]:
    return load(run / f"checkpoints/step_{step:08d}").state_dict()


def differing(ours: list[dict], theirs: list[dict], key: str) -> list[int]:
    """The steps at which a figure of two traces differs."""
    return [a["step"] for a, b in zip(ours, theirs, strict=True) if a[key] != b[key]]


def assert_same_life(ours: Path, theirs: Path) -> None:
    assert trace(ours) == trace(theirs)
    for name in ("model.safetensors", "training/optimizer.safetensors"):
        files = [run / "checkpoints/step_00000012" / name for run in (ours, theirs)]
        assert files[0].read_bytes() == files[1].read_bytes(), name
    without_clock = [
        [{key: line[key] for key in line if key != "attention_seconds"} for line in metrics(run)]
        for run in (ours, theirs)
    ]
    assert without_clock[0] == without_clock[1]


def test_without_a_change_losses_weights_and_head_scores_are_those_of_the_run(tmp_path, no_pictures):
    """From a checkpoint, between two, from the start, and with dropout, whose random state counts."""
    changes = {"hidden_dropout": 0.1}
    looks = {"every": 4, "attention": LOOKS}
    pretrain(write_config(tmp_path, model=changes, train=STEPS | {"keep_last": 9}, eval=looks))
    run = tmp_path / "runs/tiny"
    for at in (8, 5, 0):
        ours = fork(run, f"at{at}", "--at", at)
        assert_same_life(ours, run)
        looks = [snapshots.read_all(each)[0] for each in (ours, run)]
        assert [look.step for look in looks[0]] == [0, 3, 6, 9, 12]
        for look, original in zip(*looks, strict=True):
            for name, scores in original.scores.items():
                np.testing.assert_array_equal(look.scores[name], scores)
        result = json.loads((ours / "result.json").read_text())
        assert result["forked_from"] == {"run": str(run), "step": at}
        assert f"forked from {run} at step {at}" in (ours / "report.md").read_text()


def test_the_same_with_two_processes_on_the_cores_of_a_cpu(tmp_path):
    """They stay the same two where the repeated steps end and the fork begins."""
    config = write_config(tmp_path, train=STEPS | {"processes": 2}, eval=PLAIN)
    assert run_world(1, pretrain_rank, config, []) == [0]
    run = tmp_path / "runs/tiny"
    for at, changes in ((5, []), (8, []), (5, ["--without", "L0H1", "--for", "2"])):
        name = f"at{at}{'changed' * bool(changes)}"
        assert run_world(1, pretrain_rank, run, ["--at", str(at), *changes, f"name={name}"], None, main) == [0]
        if changes:
            assert differing(trace(run.with_name(name)), trace(run), "loss")[0] == 6
        else:
            assert_same_life(run.with_name(name), run)
    said = (run.parent / "rank0.txt").read_text()
    assert said.count("2 processes of 1 thread each") == 3


CHANGES = {
    "clamp": ["--clamp", "L0H2=previous", "--clamp", "L1H1=6"],
    "without": ["--without", "L0H2"],
    "freeze": ["--freeze", "L0H2", "--freeze", "embedding"],
    "rate and order": ["train.optimizer.lr=0.01", "seed=3"],
}


@pytest.mark.parametrize("change", CHANGES)
def test_stopped_anywhere_a_fork_ends_as_the_fork_that_was_not_stopped(life, change):
    """In the repeated steps, in the change, and after it. It is also the life up to the change."""
    arguments = ["--at", 7, "--for", 3, *CHANGES[change]]
    name = change.partition(" ")[0]
    whole = fork(life, f"{name}-whole", *arguments)
    for step, code in ((5, 143), (8, 143), (10, 143), (None, 0)):
        with stopped_at(step):
            if code:
                ours = fork(life, name, *arguments, code=code)
            else:  # also by its config alone
                pretrain(ours / "config.yaml")
    assert_same_life(ours, whole)
    assert differing(trace(ours), trace(life), "loss")[0] == (9 if change == "freeze" else 8)
    # the rate is that of the life again, as everything else that a key decides
    assert differing(trace(ours), trace(life), "lr") == ([8, 9, 10] if change == "rate and order" else [])
    assert differing(trace(ours), trace(life), "batch") == ([8, 9, 10] if change == "rate and order" else [])
    again = pretrain(life, *arguments, f"name={name}", script=main)  # a finished fork prints its result
    assert "finished at step 12" in again.stdout


FROZEN = [  # of 4 query heads of 8 and 2 key/value heads, which heads 2 and 3 share the second of
    (
        "L0H2",
        {"q_proj": (slice(16, 24),), "k_proj": (slice(8, 16),), "v_proj": (slice(8, 16),)},
        (slice(None), slice(16, 24)),
    ),
    (
        "L1H0",
        {"q_proj": (slice(0, 8),), "k_proj": (slice(0, 8),), "v_proj": (slice(0, 8),)},
        (slice(None), slice(0, 8)),
    ),
]


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_a_frozen_head_keeps_its_rows_and_columns_and_all_others_learn(tmp_path, optimizer):
    chosen = {"name": optimizer, "weight_decay": 0.1} | ({"lr": 0.005} if optimizer == "adamw" else {})
    train = STEPS | {"keep_last": 99, "checkpoint_every": 1, "optimizer": chosen, "processes": 1}
    model = {"attention_bias": True, "smear_keys": True, "loadable_elsewhere": False}
    pretrain(write_config(tmp_path, model=model, train=train, eval=PLAIN))
    run = tmp_path / "runs/tiny"
    for name, rows, columns in FROZEN:
        ours = fork(run, f"frozen-{name}", "--at", 4, "--for", 4, "--freeze", name)
        before, during, after = (weights(ours, step) for step in (4, 8, 12))
        prefix = f"model.layers.{name[1]}.self_attn"
        parts = {f"{prefix}.{part}.{kind}": index for part, index in rows.items() for kind in ("weight", "bias")}
        parts[f"{prefix}.o_proj.weight"] = columns
        parts[f"{prefix}.smear"] = rows["k_proj"][0].start // 8
        for key, tensor in before.items():
            moved = during[key] != tensor
            still = torch.zeros_like(moved)
            if key in parts:
                still[parts[key]] = True
                assert not moved[still].any(), key
                assert (after[key] != during[key])[still].any(), key
            assert moved[~still].float().mean() > 0.9 or "embed" in key, key


def test_a_frozen_layer_and_embedding_do_not_move(life):
    ours = fork(life, "frozen-layer", "--at", 8, "--freeze", "L1", "--freeze", "embedding")
    before = weights(life, 8)
    for key, tensor in weights(ours).items():
        frozen = "layers.1." in key or "embed" in key or "lm_head" in key  # which is tied
        assert torch.equal(tensor, before[key]) == frozen, key


def test_a_head_that_was_left_out_writes_nothing_and_has_to_learn_again(life):
    """The loss of the next step is that of the ablated model, and the checkpoints have no such head."""
    ours = fork(life, "removed", "--at", 4, "--for", 4, "--without", "L1H3", "train.keep_last=9")
    columns = [weights(ours, step)["model.layers.1.self_attn.o_proj.weight"][:, 24:] for step in (4, 8, 12)]
    assert columns[0].any()
    assert not columns[1].any()
    assert columns[2].any()
    assert differing(trace(ours), trace(life), "loss")[0] == 5


def test_a_clamped_head_looks_where_it_is_told_in_training_and_evaluation(life):
    arguments = ["eval.hooks=[attention]", "eval.attention.every=2", "eval.attention.page=plain"]
    ours = fork(
        life, "clamped", "--at", 8, "--clamp", "L0H1=previous", "--clamp", "L0H2=itself", "--for", 3, *arguments
    )
    looks = {look.step: look for look in snapshots.read_all(ours)[0]}
    assert list(looks) == [10, 12]
    for step, is_on in ((10, True), (12, False)):  # the change holds for steps 9, 10 and 11
        scores = looks[step].scores
        assert (scores["previous_token"][0, 1] > 0.99) == is_on
        pattern = looks[step].maps["repeated_2"].weights[0, 2]
        assert np.array_equal(pattern, np.eye(len(pattern))) == is_on


def test_a_head_is_named_by_what_it_does_in_the_last_look(tmp_path, no_pictures):
    looks = {"hooks": ["attention"], "attention": LOOKS}
    pretrain(write_config(tmp_path, name="life", train=STEPS, eval=looks))
    run = tmp_path / "runs/life"
    scores = read_all(run)[0][-1].scores["previous_token"]
    layer, head = np.unravel_index(scores.argmax(), scores.shape)
    ours = fork(run, "ours", "--at", 0, "--without", "previous_token", "--clamp", "least_previous_token=itself")
    (change,) = load_run_config(ours / "config.yaml").changes
    assert change.without == [f"L{layer}H{head}"]
    assert change.clamp == {f"L{layer}H{scores[layer].argmin()}": "itself"}


def test_other_text_has_the_tokens_of_the_run(tmp_path):
    """With another source from a step on, and back: its tokenizer would have learned other pieces."""
    source = {"kind": "storyworld", "documents": 60, "validation_documents": 20, "repeats": 0.9}
    tokenizer = {"kind": "bpe", "vocab_size": 384}
    data = {"source": source, "tokenizer": tokenizer}
    pretrain(write_config(tmp_path, data=data, train=STEPS | {"keep_last": 9}, eval=PLAIN))
    run = tmp_path / "runs/tiny"
    for at in (0, 4):
        ours = fork(run, f"other-text-{at}", "--at", at, "--for", 4, "--data", "repeats=0", "--data", "seed=9")
        batches = differing(trace(ours), trace(run), "batch")
        assert batches == list(range(at + 1, at + 5))
        assert load_tokenizer(ours).sha256() == load_tokenizer(run).sha256()


def test_another_file_is_read_for_a_while(life, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text("".join(f"{i} a dog ran to tree {i * 5 % 11}.\n" for i in range(400)))
    for at in (8, 6):
        ours = fork(life, f"file-{at}", "--at", at, "--for", 2, "--data", f"path={other}")
        assert differing(trace(ours), trace(life), "batch") == [at + 1, at + 2]


def test_a_change_in_yaml_is_the_same_change(life):
    """So a sweep can have them: a run that is new, with a change from its step 6 to 9."""
    ours = fork(life, "by-command", "--at", 6, "--for", 3, "--without", "L0H1", "train.optimizer.lr=0.01")
    change = {"at": 6, "steps": 3, "without": ["L0H1"], "keys": {"train.optimizer.lr": 0.01}}
    pretrain(life / "config.yaml", "name=by-yaml", f"changes={json.dumps([change])}")
    assert_same_life(ours, life.with_name("by-yaml"))


def test_a_fork_can_be_forked(life):
    first = fork(life, "first", "--at", 4, "--without", "L0H0")
    same = fork(first, "same", "--at", 10)  # from 8, with the first change
    assert_same_life(same, first)
    second = fork(first, "second", "--at", 10, "--freeze", "L0")
    assert trace(second)[:10] == trace(first)[:10]
    assert trace(second)[11:] != trace(first)[11:]
    assert not weights(second)["model.layers.0.self_attn.o_proj.weight"][:, :8].any()
    result = json.loads((second / "result.json").read_text())
    assert result["forked_from"] == {"run": str(first), "step": 10}


@pytest.mark.slow
@pytest.mark.parametrize("method", ["sft", "dpo", "grpo", "distill"])
def test_other_kinds_of_training_are_forked_the_same_way(tmp_path, base, method):
    config = method_config(tmp_path, method, base, train={"max_steps": 4, "checkpoint_every": 2, "trace": True})
    pretrain(config, "--trust-hooks", script=METHODS[method][0])
    run = load_run_config(config).directory
    ours = fork(run, "same", "--at", 3, "--trust-hooks")
    assert trace(ours) == trace(run)
    changed = fork(run, "changed", "--at", 2, "--freeze", "L0", "--trust-hooks")
    assert trace(changed)[:2] == trace(run)[:2]
    # what is frozen does not count: the gradient is shorter at once
    assert differing(trace(changed), trace(run), "grad_norm") == [3, 4]


# --------------------------------------------------------------------------------------------------
# patterns


@pytest.mark.parametrize("heads", [1, 2, 4])
def test_patterns_stay_within_what_a_token_sees_and_the_output_is_their_mean_of_values(heads):
    """With padding, documents and a window; capture checks weights @ v against the output."""
    config = tiny_config(
        num_key_value_heads=heads, sliding_window=3, layer_types=["sliding_attention", "full_attention"]
    )
    lm = random_model(config)
    other = random_model(config)
    ids = torch.randint(0, 192, (2, 10))
    documents = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 2, 2, 2], [0] * 10])
    mask = torch.ones_like(ids)
    mask[1, 7:] = 0
    inputs = {"attention_mask": mask, "document_ids": documents}
    free = capture(lm, ids, **inputs).weights
    patterns = {(0, 0): "uniform", (0, 3): "previous", (1, 1): "itself", (1, 2): other}
    with clamped(lm, patterns):
        held = capture(lm, ids, **inputs).weights
    assert torch.equal(capture(lm, ids, **inputs).weights, free)  # nothing is left of it
    theirs = capture(other, ids, **inputs).weights
    visible = free > 0
    assert torch.equal(held[0, :, 0], visible[0, :, 0] / visible[0, :, 0].sum(-1, keepdim=True).clamp(min=1))
    assert torch.equal(held[1, :, 1], torch.eye(10) * visible[1, :, 1])
    torch.testing.assert_close(held[1, :, 2], theirs[1, :, 2])
    previous = held[0, 0, 3].argmax(-1)
    assert previous.tolist() == [0, 0, 1, 2, 4, 4, 5, 7, 7, 8]  # the first token of a document: itself
    assert torch.equal(held[0, :, 1], free[0, :, 1])


@pytest.mark.parametrize("pattern", ["uniform", "previous", "itself", "another model"])
def test_with_a_cache_a_clamped_model_predicts_the_same(pattern):
    lm = random_model(tiny_config())
    ids = torch.randint(0, 192, (1, 12))
    other: str | LanguageModel = random_model(tiny_config()) if pattern == "another model" else pattern
    from model.kv_cache import KVCache

    with torch.no_grad(), clamped(lm, {(0, 1): other, (1, 3): other}):
        whole = lm(ids)
        cache = KVCache(lm.config)
        parts = [lm(ids[:, :7], kv_cache=cache), *(lm(ids[:, t : t + 1], kv_cache=cache) for t in range(7, 12))]
    torch.testing.assert_close(torch.cat(parts, 1), whole)
    assert not torch.allclose(lm(ids), whole, atol=1e-3)


def test_clamped_to_its_own_model_it_is_that_model():
    lm = random_model(tiny_config())
    twin = LanguageModel(lm.config)
    twin.load_state_dict(lm.state_dict())
    ids = torch.randint(0, 192, (2, 12))
    free = lm(ids)
    with clamped(lm, {(layer, head): twin for layer in range(2) for head in range(4)}):
        held = lm(ids)
        held.sum().backward()
    torch.testing.assert_close(held, free)
    assert not lm.model.layers[0].self_attn.q_proj.weight.grad.any()
    assert lm.model.layers[0].self_attn.v_proj.weight.grad.any()


# --------------------------------------------------------------------------------------------------
# refusals

REFUSED = [
    ("is not a run", "configs", "--at", 4),
    ("the fork needs a name", "RUN", "--at", 4, "name="),
    ("is the run itself", "RUN", "--at", 4, "name=life"),
    ("can be forked at steps 0 to 11", "RUN", "--at", 13),
    ("can be forked at steps 0 to 9", "RUN", "--at", 11, "train.max_steps=10"),
    ("--at is '-1'", "RUN", "--at=-1"),
    ("--for is '0'", "RUN", "--at", 4, "--for", 0),
    ("leave out --for", "RUN", "--at", 4, "--for", 2, "train.max_steps=20"),
    ("there is no L2H0: this model has layers 0 to 1 of heads 0 to 3", "RUN", "--at", 4, "--clamp", "L2H0=itself"),
    ("there is no L0H4", "RUN", "--at", 4, "--without", "L0H4"),
    ("there is no L2:", "RUN", "--at", 4, "--freeze", "L2"),
    ("--clamp L0H1=next: write", "RUN", "--at", 4, "--clamp", "L0H1=next"),
    ("--without L0: it must be a head", "RUN", "--at", 4, "--without", "L0"),
    ("--freeze head: it must be", "RUN", "--at", 4, "--freeze", "head"),
    ("has not measured induction: name a head", "RUN", "--at", 4, "--without", "induction"),
    ("--clamp least_sinks=uniform: write", "RUN", "--at", 4, "--clamp", "least_sinks=uniform"),
    ("no checkpoint of step 9", "RUN", "--at", 4, "--clamp", "L0H1=9"),
    ("its schedule follows the clock", "RUN", "--at", 4, "train.max_steps=null", "train.max_minutes=1"),
    ("did you mean `train`", "RUN", "--at", 4, "trian.max_steps=20"),
    ("unknown key `data.source.repeat`", "RUN", "--at", 4, "--data", "repeat=1"),
    ("is of another architecture", "RUN", "--at", 4, "model.num_attention_heads=2"),
    ("cannot be continued exactly here: world_size 2 (before: 1)", "RUN", "--at", 4, "train.processes=2"),
    ("write section.key=value", "RUN", "--at", 4, "seed"),
]


@pytest.mark.parametrize(("message", "run", "arguments"), [(one, run, rest) for one, run, *rest in REFUSED])
def test_what_cannot_be_is_refused_in_one_line_and_leaves_nothing(life, message, run, arguments):
    before = sorted(life.parent.rglob("*"))
    name = [] if any(str(text).startswith("name=") for text in arguments) else ["name=refused"]
    said = refusal(life if run == "RUN" else run, *arguments, *name, script=main)
    assert message in said
    assert sorted(life.parent.rglob("*")) == before


def test_on_another_machine_or_after_a_change_of_the_text_no_run_is_forked(tmp_path):
    config = write_config(tmp_path, train=STEPS, eval=PLAIN)
    pretrain(config)
    run = tmp_path / "runs/tiny"
    for at in (3, 8, 10):  # from the start, from a checkpoint, from the one before
        for step in (8, 12):
            edit_state(run / f"checkpoints/step_{step:08d}", lambda state: state["resolved"].update(torch="1.0"))
        said = refusal(run, "--at", at, "name=elsewhere", script=main)
        assert "cannot be continued exactly here: torch" in said
        assert not run.with_name("elsewhere").exists()
    pretrain(run, "--at", 8, "name=anyway", "allow_mismatch=true", script=main)
    for step in (8, 12):
        change = lambda state: state["resolved"].update(torch=torch.__version__)  # noqa: E731
        edit_state(run / f"checkpoints/step_{step:08d}", change)
    text = tmp_path / "text.txt"
    text.write_text(text.read_text() + "One more line.\n")
    for at in (3, 8):
        assert "no longer what this run was trained on" in refusal(run, "--at", at, "name=x", script=main)


def test_a_repetition_with_another_log_is_refused_with_the_step(tmp_path):
    pretrain(write_config(tmp_path, train=STEPS, eval=PLAIN))
    run = tmp_path / "runs/tiny"
    lines = (run / "metrics.jsonl").read_text().splitlines()
    line = json.loads(lines[1])
    lines[1] = json.dumps(line | {"loss": line["loss"] + 1e-6})
    (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    assert f"at step {line['step']} it had loss" in refusal(run, "--at", 6, "name=x", script=main)


def test_the_command_and_a_directory_that_is_only_prepared(life):
    assert front_door.main is main
    ours = fork(life, "prepared", "--at", 8, "--prepare")
    assert not (ours / "result.json").exists()
    assert "exists and is not this fork" in refusal(life, "--at", 4, "name=prepared", script=main)
    pretrain(ours / "config.yaml")
    assert_same_life(ours, life)
