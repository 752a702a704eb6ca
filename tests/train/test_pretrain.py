"""The real command on a small text: it learns, resumes exactly, and says what is wrong with bad
input.
"""

import io
import json
import math
import re
import signal
import struct
import time
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

import train.loop
import train.run.after_step
import train.run.begin_and_end
import train.run.metrics
from eval.attention import snapshots
from eval.hooks import held_out as validation
from eval.pictures.heads import quick_mosaic
from tests.train.helpers import at_each_step, kill_at, losses, metrics, pretrain, stopped_at, write_config
from train.config import load_run_config


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """One finished run, with pictures and with both trackers."""
    folder = tmp_path_factory.mktemp("finished")
    config = write_config(
        folder,
        tracking={"wandb": "offline", "tensorboard": True},
        eval={"attention": {"every": 6, "early": [], "max_tokens": 12}, "final_max_tokens": 320},
    )
    done = pretrain(config)
    # a hook or a tracker that failed
    assert "is off" not in done.stdout + done.stderr, done.stdout + done.stderr
    return folder / "runs" / "tiny", done.stdout, config


def test_a_run_leaves_everything_that_the_contract_names(finished):
    run, stdout, _ = finished
    for name in ("config.yaml", "samples.jsonl", "report.md", "loss.png", "checkpoints/best"):
        assert (run / name).stat().st_size > 0, name
    checkpoint = run / "checkpoints" / (run / "checkpoints/latest").read_text().strip()
    assert checkpoint.name == "step_00000012"
    files = "config generation_config tokenizer tokenizer_config training/trainer_state training/manifest".split()
    files = ["README.md", "model.safetensors", "training/optimizer.safetensors", *(f"{name}.json" for name in files)]
    assert {file.relative_to(checkpoint).as_posix() for file in checkpoint.rglob("*") if file.is_file()} == set(files)
    assert [int(p.stem[5:]) for p in sorted((run / "attention").glob("step_*.png"))] == [0, 6, 12]
    for name in ("index.jsonl", "heads.png", "curves.png", "timelapse.gif", "viewer.html"):
        assert (run / "attention" / name).stat().st_size > 0, name
    assert list((run / "wandb").glob("offline-run-*/*.wandb")), stdout
    assert not list(run.rglob("*.tmp"))

    lines = metrics(run, without_clocks=False)
    train, val = ([line for line in lines if line["split"] == split] for split in ("train", "val"))
    assert [m["step"] for m in train] == list(range(1, 13))
    assert [m["step"] for m in val] == [0, 4, 8, 12]
    names = {"loss", "lr", "grad_norm", "tokens_per_s", "padding_share", "data_wait_share", "memory_gb"}
    assert all(names <= m.keys() for m in train)
    assert val[-1]["loss"] < val[0]["loss"] - 1
    result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    assert result["val"]["held_out_tokens"] == 11 * 31  # whole rows of the last evaluation
    assert val[-1]["perplexity"] == pytest.approx(math.exp(val[-1]["loss"]))
    # byte tokens, so a predicted token is a byte, but for the one end token of the single document
    text = (run.parents[1] / "text.txt").read_bytes()
    held_out = len(text) - int(len(text) * 0.9)
    bits = val[-1]["loss"] / math.log(2) * (held_out + 1) / held_out
    assert val[-1]["bits_per_byte"] == pytest.approx(bits, rel=1e-6)


def in_tensorboard(run):
    """The pictures in a run's event file: name -> {step: pixels}."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run / "tensorboard"), size_guidance={"images": 0}).Reload()
    return {
        name: {
            event.step: np.asarray(Image.open(io.BytesIO(event.encoded_image_string)).convert("RGB"))
            for event in events.Images(name)
        }
        for name in events.Tags()["images"]
    }


def in_wandb(run):
    """The same of wandb's offline file, a log like LevelDB's: blocks of 32 KiB, records with a
    length and a kind.
    """
    from wandb.proto.wandb_internal_pb2 import Record

    (file,) = (run / "wandb").glob("offline-run-*/*.wandb")
    data = file.read_bytes()
    at = 7
    record = b""
    pictures = {}
    while at + 7 <= len(data):
        if 2**15 - at % 2**15 < 7:  # no room for a header: the block ends
            at += 2**15 - at % 2**15
            continue
        length, kind = struct.unpack("<HB", data[at + 4 : at + 7])
        record = record + data[at + 7 : at + 7 + length]
        at = at + 7 + length
        if kind not in (1, 4):  # whole, or its last part
            continue
        items = {tuple(item.nested_key): item.value_json for item in Record.FromString(record).history.item}
        record = b""
        for name, *field in items:
            if field == ["path"] and items[name, "_type"] == '"image-file"':
                path = file.parent / "files" / json.loads(items[name, "path"])
                step = json.loads(items["step",])
                pictures.setdefault(name, {})[step] = np.asarray(Image.open(path).convert("RGB"))
    return pictures


@pytest.mark.parametrize("tracker", [in_tensorboard, in_wandb])
def test_trackers_get_the_labelled_maps_of_all_heads_on_repeated_text_at_every_look(finished, tmp_path, tracker):
    run = finished[0]
    pictures = tracker(finished[0])
    at_the_end = {f"attention/{name}": [12] for name in ("heads", "curves", "induction_head")}
    assert {name: list(steps) for name, steps in pictures.items()} == {"attention/maps": [0, 6, 12], **at_the_end}
    for snapshot in snapshots.read_all(run)[0]:
        assert "repeated_2" in snapshot.maps
        quick_mosaic(snapshot, tmp_path / "again.png")
        again = np.asarray(Image.open(tmp_path / "again.png").convert("RGB")).astype(int)
        shown = pictures["attention/maps"][snapshot.step].astype(int)
        assert np.abs(again - shown).max() <= 3  # a snapshot has 16 bits a weight


def test_swanlab_gets_the_same_figures_and_pictures_without_a_network(tmp_path):
    pytest.importorskip("swanlab", reason="pip install -r requirements-dev.txt")
    looks = {"attention": {"every": 2, "early": [], "max_tokens": 12}, "final_max_tokens": 320}
    config = write_config(tmp_path, train={"max_steps": 4}, tracking={"swanlab": "offline"}, eval=looks)
    done = pretrain(config)
    assert "is off" not in done.stdout + done.stderr, done.stdout + done.stderr
    (folder,) = (tmp_path / "runs/tiny/swanlab").glob("run-*")
    (log,) = folder.glob("*.swanlab")
    raw = log.read_bytes()
    assert all(name in raw for name in (b"train/loss", b"val/loss", b"attention/maps"))
    steps = [int(picture.name[:3]) for picture in folder.glob("media/image/*.png")]
    assert sorted(steps) == [0, 2, 4, 4, 4, 4]  # maps at each look; at the end scores and curves, too


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
    assert [m["step"] for m in metrics(tmp_path / "runs/tiny", "train")] == list(range(1, 8))


def test_a_step_that_counts_no_token_has_no_loss_and_moves_nothing(tmp_path):
    """The last row of an epoch holds one token, which nothing before it predicts, and is a step of
    its own.
    """
    (tmp_path / "text.txt").write_text("x" * (4 * 32 + 1 - 2))  # with its first and its last token
    (tmp_path / "held_out.txt").write_text("y" * 70)
    source = {"kind": "files", "path": str(tmp_path / "text.txt"), "validation_path": str(tmp_path / "held_out.txt")}
    train = {"tokens_per_step": 32, "max_steps": 6, "checkpoint_every": 1, "keep_last": 9}
    data = {"source": source, "shuffle": False}
    pretrain(write_config(tmp_path, data=data, train=train, eval={"hooks": []}))
    trained = losses(tmp_path / "runs/tiny", "train")
    assert [step for step, loss in enumerate(trained, 1) if loss is None] == [5]
    weights = [(tmp_path / f"runs/tiny/checkpoints/step_{k:08d}/model.safetensors").read_bytes() for k in (4, 5, 6)]
    assert weights[0] == weights[1] != weights[2]


def test_a_name_that_is_taken_is_not_overwritten_and_a_run_is_not_shortened(finished):
    """Different settings are named: test_atomic_save.py."""
    run, _, config = finished
    before = (run / "config.yaml").read_bytes()
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


def test_a_run_that_died_before_its_first_checkpoint_starts_over_without_doubled_lines(tmp_path):
    config = write_config(tmp_path)
    assert kill_at(config, 2) == -signal.SIGKILL
    pretrain(config)
    assert [m["step"] for m in metrics(tmp_path / "runs/tiny", "val")] == [0, 4, 8, 12]


def test_the_best_checkpoint_is_kept_even_between_the_planned_ones(tmp_path):
    pretrain(write_config(tmp_path, eval={"every": 3}, train={"max_steps": 6, "checkpoint_every": 4, "keep_last": 1}))
    by_step = {m["step"]: m["loss"] for m in metrics(tmp_path / "runs/tiny", "val")}
    best = tmp_path / f"runs/tiny/checkpoints/step_{min(by_step, key=by_step.__getitem__):08d}"
    assert (best.parent / "best").read_text().strip() == best.name
    assert (best / "training/manifest.json").is_file()


@pytest.mark.slow
def test_a_new_run_may_go_on_from_any_checkpoint(finished):
    run, _, config = finished
    pretrain(config, f"resume={run / 'checkpoints/step_00000012'}", "name=longer", "train.max_steps=14")
    assert (run.parent / "longer/checkpoints/step_00000014/model.safetensors").is_file()


def test_the_built_in_world_is_compared_with_its_floor_and_can_be_sampled(tmp_path):
    source = {"kind": "storyworld", "documents": 60, "validation_documents": 8, "repeats": 0.5}
    data = {"source": source, "tokenizer": {"kind": "bpe", "vocab_size": 512}, "sequence_length": 64}
    config = write_config(tmp_path, data=data, eval={"floor_documents": 8}, train={"max_steps": 3})
    done = pretrain(config)
    line = next(line for line in done.stdout.splitlines() if line.startswith("bits per byte, 8 whole held-out stories"))
    model, floor, gap = map(float, re.findall(r"[+-]?\d+\.\d+", line))
    assert 0.2 < floor < 0.4
    assert model > floor + 1
    assert gap == pytest.approx(model - floor, abs=2e-4)


# --------------------------------------------------------------------------------------------------
# how long a run is: by steps, by tokens, by the clock


MINUTES = {"max_steps": None, "max_minutes": 0.05, "checkpoint_every": 0}


def test_tokens_are_rounded_up_to_whole_steps(tmp_path):
    config = write_config(tmp_path, train={"max_steps": None, "max_tokens": 256 * 3 + 1})
    assert load_run_config(config).max_steps == 4
    assert "finished at step 4" in pretrain(config).stdout
    assert "train.max_tokens ends before step" in pretrain(config, "train.max_tokens=512", code=2).stderr
    assert load_run_config(write_config(tmp_path, train={"max_steps": None})).max_steps == 1000


def test_a_run_made_longer_says_that_its_learning_rate_rises_again(tmp_path):
    """In the warm-up it rises without a word, and a finished run says nothing."""
    config = write_config(tmp_path, train={"max_steps": 6, "warmup_steps": 3})
    with stopped_at(1):
        said = pretrain(config, code=143).stdout
    said += pretrain(config).stdout + pretrain(config).stdout
    assert "rises again" not in said
    lines = pretrain(config, "train.max_steps=10").stdout.splitlines()
    [line] = [line for line in lines if "rises again" in line]
    before, after = re.findall(r"0\.\d+", line)
    rates = [f"{m['lr']:#.2g}" for m in metrics(tmp_path / "runs/tiny", "train")]
    assert (before, after) == (rates[5], rates[6])
    assert float(before) < float(after)


@pytest.fixture
def clock(monkeypatch):
    """The run's clock, as [seconds]: a step takes an eighth of a second, and all else no time."""
    now = [1000.0]

    def pass_time(run):
        now[0] += 0.125

    for module in (train.loop, train.run.after_step, train.run.begin_and_end):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    with at_each_step(pass_time):
        yield now


def test_under_the_clock_the_cooldown_ends_with_the_time(tmp_path, clock):
    config = write_config(tmp_path, train=MINUTES, eval={"every": 0})
    done = pretrain(config)
    assert "0.05 minutes by the clock (so never twice exactly the same)" in done.stdout
    lines = metrics(tmp_path / "runs/tiny", "train", without_clocks=False)
    assert [m["time_s"] for m in lines] == [0.125 * step for step in range(1, 25)]  # 3 seconds
    left = [1 - step / 24 for step in range(24)]  # share of the time, when a step begins
    assert [m["lr"] for m in lines] == pytest.approx([0.02 * (0.05 + 0.95 * min(1, share / 0.7)) for share in left])
    again = pretrain(config)
    assert again.stdout.strip() in done.stdout  # finished: it shows its result again


def test_evaluating_and_saving_is_no_time_of_training(tmp_path, monkeypatch, clock):
    """A step of 256 tokens takes an eighth of a second, an evaluation a minute, and a save two."""

    def slowly(call, seconds):
        def slow(*arguments, **options):
            clock[0] += seconds
            return call(*arguments, **options)

        return slow

    monkeypatch.setattr(
        train.run.metrics, "time", SimpleNamespace(perf_counter=lambda: clock[0], monotonic=time.monotonic)
    )
    monkeypatch.setattr(validation, "loss_sums", slowly(validation.loss_sums, 60.0))
    monkeypatch.setattr(train.run.after_step, "save_checkpoint", slowly(train.run.after_step.save_checkpoint, 120.0))
    pretrain(
        write_config(
            tmp_path, train={"max_steps": 6, "checkpoint_every": 2}, eval={"hooks": ["validation"], "every": 2}
        )
    )
    lines = metrics(tmp_path / "runs/tiny", "train", without_clocks=False)
    assert [line["tokens_per_s"] for line in lines] == [256 / 0.125] * 6
    apart = [(line["eval_s"], line["save_s"]) for line in lines]  # before the step of the line
    assert apart == [(60, 0), (0, 0), (60, 120), (0, 0), (60, 120), (0, 0)]


def test_time_between_two_starts_is_not_the_run_s(tmp_path, clock):
    """The time spent is stored with the checkpoint."""
    config = write_config(tmp_path, train=MINUTES | {"max_minutes": 0.02}, eval={"every": 0})
    pretrain(config)
    clock[0] += 3600
    pretrain(config, "train.max_minutes=0.04")
    files = sorted((tmp_path / "runs/tiny/checkpoints").glob("step_*/training/trainer_state.json"))
    states = [json.loads(file.read_text()) for file in files]
    # not less than 1.2, 2.4
    assert [(state["step"], state["seconds"]) for state in states] == [(10, 1.25), (20, 2.5)]
