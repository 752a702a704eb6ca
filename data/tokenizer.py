"""Train, load and save a tokenizer. bpe, char and byte are all ordinary tokenizer.json files.

The special tokens of the chat template have the lowest ids from the start, and the vocabulary is rounded up to a
multiple of 64 (fast matrix products) by reserved tokens, so a later fine-tune changes no shape.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from configs.loader import InputError
from data.config import TokenizerConfig

PAD, BOS, EOS, UNK = "<|pad|>", "<|bos|>", "<|eos|>", "<|unk|>"
CHAT = ["<|im_start|>", "<|im_end|>", "<think>", "</think>"]
TOOLS = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
SPECIAL_TOKENS = [PAD, BOS, EOS, UNK, *CHAT, *TOOLS]
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class Tokenizer:
    """Text <-> token ids. Special strings inside a text are plain text: nobody can open a turn by typing."""

    def __init__(self, backend: tokenizers.Tokenizer):
        self.backend = backend
        self.backend.encode_special_tokens = True
        self.pad_id, self.bos_id, self.eos_id = (self._id_of(token) for token in (PAD, BOS, EOS))

    def _id_of(self, token: str) -> int:
        token_id = self.backend.token_to_id(token)
        if token_id is None:
            raise InputError(f"the tokenizer has no {token} token: Headlight needs {PAD}, {BOS} and {EOS}")
        return token_id

    @property
    def vocab_size(self) -> int:
        """Number of ids, special and reserved ones included; a multiple of 64."""
        return self.backend.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without first and last token of a document."""
        return self.backend.encode(text, add_special_tokens=False).ids

    def encode_documents(self, texts: Sequence[str]) -> list[list[int]]:
        """Whole documents, on all cores: first token, text, last token."""
        encoded = self.backend.encode_batch_fast(list(texts), add_special_tokens=False)
        return [[self.bos_id, *one.ids, self.eos_id] for one in encoded]

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """Ids to text; bytes that are no valid UTF-8 show as the replacement character."""
        return self.backend.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def token_labels(self, ids: Iterable[int]) -> list[str]:
        """One readable string an id, for pictures: spaces and line ends are visible, special tokens short."""
        return [self._label(token_id) for token_id in ids]

    def _label(self, token_id: int) -> str:
        token = self.backend.id_to_token(token_id)
        if token is None:
            return f"#{token_id}"
        if token in SPECIAL_TOKENS or token.startswith("<|reserved_"):
            return token.replace("<|", "<").replace("|>", ">")
        text = self.backend.decode([token_id], skip_special_tokens=False)
        if "\ufffd" in text and isinstance(self.backend.model, models.BPE):  # part of a character
            readable = _bytes_of(token).decode("utf-8", "backslashreplace")
            text = re.sub(r"\\x(..)", lambda match: f"⟨{match[1].upper()}⟩", readable)
        return text.replace(" ", "␣").replace("\n", "⏎").replace("\t", "⇥")

    def save(self, directory: str | Path) -> None:
        """Write tokenizer.json and tokenizer_config.json, which transformers' AutoTokenizer reads."""
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        self.backend.save(str(directory / "tokenizer.json"))
        settings = {
            "tokenizer_class": "PreTrainedTokenizerFast",  # any other class would replace our pre-tokenizer
            "pad_token": PAD,
            "bos_token": BOS,
            "eos_token": EOS,
            "unk_token": UNK,
            "add_bos_token": False,
            "add_eos_token": False,
            "clean_up_tokenization_spaces": False,
            "chat_template": CHAT_TEMPLATE,
        }
        text = json.dumps(settings, indent=2, ensure_ascii=False) + "\n"
        (directory / "tokenizer_config.json").write_text(text, encoding="utf-8")


def train_tokenizer(config: TokenizerConfig, texts: Iterable[str]) -> Tokenizer:
    """Learn a tokenizer from texts; `byte` has nothing to learn."""
    if config.kind == "char":
        characters = sorted(set().union(*texts))
        vocabulary = {token: i for i, token in enumerate([*SPECIAL_TOKENS, *characters])}
        backend = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token=UNK))
        one_character = tokenizers.Regex(r"[\s\S]")
        backend.pre_tokenizer = pre_tokenizers.Split(one_character, behavior="isolated")
        backend.decoder = decoders.Fuse()
        backend.add_special_tokens(SPECIAL_TOKENS)
    else:
        backend = tokenizers.Tokenizer(models.BPE())
        split_digits = pre_tokenizers.Digits(individual_digits=True)
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=config.kind == "bpe")
        backend.pre_tokenizer = pre_tokenizers.Sequence([split_digits, byte_level])
        backend.decoder = decoders.ByteLevel()
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        size = _round_up(config.vocab_size) if config.kind == "bpe" else len(SPECIAL_TOKENS) + len(alphabet)
        trainer = trainers.BpeTrainer(
            vocab_size=size,
            special_tokens=SPECIAL_TOKENS,
            initial_alphabet=alphabet,
            show_progress=False,
        )
        backend.train_from_iterator(texts if config.kind == "bpe" else [], trainer)
    used = backend.get_vocab_size(with_added_tokens=True)
    backend.add_special_tokens([f"<|reserved_{i}|>" for i in range(_round_up(used) - used)])
    return Tokenizer(backend)


def load_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer of a run (its newest checkpoint), of a checkpoint directory, or of a tokenizer.json.

    Raises InputError when there is none.
    """
    path = Path(path)
    latest = path / "checkpoints" / "latest"
    if latest.is_file():
        path = latest.parent / latest.read_text(encoding="utf-8").strip()
    file = path if path.is_file() else path / "tokenizer.json"
    if not file.is_file():
        raise InputError(f"{path}: holds no tokenizer.json: give a run, a checkpoint directory or the file itself")
    try:
        return Tokenizer(tokenizers.Tokenizer.from_file(str(file)))
    except Exception as error:  # the library raises nothing more precise
        raise InputError(f"{file}: is not a tokenizer.json: {error}") from None


def _round_up(size: int) -> int:
    return -(-size // 64) * 64


def _bytes_of(token: str) -> bytes:
    """The bytes behind a byte-level piece (GPT-2's table: printable bytes stand for themselves)."""
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}
    return bytes(table[character] for character in token)
