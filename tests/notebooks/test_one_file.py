"""notebooks/one_file.py is the library written out: the same losses to the last bit, the same
logits.
"""

from __future__ import annotations

import ast
import re
import runpy
import sys
from pathlib import Path

import pytest
import torch

from model import LanguageModel, ModelConfig
from notebooks import one_file
from storyworld import tell
from tests.notebooks.making import ROOT
from tests.train.helpers import pretrain, trace, write_config

FILE = ROOT / "notebooks" / "one_file.py"
# the library's vocabulary also has the letters of its chat template: in a text that has them all,
# ids are the same
TEXT = "\n".join(tell(0, i).text for i in range(60)) + "\nsystem user assistant tool\n"
SMALL = {"sequence_length": 32, "tokens_per_step": 1024, "hidden_size": 32, "intermediate_size": 96}
SMALL |= {"max_steps": 20, "warmup_steps": 5}
every_model = pytest.mark.parametrize("attention", ["flash", "eager"])
every_toggle = pytest.mark.parametrize("kv_heads", [4, 2, 1], ids=["mha", "gqa", "mqa"])
trained = [pytest.param(4, marks=pytest.mark.slow), 2, pytest.param(1, marks=pytest.mark.slow)]


def small(kv_heads: int, attention: str, **changes) -> one_file.Config:
    return one_file.Config(**SMALL, num_key_value_heads=kv_heads, attention=attention, **changes)


def model_config(config: one_file.Config, vocab_size: int | None = None) -> dict:
    """The library's keys for the same model; everything else is its default."""
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    own = {name: getattr(config, name) for name in names}
    return own | {"attn_implementation": config.attention, "tie_word_embeddings": False, "vocab_size": vocab_size}


@pytest.fixture
def one_thread():
    """One core adds up in one order.

    With several, the libraries share out the work as they like.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("kv_heads", trained, ids=["mha", "gqa", "mqa"])
@every_model
def test_twenty_losses_are_those_of_train_pretrain_bit_for_bit(kv_heads, attention, tmp_path, one_thread, monkeypatch):
    # which most of these gradients exceed
    config = small(kv_heads, attention, seed=7, grad_clip=0.5)
    text = tmp_path / "my.txt"
    text.write_text(TEXT, encoding="utf-8")
    data = {"source": {"kind": "files", "path": str(text)}, "tokenizer": {"kind": "char"}, "isolate_documents": False}
    names = ("tokens_per_step", "max_steps", "warmup_steps", "cooldown", "final_lr_fraction", "grad_clip")
    train = {name: getattr(config, name) for name in names}
    train |= {"optimizer": {"name": "adamw", "lr": config.lr, "embedding_lr": config.embedding_lr}, "trace": True}
    train |= {"processes": 1, "micro_batch_size": 32, "compile": False, "device": "cpu", "checkpoint_every": 0}
    yaml = write_config(
        tmp_path, seed=config.seed, model=model_config(config), train=train, eval={"hooks": []},
        data=data | {"sequence_length": config.sequence_length},
    )  # fmt: skip
    # on AMD a run multiplies by another library, whose sums have other last bits
    # (set_float32_products)
    monkeypatch.setattr("train.pretrain.set_float32_products", lambda *args, **options: None)
    pretrain(yaml)
    theirs = [float.fromhex(line["loss"]) for line in trace(tmp_path / "runs/tiny")]
    _, _, losses = one_file.train(TEXT, config)
    assert losses == theirs
    assert len(losses) == 20
    assert losses[-1] < losses[0] - 1, "a model that learns nothing would prove little"


@pytest.mark.parametrize(("text", "steps", "is_told"), [("noise", 201, True), ("stories", 101, False)])
def test_a_text_that_is_learned_by_heart_is_told_with_the_best_step(text, steps, is_told, capsys):
    """Nothing can be learned about random letters but the text itself; stories have more in common."""
    letters = torch.randint(97, 105, (700,), generator=torch.Generator().manual_seed(0)).tolist()
    config = one_file.Config(**SMALL | {"tokens_per_step": 128, "hidden_size": 64, "max_steps": steps})
    one_file.train("".join(map(chr, letters)) if text == "noise" else TEXT, config)
    said = capsys.readouterr().out
    assert ("max_steps=" in said) == is_told
    if is_told:
        looks = {int(step): float(loss) for step, loss in re.findall(r"step +(\d+) .* unseen text (\S+)", said)}
        best = min(looks, key=looks.get)
        assert 0 < looks[best] < looks[steps - 1] - 0.1
        assert f"max_steps={best}," in said


def random_pair(config: one_file.Config) -> tuple[one_file.LanguageModel, LanguageModel]:
    """Both models with the same weights, every one of them random: at first the layers add nothing."""
    ours = one_file.LanguageModel(config, 128)
    library = LanguageModel(ModelConfig(**model_config(config, 128)))
    with torch.no_grad():
        for weight in ours.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
    library.load_state_dict(ours.state_dict())  # strict: the same names and shapes
    return ours, library.eval()


@every_toggle
@every_model
def test_weights_fit_the_library_and_logits_are_the_same(kv_heads, attention, one_thread):
    ours, library = random_pair(small(kv_heads, attention))
    ids = torch.randint(128, (2, 32))
    with torch.no_grad():
        assert torch.equal(ours(ids), library(ids))


@every_toggle
def test_flash_is_eager(kv_heads):
    """Sums of 8 products and of up to 32 shares in float32, in another order: logits of size 1
    differ by some 1e-6.
    """
    flash, _ = random_pair(small(kv_heads, "flash"))
    eager = one_file.LanguageModel(small(kv_heads, "eager"), 128)
    eager.load_state_dict(flash.state_dict())
    ids = torch.randint(128, (2, 32))
    with torch.no_grad():
        difference = (flash(ids) - eager(ids)).abs().max()
    assert difference < 1e-4
    assert torch.allclose(eager.model.layers[0].self_attn.weights.sum(-1), torch.ones(()), atol=1e-5)


def test_it_is_short_and_needs_nothing_of_ours():
    source = FILE.read_text(encoding="utf-8")
    assert len(source.splitlines()) <= 300
    imported = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            imported.add(node.module.partition(".")[0])
    assert imported - sys.stdlib_module_names <= {"torch", "numpy", "matplotlib"}


def run(folder: Path, monkeypatch, *arguments: str) -> int:
    """`python notebooks/one_file.py arguments…` in this folder; its exit code."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", [str(FILE), *arguments])
    try:
        with torch.set_grad_enabled(True):  # the file switches it off at its end
            runpy.run_path(str(FILE), run_name="__main__")
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@pytest.mark.slow
@pytest.mark.filterwarnings("error")  # a glyph that the font lacks is one
def test_it_trains_on_a_text_of_any_script_and_draws_every_head(tmp_path, monkeypatch):
    (tmp_path / "my.txt").write_text("从前有一只狐狸。Once there was a fox.\n" * 80, encoding="utf-8")
    changes = ["max_steps=3", "sequence_length=64", "tokens_per_step=256", "num_key_value_heads=1", "hidden_size=32"]
    assert run(tmp_path, monkeypatch, "my.txt", *changes) == 0
    assert (tmp_path / "heads.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["none.txt"], "none.txt"),
        (["short.txt"], "short.txt has 5 characters"),
        (["latin1.txt"], "utf-8"),
        (["max_step=3"], "max_step"),
        (["max_steps=many"], "many"),
        (["num_key_value_heads=3"], "num_key_value_heads"),
        (["tokens_per_step=100"], "tokens_per_step"),
        (["num_key_value_heads=0"], "zero"),
        (["attention=fast"], "attention"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, named, tmp_path, monkeypatch, capsys):
    (tmp_path / "short.txt").write_text("short", encoding="utf-8")
    (tmp_path / "latin1.txt").write_bytes(b"caf\xe9 " * 5000)
    assert run(tmp_path, monkeypatch, *arguments) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert named in said
