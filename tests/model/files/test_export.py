"""`model.export --to hub-folder | merged`, and what every target refuses."""

import shutil
from pathlib import Path
from unittest.mock import Mock

import gguf
import pytest
import torch
from transformers import AutoModelForCausalLM

from configs.command import InputError
from model import load
from model.export import export
from model.variants.config import LoraConfig
from model.variants.lora import add_adapters, weights_hash
from tests.model.files.export_models import model, save_with_tokenizer
from tests.processes import run_module
from tests.train.checkpoints import training


def adapted(tmp_path):
    """A base, and adapters of it that change something."""
    base = save_with_tokenizer(model(), tmp_path / "base")
    lm = load(base)
    add_adapters(lm, LoraConfig(rank=2), base=str(base), base_sha256=weights_hash(lm))
    with torch.no_grad():
        for name, parameter in lm.named_parameters():
            if ".lora_" in name:
                parameter.normal_()
    return base, save_with_tokenizer(lm, tmp_path / "adapters")


def test_the_hub_folder_is_the_checkpoint_without_its_training(tmp_path):
    run = training()
    (tmp_path / "demo").mkdir()
    run.steps(1)
    checkpoint = run.save(tmp_path / "demo/checkpoints")
    card = checkpoint / "README.md"
    card.write_text(card.read_text().replace("license: unknown", "license: mit"))
    export(tmp_path / "demo", "hub-folder", tmp_path / "hub")
    names = {file.name for file in checkpoint.iterdir() if file.is_file()}
    assert names == {file.name for file in (tmp_path / "hub").rglob("*")} > {"README.md"}
    for name in names:
        assert (tmp_path / "hub" / name).read_bytes() == (checkpoint / name).read_bytes()


def test_adapters_become_one_model(tmp_path):
    base, adapters = adapted(tmp_path)
    export(adapters, "merged", tmp_path / "merged")
    ids = torch.randint(0, 300, (2, 12))
    with torch.no_grad():
        logits = load(adapters)(ids)
        assert torch.equal(AutoModelForCausalLM.from_pretrained(tmp_path / "merged")(ids).logits, logits)
        assert not torch.equal(load(base)(ids), logits)
    card = (tmp_path / "merged/README.md").read_text()
    # it is no adapter any more
    assert ("AutoModelForCausalLM" in card, "LoRA" in card) == (True, False)
    with pytest.raises(InputError, match="holds a whole model already"):
        export(base, "merged", tmp_path / "again")


def test_adapters_go_to_the_hub_as_they_are_and_to_gguf_merged(tmp_path):
    _, adapters = adapted(tmp_path)
    export(adapters, "hub-folder", tmp_path / "hub")
    one, other = (folder / "adapter_model.safetensors" for folder in (tmp_path / "hub", adapters))
    assert one.read_bytes() == other.read_bytes()
    export(adapters, "merged", tmp_path / "merged")
    export(adapters, "gguf", tmp_path / "a")
    export(tmp_path / "merged", "gguf", tmp_path / "b")
    one, other = (gguf.GGUFReader(tmp_path / name / "model.gguf").tensors for name in "ab")
    assert all((first.data == second.data).all() for first, second in zip(one, other, strict=True))


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_weights_in_16_bits(tmp_path, dtype):
    base, adapters = adapted(tmp_path)
    (base / "generation_config.json").write_text('{"temperature": 0.3}')
    ids = torch.randint(0, 300, (2, 12))
    for source, target in ((base, "hub-folder"), (adapters, "merged")):
        out = tmp_path / target
        export(source, target, out, dtype)
        theirs = AutoModelForCausalLM.from_pretrained(out, dtype="auto")
        assert theirs.dtype == {"f16": torch.float16, "bf16": torch.bfloat16}[dtype]
        rounded = load(source).to(theirs.dtype).float()
        with torch.no_grad():
            assert torch.equal(theirs.float()(ids).logits, rounded(ids))
            assert torch.equal(load(out)(ids), rounded(ids))
        assert not {file.name for file in base.iterdir()} - {file.name for file in out.iterdir()}
    assert (tmp_path / "hub-folder/generation_config.json").read_text() == '{"temperature": 0.3}'
    for source, target, wrong in ((base, "hub-folder", "q8_0"), (adapters, "hub-folder", dtype)):
        with pytest.raises(InputError, match="--dtype"):
            export(source, target, tmp_path / "no", wrong)


@pytest.mark.parametrize("target", ["gguf", "hub-folder"])
@pytest.mark.parametrize("occupy", [Path.touch, Path.mkdir, lambda out: out.symlink_to("nowhere")])
def test_what_is_there_is_never_replaced(tmp_path, target, occupy):
    source = save_with_tokenizer(model(), tmp_path / "model")
    out = tmp_path / "out"
    occupy(out)
    with pytest.raises(InputError, match="exists: choose another name"):
        export(source, target, out)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["model", "out"]


@pytest.mark.parametrize("target", ["gguf", "hub-folder"])
def test_nothing_half_written_stays(tmp_path, target, monkeypatch):
    source = save_with_tokenizer(model(), tmp_path / "model")
    full = Mock(side_effect=OSError(28, "No space left on device"))
    monkeypatch.setattr(shutil, "copyfile", full)
    monkeypatch.setattr("gguf.GGUFWriter.write_tensors_to_file", full)
    with pytest.raises(InputError, match="cannot be written: .*No space left"):
        export(source, target, tmp_path / "out")
    assert [file.name for file in tmp_path.iterdir()] == ["model"]


def test_the_command_line(tmp_path):
    source = save_with_tokenizer(model(), tmp_path / "model")
    done = run_module("model.export", source, "--to", "hub-folder", "--out", tmp_path / "hub")
    assert (done.returncode, done.stderr) == (0, "")
    assert load(tmp_path / "hub").config == load(source).config
    (source / "tokenizer.json").unlink()
    for place, message in ((tmp_path / "x", "does not exist"), (source, "tokenizer.json: cannot be read")):
        done = run_module("model.export", place, "--to", "gguf", "--out", tmp_path / "y")
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert message in done.stderr
