"""Fewer key/value heads: means of neighbours.

More: the same function. And the command that writes the new model.
"""

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM

from data import load_tokenizer
from model import LanguageModel, load, save
from model.convert_kv_heads import convert_kv_heads
from tests.conftest import GPT2, random_model, tiny_config
from tests.model.files.export_models import model, save_with_tokenizer
from tests.processes import run_module

IDS = torch.randint(0, 192, (3, 40), generator=torch.Generator().manual_seed(1))


def twelve_heads(kv_heads: int, **changes) -> LanguageModel:
    """12 query heads of size 8, so that 1, 2, 3, 4, 6 and 12 all divide."""
    return random_model(tiny_config(hidden_size=96, num_attention_heads=12, num_key_value_heads=kv_heads, **changes))


@torch.no_grad()
def logits(lm: LanguageModel) -> torch.Tensor:
    return lm(IDS)


@pytest.fixture
def sums_row_by_row(monkeypatch):
    """Linear layers that sum every output number by itself. A BLAS picks its kernel, and with it
    the order of summation, by the width of the matrix: with it, a wider `k_proj` may round the same
    sum to another bit, by 8e-6 of the largest logit at worst (of 3,960 pairs 436 differed;
    tests/model/files/test_families.py has one a family).
    """
    monkeypatch.setattr(F, "linear", lambda x, weight, bias=None: (x[..., None, :] * weight).sum(-1))


@pytest.mark.usefixtures("sums_row_by_row")
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("parts", [{}, {"qk_norm": False}, {"smear_keys": True}], ids=["qk_norm", "plain", "smeared"])
@pytest.mark.parametrize(("present", "wanted"), [(1, 2), (2, 4), (3, 12), (4, 4)])
def test_repeated_heads_give_the_same_logits(present, wanted, parts, implementation):
    lm = twelve_heads(present, **parts)
    lm.set_attn_implementation(implementation)
    more = convert_kv_heads(lm, wanted)
    assert more.attn_implementation == implementation
    assert more.model.layers[1].self_attn.v_proj.weight.shape == (wanted * 8, 96)
    assert torch.equal(logits(lm), logits(more))


@pytest.mark.parametrize(("present", "wanted"), [(12, 6), (12, 4), (6, 2), (4, 1)])
def test_a_pooled_head_is_the_mean_of_the_heads_of_its_group_and_all_else_stays(present, wanted):
    lm = twelve_heads(present)
    before = lm.state_dict()
    pooled = convert_kv_heads(lm, wanted).state_dict()
    group = present // wanted
    for name, rows in before.items():
        if not name.endswith(("k_proj.weight", "v_proj.weight")):
            assert torch.equal(pooled[name], rows), name
            continue
        for head in range(wanted):
            members = [rows[i * 8 : (i + 1) * 8] for i in range(head * group, (head + 1) * group)]
            torch.testing.assert_close(pooled[name][head * 8 : (head + 1) * 8], sum(members) / group)


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_the_model_given_and_the_random_state_stay_as_they_are(tied):
    lm = twelve_heads(12, tie_word_embeddings=tied)
    before = logits(lm)
    random_state = torch.get_rng_state()
    pooled = convert_kv_heads(lm, 2)
    assert torch.equal(torch.get_rng_state(), random_state)
    assert not pooled.training
    assert (pooled.lm_head.weight is pooled.model.embed_tokens.weight) == tied
    with torch.no_grad():
        for parameter in pooled.parameters():
            parameter.zero_()
    assert torch.equal(logits(lm), before)
    again = convert_kv_heads(lm.double().train(), 2)
    assert (again.training, again.lm_head.weight.dtype) == (True, torch.float64)


@pytest.mark.parametrize(
    ("present", "wanted", "allowed"), [(12, 5, "1, 2, 3, 4, 6, 12"), (6, 4, "1, 2, 3, 6, 12"), (6, 0, "1, 2")]
)
def test_counts_that_do_not_fit_are_refused_and_the_ones_that_do_are_named(present, wanted, allowed):
    with pytest.raises(ValueError, match=rf"\({wanted}\) does not fit .*: use {allowed}"):
        convert_kv_heads(twelve_heads(present), wanted)
    with pytest.raises(ValueError, match="use 4"):  # each of its heads has its own
        convert_kv_heads(random_model(tiny_config(**GPT2)), 2)


def test_the_command_writes_a_model_directory_that_can_be_trained_on(tmp_path):
    source = save_with_tokenizer(model(num_key_value_heads=4), tmp_path / "mha")
    out = tmp_path / "gqa"
    (source / "chat_template.jinja").write_text("{{ messages }}")
    (source / "optimizer.safetensors").write_text("not copied")
    done = run_module("model.convert_kv_heads", source, "--num-key-value-heads", 2, "--out", out)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"init_from={out} model.num_key_value_heads=2" in done.stdout

    expected = logits(convert_kv_heads(load(source), 2))
    assert torch.equal(logits(load(out)), expected)
    with torch.no_grad():
        assert torch.equal(AutoModelForCausalLM.from_pretrained(out)(IDS).logits, expected)
    assert load_tokenizer(out).encode("fox") == load_tokenizer(source).encode("fox")
    names = "chat_template.jinja config.json generation_config.json model.safetensors tokenizer.json"
    assert sorted(file.name for file in out.iterdir()) == [*names.split(), "tokenizer_config.json"]


def test_what_cannot_be_is_one_line_and_changes_nothing(tmp_path):
    source = tmp_path / "mha"
    out = tmp_path / "out"
    save(random_model(tiny_config(num_key_value_heads=4)), source)

    def refused(heads, target, reason):
        done = run_module("model.convert_kv_heads", source, "--num-key-value-heads", heads, "--out", target)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert reason in done.stderr
        assert [file.name for file in tmp_path.iterdir()] == ["mha"]

    refused(2, source, f"--out: {source} exists")
    refused(3, out, "num_key_value_heads (3) does not fit")
    weights = source / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    refused(2, out, f"{weights}: cannot be read")
