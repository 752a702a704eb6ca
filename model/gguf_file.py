"""GGUF, the one file that llama.cpp reads: the architecture, the weights under its names, and the tokenizer.

Weights stay float32, so nothing is rounded; `llama-quantize` makes a smaller file of it. What llama.cpp would compute
differently without a word is refused here. So is a tokenizer that splits text by another rule than the two below:
llama.cpp knows rules by name (`tokenizer.ggml.pre`), and with another one the same text would get other ids.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import BaseModel, Field

from configs.command import InputError
from configs.files import read_json, read_text
from model.checkpoint import load, new_directory, read_config
from model.config import ModelConfig
from model.families import family_of

if TYPE_CHECKING:
    from model.transformer import LanguageModel

FILE, MODELFILE = "model.gguf", "Modelfile"
NEIGHBOURS = ("llama", "smollm3")  # llama.cpp turns neighbours (0, 1) together, and stores the rows of q and k so
QUERY_OR_KEY = re.compile(r"self_attn\.([qk])_proj\.(weight|bias)$")
# GPT-2's words. Ours have a longest one (data/words.py): with more than 512 letters in a row, ids may differ.
WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
RULES = {  # steps of a tokenizer.json -> llama.cpp's name; SmolLM and GPT-2 had these rules first
    ("digits", "words", "bytes"): "smollm",
    ("digits", "words as bytes"): "smollm",
    ("words as bytes",): "gpt-2",
}
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
COMPLETION = 'TEMPLATE """{{ .Prompt }}"""\n'


def write_gguf(directory: Path, out: Path) -> str:
    """Write `model.gguf` and a `Modelfile` into the directory `out`. Raises InputError."""
    config = read_config(directory)
    if reason := not_in_llama_cpp(config):
        raise InputError(f"{directory}: GGUF: {reason}")
    tokenizer = _read_tokenizer(directory, config)
    gguf, lm, path = _import_gguf(), load(directory), directory.resolve()
    with new_directory(out) as folder:
        writer = gguf.GGUFWriter(folder / FILE, family_of(config).model_type)
        writer.add_name(path.parents[1].name if path.parent.name == "checkpoints" else path.name)  # the run's
        for key, value in (_settings(gguf, config) | tokenizer).items():
            if value is not None:
                getattr(writer, f"add_{key}")(value)
        for key, array in tensors(lm).items():
            writer.add_tensor(key, np.ascontiguousarray(array))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        # a model whose texts end with a turn chats; another one continues a text
        is_chat = TURN_END in [tokenizer["token_list"][end] for end in _ends(config) if end >= 0]
        settings = f"FROM ./{FILE}\nPARAMETER num_ctx {config.max_position_embeddings}\n"
        (folder / MODELFILE).write_text(settings + (CHAT if is_chat else COMPLETION), encoding="utf-8")
    return f"{out / FILE}: for llama.cpp. For Ollama: ollama create NAME -f {out / MODELFILE}"


def _import_gguf() -> Any:
    try:
        import gguf
    except ImportError:
        raise InputError("GGUF is written by the package gguf, which is not installed: pip install gguf") from None
    return gguf


def not_in_llama_cpp(config: ModelConfig) -> str | None:
    """Why llama.cpp cannot compute this model, or None. Each of these was tried, or is fixed in llama.cpp's source."""
    if not config.loadable_elsewhere:
        return "the model was saved with loadable_elsewhere: false, so llama.cpp has no such model either"
    family = family_of(config).model_type
    if "sliding_attention" in (config.layer_types or []):
        return f"llama.cpp ignores the sliding windows of {family}, and would compute something else"
    if family not in ("llama", "qwen2", "qwen3", "olmo2", "smollm3", "gpt2"):
        return f"the architecture {family} is not written (llama, qwen2, qwen3, olmo2, smollm3 and gpt2 are)"
    if config.hidden_act not in (("gelu_new", "gelu_pytorch_tanh") if family == "gpt2" else ("silu",)):
        return f"llama.cpp has one activation for {family}, and it is not {config.hidden_act}"
    if config.attention_bias and family not in ("llama", "gpt2"):
        return f"llama.cpp has no attention_bias for {family}"
    if family == "smollm3" and config.rotates != [bool((i + 1) % 4) for i in range(config.num_hidden_layers)]:
        return "llama.cpp has RoPE in three of four layers of smollm3, as no_rope_layers: [1, 1, 1, 0] says"
    scaling = config.rope_scaling
    if scaling is not None and scaling.rope_type == "llama3":
        return "llama3 (rope_scaling) is not written; linear and yarn are"
    if scaling is not None and (scaling.beta_fast, scaling.beta_slow, scaling.attention_factor) != (32.0, 1.0, None):
        return "yarn is written with its own beta_fast, beta_slow and attention_factor only (rope_scaling)"
    return None


def tensors(lm: LanguageModel) -> dict[str, np.ndarray]:
    """Every weight under llama.cpp's name, in the layout that it multiplies with."""
    gguf, config, family = _import_gguf(), lm.config, family_of(lm.config)
    architecture = next(number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == family.model_type)
    names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    state = lm.state_dict()
    if config.tie_word_embeddings and family.model_type != "olmo2":  # which has no tied form there
        del state["lm_head.weight"]
    found = {}
    for name, tensor in family.to_files(state).items():
        array = tensor.float().numpy()
        if family.model_type == "gpt2" and array.ndim == 2 and ".h." in name:
            array = array.T  # GPT-2's files have (inputs, outputs)
        if (match := QUERY_OR_KEY.search(name)) and family.model_type in NEIGHBOURS:
            # head by head, the pairs (i, i + D/2) that RoPE turns together become (2i, 2i + 1)
            heads = config.num_attention_heads if match[1] == "q" else config.kv_heads
            halves = array.reshape(heads, 2, -1, *array.shape[1:])  # (heads, 2, D/2, …)
            array = halves.swapaxes(1, 2).reshape(array.shape)
        found[names.get_name(name, try_suffixes=(".weight", ".bias"))] = array
    return found


def _settings(gguf: Any, config: ModelConfig) -> dict[str, Any]:
    """What GGUFWriter's `add_…` take: the architecture's numbers. None: this one has no such number."""
    scaling, has_rope, ends = config.rope_scaling, config.position_embedding == "rope", [*_ends(config), None, None]
    return {
        "file_type": gguf.LlamaFileType.ALL_F32,
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
        "eos_token_id": ends[0],
        "eot_token_id": ends[1],
    }


def _ends(config: ModelConfig) -> list[int]:
    """The tokens that end a document and a turn."""
    ends = config.eos_token_id
    return [] if ends is None else [ends] if isinstance(ends, int) else ends


# ---------------------------------------------------------------------------------------------------------
# tokenizer.json -> tokens, merges, and the name of the rule


class _Added(BaseModel):
    id: int = Field(ge=0)
    content: str
    special: bool = False


class _Bpe(BaseModel):
    type: Literal["BPE"]
    vocab: dict[str, int]
    merges: list[str | list[str]]
    byte_fallback: Literal[False] | None = False
    ignore_merges: Literal[False] | None = False


class _Tokenizer(BaseModel):
    model: _Bpe
    added_tokens: list[_Added] = []
    normalizer: dict[str, Any] | None = None
    pre_tokenizer: dict[str, Any] | None = None


class _Settings(BaseModel):
    add_bos_token: bool = False
    chat_template: str | None = None


def _read_tokenizer(directory: Path, config: ModelConfig) -> dict[str, Any]:
    """What GGUFWriter's `add_…` take. Raises InputError for a tokenizer whose ids would be others in llama.cpp.

    Ids that no token has (rows of the embedding that are left over) are unused tokens.
    """
    file = directory / "tokenizer.json"
    kind = read_json(file).get("model")
    if isinstance(kind, dict) and kind.get("type") == "WordLevel":
        raise InputError(f"{file}: GGUF: llama.cpp has no WordLevel tokenizer, as `char` makes it: train with bpe")
    tokenizer: _Tokenizer = read_json(file, _Tokenizer)
    rule = tokenizer.pre_tokenizer or {}
    steps = rule.get("pretokenizers", []) if rule.get("type") == "Sequence" else [rule]
    kinds = tuple(map(_kind, steps))
    if kinds == ("digits", "bytes"):
        raise InputError(f"{file}: GGUF: llama.cpp has no tokenizer of single bytes (`byte`): train with bpe")
    if tokenizer.normalizer is not None or kinds not in RULES:
        raise InputError(f"{file}: GGUF: llama.cpp has no name for how this tokenizer splits text, so ids would differ")
    by_id = {number: (token, NORMAL) for token, number in tokenizer.model.vocab.items()}
    by_id |= {each.id: (each.content, CONTROL if each.special else USER_DEFINED) for each in tokenizer.added_tokens}
    size = config.vocab_size or 0
    if (last := max(by_id, default=0)) >= size:
        raise InputError(f"{file}: has id {last}, and the model {size} ids: they do not belong together")
    rows = [by_id.get(number, (f"[PAD{number}]", UNUSED)) for number in range(size)]
    file, template = directory / "tokenizer_config.json", directory / "chat_template.jinja"
    settings: _Settings = read_json(file, _Settings) if file.is_file() else _Settings()
    chat_template = read_text(template) if template.is_file() else settings.chat_template
    return {
        "tokenizer_model": "gpt2",  # byte-level BPE
        "tokenizer_pre": RULES[kinds],
        "token_list": [token for token, _ in rows],
        "token_types": [kind for _, kind in rows],
        "token_merges": [each if isinstance(each, str) else " ".join(each) for each in tokenizer.model.merges],
        "add_bos_token": settings.add_bos_token,
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
