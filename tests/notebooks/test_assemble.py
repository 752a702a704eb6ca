"""The assembled model: one file of all parts, equal to one_file.py, and honest about differences."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from configs.command import InputError
from model.backends.mine import run_file
from notebooks import assemble, check
from tests.notebooks.making import ROOT

SOLUTIONS = ROOT / check.SOLUTIONS
PARTS = [*check.CHECKS, "ending"]


def assembled(folder: Path, **changes: tuple[str, str]):
    """Assemble the solutions; changes: part=(code, other code)."""
    files = {name: SOLUTIONS / f"{name}.py" for name in PARTS}
    for name, (code, other) in changes.items():
        source = files[name].read_text("utf-8")
        assert source.count(code) == 1, f"the solution of {name} changed: change the test"
        files[name] = folder / f"{name}.py"
        files[name].write_text(source.replace(code, other), "utf-8")
    assemble.write_model(files, folder / "my_model.py")
    return run_file(folder / "my_model.py")


@pytest.fixture(scope="module")
def mine(tmp_path_factory):
    return assembled(tmp_path_factory.mktemp("mine"))


def test_the_solutions_give_one_file_py_to_the_last_bit(mine):
    lines = assemble.compare(mine)
    assert [re.search(r"(\d+) of \1 equal to the last bit", line) is not None for line in lines] == [True] * 5
    assert "20 of 20" in lines[-1]


@pytest.mark.parametrize(
    ("part", "code", "other", "sentence"),
    [
        ("tokenizer", "sorted(set(text))\n", "sorted(set(text), reverse=True)\n", "the vocabulary"),
        (
            "batches",
            "generator = np.random.default_rng([seed, epoch])",
            "generator = np.random.default_rng([epoch, seed])",
            "batch 1",
        ),
        ("model", "std=0.1 / math", "std=0.2 / math", "the first lm_head.weight"),
        ("embedding", "return self.weight[ids]\n", "return self.weight[ids] + 0.1\n", "model.embed_tokens:"),
        ("rmsnorm", "return weight * normal", "return normal + weight - 1", "model.layers.0.input_layernorm:"),
        ("rope", "a * angle.cos() - b", "a * angle.cos() + b", "the input of model.layers.0.self_attn.o_proj:"),
        ("mlp", "F.silu", "F.gelu", "the input of model.layers.0.mlp.down_proj:"),
        (
            "block",
            "x = x + self.self_attn(",
            "x = self.self_attn(",
            "the input of model.layers.0.post_attention_layernorm:",
        ),
        ("loss", "gradient @ head", "gradient @ head * 2", "the gradient of model.norm:"),
        ("rmsnorm", "value=-1", "value=-0.5", "the gradient of the input of model.norm:"),
        ("loop", "        optimizer.zero_grad()\n", "", "the loss of step"),
    ],
)
def test_the_first_place_that_differs_is_named(part, code, other, sentence, tmp_path):
    mine = assembled(tmp_path, **{part: (code, other)})
    with pytest.raises(AssertionError) as error:
        assemble.compare(mine)
    assert str(error.value).startswith(sentence)
    assert part in str(error.value).partition("Look at your ")[2]


def test_another_order_of_sums_is_right_and_said(tmp_path):
    scores = "(q @ k.transpose(-2, -1)) * q.shape[-1] ** -0.5"
    lines = assemble.compare(assembled(tmp_path, attention=(scores, "q @ k.mT / q.shape[-1] ** 0.5")))
    assert "right, but rounded differently from the input of model.layers.0.self_attn.o_proj on" in lines[2]
    assert lines[3].endswith("rounded differently. Begin with the line above that names a part")


def test_other_bits_of_the_angles_are_named(tmp_path):
    frequencies = "1.0 / theta ** (torch.arange(0, size, 2) / size)"
    lines = assemble.compare(assembled(tmp_path, rope=(frequencies, "theta ** (-torch.arange(0, size, 2) / size)")))
    assert "rounded differently from the angles on: your rope" in lines[2]


def test_two_parts_with_one_name_are_refused(tmp_path):
    with pytest.raises(InputError, match="both define `encode`: rename one of them"):
        assembled(tmp_path, bpe=("def joined(", "def encode(text):\n    pass\n\n\ndef joined("))


def test_a_reader_s_trial_of_a_part_is_left_out_and_a_matrix_needs_no_call(tmp_path):
    """A product with `weight` computes the same as its module, whose hook then sees nothing."""
    gate = ("F.silu(self.gate_proj(x))", "F.silu(x @ self.gate_proj.weight.T)")
    trial = ("class KVCache:", "if __name__ == '__main__':\n    oops\n\n\nclass KVCache:")
    mine = assembled(tmp_path, mlp=gate, kv_cache=trial)
    assert "oops" not in (tmp_path / "my_model.py").read_text("utf-8")
    assert "20 of 20" in assemble.compare(mine)[-1]


def test_an_edited_file_is_kept(tmp_path):
    path = tmp_path / "my_model.py"
    path.write_text("mine = 1\n")
    assembled(tmp_path)
    assert (tmp_path / "my_model.1.py").read_text() == "mine = 1\n"
    assembled(tmp_path)
    assert not (tmp_path / "my_model.2.py").exists()


@pytest.mark.parametrize("tied", [True, False])
def test_a_llama_writes_what_transformers_writes(tied, mine, tmp_path):
    """SmolLM2 is such a model: GQA, tied or not, no QK-norm. Its weights here are random."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=2048, hidden_size=48, intermediate_size=96, num_hidden_layers=3, num_attention_heads=6,
        num_key_value_heads=3, tie_word_embeddings=tied, rms_norm_eps=1e-5, rope_theta=100000.0,
    )  # fmt: skip
    theirs = LlamaForCausalLM(config).eval()
    theirs.save_pretrained(tmp_path)
    (step,) = (ROOT / "pretrained/small/checkpoints").glob("step_*")
    (tmp_path / "tokenizer.json").write_bytes((step / "tokenizer.json").read_bytes())
    lm, tokenizer = mine.open_model(tmp_path)
    ids = torch.tensor([tokenizer.encode("One day")])
    with torch.no_grad():
        torch.testing.assert_close(lm(ids), theirs(ids).logits, atol=1e-5, rtol=1e-4)
        expected = theirs.generate(ids, max_new_tokens=12, do_sample=False, eos_token_id=None)
    assert mine.write(lm, ids[0].tolist(), 12, temperature=0) == expected[0, ids.shape[1] :].tolist()


def test_it_writes_with_a_shipped_model(mine, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    (step,) = Path("pretrained/small/checkpoints").glob("step_*")
    monkeypatch.setattr("sys.argv", ["my_model", "write", str(step), "One day"])
    runpy.run_path(mine.__file__, run_name="__main__")  # as `python -m notebooks.mine.my_model` does
    assert capsys.readouterr().out.startswith("One day ")


def test_a_trained_one_is_a_model_of_headlight(mine, tmp_path):
    from model import load

    text = "one two three " * 40
    vocabulary = mine.vocabulary_of(text + mine.CHAT_LETTERS)
    lm = mine.MyModel(mine.Config(len(vocabulary), 32, 48))
    lm.initialise()
    mine.save_model(lm, text, tmp_path / "model")
    library = load(tmp_path / "model")
    ids = torch.tensor([[mine.BOS, *mine.encode(text, vocabulary)[:20]]])
    with torch.no_grad():
        torch.testing.assert_close(library(ids), lm(ids), atol=1e-5, rtol=1e-4)
    from data import load_tokenizer

    assert load_tokenizer(tmp_path / "model").encode(text) == mine.encode(text, vocabulary)


def test_the_command_names_the_open_parts_then_assembles(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(check, "BUILD", tmp_path)
    monkeypatch.setattr(check, "MY_MODEL", tmp_path / "mine" / "my_model.py")
    monkeypatch.setattr("sys.argv", ["notebooks.check", "assemble"])
    for name in check.CHECKS:
        code = (SOLUTIONS / f"{name}.py").read_text("utf-8")
        (tmp_path / f"{name}.py").write_text(code.replace("notebooks.solutions", "notebooks.build"), "utf-8")
    (tmp_path / "mlp.py").rename(tmp_path / "mlp.txt")
    assert check.main() == 1
    assert "These are open: mlp, block, model." in capsys.readouterr().out  # these two need it
    (tmp_path / "mlp.txt").rename(tmp_path / "mlp.py")
    assert check.main() == 0
    assert "20 of 20 equal to the last bit" in capsys.readouterr().out
