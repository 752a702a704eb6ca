"""GGUF, the one file that llama.cpp reads: architecture, weights under its names, and tokenizer.

A model that llama.cpp would compute differently, without an error, is refused.
"""

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

# In these, llama.cpp rotates neighbours (0, 1) together, and expects the rows of q and k so.
NEIGHBOURS = ("llama", "smollm3")
QUERY_OR_KEY = re.compile(r"self_attn\.([qk])_proj\.(weight|bias)$")
# Only transformers has these tags; an empty comment in their place treats spaces in the same way.
GENERATION = re.compile(r"\{%([+-]?)\s*(?:end)?generation\s*([+-]?)%\}")
# These are llama.cpp's types of tokens.
NORMAL = 1
CONTROL = 3
USER_DEFINED = 4
UNUSED = 5
TURN_END = "<|im_end|>"
# Ollama's templates are Go's: doubled braces are for the f-string.
CHAT = f"""\
TEMPLATE \"\"\"{{{{ range .Messages }}}}<|im_start|>{{{{ .Role }}}}
{{{{ .Content }}}}{TURN_END}
{{{{ end }}}}<|im_start|>assistant
\"\"\"
PARAMETER stop {TURN_END}
"""
COMPLETION = 'TEMPLATE """{{ .Prompt }}"""\n'


def write_gguf(directory: Path, out: Path, dtype: str | None = None) -> str:
    """Write `model.gguf` and a `Modelfile` for Ollama; return what to print. Raises InputError."""
    config = read_config(directory)
    reason = not_in_llama_cpp(config)
    if reason is not None:
        raise InputError(f"{directory}: GGUF: {reason}")
    tokenizer = _read_tokenizer(directory, config.vocab_size or 0)
    try:
        import gguf
    except ImportError:
        raise InputError("--to gguf needs the package gguf: pip install gguf") from None
    # 1. the numbers of the architecture
    quantisation = gguf.GGMLQuantizationType[(dtype or "f32").upper()]
    file_type = "ALL_F32" if quantisation.name == "F32" else f"MOSTLY_{quantisation.name}"
    # arguments of GGUFWriter's `add_…`; None: the architecture has no such number
    settings = {
        "name": run_name(directory),
        "file_type": gguf.LlamaFileType[file_type],
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
    }
    norm = "layer_norm_rms_eps" if config.norm == "rmsnorm" else "layer_norm_eps"
    settings[norm] = config.rms_norm_eps
    if config.position_embedding == "rope":
        settings["rope_dimension_count"] = config.rotary_size
        settings["rope_freq_base"] = config.rope_theta
    scaling = config.rope_scaling
    if scaling is not None:
        settings["rope_scaling_type"] = gguf.RopeScalingType(scaling.rope_type)
        settings["rope_scaling_factor"] = scaling.factor
        settings["rope_scaling_orig_ctx_len"] = scaling.original_max_position_embeddings
    settings["bos_token_id"] = config.bos_token_id
    settings["pad_token_id"] = config.pad_token_id
    end_ids = config.end_ids  # of a document, then of a turn
    settings["eos_token_id"] = end_ids[0] if end_ids else None
    settings["eot_token_id"] = end_ids[1] if len(end_ids) > 1 else None
    # 2. the file
    lm = load(directory)
    with new_directory(out) as folder:
        writer = gguf.GGUFWriter(folder / "model.gguf", family_of(config).model_type)
        for key, value in (settings | tokenizer).items():
            if value is not None:
                getattr(writer, f"add_{key}")(value)
        for key, array in _gguf_tensors(gguf, lm).items():
            # as in llama.cpp's own converter, norms, biases and learned positions are never rounded
            kind = gguf.GGMLQuantizationType.F32
            if array.ndim == 2 and key != "position_embd.weight":
                kind = quantisation
            if array.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0]:  # Q8_0 has blocks of 32 numbers
                kind = gguf.GGMLQuantizationType.F16
            tensor = gguf.quantize(np.ascontiguousarray(array), kind)
            writer.add_tensor(key, tensor, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        # 3. the Modelfile
        modelfile = f"FROM ./model.gguf\nPARAMETER num_ctx {config.max_position_embeddings}\n"
        # a model whose texts end with a turn chats; another one continues a text
        if TURN_END in [tokenizer["token_list"][end] for end in end_ids if end >= 0]:
            system = _default_system(tokenizer["chat_template"])
            if system and '"""' not in system:  # quotes would end the message
                modelfile += f'SYSTEM """{system}"""\n'
            modelfile += CHAT
        else:
            modelfile += COMPLETION
        (folder / "Modelfile").write_text(modelfile, encoding="utf-8")
    create = f"ollama create NAME -f {out / 'Modelfile'}"
    return f"{out / 'model.gguf'}: for llama.cpp. For Ollama: {create}"


def _default_system(template: str | None) -> str:
    """Return the system message that a chat template adds to a conversation without one, or ""."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    try:
        conversation = [{"role": "user", "content": ""}]
        text = environment.from_string(template or "").render(messages=conversation)
    except Exception:  # a template is a program, which may raise anything
        return ""
    match = re.search(rf"<\|im_start\|>system\n(.*?){re.escape(TURN_END)}", text, re.DOTALL)
    return match[1] if match else ""


def not_in_llama_cpp(config: ModelConfig) -> str | None:
    """Return why llama.cpp cannot compute this model, or None."""
    # each reason was tried, or is fixed in llama.cpp's source
    family = family_of(config).model_type
    if "sliding_attention" in (config.layer_types or []):
        return f"llama.cpp ignores the sliding windows of {family}: its numbers would be others"
    if family not in ("llama", "qwen2", "qwen3", "olmo2", "smollm3", "gpt2"):
        return f"{family} is not written: use llama, qwen2, qwen3, olmo2, smollm3 or gpt2"
    activations = ("gelu_new", "gelu_pytorch_tanh") if family == "gpt2" else ("silu",)
    if config.hidden_act not in activations:
        return f"llama.cpp has one activation for {family}, and it is not {config.hidden_act}"
    if config.attention_bias and family not in ("llama", "gpt2"):
        return f"llama.cpp has no attention_bias for {family}"
    three_of_four = [bool((i + 1) % 4) for i in range(config.num_hidden_layers)]
    if family == "smollm3" and config.rotates != three_of_four:
        return "llama.cpp builds smollm3 with no_rope_layers: [1, 1, 1, 0] only"
    scaling = config.rope_scaling
    if scaling is None:
        return None
    if scaling.rope_type == "llama3":
        return "rope_scaling: llama3 is not written: use linear or yarn"
    if (scaling.beta_fast, scaling.beta_slow, scaling.attention_factor) != (32.0, 1.0, None):
        return "rope_scaling: yarn needs its default beta_fast, beta_slow and attention_factor"
    return None


def _gguf_tensors(gguf: Any, lm: LanguageModel) -> dict[str, np.ndarray]:
    """Return every weight under llama.cpp's name, in its layout."""
    config = lm.config
    family = family_of(config)
    model_type = family.model_type
    (architecture,) = (key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == model_type)
    names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    state = lm.state_dict()
    if config.tie_word_embeddings and model_type != "olmo2":  # llama.cpp has no tied OLMo 2
        del state["lm_head.weight"]
    tensors = {}
    for name, tensor in family.to_files(state).items():
        array = tensor.float().numpy()
        if model_type == "gpt2" and array.ndim == 2 and ".h." in name:
            array = array.T  # GPT-2's files have (inputs, outputs)
        match = QUERY_OR_KEY.search(name)
        if match and model_type in NEIGHBOURS:
            # in each head, the pairs (i, i + D/2) that RoPE rotates together become (2i, 2i + 1)
            heads = config.num_attention_heads if match[1] == "q" else config.kv_heads
            halves = array.reshape(heads, 2, -1, *array.shape[1:])  # (heads, 2, D/2, …)
            array = halves.swapaxes(1, 2).reshape(array.shape)
        tensors[names.get_name(name, try_suffixes=(".weight", ".bias"))] = array
    return tensors


# GPT-2's words. Ours have a maximum length (data/tokenizer.py): with more than 512 letters in a
# row, ids may differ.
WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# Steps of a tokenizer.json -> llama.cpp's name for them, which is that of their first model.
RULES = {
    ("digits", "words", "bytes"): "smollm",
    ("digits", "words as bytes"): "smollm",
    ("words as bytes",): "gpt-2",
}


def _read_tokenizer(directory: Path, vocab_size: int) -> dict[str, Any]:
    """Return arguments of GGUFWriter's `add_…`. Raises InputError."""
    file = directory / "tokenizer.json"
    fields = read_json(file)
    bpe = fields["model"]
    # llama.cpp selects the rules of splitting by name (`tokenizer.ggml.pre`)
    is_bpe = bpe.get("type") == "BPE" and not (bpe.get("byte_fallback") or bpe.get("ignore_merges"))
    rule = fields.get("pre_tokenizer") or {}
    rules = rule["pretokenizers"] if rule.get("type") == "Sequence" else [rule]
    steps = tuple(map(_step_name, rules))
    if not is_bpe or fields.get("normalizer") is not None or steps not in RULES:
        raise InputError(
            f"{file}: GGUF: llama.cpp has no name for how this tokenizer splits text: use bpe"
        )
    tokens = {number: (token, NORMAL) for token, number in bpe["vocab"].items()}
    for token in fields.get("added_tokens", []):
        tokens[token["id"]] = (token["content"], CONTROL if token["special"] else USER_DEFINED)
    last = max(tokens, default=0)
    if last >= vocab_size:
        raise InputError(
            f"{file}: has id {last}, and the model {vocab_size} ids: they do not belong together"
        )
    # the embedding may have spare rows: ids without a token
    rows = [tokens.get(number, (f"[PAD{number}]", UNUSED)) for number in range(vocab_size)]
    config_file = directory / "tokenizer_config.json"
    settings = read_json(config_file) if config_file.is_file() else {}
    # older checkpoints have the template in tokenizer_config.json
    template_file = directory / "chat_template.jinja"
    template = settings.get("chat_template")
    if template_file.is_file():
        template = read_text(template_file)
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in bpe["merges"]]
    return {
        "tokenizer_model": "gpt2",  # byte-level BPE
        "tokenizer_pre": RULES[steps],
        "token_list": [token for token, _ in rows],
        "token_types": [kind for _, kind in rows],
        "token_merges": merges,
        "add_bos_token": settings.get("add_bos_token", False),
        "chat_template": GENERATION.sub(r"{#\1 \2#}", template) if template else None,
    }


def _step_name(step: Any) -> str:
    match step:
        case {"type": "Digits", "individual_digits": True}:
            return "digits"
        case {
            "type": "Split",
            "pattern": {"Regex": str(pattern)},
            "behavior": "Isolated",
            "invert": False,
        }:
            return "words" if re.sub(r"\{1,\d+\}", "+", pattern) == WORDS else ""
        case {"type": "ByteLevel", "add_prefix_space": False, "use_regex": bool(splits)}:
            return "words as bytes" if splits else "bytes"
    return ""
