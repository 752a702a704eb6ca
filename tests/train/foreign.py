"""Model directories as transformers writes them, with the tokenizers of other projects."""

import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

SHAPES = {  # roles of the tokenizer, as its family names them; then the model
    "qwen2": ({"eos": "<|im_end|>", "pad": "<|endoftext|>"}, Qwen2Config, Qwen2ForCausalLM, True, (4, 2)),
    "llama": ({"bos": "<s>", "eos": "</s>"}, LlamaConfig, LlamaForCausalLM, False, (4, 2)),
    "smollm2": (
        {"bos": "<|im_start|>", "eos": "<|im_end|>", "pad": "<|im_end|>"}, LlamaConfig, LlamaForCausalLM, True, (9, 3)
    ),
}  # fmt: skip
CHAT = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def foreign_directory(folder, shape, vocabulary):
    """A model directory that transformers wrote. vocabulary: padded (rows for more ids than
    tokens), exact, or plain, which is exact and has no tokens for chats.
    """
    roles, config, architecture, tied, (heads, groups) = SHAPES[shape]
    special = ["<s>", "</s>", "<|endoftext|>"] if vocabulary == "plain" else ["<s>", "</s>", *CHAT]
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=special, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())
    )
    backend.train_from_iterator(["The cat sat on the mat. Which sound does it make? Meow."] * 9, trainer)
    roles = {f"{role}_token": token if token in special else "</s>" for role, token in roles.items()}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, **roles)
    sizes = {"hidden_size": 36, "intermediate_size": 48, "num_hidden_layers": 2, "max_position_embeddings": 96}
    sizes |= {"num_attention_heads": heads, "num_key_value_heads": groups, "head_dim": 4 if heads == 9 else 8}
    vocab_size = 400 if vocabulary == "padded" else len(tokenizer)
    torch.manual_seed(1)
    lm = architecture(config(vocab_size=vocab_size, tie_word_embeddings=tied, initializer_range=0.2, **sizes))
    lm.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder, vocab_size
