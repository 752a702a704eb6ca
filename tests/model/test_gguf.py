"""`model.export --to gguf`: the file holds this model and this tokenizer, and what llama.cpp lacks is refused."""

import json
import os
import subprocess
from dataclasses import asdict
from pathlib import Path

import gguf
import jinja2
import pytest
import torch
from transformers import AutoModelForCausalLM

from configs.command import InputError
from data.chat import segments
from data.reading.records import Conversation, Message
from data.tokenizer import pre_tokenizer
from model import generate
from model.export import WORDS, export
from model.families import family_of
from tests.conftest import random_model, tiny_config
from tests.model.export_models import GPT2, LLAMA, SENTENCES, WRITTEN, model, save_with_tokenizer, taught, tokenizer

LLAMA_CPP = Path(os.environ.get("HEADLIGHT_NODE_MODULES", Path(__file__).parents[2])) / "node_modules/node-llama-cpp"
NAMES = {  # ours -> llama.cpp's, within a layer
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip
OLMO2 = {"post_attention_layernorm": "post_attention_norm", "post_feedforward_layernorm": "post_ffw_norm"}
OUTSIDE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
           "model.embed_positions": "position_embd"}  # fmt: skip


def exported(tmp_path, lm) -> gguf.GGUFReader:
    export(save_with_tokenizer(lm, tmp_path / "model"), "gguf", tmp_path / "out")
    return gguf.GGUFReader(tmp_path / "out/model.gguf")


def their_name(name: str, family: str) -> str:
    module, _, kind = name.rpartition(".")
    if module in OUTSIDE:
        return f"{OUTSIDE[module]}.{kind}"
    _, _, layer, module = module.split(".", 3)
    return f"blk.{layer}.{(NAMES | OLMO2 if family == 'olmo2' else NAMES)[module]}.{kind}"


def turned_by_neighbours(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """Row by row: what lay at i and at i + D/2 of a head lies at 2i and 2i + 1."""
    rows, size = [], len(tensor) // heads
    for head in range(heads):
        for i in range(size // 2):
            rows += [tensor[head * size + i], tensor[head * size + i + size // 2]]
    return torch.stack(rows)


@pytest.mark.parametrize("name", WRITTEN)
def test_every_tensor_comes_back(tmp_path, name):
    lm = model(**WRITTEN[name])
    family, expected = family_of(lm.config).model_type, {}
    for ours, tensor in lm.state_dict().items():
        if not (ours == "lm_head.weight" and lm.config.tie_word_embeddings and family != "olmo2"):
            expected[ours] = tensor
    if family == "gpt2":  # queries, keys and values are one tensor there
        for layer in range(2):
            for kind in ("weight", "bias"):
                parts = [expected.pop(f"model.layers.{layer}.self_attn.{x}_proj.{kind}") for x in "qkv"]
                expected[f"model.layers.{layer}.self_attn.qkv_proj.{kind}"] = torch.cat(parts)
    if family in ("llama", "smollm3"):
        for ours in expected:
            heads = {"q": lm.config.num_attention_heads, "k": lm.config.kv_heads}.get(ours.split("_proj.")[0][-1])
            if "_proj." in ours and heads:
                expected[ours] = turned_by_neighbours(expected[ours], heads)
    found = {tensor.name: torch.from_numpy(tensor.data.copy()) for tensor in exported(tmp_path, lm).tensors}
    names = {their_name(ours.replace("qkv_proj", "q_proj"), family): tensor for ours, tensor in expected.items()}
    if family == "gpt2":
        names = {each.replace("attn_q.", "attn_qkv."): tensor for each, tensor in names.items()}
    assert found.keys() == names.keys()
    for each, tensor in names.items():
        assert torch.equal(found[each], tensor), each


@pytest.mark.parametrize("name", ["llama", "qwen3", "qwen2", "gpt2"])
def test_transformers_reads_the_file_and_gives_the_same_logits(tmp_path, name):
    only = {"gpt2": {"max_position_embeddings": 1024}, "qwen3": {"head_dim": 128}}.get(name, {})  # it reads no other
    lm = model(**WRITTEN[name] | only)
    exported(tmp_path, lm)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "out", gguf_file="model.gguf").eval()
    ids = torch.randint(0, lm.config.vocab_size, (2, 20))
    with torch.no_grad():
        tolerance = 1e-5 if name == "gpt2" else 0  # its products are added up in another order
        torch.testing.assert_close(lm(ids), theirs(ids).logits, rtol=tolerance, atol=tolerance)


def test_every_token_comes_back(tmp_path):
    reader, tokens = exported(tmp_path, model()), tokenizer()
    said = {key: reader.get_field(key).contents() for key in reader.fields if key.startswith("tokenizer.")}
    assert said["tokenizer.ggml.model"] == "gpt2"
    assert said["tokenizer.ggml.pre"] == "smollm"
    assert said["tokenizer.ggml.tokens"] == [tokens.backend.id_to_token(i) for i in range(tokens.vocab_size)]
    types = said["tokenizer.ggml.token_type"]
    assert [i for i, kind in enumerate(types) if kind == 3] == sorted(tokens.special_ids)
    assert set(types) == {1, 3}
    merges = json.loads(tokens.backend.to_str())["model"]["merges"]
    assert said["tokenizer.ggml.merges"] == [" ".join(pair) for pair in merges]
    roles = {role: said[f"tokenizer.ggml.{role}_token_id"] for role in ("bos", "eos", "padding")}
    assert roles == {"bos": tokens.bos_id, "eos": tokens.eos_id, "padding": tokens.pad_id}
    assert said["tokenizer.ggml.add_bos_token"] is True
    # other programs' Jinja has no {% generation %}
    chat = Conversation((Message("user", "Hi"), Message("assistant", " Yes\n", "Hm."), Message("user", "\n")))
    jinja = jinja2.Environment(trim_blocks=True, lstrip_blocks=True).from_string(said["tokenizer.chat_template"])
    rendered = jinja.render(messages=[asdict(message) for message in chat.messages], bos_token="<|bos|>")
    assert rendered == "".join(segment.text for segment in segments(chat))


def test_the_rule_that_splits_our_text_is_the_one_that_is_named():
    step = json.loads(pre_tokenizer().__getstate__())["pretokenizers"][1]
    assert step["pattern"]["Regex"].replace("{1,512}", "+") == WORDS


def test_a_chat_model_has_the_template_of_its_turns(tmp_path):
    exported(tmp_path, model(eos_token_id=[2, 5]))
    text = (tmp_path / "out/Modelfile").read_text()
    assert text.startswith("FROM ./model.gguf\nPARAMETER num_ctx 64\nTEMPLATE")
    assert "<|im_start|>{{ .Role }}\n{{ .Content }}<|im_end|>\n" in text
    assert "PARAMETER stop <|im_end|>\n" in text
    plain = export(save_with_tokenizer(model(), tmp_path / "story"), "gguf", tmp_path / "plain")
    assert (tmp_path / "plain/Modelfile").read_text().endswith('TEMPLATE """{{ .Prompt }}"""\n')
    assert (
        plain
        == f"{tmp_path}/plain/model.gguf: for llama.cpp. For Ollama: ollama create NAME -f {tmp_path}/plain/Modelfile"
    )


REFUSED = {
    "windows of qwen3": ({"sliding_window": 5}, "bpe", "llama.cpp ignores the sliding windows of qwen3"),
    "ministral": (LLAMA | {"sliding_window": 5}, "bpe", "ignores the sliding windows of ministral"),
    "mla": ({"attention": "mla", "num_key_value_heads": "mha", **LLAMA}, "bpe", "deepseek_v3 is not written"),
    "experts": ({"num_experts": 4}, "bpe", "the architecture qwen3_moe is not written"),
    "any parts": ({"loadable_elsewhere": False}, "bpe", "the architecture headlight is not written"),
    "activation": (LLAMA | {"hidden_act": "gelu"}, "bpe", "one activation for llama, and it is not gelu"),
    "activation of gpt2": (GPT2 | {"hidden_act": "relu"}, "bpe", "one activation for gpt2, and it is not relu"),
    "biases": ({"attention_bias": True}, "bpe", "llama.cpp has no attention_bias for qwen3"),
    "layers without RoPE": (LLAMA | {"no_rope_layers": [1, 0]}, "bpe", "three of four layers of smollm3"),
    "yarn": ({"rope_scaling": WRITTEN["qwen3, yarn"]["rope_scaling"] | {"beta_fast": 8.0}}, "bpe", "yarn is written"),
    "llama3": (LLAMA | {"rope_scaling": {"rope_type": "llama3", "factor": 4.0, "original_max_position_embeddings": 16,
               "low_freq_factor": 1.0, "high_freq_factor": 4.0}}, "bpe", "llama3 .rope_scaling. is not written"),
    "char": ({"vocab_size": 128}, "char", "has no name for how this tokenizer splits text"),
    "byte": ({"vocab_size": 320}, "byte", "has no name for how this tokenizer splits text"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_llama_cpp_would_compute_differently_is_refused(tmp_path, name):
    changes, kind, reason = REFUSED[name]
    lm = random_model(tiny_config(**({"vocab_size": 384} | changes)))
    save_with_tokenizer(lm, tmp_path / "model", kind)
    with pytest.raises(InputError, match=reason) as raised:
        export(tmp_path / "model", "gguf", tmp_path / "out")
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("normalizer", lambda told: told.update(normalizer={"type": "NFC"})),
        ("words", lambda told: told["pre_tokenizer"]["pretokenizers"][1]["pattern"].update(Regex="[a-z]+")),
        ("order", lambda told: told["pre_tokenizer"]["pretokenizers"].reverse()),
        ("none", lambda told: told.update(pre_tokenizer=None)),
    ],
)
def test_a_tokenizer_that_splits_otherwise_is_refused(tmp_path, part, change):
    file = save_with_tokenizer(model(), tmp_path / "model") / "tokenizer.json"
    told = json.loads(file.read_text())
    change(told)
    file.write_text(json.dumps(told))
    with pytest.raises(InputError, match="has no name for how this tokenizer splits text"):
        export(tmp_path / "model", "gguf", tmp_path / "out")


@pytest.mark.slow
@pytest.mark.skipif(not LLAMA_CPP.is_dir(), reason="npm's node-llama-cpp; HEADLIGHT_NODE_MODULES says where")
@pytest.mark.parametrize("name", WRITTEN)
def test_llama_cpp_gives_the_same_ids(tmp_path, name):
    """Every greedy id of a model that knows three sentences; the ids of odd texts; the probabilities.

    llama.cpp keeps keys and values in float16, so log p differs by some thousandths; 0.02 is allowed.
    """
    lm, tokens = taught(model(**WRITTEN[name])), tokenizer()
    exported(tmp_path, lm)
    prompts = [[tokens.bos_id, *tokens.encode(text)] for text in (SENTENCES[0], "Once there", "It's 20", "Ey")]
    asked = {"model": str(tmp_path / "out/model.gguf"), "context": 64, "prompts": prompts, "tokens": 20,
             "texts": SENTENCES, "vocabulary": tokens.vocab_size}  # fmt: skip
    command = ["node", Path(__file__).with_name("llama_cpp.mjs"), LLAMA_CPP.parents[1]]
    done = subprocess.run(command, input=json.dumps(asked), capture_output=True, encoding="utf-8", timeout=120)
    assert done.returncode == 0, done.stderr
    theirs = json.loads(done.stdout)
    assert theirs["begins"] is True
    assert theirs["ids"] == [tokens.encode(text) for text in SENTENCES]
    greedy = [generate(lm, torch.tensor([ids]), max_new_tokens=20, temperature=0, stop_ids=()) for ids in prompts]
    assert theirs["greedy"] == [ids[0, -20:].tolist() for ids in greedy]
    with torch.no_grad():
        ours = lm(torch.tensor(prompts[:1]))[0].log_softmax(-1)
    found = torch.tensor(theirs["probabilities"])
    assert (ours - found.log())[found > 1e-5].abs().max() < 0.02
