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
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from configs.command import InputError
from data.chat import segments
from data.reading.messages import Message
from data.reading.records import Conversation
from model import generate
from model.export import export
from model.files.families import family_of
from tests.conftest import GPT2, LATENT, random_model, tiny_config
from tests.model.files.export_models import (
    LLAMA,
    SENTENCES,
    WRITTEN,
    YARN,
    model,
    save_with_tokenizer,
    taught,
    tokenizer,
)

LLAMA_CPP = Path(os.environ.get("HEADLIGHT_NODE_MODULES", Path(__file__).parents[3])) / "node_modules/node-llama-cpp"


def exported(tmp_path, lm, dtype=None) -> gguf.GGUFReader:
    export(save_with_tokenizer(lm, tmp_path / "model"), "gguf", tmp_path / "out", dtype)
    return gguf.GGUFReader(tmp_path / "out/model.gguf")


@pytest.mark.parametrize("name", WRITTEN)
def test_every_tensor_comes_back(tmp_path, name):
    """Under llama.cpp's name for transformers' name; where it turns neighbours, with the rows of a head in its order:
    what lay at i and at i + D/2 lies at 2i and 2i + 1."""
    lm = model(**WRITTEN[name])
    found = {tensor.name: torch.from_numpy(tensor.data.copy()) for tensor in exported(tmp_path, lm).tensors}
    theirs = load_file(tmp_path / "model/model.safetensors")
    family = family_of(lm.config).model_type
    if family == "olmo2":  # which has no tied form there
        theirs.setdefault("lm_head.weight", lm.lm_head.weight.detach())
    architecture = next(number for number, known in gguf.MODEL_ARCH_NAMES.items() if known == family)
    names = gguf.get_tensor_name_map(architecture, lm.config.num_hidden_layers)
    for ours, tensor in theirs.items():
        heads = {"q": lm.config.num_attention_heads, "k": lm.config.kv_heads}.get(ours.partition("_proj.")[0][-1])
        if family in ("llama", "smollm3") and heads and "_proj." in ours:
            D = len(tensor) // heads
            order = [head * D + i + half for head in range(heads) for i in range(D // 2) for half in (0, D // 2)]
            tensor = tensor[order]
        elif family == "gpt2" and ".h." in ours and tensor.ndim == 2:
            tensor = tensor.T
        assert torch.equal(found.pop(names.get_name(ours, try_suffixes=(".weight", ".bias"))), tensor), ours
    assert not found


def as_float(tensor):
    return torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type).copy())


@pytest.mark.parametrize("name", ["llama", "gpt2"])
@pytest.mark.parametrize(
    ("dtype", "kind", "rounding"),
    [("f16", 1, 2**-11), ("bf16", 32, 2**-8), ("q8_0", 7, 1 / 250)],  # 127 steps to each side, and their size rounded
)
def test_matrices_are_rounded_and_nothing_else(tmp_path, name, dtype, kind, rounding):
    lm = model(**WRITTEN[name])
    (tmp_path / "whole").mkdir()
    whole = {tensor.name: as_float(tensor) for tensor in exported(tmp_path / "whole", lm).tensors}
    reader = exported(tmp_path, lm, dtype)
    assert reader.get_field("general.file_type").contents() == kind
    sizes = [(tmp_path / place / "model.gguf").stat().st_size for place in ("out", "whole/out")]
    assert sizes[0] < 0.75 * sizes[1]
    for tensor in reader.tensors:
        is_matrix = len(tensor.shape) == 2 and tensor.name != "position_embd.weight"
        expected = whole.pop(tensor.name)
        largest = expected.abs().max() * rounding if is_matrix else 0
        torch.testing.assert_close(as_float(tensor), expected, rtol=0, atol=float(largest))
        stored = "F32" if not is_matrix else dtype.upper() if tensor.shape[0] % 32 == 0 else tensor.tensor_type.name
        assert tensor.tensor_type.name == stored
        assert tensor.tensor_type.name in ("F32", "F16", dtype.upper())  # Q8_0 needs rows of a multiple of 32
    assert not whole


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


def test_a_chat_model_has_the_template_of_its_turns(tmp_path):
    exported(tmp_path, model(eos_token_id=[2, 5]))
    text = (tmp_path / "out/Modelfile").read_text()
    assert text.startswith("FROM ./model.gguf\nPARAMETER num_ctx 64\nTEMPLATE")
    assert "<|im_start|>{{ .Role }}\n{{ .Content }}<|im_end|>\n" in text
    assert "PARAMETER stop <|im_end|>\n" in text
    export(save_with_tokenizer(model(), tmp_path / "story"), "gguf", tmp_path / "plain")
    assert (tmp_path / "plain/Modelfile").read_text().endswith('TEMPLATE """{{ .Prompt }}"""\n')


SMOLLM2 = """{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}\
{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}\
{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}\
{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""


@pytest.mark.parametrize("template", [SMOLLM2, "{{ nothing.at.all }}"])
def test_a_system_message_that_the_template_writes_by_itself_is_kept(tmp_path, template):
    directory = save_with_tokenizer(model(eos_token_id=[2, 5]), tmp_path / "model")
    (directory / "chat_template.jinja").write_text(template)
    export(directory, "gguf", tmp_path / "out")
    text = (tmp_path / "out/Modelfile").read_text()
    system = 'SYSTEM """You are a helpful AI assistant named SmolLM, trained by Hugging Face"""\n'
    assert (system in text) == (template == SMOLLM2)
    assert ("SYSTEM" in text) == (template == SMOLLM2)


REFUSED = {
    "windows of qwen3": ({"sliding_window": 5}, "bpe", "llama.cpp ignores the sliding windows of qwen3"),
    "mla": (LATENT, "bpe", "deepseek_v3 is not written"),
    "experts": ({"num_experts": 4}, "bpe", "qwen3_moe is not written"),
    "any parts": ({"loadable_elsewhere": False}, "bpe", "headlight is not written"),
    "activation": (LLAMA | {"hidden_act": "gelu"}, "bpe", "one activation for llama, and it is not gelu"),
    "activation of gpt2": (GPT2 | {"hidden_act": "relu"}, "bpe", "one activation for gpt2, and it is not relu"),
    "biases": ({"attention_bias": True}, "bpe", "llama.cpp has no attention_bias for qwen3"),
    "layers without RoPE": (LLAMA | {"no_rope_layers": [1, 0]}, "bpe", "builds smollm3 with no_rope_layers"),
    "yarn": ({"rope_scaling": YARN | {"beta_fast": 8.0}}, "bpe", "yarn needs its default beta_fast"),
    "llama3": (LLAMA | {"rope_scaling": {"rope_type": "llama3", "factor": 4.0, "original_max_position_embeddings": 16,
               "low_freq_factor": 1.0, "high_freq_factor": 4.0}}, "bpe", "llama3 is not written"),
    "char": ({"vocab_size": 128}, "char", "has no name for how this tokenizer splits text"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_llama_cpp_would_compute_differently_is_refused(tmp_path, name):
    changes, kind, reason = REFUSED[name]
    lm = random_model(tiny_config(**({"vocab_size": 384} | changes)))
    save_with_tokenizer(lm, tmp_path / "model", kind)
    with pytest.raises(InputError, match=reason):
        export(tmp_path / "model", "gguf", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "change",
    [
        lambda told: told.update(normalizer={"type": "NFC"}),
        lambda told: told["pre_tokenizer"]["pretokenizers"][1]["pattern"].update(Regex="[a-z]+"),
        lambda told: told["pre_tokenizer"]["pretokenizers"].reverse(),
        lambda told: told.update(pre_tokenizer=None),
    ],
    ids=["normalizer", "words", "order", "none"],
)
def test_a_tokenizer_that_splits_otherwise_is_refused(tmp_path, change):
    file = save_with_tokenizer(model(), tmp_path / "model") / "tokenizer.json"
    told = json.loads(file.read_text())
    change(told)
    file.write_text(json.dumps(told))
    with pytest.raises(InputError, match="has no name for how this tokenizer splits text"):
        export(tmp_path / "model", "gguf", tmp_path / "out")


@pytest.mark.slow
@pytest.mark.skipif(not LLAMA_CPP.is_dir(), reason="npm's node-llama-cpp; HEADLIGHT_NODE_MODULES says where")
@pytest.mark.parametrize(
    ("name", "dtype"), [*((name, None) for name in WRITTEN), ("gpt2", "f16"), ("qwen3", "bf16"), ("llama", "q8_0")]
)
def test_llama_cpp_gives_the_same_ids(tmp_path, name, dtype):
    """Every greedy id of a model that knows three sentences; the ids of odd texts; the probabilities.

    llama.cpp keeps keys and values in float16, so log p differs by some thousandths; 0.02 is allowed.
    """
    lm, tokens = taught(model(**WRITTEN[name])), tokenizer()
    exported(tmp_path, lm, dtype)
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
    written = [ids[0, -20:].tolist() for ids in greedy]
    if dtype is not None:  # rounded, it may go on in another way behind the sentences that it knows
        lengths = [ids.index(2) + 1 if 2 in ids else 20 for ids in written]
        written, theirs["greedy"] = (
            [ids[:length] for ids, length in zip(rows, lengths, strict=True)] for rows in (written, theirs["greedy"])
        )
    assert theirs["greedy"] == written
    with torch.no_grad():
        ours = lm(torch.tensor(prompts[:1]))[0].log_softmax(-1)
    found = torch.tensor(theirs["probabilities"])
    likely, allowed = (1e-5, 0.02) if dtype is None else (0.1, 0.2)
    assert (ours - found.log())[found > likely].abs().max() < allowed
