"""The real command on a small text: it learns, resumes exactly, and says what is wrong with bad input."""

import json
import math
import re
import signal

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from data import load_tokenizer
from model import load
from tests.train.helpers import kill_at, metrics, pretrain, run_module, write_config


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """One finished run, with pictures and with wandb."""
    folder = tmp_path_factory.mktemp("finished")
    config = write_config(
        folder, tracking={"wandb": "offline"}, eval={"attention": {"every": 6, "early": [], "max_tokens": 12}}
    )
    done = pretrain(config)
    return folder / "runs" / "tiny", done.stdout, config


def test_a_run_leaves_everything_that_the_contract_names(finished):
    run, stdout, _ = finished
    for name in ("config.yaml", "metrics.jsonl", "samples.jsonl", "report.md", "loss.png", "checkpoints/best"):
        assert (run / name).stat().st_size > 0, name
    assert (run / "checkpoints/latest").read_text().strip() == "step_00000012"
    checkpoint = run / "checkpoints/step_00000012"
    files = "model.safetensors config.json generation_config.json tokenizer.json tokenizer_config.json "
    files += "README.md training"
    assert {file.name for file in checkpoint.iterdir()} == set(files.split())
    files = "optimizer.safetensors trainer_state.json manifest.json"
    assert {file.name for file in (checkpoint / "training").iterdir()} == set(files.split())
    assert [p.name for p in sorted((run / "attention").glob("step_*.png"))] == [
        "step_00000000.png",
        "step_00000006.png",
        "step_00000012.png",
    ]
    for name in ("index.jsonl", "heads.png", "curves.png", "timelapse.gif", "viewer.html"):
        assert (run / "attention" / name).stat().st_size > 0, name
    assert list((run / "wandb").glob("offline-run-*/*.wandb")), stdout
    assert list((run / "wandb").glob("offline-run-*/files/media/html/attention/viewer*.html")), stdout
    assert list((run / "wandb").glob("offline-run-*/files/media/table/attention/scores*.json")), stdout
    assert not list(run.rglob("*.tmp"))


def test_metrics_hold_what_the_contract_names(finished):
    run, _, _ = finished
    lines = metrics(run, without_clocks=False)
    train = [m for m in lines if m["split"] == "train"]
    val = [m for m in lines if m["split"] == "val"]
    assert [m["step"] for m in train] == list(range(1, 13))
    assert [m["step"] for m in val] == [0, 4, 8, 12]
    names = {"loss", "lr", "grad_norm", "tokens_per_s", "padding_share", "data_wait_share", "memory_gb"}
    assert all(names <= m.keys() for m in train)
    assert train[-1]["tokens"] <= 12 * 256
    assert val[-1]["loss"] < val[0]["loss"] - 1
    assert val[-1]["perplexity"] == pytest.approx(math.exp(val[-1]["loss"]))


def test_bits_per_byte_counts_bits_of_the_text(finished):
    """Byte tokens, so a predicted token is a byte, but for the one end token of the single document."""
    run, _, _ = finished
    last = [m for m in metrics(run) if m["split"] == "val"][-1]
    text = (run.parents[1] / "text.txt").read_bytes()
    held_out = len(text) - int(len(text) * 0.9)
    assert last["bits_per_byte"] == pytest.approx(last["loss"] / math.log(2) * (held_out + 1) / held_out, rel=1e-6)


def test_the_checkpoint_is_a_hugging_face_directory(finished):
    run, _, _ = finished
    checkpoint = run / "checkpoints/step_00000012"
    theirs = AutoModelForCausalLM.from_pretrained(checkpoint)
    lm, tokenizer = load(run), load_tokenizer(run)
    ids = torch.tensor([[tokenizer.bos_id, *tokenizer.encode("12 the cat sat")]])
    assert AutoTokenizer.from_pretrained(checkpoint)("12 the cat sat").input_ids == ids[0].tolist()
    with torch.no_grad():
        assert torch.equal(lm(ids), theirs(ids).logits)


def test_a_finished_run_prints_its_result_again_and_changes_nothing(finished):
    run, printed, config = finished
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file()}
    again = pretrain(config)
    assert again.stdout.strip() in printed
    assert before == {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file()}


@pytest.mark.parametrize(("name", "code"), [("TERM", 143), ("INT", 130), ("HUP", 129)])
def test_a_signal_finishes_the_step_saves_and_says_so(tmp_path, name, code):
    config = write_config(tmp_path)
    assert kill_at(config, 6, name) == code
    assert (tmp_path / "runs/tiny/checkpoints/latest").read_text().strip() == "step_00000007"
    assert [m["step"] for m in metrics(tmp_path / "runs/tiny") if m["split"] == "train"] == list(range(1, 8))


def test_accumulated_micro_batches_give_the_step_of_the_whole_batch(tmp_path):
    whole = pretrain(write_config(tmp_path, name="whole"))
    pieces = pretrain(write_config(tmp_path, name="pieces"), "train.micro_batch_size=2")
    assert "8 at a time" in whole.stdout
    assert "2 at a time" in pieces.stdout
    for a, b in zip(metrics(tmp_path / "runs/whole"), metrics(tmp_path / "runs/pieces"), strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=2e-4)  # float32 sums in another order, twelve steps on


def test_evaluating_more_often_changes_nothing_in_training(tmp_path, no_pictures):
    dropout = {"model": {"hidden_dropout": 0.2}, "train": {"max_steps": 6}}
    pretrain(write_config(tmp_path, name="seldom", eval={"every": 0}, **dropout))
    pretrain(
        write_config(tmp_path, name="often", eval={"every": 1, "attention": {"every": 2, "max_tokens": 8}}, **dropout)
    )
    seldom, often = (
        [m for m in metrics(tmp_path / "runs" / name) if m["split"] == "train"] for name in ("seldom", "often")
    )
    assert seldom == often


@pytest.mark.parametrize("word", ["mha", "gqa", "mqa", 2])
def test_every_setting_of_the_toggle_trains(tmp_path, word):
    pretrain(write_config(tmp_path, model={"num_key_value_heads": word, "qk_norm": word != "mqa"}))
    losses = [m["loss"] for m in metrics(tmp_path / "runs/tiny") if m["split"] == "val"]
    assert losses[-1] < losses[0] - 1


def test_bf16_and_isolated_documents_train(tmp_path):
    pretrain(write_config(tmp_path, train={"precision": "bf16"}, data={"isolate_documents": True}))
    losses = [m["loss"] for m in metrics(tmp_path / "runs/tiny") if m["split"] == "val"]
    assert losses[-1] < losses[0] - 1


def test_a_run_says_what_it_is_busy_with(tmp_path, monkeypatch):
    monkeypatch.setattr("configs.command.BUSY_S", 1e-3)
    done = pretrain(write_config(tmp_path, eval={"final_max_tokens": 320}))
    for what in ("step 1", "the last evaluation", "saving"):
        assert f"… {what}, for " in done.stderr
    result = json.loads((tmp_path / "runs/tiny/result.json").read_text(encoding="utf-8"))
    assert result["val"]["held_out_tokens"] == 11 * 31  # whole rows
    assert f"on {result['val']['held_out_tokens']} held-out tokens" in done.stdout


def test_a_step_that_counts_no_token_has_no_loss_and_moves_nothing(tmp_path):
    """The last row of an epoch holds one token, which nothing before it predicts, and is a step of its own."""
    (tmp_path / "text.txt").write_text("x" * (4 * 32 + 1 - 2))  # with its first and its last token
    (tmp_path / "held_out.txt").write_text("y" * 70)
    source = {"kind": "files", "path": str(tmp_path / "text.txt"), "validation_path": str(tmp_path / "held_out.txt")}
    train = {"tokens_per_step": 32, "max_steps": 6, "checkpoint_every": 1, "keep_last": 9}
    data = {"source": source, "shuffle": False}
    pretrain(write_config(tmp_path, data=data, train=train, eval={"hooks": []}))
    losses = [line["loss"] for line in metrics(tmp_path / "runs/tiny") if line["split"] == "train"]
    assert [step for step, loss in enumerate(losses, 1) if loss is None] == [5]
    weights = [(tmp_path / f"runs/tiny/checkpoints/step_{k:08d}/model.safetensors").read_bytes() for k in (4, 5, 6)]
    assert weights[0] == weights[1] != weights[2]


BAD = [
    (["sed=1"], "command line `sed=1`: unknown key `sed`, did you mean `seed`?"),
    (["train.max_steps=ten"], "`train.max_steps` is 'ten'"),
    (["model.num_attention_heads=5"], "num_attention_heads (5) must divide hidden_size (32)"),
    (["model.num_key_value_heads=3"], "use 1, 2, 4"),
    (["data.source.path=nowhere.txt"], "no such file: nowhere.txt"),
    (["data.sequence_length=1024"], "is longer than model.max_position_embeddings (512)"),
    (["train.max_minutes=1"], "train.max_steps and train.max_minutes both limit the run"),
    (["train.precision=tf32"], "train.precision is tf32, which needs CUDA: on cpu use auto or fp32"),
    (["train.device=cuda"], "train.device is cuda: not available here"),
    (["init_from=nowhere"], "init_from: "),
    (["model.vocab_size=100"], "model.vocab_size is 100, but the tokenizer has 320 ids"),
    (["output_dir=/proc/nowhere"], "error: /proc/nowhere: No such file"),
    (["model.attn_implementation=flash", "model.attention_dropout=0.1"], "flash has no dropout"),
    (["resume=somewhere"], "resume: somewhere is not a complete checkpoint"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD, ids=lambda value: value[0] if isinstance(value, list) else "")
def test_bad_input_is_one_line_on_stderr_and_exit_code_2(tmp_path, arguments, message, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    done = pretrain(write_config(tmp_path), *arguments, code=2)
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
    assert not (tmp_path / "runs" / "tiny").exists()


def test_another_run_of_the_same_name_is_refused_and_the_keys_are_named(finished, tmp_path):
    run, _, config = finished
    before = (run / "config.yaml").read_bytes()
    done = pretrain(config, "model.num_key_value_heads=mha", "seed=1", code=2)
    assert "belongs to another run; these keys differ: model.num_key_value_heads (there 2, here 4), seed" in done.stderr
    assert "resume=never" in pretrain(config, "resume=never", code=2).stderr
    assert "raise it or choose another name" in pretrain(config, "train.max_steps=5", code=2).stderr
    assert (run / "config.yaml").read_bytes() == before
    pretrain(config, "eval.every=3", "train.checkpoint_every=5")  # cadences may change


@pytest.mark.parametrize("file", ["thesis.doc", "config.yaml"])
def test_a_folder_that_is_not_a_run_is_left_alone(tmp_path, file):
    config = write_config(tmp_path)
    (tmp_path / "runs/tiny").mkdir(parents=True)
    (tmp_path / "runs/tiny" / file).write_text("mine")
    assert "exists and is not a run" in pretrain(config, code=2).stderr
    assert [p.read_text() for p in (tmp_path / "runs/tiny").iterdir()] == ["mine"]


def test_a_text_that_changed_under_a_run_is_refused_and_a_moved_one_is_not(tmp_path):
    config = write_config(tmp_path, train={"max_steps": 4})
    pretrain(config)
    text = tmp_path / "text.txt"
    moved = text.rename(tmp_path / "moved.txt")
    pretrain(config, "train.max_steps=5", f"data.source.path={moved}")
    moved.write_text(moved.read_text() + "One more line.\n")
    done = pretrain(config, "train.max_steps=6", f"data.source.path={moved}", code=2)
    assert "is no longer what this run was trained on" in done.stderr


def test_a_run_that_died_before_its_first_checkpoint_starts_over_without_doubled_lines(tmp_path):
    config = write_config(tmp_path)
    assert kill_at(config, 2) == -signal.SIGKILL
    pretrain(config)
    assert [m["step"] for m in metrics(tmp_path / "runs/tiny") if m["split"] == "val"] == [0, 4, 8, 12]


def test_the_best_checkpoint_is_kept_even_between_the_planned_ones(tmp_path):
    pretrain(write_config(tmp_path, eval={"every": 3}, train={"max_steps": 6, "checkpoint_every": 4, "keep_last": 1}))
    losses = {m["step"]: m["loss"] for m in metrics(tmp_path / "runs/tiny") if m["split"] == "val"}
    best = (tmp_path / "runs/tiny/checkpoints/best").read_text().strip()
    assert best == f"step_{min(losses, key=losses.__getitem__):08d}"
    assert (tmp_path / "runs/tiny/checkpoints" / best / "training/manifest.json").is_file()


@pytest.mark.slow
def test_a_checkpoint_of_another_architecture_is_refused(finished, tmp_path):
    run, _, config = finished
    checkpoint = run / "checkpoints/step_00000012"
    done = pretrain(config, f"resume={checkpoint}", "name=other", "model.num_hidden_layers=3", code=2)
    assert "model.num_hidden_layers (there 2, here 3)" in done.stderr
    assert not (run.parent / "other").exists()
    pretrain(config, f"resume={checkpoint}", "name=longer", "train.max_steps=14")
    state = json.loads((run.parent / "longer/checkpoints/step_00000014/training/trainer_state.json").read_text())
    assert state["step"] == 14


def test_the_built_in_world_is_compared_with_its_floor_and_can_be_sampled(tmp_path):
    source = {"kind": "storyworld", "documents": 60, "validation_documents": 8, "repeats": 0.5}
    data = {"source": source, "tokenizer": {"kind": "bpe", "vocab_size": 512}, "sequence_length": 64}
    config = write_config(tmp_path, data=data, eval={"floor_documents": 8}, train={"max_steps": 3})
    done = pretrain(config)
    line = next(line for line in done.stdout.splitlines() if line.startswith("bits per byte, 8 whole held-out stories"))
    model, floor, gap = (
        float(word) for word in line.split() if word.lstrip("+-").replace(".", "", 1).isdigit() and "." in word
    )
    assert 0.2 < floor < 0.4
    assert "(stories alone; the validation loss and its bits per byte are of the random words as well)" in done.stdout
    assert re.search(
        r"step +3   val loss .* \(harder than training: 50 % of the documents are random words", done.stdout
    )
    assert model > floor + 1
    assert gap == pytest.approx(model - floor, abs=2e-4)
    assert line in (tmp_path / "runs/tiny/report.md").read_text(encoding="utf-8")

    told = run_module("eval.samples", tmp_path / "runs/tiny", "Once there was", "--max-new-tokens", 5)
    assert told.stdout.startswith("Once there was"), told.stderr
    wrong = run_module("eval.samples", tmp_path / "nowhere")
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)

    prepared = run_module("data.prepare", config)
    assert "train: 60 documents" in prepared.stdout
    assert run_module("data.prepare", config, "data.sourse=1").returncode == 2
