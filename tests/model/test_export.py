"""`model.export --to hub-folder | merged`, and what every target refuses."""

import shutil
import sys

import gguf
import pytest
import torch
from transformers import AutoModelForCausalLM

from configs.command import InputError
from model import load, save
from model.config import LoraConfig
from model.export import export, main
from model.lora import add_adapters, weights_hash
from tests.model.export_models import model, save_with_tokenizer
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
    printed = export(tmp_path / "demo", "hub-folder", tmp_path / "hub")
    assert printed.endswith(f"hf upload NAME {tmp_path}/hub")
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
    assert "# adapters\n" in card
    assert "AutoModelForCausalLM" in card
    assert "LoRA" not in card
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


@pytest.mark.parametrize("target", ["gguf", "hub-folder"])
@pytest.mark.parametrize("there", ["a file", "an empty directory", "a link that leads nowhere"])
def test_what_is_there_is_never_replaced(tmp_path, target, there):
    source, out = save_with_tokenizer(model(), tmp_path / "model"), tmp_path / "out"
    if there == "a file":
        out.write_text("mine")
    elif there == "an empty directory":
        out.mkdir()
    else:
        out.symlink_to(tmp_path / "nowhere")
    with pytest.raises(InputError, match="exists: choose another name"):
        export(source, target, out)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["model", "out"]


@pytest.mark.parametrize("target", ["gguf", "hub-folder"])
def test_nothing_half_written_stays(tmp_path, target, monkeypatch):
    source = save_with_tokenizer(model(), tmp_path / "model")

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", full)
    monkeypatch.setattr("gguf.GGUFWriter.write_tensors_to_file", full)
    with pytest.raises(InputError, match="cannot be written: .*No space left"):
        export(source, target, tmp_path / "out")
    assert [file.name for file in tmp_path.iterdir()] == ["model"]


def test_the_command_line(tmp_path, monkeypatch, capsys):
    source = save_with_tokenizer(model(), tmp_path / "model")
    monkeypatch.setattr(sys, "argv", ["export", str(source), "--to", "hub-folder", "--out", str(tmp_path / "hub")])
    assert main() == 0
    assert "choose a license" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["export", str(tmp_path / "x"), "--to", "gguf", "--out", str(tmp_path / "y")])
    with pytest.raises(InputError, match="is neither a run .* nor a model directory"):
        main()


def test_a_model_without_a_tokenizer(tmp_path):
    save(model(), tmp_path / "model")
    with pytest.raises(InputError, match="tokenizer.json: cannot be read"):
        export(tmp_path / "model", "gguf", tmp_path / "out")
