"""Damaged, missing, swapped and half-written checkpoints; which are kept; and what happens when one cannot be saved."""

import hashlib
import os
import shutil
import tempfile
from collections import namedtuple
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from configs.command import InputError
from model import load
from tests.processes import little_room
from tests.train.checkpoints import training
from tests.train.helpers import metrics, pretrain, write_config
from train.config import load_run_config
from train.saving.commit import SaveError, damage, newest_intact, settle
from train.saving.run_directory import find_start, open_for

STATE = [f"training/{name}" for name in ("optimizer.safetensors", "trainer_state.json", "manifest.json")]
FILES = "config.json generation_config.json model.safetensors tokenizer.json tokenizer_config.json".split() + STATE
CHANGING = ["model.safetensors", *STATE]


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Checkpoints of step 1 and step 2."""
    checkpoints, run = tmp_path_factory.mktemp("two"), training()
    for _ in range(2):
        run.steps(1)
        run.save(checkpoints)
    return checkpoints


@pytest.fixture
def checkpoints(two, tmp_path):
    return Path(shutil.copytree(two, tmp_path / "checkpoints"))


def rewrite(change):
    def damaged(file: Path) -> None:
        raw = bytearray(file.read_bytes())
        changed = change(raw) or raw
        assert changed != file.read_bytes()
        file.write_bytes(changed)

    return damaged


def flip_a_bit(raw: bytearray) -> None:
    raw[len(raw) // 2] ^= 1


def zero_a_page(raw: bytearray) -> None:
    at = len(raw) // 2 if len(raw) > 8192 else 0
    raw[at : at + 4096] = bytes(len(raw[at : at + 4096]))


def swap(file: Path) -> None:
    other = Path(str(file).replace("step_00000002", "step_00000001"))
    here, there = file.read_bytes(), other.read_bytes()
    file.write_bytes(there)
    other.write_bytes(here)


DAMAGES = {
    "empty": lambda file: file.write_bytes(b""),
    "half": rewrite(lambda raw: raw[: len(raw) // 2]),
    "a hundred bytes short": rewrite(lambda raw: raw[:-100] if len(raw) > 100 else b"x"),
    "a byte short": rewrite(lambda raw: raw[:-1]),
    "a flipped bit": rewrite(flip_a_bit),
    "a page of zeros": rewrite(zero_a_page),
    "deleted": lambda file: file.unlink(),
    "a directory": lambda file: (file.unlink(), file.mkdir()),
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", DAMAGES)
def test_every_damage_to_every_file_is_found_and_the_checkpoint_before_it_is_used(kind, name, checkpoints, capsys):
    assert newest_intact(checkpoints) == checkpoints / "step_00000002"
    DAMAGES[kind](checkpoints / "step_00000002" / name)
    assert newest_intact(checkpoints) == checkpoints / "step_00000001"
    said = capsys.readouterr().err
    assert said.startswith("warning: ")
    assert "step_00000002" in said
    assert said.endswith(": trying the checkpoint before it\n")
    assert said.count("\n") == 1


def test_the_files_that_training_changes_are_those_that_are_swapped_below(checkpoints):
    one, two = (checkpoints / f"step_0000000{step}" for step in (1, 2))
    assert {name for name in FILES if (one / name).read_bytes() != (two / name).read_bytes()} == set(CHANGING)


@pytest.mark.parametrize("name", CHANGING)
def test_a_file_swapped_between_two_checkpoints_is_found_in_both(name, checkpoints):
    swap(checkpoints / "step_00000002" / name)
    assert newest_intact(checkpoints) is None


def test_a_checkpoint_under_another_ones_name_is_found(checkpoints):
    shutil.copytree(checkpoints / "step_00000001", checkpoints / "step_00000003")
    assert "holds step 1, not the step in its name" in damage(checkpoints / "step_00000003")
    shutil.copytree(checkpoints / "step_00000001", checkpoints / "mine")
    assert damage(checkpoints / "mine") is None


def test_a_file_that_does_not_belong_is_found(checkpoints):
    for name in ("optimizer.bin", "training/optimizer.bin"):
        (checkpoints / "step_00000002" / name).write_text("")
        assert f"step_00000002/{name} is not one of the checkpoint's files" in damage(checkpoints / "step_00000002")
        (checkpoints / "step_00000002" / name).unlink()


def test_a_lost_folder_of_training_state_is_found_and_an_edited_model_card_is_not_damage(checkpoints):
    (checkpoints / "step_00000002/README.md").write_text("license: apache-2.0")
    (checkpoints / "step_00000001/README.md").unlink()
    assert damage(checkpoints / "step_00000002") is None
    assert damage(checkpoints / "step_00000001") is None
    shutil.rmtree(checkpoints / "step_00000002/training")
    assert "is not a complete checkpoint" in damage(checkpoints / "step_00000002")
    load(checkpoints / "step_00000002")  # the model is as good as before


def test_a_start_hashes_the_newest_checkpoint_once_and_no_other(tmp_path, monkeypatch):
    config = write_config(tmp_path, train={"max_steps": 6, "checkpoint_every": 2, "keep_last": 3}, eval={"every": 0})
    pretrain(config)
    hashed, file_digest = [], hashlib.file_digest

    def counting(stream, *arguments):
        hashed.append(Path(stream.name))
        return file_digest(stream, *arguments)

    monkeypatch.setattr(hashlib, "file_digest", counting)
    checkpoints = tmp_path / "runs/tiny/checkpoints"
    for override in ("resume=auto", f"resume={checkpoints / 'step_00000006'}"):
        hashed.clear()
        start = find_start(load_run_config(config, [override, "train.max_steps=8"]))
        open_for(load_run_config(config, [override, "train.max_steps=8"]), start)
        ours = [file for file in hashed if checkpoints in file.parents]
        assert sorted({file.relative_to(checkpoints).parts[0] for file in ours}) == ["step_00000006"]
        assert len(ours) == len(set(ours)) > 3
        assert kept(checkpoints) == [2, 4, 6]


def test_a_start_deletes_what_a_kill_left_of_the_last_save(tmp_path):
    config = write_config(tmp_path, train={"max_steps": 4, "checkpoint_every": 2, "keep_last": 2}, eval={"every": 0})
    pretrain(config)
    (tmp_path / "runs/tiny/result.json").unlink()
    pretrain(config, "train.keep_last=1")
    assert kept(tmp_path / "runs/tiny/checkpoints") == [4]


def test_of_two_damaged_ones_both_are_named(checkpoints, capsys):
    for directory in checkpoints.glob("step_*"):
        (directory / "model.safetensors").unlink()
    assert newest_intact(checkpoints) is None
    assert capsys.readouterr().err.count("model.safetensors is missing") == 2


def test_what_is_half_written_does_not_count_and_is_removed(checkpoints):
    shutil.copytree(checkpoints / "step_00000002", checkpoints / "step_00000003.tmp")
    (checkpoints / "latest.tmp").write_text("step_000")
    assert newest_intact(checkpoints) == checkpoints / "step_00000002"
    settle(checkpoints, newest_intact(checkpoints))
    assert {path.name for path in checkpoints.iterdir()} == {"latest", "step_00000001", "step_00000002"}


def test_where_latest_and_best_point_does_not_matter(checkpoints):
    for content in ("step_00000009\n", "", "step_00000001\n"):
        for name in ("latest", "best"):
            (checkpoints / name).write_text(content)
        assert newest_intact(checkpoints) == checkpoints / "step_00000002"
        settle(checkpoints, newest_intact(checkpoints))
        assert (checkpoints / "latest").read_text() == "step_00000002\n"
        assert not (checkpoints / "best").exists()  # none of these two was called the best


def test_a_latest_that_names_nothing_is_an_error(checkpoints):
    (checkpoints / "latest").write_text("step_00000009\n")
    with pytest.raises(ValueError, match="latest: names step_00000009, which does not exist"):
        load(checkpoints.parent)


def test_a_damaged_one_is_put_aside_with_a_word_and_never_removed(checkpoints, capsys):
    run = training()
    run.steps(1)
    for number in (1, 2):  # damaged twice at the same step
        shutil.rmtree(checkpoints / "step_00000002", ignore_errors=True)
        shutil.copytree(checkpoints / "step_00000001", checkpoints / "step_00000002")
        settle(checkpoints, newest_intact(checkpoints))
        assert f"kept as step_00000002.damaged{number}" in capsys.readouterr().err
    for _ in range(3):
        run.steps(1)
        run.save(checkpoints, keep_last=1)
    names = "latest step_00000002.damaged1 step_00000002.damaged2 step_00000004"
    assert sorted(path.name for path in checkpoints.iterdir()) == names.split()


def kept(checkpoints: Path) -> list[int]:
    return sorted(int(path.name[5:]) for path in checkpoints.glob("step_????????"))


@pytest.mark.parametrize(("keep_last", "keep_best"), [(1, True), (3, True), (2, False)])
def test_which_checkpoints_are_kept(keep_last, keep_best, tmp_path):
    run = training()
    for step in range(1, 6):
        run.steps(1)
        if step == 2:
            run.state.best_step = 2
        run.save(tmp_path, keep_last, keep_best)
        newest = set(range(max(1, step - keep_last + 1), step + 1))
        assert kept(tmp_path) == sorted(newest | ({2} if keep_best and step >= 2 else set()))
        assert all(damage(tmp_path / f"step_{number:08d}") is None for number in kept(tmp_path))
        assert (tmp_path / "latest").read_text() == f"step_{step:08d}\n"
        assert (tmp_path / "best").exists() == (2 in kept(tmp_path))
    assert (tmp_path / "best").exists() == keep_best
    if keep_best:
        assert (tmp_path / "best").read_text() == "step_00000002\n"


def test_a_damaged_one_does_not_take_the_place_of_a_whole_one(tmp_path):
    run = training()
    for _ in range(3):
        run.steps(1)
        run.save(tmp_path, keep_last=3)
    (tmp_path / "step_00000003/model.safetensors").write_bytes(b"")
    (tmp_path / "step_00000002/model.safetensors").write_bytes(b"")
    settle(tmp_path, newest_intact(tmp_path))
    assert kept(tmp_path) == [1]
    run.load(newest_intact(tmp_path)).steps(1)
    run.save(tmp_path, keep_last=2)
    assert kept(tmp_path) == [1, 2]


@pytest.mark.parametrize("limit", [200, 1500, 20_000, 120_000])
def test_a_disk_that_is_full_in_the_middle_of_a_save_leaves_everything_as_it_was(limit, checkpoints):
    run = training(seed=3)
    run.steps(3)
    before = {path: path.stat().st_mtime_ns for path in checkpoints.rglob("*") if path.is_file()}
    with little_room(limit), pytest.raises(SaveError) as caught:
        run.save(checkpoints)
    assert before == {path: path.stat().st_mtime_ns for path in checkpoints.rglob("*") if path.is_file()}
    assert sorted(path.name for path in checkpoints.iterdir()) == ["latest", "step_00000001", "step_00000002"]
    said = str(caught.value)
    assert said.startswith("the checkpoint of step 3 could not be written to ")
    assert "File too large" in said
    assert "\n" not in said


def test_too_little_room_is_noticed_before_anything_is_written(checkpoints, monkeypatch):
    run = training()
    run.steps(3)
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 10**9 - 300_000, 300_000))
    monkeypatch.setattr(Path, "write_text", None)
    with pytest.raises(SaveError) as caught:
        run.save(checkpoints)
    assert str(caught.value).startswith(f"no room for a checkpoint in {checkpoints}: it needs 4.")
    assert " MB and 0.3 MB are free: " in str(caught.value)
    assert sorted(path.name for path in checkpoints.iterdir()) == ["latest", "step_00000001", "step_00000002"]


def test_a_place_that_cannot_be_written_is_a_save_error(tmp_path):
    run = training()
    run.steps(1)
    (tmp_path / "file").write_text("")
    with pytest.raises(SaveError, match="could not be written to .*: (Not a directory|File exists)"):
        run.save(tmp_path / "file")
    with pytest.raises(SaveError, match="could not be written to .*: Not a directory"):
        run.save(tmp_path / "file/checkpoints")


@contextmanager
def as_nobody() -> Iterator[None]:
    """Root may write anywhere: while inside, we are not root."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="Windows has other permissions")
def test_a_directory_without_permission_is_a_save_error(two):
    run = training()
    run.steps(3)
    with tempfile.TemporaryDirectory() as open_to_all:  # pytest's own folders are closed to others than their owner
        Path(open_to_all).chmod(0o755)
        checkpoints = Path(shutil.copytree(two, Path(open_to_all) / "checkpoints"))
        checkpoints.chmod(0o555)
        with as_nobody(), pytest.raises(SaveError, match="Permission denied"):
            run.save(checkpoints)
        checkpoints.chmod(0o755)
        assert newest_intact(checkpoints) == checkpoints / "step_00000002"
        run.save(checkpoints)  # nothing but the permission was missing
        assert newest_intact(checkpoints) == checkpoints / "step_00000003"


def test_a_failure_after_the_old_one_of_the_same_step_was_moved_puts_it_back(checkpoints, monkeypatch):
    run = training()
    run.steps(2)
    before = (checkpoints / "step_00000002/training/manifest.json").read_bytes()
    rename = Path.rename

    def fails_once(path: Path, target: Path) -> Path:
        if path.suffix == ".tmp":
            raise OSError(28, "No space left on device")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", fails_once)
    with pytest.raises(SaveError, match="No space left on device"):
        run.save(checkpoints)
    assert (checkpoints / "step_00000002/training/manifest.json").read_bytes() == before
    assert sorted(path.name for path in checkpoints.iterdir()) == ["latest", "step_00000001", "step_00000002"]


def test_a_run_continues_past_a_damaged_checkpoint_to_the_same_end(tmp_path):
    """The command itself: both a damaged newest one and a `latest` that names nothing."""
    (tmp_path / "whole").mkdir()
    (tmp_path / "other").mkdir()
    changes = {"eval": {"every": 4, "sample_tokens": 2}, "train": {"keep_last": 3}}
    pretrain(write_config(tmp_path / "whole", **changes))
    config = write_config(tmp_path / "other", **changes)
    pretrain(config)
    checkpoints = tmp_path / "other/runs/tiny/checkpoints"
    (checkpoints / "step_00000012/training/optimizer.safetensors").unlink()
    rewrite(flip_a_bit)(checkpoints / "step_00000008/model.safetensors")
    (checkpoints / "latest").write_text("step_00000099\n")
    done = pretrain(config)
    assert "resumed from " + str(checkpoints / "step_00000004") in done.stdout
    assert done.stderr.count("trying the checkpoint before it") == 2
    assert metrics(tmp_path / "other/runs/tiny") == metrics(tmp_path / "whole/runs/tiny")
    assert (checkpoints / "latest").read_text() == "step_00000012\n"
    assert (checkpoints / "step_00000008.damaged1").is_dir()
    shutil.rmtree(checkpoints / "step_00000004")
    for step in (8, 12):
        shutil.rmtree(checkpoints / f"step_{step:08d}")
    assert "no checkpoint in it is complete" in pretrain(config, code=2).stderr


def test_settings_that_differ_are_named_and_may_be_allowed(tmp_path):
    changes = {"train": {"max_steps": 4, "checkpoint_every": 2}, "eval": {"every": 0}}
    config = write_config(tmp_path, **changes)
    pretrain(config)
    other = ["seed=5", "train.grad_clip=2.0", "train.max_steps=6"]
    refused = pretrain(config, *other, code=2).stderr
    for told in ("seed (there 0, here 5)", "train.grad_clip (there 1.0, here 2.0)", "allow_mismatch=true"):
        assert told in refused
    allowed = pretrain(config, *other, "allow_mismatch=true")
    assert allowed.stderr.count("warning: ") == 1
    assert "seed (there 0, here 5), train.grad_clip (there 1.0, here 2.0): continuing, because" in allowed.stderr
    assert [m["step"] for m in metrics(tmp_path / "runs/tiny") if m["split"] == "train"] == list(range(1, 7))
    pretrain(config, *other, "train.max_steps=7")  # these are the run's settings from now on
    wrong = pretrain(config, *other, "train.max_steps=8", "model.hidden_size=64", "allow_mismatch=true", code=2)
    assert "allow_mismatch cannot help with model.head_dim, model.hidden_size" in wrong.stderr
    (tmp_path / "text.txt").write_text((tmp_path / "text.txt").read_text() + "One more line.\n")
    assert "no longer what this run was" in pretrain(config, *other, "train.max_steps=8", code=2).stderr
    told = pretrain(config, *other, "train.max_steps=8", "allow_mismatch=true").stderr
    assert "no longer what this run was trained on: continuing" in told
    pretrain(config, *other, "train.max_steps=9")


def test_another_tokenizer_is_named_and_its_embedding_does_not_fit(tmp_path):
    config = write_config(tmp_path, train={"max_steps": 2}, eval={"every": 0})
    pretrain(config)
    other = ["data.tokenizer={kind: char}", "train.max_steps=4"]
    assert "data.tokenizer.kind (there 'byte', here 'char')" in pretrain(config, *other, code=2).stderr
    wrong = pretrain(config, *other, "allow_mismatch=true", code=2).stderr
    assert "model.embed_tokens.weight has shape [320, 32], the model has [64, 32]" in wrong
    assert damage(tmp_path / "runs/tiny/checkpoints/step_00000002") is None


def test_no_checkpoint_is_an_input_error(tmp_path):
    with pytest.raises(InputError, match="cannot resume from here"):
        training().load(tmp_path)
