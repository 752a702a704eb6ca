"""GGUF, the one file that llama.cpp reads: the architecture, the weights under its names, and the tokenizer.

Weights stay float32, so nothing is rounded; `llama-quantize` makes a smaller file of it. What llama.cpp would compute
differently without a word is refused here.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from configs.command import InputError
from configs.files import check_files
from model.config import ModelConfig
from model.export.gguf_tokenizer import read_tokenizer
from model.families import family_of
from model.saving.new_directory import TOKENIZER_FILES, new_directory

if TYPE_CHECKING:
    import numpy as np

    from model.export.gguf_tokenizer import GgufTokenizer
    from model.transformer import LanguageModel

FILE, MODELFILE = "model.gguf", "Modelfile"
NEIGHBOURS = ("llama", "smollm3")  # llama.cpp turns neighbours (0, 1) together, and stores the rows of q and k so
QUERY_OR_KEY = re.compile(r"self_attn\.([qk])_proj\.(weight|bias)$")
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
    """Write `model.gguf` and a `Modelfile` into the directory `out`. Raises InputError, DamagedFile."""
    from model.saving.checkpoint_format import load, read_config

    config = read_config(directory)
    if reason := not_in_llama_cpp(config):
        raise InputError(f"{directory}: GGUF: {reason}")
    check_files(directory, *TOKENIZER_FILES)
    tokenizer = read_tokenizer(directory, config.vocab_size)
    _import_gguf()
    lm = load(directory)
    with new_directory(out) as folder:
        _write(lm, tokenizer, folder / FILE, _name_of(directory))
        (folder / MODELFILE).write_text(modelfile(config, tokenizer), encoding="utf-8")
    return f"{out / FILE}: for llama.cpp. For Ollama: ollama create NAME -f {out / MODELFILE}"


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


def modelfile(config: ModelConfig, tokenizer: GgufTokenizer) -> str:
    """What `ollama create` reads. A model whose texts end with a turn chats; another one continues a text."""
    ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    chats = TURN_END in (tokenizer.tokens[one] for one in ends if one is not None and one >= 0)
    return f"FROM ./{FILE}\nPARAMETER num_ctx {config.max_position_embeddings}\n{CHAT if chats else COMPLETION}"


def tensors(lm: LanguageModel) -> dict[str, np.ndarray]:
    """Every weight under llama.cpp's name, in the layout that it multiplies with."""
    gguf, config, family = _import_gguf(), lm.config, family_of(lm.config)
    names = gguf.get_tensor_name_map(_architecture(gguf, family.model_type), config.num_hidden_layers)
    state = lm.state_dict()
    if config.tie_word_embeddings and family.model_type != "olmo2":  # which has no tied form there
        del state["lm_head.weight"]
    found = {}
    for name, tensor in family.to_files(state).items():
        array = tensor.float().numpy()
        if family.model_type == "gpt2" and array.ndim == 2 and ".h." in name:
            array = array.T  # GPT-2's files have (inputs, outputs)
        if (match := QUERY_OR_KEY.search(name)) and family.model_type in NEIGHBOURS:
            array = as_neighbours(array, config.num_attention_heads if match[1] == "q" else config.kv_heads)
        found[names.get_name(name, try_suffixes=(".weight", ".bias"))] = array
    return found


def as_neighbours(array: np.ndarray, heads: int) -> np.ndarray:
    """Rows of queries or keys, head by head: the pairs (i, i + D/2) that RoPE turns together become (2i, 2i + 1).

    (heads * D, …) -> the same shape.
    """
    halves = array.reshape(heads, 2, -1, *array.shape[1:])  # (heads, 2, D/2, …)
    return halves.swapaxes(1, 2).reshape(array.shape)


def _write(lm: LanguageModel, tokenizer: GgufTokenizer, file: Path, name: str) -> None:
    import numpy as np

    gguf, config = _import_gguf(), lm.config
    family = family_of(config).model_type
    writer = gguf.GGUFWriter(file, family)
    writer.add_name(name)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.kv_heads)
    writer.add_key_length(config.head_size)
    writer.add_value_length(config.value_size)
    if family == "gpt2":
        writer.add_layer_norm_eps(config.rms_norm_eps)
    else:
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        writer.add_rope_dimension_count(config.rotary_size)
        writer.add_rope_freq_base(config.rope_theta)
    if (scaling := config.rope_scaling) is not None:
        writer.add_rope_scaling_type(gguf.RopeScalingType(scaling.rope_type))
        writer.add_rope_scaling_factor(scaling.factor)
        if scaling.original_max_position_embeddings is not None:
            writer.add_rope_scaling_orig_ctx_len(scaling.original_max_position_embeddings)
    _add_tokenizer(writer, tokenizer, config)
    for key, array in tensors(lm).items():
        writer.add_tensor(key, np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tokenizer(writer: Any, tokenizer: GgufTokenizer, config: ModelConfig) -> None:
    writer.add_tokenizer_model("gpt2")  # byte-level BPE
    writer.add_tokenizer_pre(tokenizer.pre)
    writer.add_token_list(tokenizer.tokens)
    writer.add_token_types(tokenizer.types)
    writer.add_token_merges(tokenizer.merges)
    writer.add_add_bos_token(tokenizer.add_bos)
    if tokenizer.chat_template:
        writer.add_chat_template(tokenizer.chat_template)
    ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    if config.bos_token_id is not None:
        writer.add_bos_token_id(config.bos_token_id)
    if config.pad_token_id is not None:
        writer.add_pad_token_id(config.pad_token_id)
    for add, one in zip((writer.add_eos_token_id, writer.add_eot_token_id), ends, strict=False):
        if one is not None:
            add(one)


def _architecture(gguf: Any, model_type: str) -> Any:
    return next(number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == model_type)


def _name_of(directory: Path) -> str:
    """The run's name, or that of the model directory."""
    path = directory.resolve()
    return path.parents[1].name if path.parent.name == "checkpoints" else path.name


def _import_gguf() -> Any:
    """The library that writes the file. Raises InputError if it is not installed."""
    try:
        import gguf
    except ImportError:
        raise InputError("GGUF is written by the package gguf, which is not installed: pip install gguf") from None
    return gguf
