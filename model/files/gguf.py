"""GGUF, the one file that llama.cpp reads: the architecture, the weights under its names, and the tokenizer.

What llama.cpp would compute differently without a word is refused here.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
from jinja2.sandbox import ImmutableSandboxedEnvironment

from configs.command import InputError
from configs.files import read_json, read_text
from model.config import ModelConfig
from model.files.checkpoint import load, new_directory, read_config, run_name
from model.files.families import family_of
from model.transformer import LanguageModel

NEIGHBOURS = ("llama", "smollm3")  # llama.cpp turns neighbours (0, 1) together, and stores the rows of q and k so
QUERY_OR_KEY = re.compile(r"self_attn\.([qk])_proj\.(weight|bias)$")
# only transformers knows these tags; an empty comment treats the spaces around it alike
GENERATION = re.compile(r"\{%([+-]?)\s*(?:end)?generation\s*([+-]?)%\}")
NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5  # llama.cpp's types of tokens
TURN_END = "<|im_end|>"
CHAT = f"""\
TEMPLATE \"\"\"{{{{ range .Messages }}}}<|im_start|>{{{{ .Role }}}}
{{{{ .Content }}}}{TURN_END}
{{{{ end }}}}<|im_start|>assistant
\"\"\"
PARAMETER stop {TURN_END}
"""
SYSTEM = 'SYSTEM """{}"""\n'
COMPLETION = 'TEMPLATE """{{ .Prompt }}"""\n'


def write_gguf(directory: Path, out: Path, dtype: str | None = None) -> str:
    """Write `model.gguf` and a `Modelfile` for Ollama. Raises InputError."""
    config = read_config(directory)
    if reason := not_in_llama_cpp(config):
        raise InputError(f"{directory}: GGUF: {reason}")
    tokenizer = _read_tokenizer(directory, config.vocab_size or 0)
    try:
        import gguf
    except ImportError:
        raise InputError("GGUF is written by the package gguf, which is not installed: pip install gguf") from None
    wanted = gguf.GGMLQuantizationType[(dtype or "f32").upper()]
    ends, scaling, has_rope = config.end_ids, config.rope_scaling, config.position_embedding == "rope"
    settings = {  # what GGUFWriter's `add_…` take; None: this architecture has no such number
        "name": run_name(directory),
        "file_type": gguf.LlamaFileType["ALL_F32" if wanted.name == "F32" else f"MOSTLY_{wanted.name}"],
        "quantization_version": gguf.GGML_QUANT_VERSION,
        "vocab_size": config.vocab_size,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": config.intermediate_size,
        "head_count": config.num_attention_heads,
        "head_count_kv": config.kv_heads,
        "key_length": config.head_size,
        "value_length": config.value_size,
        "layer_norm_rms_eps" if config.norm == "rmsnorm" else "layer_norm_eps": config.rms_norm_eps,
        "rope_dimension_count": config.rotary_size if has_rope else None,
        "rope_freq_base": config.rope_theta if has_rope else None,
        "rope_scaling_type": gguf.RopeScalingType(scaling.rope_type) if scaling else None,
        "rope_scaling_factor": scaling.factor if scaling else None,
        "rope_scaling_orig_ctx_len": scaling.original_max_position_embeddings if scaling else None,
        "bos_token_id": config.bos_token_id,
        "pad_token_id": config.pad_token_id,
        "eos_token_id": ends[0] if ends else None,
        "eot_token_id": ends[1] if len(ends) > 1 else None,
    }
    lm = load(directory)
    with new_directory(out) as folder:
        writer = gguf.GGUFWriter(folder / "model.gguf", family_of(config).model_type)
        for key, value in (settings | tokenizer).items():
            if value is not None:
                getattr(writer, f"add_{key}")(value)
        for key, array in _gguf_tensors(gguf, lm).items():
            # as llama.cpp's own converter: norms, biases and learned positions are never rounded
            kind = wanted if array.ndim == 2 and key != "position_embd.weight" else gguf.GGMLQuantizationType.F32
            if array.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0]:  # Q8_0 has blocks of 32 numbers
                kind = gguf.GGMLQuantizationType.F16
            writer.add_tensor(key, gguf.quantize(np.ascontiguousarray(array), kind), raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        # a model whose texts end with a turn chats; another one continues a text
        is_chat = TURN_END in [tokenizer["token_list"][end] for end in ends if end >= 0]
        modelfile = f"FROM ./model.gguf\nPARAMETER num_ctx {config.max_position_embeddings}\n"
        system = _default_system(tokenizer["chat_template"]) if is_chat else ""
        if system and '"""' not in system:  # which would end it
            modelfile += SYSTEM.format(system)
        (folder / "Modelfile").write_text(modelfile + (CHAT if is_chat else COMPLETION), encoding="utf-8")
    return f"{out / 'model.gguf'}: for llama.cpp. For Ollama: ollama create NAME -f {out / 'Modelfile'}"


def _default_system(template: str | None) -> str:
    """The system message that a chat template writes where a conversation has none; "" for none."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    try:
        text = environment.from_string(template or "").render(messages=[{"role": "user", "content": ""}])
    except Exception:  # whatever a stranger's program may raise
        return ""
    system = re.search(rf"<\|im_start\|>system\n(.*?){re.escape(TURN_END)}", text, re.DOTALL)
    return system[1] if system else ""


def not_in_llama_cpp(config: ModelConfig) -> str | None:
    """Why llama.cpp cannot compute this model, or None. Each of these was tried, or is fixed in llama.cpp's source."""
    family, scaling = family_of(config).model_type, config.rope_scaling
    activations = ("gelu_new", "gelu_pytorch_tanh") if family == "gpt2" else ("silu",)
    three_of_four = [bool((i + 1) % 4) for i in range(config.num_hidden_layers)]
    if "sliding_attention" in (config.layer_types or []):
        return f"llama.cpp ignores the sliding windows of {family}, and would compute something else"
    if family not in ("llama", "qwen2", "qwen3", "olmo2", "smollm3", "gpt2"):
        return f"the architecture {family} is not written (llama, qwen2, qwen3, olmo2, smollm3 and gpt2 are)"
    if config.hidden_act not in activations:
        return f"llama.cpp has one activation for {family}, and it is not {config.hidden_act}"
    if config.attention_bias and family not in ("llama", "gpt2"):
        return f"llama.cpp has no attention_bias for {family}"
    if family == "smollm3" and config.rotates != three_of_four:
        return "llama.cpp has RoPE in three of four layers of smollm3, as no_rope_layers: [1, 1, 1, 0] says"
    if scaling and scaling.rope_type == "llama3":
        return "llama3 (rope_scaling) is not written; linear and yarn are"
    if scaling and (scaling.beta_fast, scaling.beta_slow, scaling.attention_factor) != (32.0, 1.0, None):
        return "yarn is written with its own beta_fast, beta_slow and attention_factor only (rope_scaling)"
    return None


def _gguf_tensors(gguf: Any, lm: LanguageModel) -> dict[str, np.ndarray]:
    """Every weight under llama.cpp's name, in the layout that it multiplies with."""
    config, family, state = lm.config, family_of(lm.config), lm.state_dict()
    architecture = next(number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == family.model_type)
    names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    if config.tie_word_embeddings and family.model_type != "olmo2":  # which has no tied form there
        del state["lm_head.weight"]
    tensors = {}
    for name, tensor in family.to_files(state).items():
        array = tensor.float().numpy()
        if family.model_type == "gpt2" and array.ndim == 2 and ".h." in name:
            array = array.T  # GPT-2's files have (inputs, outputs)
        if (match := QUERY_OR_KEY.search(name)) and family.model_type in NEIGHBOURS:
            # head by head, the pairs (i, i + D/2) that RoPE turns together become (2i, 2i + 1)
            heads = config.num_attention_heads if match[1] == "q" else config.kv_heads
            halves = array.reshape(heads, 2, -1, *array.shape[1:])  # (heads, 2, D/2, …)
            array = halves.swapaxes(1, 2).reshape(array.shape)
        tensors[names.get_name(name, try_suffixes=(".weight", ".bias"))] = array
    return tensors


# GPT-2's words. Ours have a longest one (data/tokenizer.py): with more than 512 letters in a row, ids may differ.
WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
RULES = {  # steps of a tokenizer.json -> llama.cpp's name; SmolLM and GPT-2 had these rules first
    ("digits", "words", "bytes"): "smollm",
    ("digits", "words as bytes"): "smollm",
    ("words as bytes",): "gpt-2",
}


def _read_tokenizer(directory: Path, vocab_size: int) -> dict[str, Any]:
    """What GGUFWriter's `add_…` take. Raises InputError for a tokenizer whose ids would be others in llama.cpp, which
    knows rules of splitting by name (`tokenizer.ggml.pre`).

    Ids that no token has (rows of the embedding that are left over) are unused tokens.
    """
    file = directory / "tokenizer.json"
    fields = read_json(file)
    bpe, rule = fields["model"], fields.get("pre_tokenizer") or {}
    is_bpe = bpe.get("type") == "BPE" and not bpe.get("byte_fallback") and not bpe.get("ignore_merges")
    steps = tuple(map(_kind, rule["pretokenizers"] if rule.get("type") == "Sequence" else [rule]))
    if not is_bpe or fields.get("normalizer") is not None or steps not in RULES:
        raise InputError(f"{file}: GGUF: llama.cpp has no name for how this tokenizer splits text: use bpe")
    by_id = {number: (token, NORMAL) for token, number in bpe["vocab"].items()}
    for token in fields.get("added_tokens", []):
        by_id[token["id"]] = (token["content"], CONTROL if token["special"] else USER_DEFINED)
    if (last := max(by_id, default=0)) >= vocab_size:
        raise InputError(f"{file}: has id {last}, and the model {vocab_size} ids: they do not belong together")
    rows = [by_id.get(number, (f"[PAD{number}]", UNUSED)) for number in range(vocab_size)]
    file, template = directory / "tokenizer_config.json", directory / "chat_template.jinja"
    settings = read_json(file) if file.is_file() else {}
    chat_template = read_text(template) if template.is_file() else settings.get("chat_template")
    return {
        "tokenizer_model": "gpt2",  # byte-level BPE
        "tokenizer_pre": RULES[steps],
        "token_list": [token for token, _ in rows],
        "token_types": [kind for _, kind in rows],
        "token_merges": [merge if isinstance(merge, str) else " ".join(merge) for merge in bpe["merges"]],
        "add_bos_token": settings.get("add_bos_token", False),
        "chat_template": GENERATION.sub(r"{#\1 \2#}", chat_template) if chat_template else None,
    }


def _kind(step: Any) -> str:
    match step:
        case {"type": "Digits", "individual_digits": True}:
            return "digits"
        case {"type": "Split", "pattern": {"Regex": str(words)}, "behavior": "Isolated", "invert": False}:
            return "words" if re.sub(r"\{1,\d+\}", "+", words) == WORDS else ""
        case {"type": "ByteLevel", "add_prefix_space": False, "use_regex": bool(splits)}:
            return "words as bytes" if splits else "bytes"
    return ""
