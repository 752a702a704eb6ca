"""The real command on a small text: it learns, resumes exactly, and says what is wrong with bad input."""

import json
import math
import re
import shutil
import signal
import subprocess
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from data import load_tokenizer
from eval.hooks.samples import in_a_line
from model import load
from tests.train.helpers import REPOSITORY, kill_at, metrics, pretrain, run_module, write_config


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


def test_the_choice_of_attention_is_said_once_and_kept(finished):
    run, stdout, _ = finished
    choice = "attention sdpa (auto: PyTorch picks its kernel; on cpu none is faster)"
    assert stdout.count(choice) == 1
    assert choice in (run / "report.md").read_text(encoding="utf-8")


def test_the_terminal_shows_what_the_model_writes_while_it_learns(finished):
    run, stdout, _ = finished
    samples = [json.loads(line) for line in (run / "samples.jsonl").read_text(encoding="utf-8").splitlines()]
    lines = [line for line in stdout.splitlines() if " writes “" in line]
    assert len(lines) == len(samples) == 4
    for line, sample in zip(lines, samples, strict=True):
        assert line == f"step {sample['step']:>6,}   {in_a_line(sample['text'])}"


def test_the_last_lines_say_what_was_seen_and_where_to_look(finished):
    run, stdout, config = finished
    seen, watch = stdout.splitlines()[-2:]
    assert "look at what followed the same token before" in seen.replace("looks", "look")
    assert watch == f"To watch every head while it learns, open {run / 'attention/viewer.html'} in a browser."
    assert pretrain(config).stdout.splitlines()[-2:] == [seen, watch]  # a finished run prints it again


def test_a_sample_is_one_line_that_controls_nothing():
    assert in_a_line("One  fox.\nTwo\tcats\x1b[31m") == "writes “One fox. Two cats⟨U+001B⟩[31m”"
    assert in_a_line("x" * 200) == f"writes “{'x' * 90}…”"
    assert in_a_line("No.\n", "y" * 99 + "?\x1b") == f"asked “…{'y' * 51}?⟨U+001B⟩”, writes “No.”"


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


def test_it_prints_where_the_loss_should_start_and_where_it_does(finished):
    _, printed, _ = finished
    line = next(line for line in printed.splitlines() if line.startswith("step 0: loss"))
    loss = float(line.split()[3].rstrip(","))
    assert f"ln(vocabulary 320) = {math.log(320):.4f}" in line
    assert loss == pytest.approx(math.log(320), rel=0.02)


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


@pytest.mark.slow
def test_a_finished_run_may_grow(finished, tmp_path):
    run, _, config = finished
    shutil.copytree(run.parent, tmp_path / "runs")
    pretrain(config, "train.max_steps=14", f"output_dir={tmp_path / 'runs'}")
    assert [m["step"] for m in metrics(tmp_path / "runs/tiny") if m["split"] == "train"] == list(range(1, 15))


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"model": {"attention_dropout": 0.1, "hidden_dropout": 0.1}},
        {"train": {"optimizer": {"name": "adamw", "lr": 2e-3}}},
    ],
    ids=["muon and dropout", "adamw"],
)
def test_an_interrupted_run_that_is_resumed_equals_one_that_was_not(tmp_path, changes):
    """Killed without warning at two different places, both between two checkpoints."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    for folder in (whole, broken):
        folder.mkdir()
        shutil.copy(write_config(tmp_path, **changes).with_name("text.txt"), folder)
    pretrain(write_config(whole, **changes))
    config = write_config(broken, **changes)
    for step in (5, 11):
        assert kill_at(config, step) == -signal.SIGKILL
    resumed = pretrain(config)
    assert "step 8" in resumed.stdout.split("resumed from")[1]
    assert metrics(broken / "runs/tiny") == metrics(whole / "runs/tiny")
    for name in ("model.safetensors", "training/optimizer.safetensors"):
        ours, theirs = (f / "runs/tiny/checkpoints/step_00000012" / name for f in (broken, whole))
        assert ours.read_bytes() == theirs.read_bytes(), name
    assert (broken / "runs/tiny/samples.jsonl").read_text() == (whole / "runs/tiny/samples.jsonl").read_text()


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


def test_a_non_finite_loss_stops_with_3_and_keeps_the_last_checkpoint(tmp_path):
    done = pretrain(write_config(tmp_path), "train.optimizer.adamw_lr=1e30", "train.optimizer.lr=1e30", code=3)
    assert "no step was taken" in done.stdout


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_is_used(tmp_path):
    config = write_config(tmp_path, train={"keep_last": 3})
    pretrain(config)
    weights = tmp_path / "runs/tiny/checkpoints/step_00000012/model.safetensors"
    raw = bytearray(weights.read_bytes())
    raw[-100] ^= 1
    weights.write_bytes(raw)
    before = metrics(tmp_path / "runs/tiny")
    done = pretrain(config)
    assert "step_00000012/model.safetensors is damaged: trying the checkpoint before it" in done.stderr
    assert "step_00000008" in done.stdout
    assert metrics(tmp_path / "runs/tiny") == before


@pytest.mark.parametrize(("limit", "said_at"), [("ENOUGH_S", 2), ("SLOW_S", 1)])
def test_a_run_says_how_long_it_takes_and_what_it_is_busy_with(tmp_path, monkeypatch, limit, said_at):
    """After the step that warms up; if that one is slow, at once."""
    monkeypatch.setattr(f"train.meters.{limit}", 0.0)
    monkeypatch.setattr("configs.command.BUSY_S", 1e-3)
    done = pretrain(write_config(tmp_path, eval={"final_max_tokens": 320}))
    [(step, minutes)] = re.findall(r"step +(\d+)   about ([\d.]+) minutes of training to go", done.stdout)
    assert (int(step), minutes) == (said_at, "0.0")
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
    (["model.hiden_size=3"], "unknown key `model.hiden_size`, did you mean `model.hidden_size`?"),
    (["train.max_steps=ten"], "`train.max_steps` is 'ten'"),
    (["model.num_attention_heads=5"], "num_attention_heads (5) must divide hidden_size (32)"),
    (["model.hidden_size=12"], "head_dim (3) must be even"),
    (["model.num_key_value_heads=3"], "use 1, 2, 4"),
    (["data.source.path=nowhere.txt"], "no such file: nowhere.txt"),
    (["data.sequence_length=1024"], "is longer than model.max_position_embeddings (512)"),
    (["train.max_minutes=1"], "train.max_steps (12) and train.max_minutes (1.0) both limit the run: give one and set"),
    (["train.max_tokens=9", "train.max_steps=0"], "`train.max_steps` is 0: must be greater than or equal to 1"),
    (["train.tokens_per_step=-256"], "`train.tokens_per_step` is -256: must be greater than or equal to 2"),
    (["train.max_steps=null", "train.max_minutes=0"], "`train.max_minutes` is 0: must be greater than 0"),
    (["train.micro_batch_size=0"], "`train.micro_batch_size` is 0: must be greater than or equal to 1"),
    (["train.precision=tf32"], "train.precision is tf32, which needs CUDA: on cpu use auto or fp32"),
    (["train.precision=fp8"], "`train.precision` is 'fp8'"),
    (["init_from=nowhere"], "init_from: "),
    (["train.parallel=ddp2"], "`train.parallel` is 'ddp2'"),
    (["train.device=cuda"], "train.device is cuda: not available here"),
    (["model.vocab_size=100"], "model.vocab_size is 100, but the tokenizer has 320 ids"),
    (["output_dir=/proc/nowhere"], "output_dir: /proc/nowhere cannot be written"),
    (["model.attn_implementation=flash", "model.attention_dropout=0.1"], "flash has no dropout: use sdpa"),
    (["model.attn_implementation=varlen"], "model.attn_implementation: varlen needs CUDA: use flash or sdpa"),
    (["model.attn_implementation=flex"], "flex has no gradients on CPU: train with sdpa"),
    (["model.attn_implementation=flashy"], "attn_implementation"),
    (["model.sliding_window=0"], "sliding_window"),
    (["model.layer_types=[sliding_attention]"], "set sliding_window"),
    (["model.rope_scaling={rope_type: yarn, factor: 4.0}"], "yarn needs original_max_position_embeddings"),
    (["data.restart_positions=true", "data.isolate_documents=false"], "restart_positions needs isolate_documents"),
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


@pytest.mark.slow
def test_reading_a_config_imports_nothing_heavy():
    heavy = "{'wandb', 'datasets', 'matplotlib', 'transformers'}"
    subprocess.run(
        [sys.executable, "-c", f"import sys, train.config; sys.exit(bool({heavy} & sys.modules.keys()))"], check=True
    )


def test_another_run_of_the_same_name_is_refused_and_the_keys_are_named(finished, tmp_path):
    run, _, config = finished
    before = (run / "config.yaml").read_bytes()
    done = pretrain(config, "model.num_key_value_heads=mha", "seed=1", code=2)
    assert "belongs to another run; these keys differ: model.num_key_value_heads (there 2, here 4), seed" in done.stderr
    assert "resume=never" in pretrain(config, "resume=never", code=2).stderr
    assert "raise it or choose another name" in pretrain(config, "train.max_steps=5", code=2).stderr
    assert (run / "config.yaml").read_bytes() == before
    pretrain(config, "eval.every=3", "train.checkpoint_every=5")  # cadences may change


def test_a_folder_that_is_not_a_run_is_left_alone(tmp_path):
    config = write_config(tmp_path)
    (tmp_path / "runs/tiny").mkdir(parents=True)
    (tmp_path / "runs/tiny/thesis.doc").write_text("mine")
    assert "exists and is not a run" in pretrain(config, code=2).stderr
    assert [p.name for p in (tmp_path / "runs/tiny").iterdir()] == ["thesis.doc"]


def test_what_is_left_of_a_run_that_died_before_its_config_is_not_an_obstacle(tmp_path):
    config = write_config(tmp_path)
    (tmp_path / "runs/tiny").mkdir(parents=True)
    (tmp_path / "runs/tiny/config.tmp").write_text("model:")
    assert "finished at step 12" in pretrain(config).stdout
    (tmp_path / "runs/tiny/config.yaml").write_text("modle: {}")
    assert "is not a run with a config that can be read: " in pretrain(config, code=2).stderr


def test_a_folder_with_any_old_config_yaml_is_not_a_run(tmp_path):
    config = write_config(tmp_path)
    (tmp_path / "runs/tiny").mkdir(parents=True)
    (tmp_path / "runs/tiny/config.yaml").write_text("mine")
    assert "exists and is not a run" in pretrain(config, code=2).stderr
    assert (tmp_path / "runs/tiny/config.yaml").read_text() == "mine"


def test_a_text_that_changed_under_a_run_is_refused_and_a_moved_one_is_not(tmp_path):
    config = write_config(tmp_path, train={"max_steps": 4})
    pretrain(config)
    text = tmp_path / "text.txt"
    moved = text.rename(tmp_path / "moved.txt")
    pretrain(config, "train.max_steps=5", f"data.source.path={moved}")
    moved.write_text(moved.read_text() + "One more line.\n")
    done = pretrain(config, "train.max_steps=6", f"data.source.path={moved}", code=2)
    assert "is no longer what this run was trained on" in done.stderr


def test_a_finished_run_asked_to_read_another_text_says_so_and_a_moved_one_is_its_own(tmp_path):
    config = write_config(tmp_path, train={"max_steps": 4})
    printed = pretrain(config).stdout
    other = tmp_path / "other.txt"
    other.write_text((tmp_path / "text.txt").read_text(encoding="utf-8"), encoding="utf-8")
    result = pretrain(config, f"data.source.path={other}").stdout.split("validation loss")[1].splitlines()[0]
    assert result in printed
    other.write_text("Another text.\n" * 500, encoding="utf-8")
    refused = pretrain(config, f"data.source.path={tmp_path / 'text.txt'}")
    assert refused.stdout  # the first text is still its own
    done = pretrain(config, f"data.source.path={other}", code=2)
    assert "is no longer what this run was trained on" in done.stderr


def test_a_run_without_a_whole_checkpoint_is_not_started_over(tmp_path):
    config = write_config(tmp_path, train={"max_steps": 4})
    pretrain(config)
    for weights in tmp_path.glob("runs/tiny/checkpoints/step_*/model.safetensors"):
        weights.write_bytes(weights.read_bytes()[:-10])
    before = metrics(tmp_path / "runs/tiny")
    assert "no checkpoint in it is complete" in pretrain(config, code=2).stderr
    assert metrics(tmp_path / "runs/tiny") == before


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


@pytest.mark.slow
def test_a_reader_of_the_output_that_leaves_does_not_stop_the_run(tmp_path):
    """`python -m train.pretrain … | head -1`"""
    command = [sys.executable, "-m", "train.pretrain", str(write_config(tmp_path))]
    process = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=300) == 0
    assert process.stderr is not None
    assert "BrokenPipe" not in process.stderr.read()
    assert (tmp_path / "runs/tiny/checkpoints/step_00000012").is_dir()
