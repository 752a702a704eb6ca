"""Fewer key/value heads: means of neighbours. More: the same function. And a directory that appears whole or not."""

import sys
from unittest.mock import Mock

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer

from configs.command import exit_on_bad_input
from data import load_tokenizer
from data.config import TokenizerConfig
from data.tokenizer import train_tokenizer
from model import LanguageModel, load, save
from model import convert_kv_heads as module
from model.convert_kv_heads import convert_kv_heads
from tests.conftest import random_model, tiny_config
from tests.train.helpers import run_module

IDS = torch.randint(0, 192, (3, 40), generator=torch.Generator().manual_seed(1))


def twelve_heads(kv_heads: int, **changes) -> LanguageModel:
    """12 query heads of size 8, so that 1, 2, 3, 4, 6 and 12 all divide."""
    return random_model(tiny_config(hidden_size=96, num_attention_heads=12, num_key_value_heads=kv_heads, **changes))


def logits(lm: LanguageModel, ids=IDS) -> torch.Tensor:
    with torch.no_grad():
        return lm(ids)


@pytest.fixture
def sums_row_by_row(monkeypatch):
    """Linear layers that sum every output number by itself. A BLAS picks its kernel, and with it the order of
    summation, by the width of the matrix: with it, a wider `k_proj` may round the same sum to another bit, by 8e-6 of
    the largest logit at worst (of 3,960 pairs 436 differed; tests/model/test_families.py has one a family)."""
    monkeypatch.setattr(F, "linear", lambda x, weight, bias=None: (x[..., None, :] * weight).sum(-1))


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("qk_norm", [True, False], ids=["qk_norm", "plain"])
@pytest.mark.parametrize(("present", "wanted"), [(1, 2), (1, 12), (2, 4), (3, 12), (6, 12), (4, 4)])
def test_repeated_heads_give_the_same_logits(sums_row_by_row, present, wanted, qk_norm, implementation):
    lm = twelve_heads(present, qk_norm=qk_norm)
    more = convert_kv_heads(lm, wanted)
    assert more.config.kv_heads == wanted
    assert more.model.layers[1].self_attn.v_proj.weight.shape == (wanted * 8, 96)
    for each in (lm, more):
        each.set_attn_implementation(implementation)
    assert torch.equal(logits(lm), logits(more))


@pytest.mark.parametrize(("present", "wanted"), [(12, 6), (12, 4), (6, 2), (4, 1)])
def test_a_pooled_head_is_the_mean_of_the_heads_of_its_group(present, wanted):
    lm = twelve_heads(present)
    pooled = convert_kv_heads(lm, wanted)
    group = present // wanted
    for old, new in zip(lm.attention_modules(), pooled.attention_modules(), strict=True):
        for name in ("k_proj", "v_proj"):
            rows, mean = getattr(old, name).weight, getattr(new, name).weight
            for head in range(wanted):
                members = [rows[i * 8 : (i + 1) * 8] for i in range(head * group, (head + 1) * group)]
                torch.testing.assert_close(mean[head * 8 : (head + 1) * 8], sum(members) / group)


def test_everything_but_keys_and_values_stays():
    lm = twelve_heads(12)
    pooled = convert_kv_heads(lm, 3).state_dict()
    for name, tensor in lm.state_dict().items():
        assert torch.equal(pooled[name], tensor) != name.endswith(("k_proj.weight", "v_proj.weight")), name


def keys_of_the_first_layer(lm: LanguageModel) -> torch.Tensor:
    """(B, H_kv, T, D), after QK-norm and RoPE."""
    seen = []
    lm.attention_modules()[0].recorder = lambda layer, q, k, *rest: seen.append(k)
    logits(lm)
    return seen[0]


def test_without_qk_norm_a_pooled_key_is_the_mean_of_the_keys():
    lm = twelve_heads(12, qk_norm=False)
    mean = keys_of_the_first_layer(lm).unflatten(1, (4, 3)).mean(dim=2)
    torch.testing.assert_close(keys_of_the_first_layer(convert_kv_heads(lm, 4)), mean, rtol=1e-4, atol=1e-5)


def test_with_qk_norm_a_pooled_key_is_as_long_as_the_keys_were():
    lm = twelve_heads(12)
    for attention in lm.attention_modules():
        attention.k_norm.weight.data.fill_(1.5)  # one gain, so that every normalised key has the same length
    keys, pooled = keys_of_the_first_layer(lm), keys_of_the_first_layer(convert_kv_heads(lm, 4))
    mean = keys.unflatten(1, (4, 3)).mean(dim=2)
    length = 1.5 * 8**0.5
    torch.testing.assert_close(pooled.norm(dim=-1), torch.full((3, 4, 40), length), rtol=1e-3, atol=0)
    assert mean.norm(dim=-1).mean() < 0.8 * length  # heads that disagree: their mean is short


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_the_model_given_and_the_random_state_stay_as_they_are(tied):
    lm = twelve_heads(12, tie_word_embeddings=tied)
    lm.set_attn_implementation("eager")
    before, random_state = logits(lm), torch.get_rng_state()
    pooled = convert_kv_heads(lm, 2)
    assert torch.equal(torch.get_rng_state(), random_state)
    assert pooled.attn_implementation == "eager"
    assert not pooled.training
    assert (pooled.lm_head.weight is pooled.model.embed_tokens.weight) == tied
    with torch.no_grad():
        for parameter in pooled.parameters():
            parameter.zero_()
    assert torch.equal(logits(lm), before)
    assert convert_kv_heads(lm.double().train(), 2).lm_head.weight.dtype == torch.float64
    assert convert_kv_heads(lm, 2).training


@pytest.mark.parametrize(
    ("present", "wanted", "allowed"),
    [(12, 5, "1, 2, 3, 4, 6, 12"), (12, 24, "1, 2"), (6, 4, "1, 2, 3, 6, 12"), (6, 0, "1, 2"), (6, -2, "1, 2")],
)
def test_counts_that_do_not_fit_are_refused_and_the_ones_that_do_are_named(present, wanted, allowed):
    with pytest.raises(ValueError, match=rf"num_key_value_heads \({wanted}\) does not fit .*: use {allowed}"):
        convert_kv_heads(twelve_heads(present), wanted)


@pytest.fixture
def run(tmp_path):
    """What a run leaves behind, as far as this command looks at it: 4 query heads, 4 key/value heads."""
    tokenizer = train_tokenizer(TokenizerConfig(kind="byte"), [])
    newest = tmp_path / "runs/mha/checkpoints/step_00000004"
    save(random_model(tiny_config(vocab_size=tokenizer.vocab_size, num_key_value_heads=4)), newest)
    tokenizer.save(newest)
    (newest / "chat_template.jinja").write_text("{{ messages }}")
    (newest / "optimizer.safetensors").write_text("not copied")
    newest.with_name("latest").write_text("step_00000004\n")
    (tmp_path / "runs/mha/config.yaml").write_text("name: mha\n")
    return tmp_path / "runs/mha"


def test_the_command_writes_a_hugging_face_directory_that_can_be_trained_on(run):
    out = run.parent / "gqa_start"
    done = run_module("model.convert_kv_heads", run, "--num-key-value-heads", 2, "--out", out)
    assert (done.returncode, done.stderr) == (0, "")
    first, second = done.stdout.splitlines()
    fewer = 2 * 2 * 2 * 8 * 32  # layers, k and v, heads, head_dim, hidden_size
    before = load(run).num_parameters()
    assert f"4 -> 2 key-value heads; {before:,} -> {before - fewer:,} parameters; 512 -> 256 bytes" in first
    config = f"train.pretrain {run}/config.yaml name=gqa_start_trained init_from={out} model.num_key_value_heads=2"
    assert config in second

    expected = convert_kv_heads(load(run), 2)
    theirs, info = AutoModelForCausalLM.from_pretrained(out, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert torch.equal(logits(load(out)), logits(expected))
    with torch.no_grad():
        assert torch.equal(theirs(IDS).logits, logits(expected))
    assert load_tokenizer(out).encode("fox") == load_tokenizer(run).encode("fox")
    assert AutoTokenizer.from_pretrained(out)("fox").input_ids[1:] == load_tokenizer(run).encode("fox")
    names = "chat_template.jinja config.json generation_config.json model.safetensors tokenizer.json"
    assert sorted(file.name for file in out.iterdir()) == [*names.split(), "tokenizer_config.json"]


def test_what_cannot_be_is_one_line_and_changes_nothing(run, monkeypatch, capsys):
    weights, out = run / "checkpoints/step_00000004/model.safetensors", run.parent / "out"

    def refused(heads, target, reason):
        monkeypatch.setattr(sys, "argv", f"convert {run} --num-key-value-heads {heads} --out {target}".split())
        with pytest.raises(SystemExit) as stopped:
            exit_on_bad_input(module.main)
        printed = capsys.readouterr()
        assert (stopped.value.code, printed.out, printed.err.count("\n")) == (2, "", 1)
        assert reason in printed.err
        assert [file.name for file in run.parent.iterdir()] == ["mha"]

    refused(2, run, f"--out: {run} exists")
    refused(3, out, "num_key_value_heads (3) does not fit")
    with monkeypatch.context() as patch:
        patch.setattr("shutil.copyfile", Mock(side_effect=OSError(28, "No space left on device")))
        refused(2, out, "No space left on device")
    weights.write_bytes(weights.read_bytes()[:-10])
    refused(2, out, f"{weights}: cannot be read")
