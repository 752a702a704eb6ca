"""Train, load and save tokenizers, which are ordinary tokenizer.json files.

Special tokens have the lowest ids from the start, so a fine-tune changes no shape. A pretrained
tokenizer keeps its ids; tokens that it lacks are added after them.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import accumulate, chain, count, dropwhile, groupby, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from configs.command import InputError
from configs.files import checked, is_pointer, read_checkpoint, read_json, read_text, run_path
from data.chat_template import CHAT_TEMPLATE, PRIVATE, ChatTemplate, Piece
from data.config import MOST_TOKENS, TokenizerConfig

PAD = "<|pad|>"
BOS = "<|bos|>"
EOS = "<|eos|>"
UNK = "<|unk|>"
CHAT = ["<|im_start|>", "<|im_end|>", "<think>", "</think>"]
TOOLS = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
SPECIAL_TOKENS = [PAD, BOS, EOS, UNK, *CHAT, *TOOLS]
# The chat template writes these as text.
HEADERS = ["system\n", "user\n", "assistant\n", "tool\n"]
# The names that transformers has for our tokens, and all names that a chat template may use.
ROLES = {"pad_token": PAD, "bos_token": BOS, "eos_token": EOS}
NAMED = [*ROLES, "unk_token", "sep_token", "cls_token", "mask_token"]
# The parts of tokenizer.json that decide the ids of a text.
DECIDING = ("model", "normalizer", "pre_tokenizer")
DEFAULT_VOCAB_SIZE = 2048
# One core encodes this many characters of a text at a time.
PIECE = 1 << 16
# All cores encode this many characters at a time. Each takes about 100 bytes of memory.
TOGETHER = 1 << 20
# A word has at most this many characters; in ordinary text, up to 369. The work of learning grows
# with the square: one word of a megabyte would take minutes.
LONGEST = 512
# A token that no other token reaches across.
JOINT = f"{PRIVATE}-"
VISIBLE = str.maketrans({" ": "␣", "\n": "⏎", "\t": "⇥"})
# No token of a byte-level tokenizer crosses the end of this line end, or the beginning of this
# space. The look behind is last, because `re` is quick if plain characters come first.
BETWEEN_WORDS = re.compile(r"[\n ](?=\S)(?<=\S[\n ])")
# GPT-2's table of letters: printable bytes are themselves, the others come after 255.
PRINTABLE = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1)]
PRINTABLE += range(ord("®"), ord("ÿ") + 1)
BYTES = {chr(byte): byte for byte in PRINTABLE}
for byte in range(256):
    if byte not in PRINTABLE:
        BYTES[chr(256 + len(BYTES) - len(PRINTABLE))] = byte


class Settings(NamedTuple):
    """Named tokens and named chat templates ("default", "tool_use") of tokenizer_config.json."""

    named_tokens: dict[str, str]
    chat_template: dict[str, str]


class _TemplateReader(NamedTuple):
    """A tokenizer with special tokens that nobody can type: those in a message stay plain text."""

    backend: tokenizers.Tokenizer
    # special token -> its spelling here
    spelling: dict[str, str]
    # id here -> id in the real tokenizer, -1 for a joint
    own_ids: np.ndarray


class Tokenizer:
    """Text <-> token ids. Special strings inside a text stay plain text: they never open a turn.

    roles: the pad_token, bos_token and eos_token. settings: of a model directory.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        roles: dict[str, str] | None = None,
        settings: Settings | None = None,
    ):
        self.backend = backend
        self.roles = dict(roles or ROLES)
        # "<|im_end|>" in a text becomes the ids of its characters
        self.backend.encode_special_tokens = True
        # transformers saves the padding and truncation of its last call
        self.backend.no_padding()
        self.backend.no_truncation()
        self.pad_id, self.bos_id, self.eos_id = (self.special_id(self.roles[r]) for r in ROLES)
        added = self.backend.get_added_tokens_decoder()
        special = {i: token.content for i, token in added.items() if token.special}
        self.special_ids = frozenset(special)
        self._specials = list(special.values())
        self._settings = settings
        # the ids that end generation in transformers (generation_config.json)
        self.model_ends: list[int] = []
        self.first_ids = [self.bos_id]
        if settings is not None:
            # a foreign tokenizer.json decides which tokens transformers puts before a text
            encoding = self.backend.encode("a", add_special_tokens=True)
            self.first_ids = encoding.ids[: encoding.special_tokens_mask.index(0)]

    # special tokens, and the chat template that writes them

    @cached_property
    def our_chat(self) -> ChatTemplate:
        # our own chat template, which all training uses
        specials = {*self._specials, *SPECIAL_TOKENS}
        return ChatTemplate({"default": CHAT_TEMPLATE}, self.roles, specials)

    @cached_property
    def chat(self) -> ChatTemplate:
        """The chat template for prompts: the one that comes with the model, or else ours."""
        settings = self._settings
        if settings is None or not settings.chat_template:
            return self.our_chat
        return ChatTemplate(settings.chat_template, settings.named_tokens, self._specials)

    def special_id(self, token: str) -> int:
        """Return the id of a special token. Raises InputError if there is none."""
        token_id = self.backend.token_to_id(token)
        if token_id is None:
            raise InputError(f"the tokenizer has no {token} token, which Headlight needs")
        return token_id

    @property
    def unk_id(self) -> int | None:
        """The id of characters that `char` has not seen; None if every text has its own ids."""
        unk = getattr(self.backend.model, "unk_token", None)
        return self.backend.token_to_id(unk) if unk else None

    def unknown_in(self, text: str) -> str:
        """Return the characters of a text without a token, each once."""
        letters = dict.fromkeys(text)
        return "".join(letter for letter in letters if self.unk_id in self.encode(letter))

    @property
    def stop_ids(self) -> list[int]:
        """The ids that end a document or a turn."""
        turn = [] if self.turn_end is None else [self.turn_end]
        return list(dict.fromkeys([self.eos_id, *turn, *self.model_ends]))

    @cached_property
    def turn_end(self) -> int | None:
        """The special token that the template writes after an answer. Raises CannotRender."""
        # a marker that no template can contain: what follows it is the end of a turn
        answer = f"{PRIVATE}."
        messages = [{"role": "user", "content": "."}, {"role": "assistant", "content": answer}]
        pieces = self.chat.render(messages)
        for piece in dropwhile(lambda piece: answer not in piece.text, pieces):
            if piece.special:
                return self.backend.token_to_id(piece.text)
        return None

    @cached_property
    def vocab_size(self) -> int:
        """Number of ids, with special, reserved and unused ones; a multiple of 64."""
        return 1 + max(self.backend.get_vocab().values(), default=-1)

    # which tokenizer it is

    def sha256(self) -> str:
        """Hash everything that decides ids: tokenizers with the same hash give the same ids."""
        # without padding, truncation and post-processor, which other programs change
        described = json.loads(self.backend.to_str())
        deciding = [described[key] for key in (*DECIDING, "added_tokens")]
        text = json.dumps([deciding, self.roles], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def tokens_beyond(self, other: Tokenizer) -> list[str] | None:
        """Return the tokens that were added to the other one's; None if one of its ids changed."""
        ours = json.loads(self.backend.to_str())
        theirs = json.loads(other.backend.to_str())
        vocab = self.backend.get_vocab()
        other_vocab = other.backend.get_vocab()
        if any(ours[key] != theirs[key] for key in DECIDING):
            return None
        if not other_vocab.items() <= vocab.items():
            return None
        added = sorted(vocab.keys() - other_vocab.keys(), key=vocab.__getitem__)
        # reserved ones mean nothing yet
        return [token for token in added if not token.startswith("<|reserved_")]

    # text -> ids; each of these raises ValueError for half a character

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without the first and last token of a document."""
        return self.encode_many([text])[0]

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode several texts on all cores."""
        return [ids.tolist() for ids in self.encode_arrays(texts)]

    def encode_arrays(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Encode several texts on all cores, as uint32 arrays."""
        # cores share a long text: the joined ids of its pieces are the ids of the whole
        pieces = [
            cut(text, PIECE) if len(text) > PIECE and self.can_cut else [text] for text in texts
        ]
        encodings = _in_batches(self.backend.encode_batch_fast, chain.from_iterable(pieces))
        arrays = (np.array(encoding.ids, dtype=np.uint32) for encoding in encodings)
        return [np.concatenate(list(islice(arrays, len(parts)))) for parts in pieces]

    def encode_documents(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode whole documents: first token, text, last token."""
        return [[self.bos_id, *ids, self.eos_id] for ids in self.encode_many(texts)]

    def begin(self, text: str) -> list[int]:
        """Encode a text to continue, with the same first token as in transformers."""
        return [*self.first_ids, *self.encode(text)] or [self.bos_id]

    def encode_pieces(
        self, texts: Sequence[Sequence[Piece]]
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """Encode texts of a chat template: (ids, the piece that each id ends in), uint32."""
        # Each text is encoded once and whole. If it may be cut, joints end its pieces: no token
        # reaches across one.
        reader = self._template_reader
        joined = []
        ends = []
        for pieces in texts:
            parts = []
            for piece in pieces:
                if piece.special:
                    self.special_id(piece.text)  # raises InputError
                    parts.append(reader.spelling[piece.text])
                else:
                    parts.append(piece.text + (JOINT if piece.joint and self.can_cut else ""))
            joined.append("".join(parts))
            ends.append(np.cumsum([len(part) for part in parts]))
        result = []
        encodings = _in_batches(reader.backend.encode_batch, joined)
        for encoding, end in zip(encodings, ends, strict=True):
            ids = reader.own_ids[np.array(encoding.ids, dtype=np.int64)]  # (N,)
            begins, stops = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2).T  # (N,)
            # a token may have no characters
            last_characters = np.maximum(begins, stops - 1)
            piece_of = np.searchsorted(end, last_characters, "right")
            result.append((ids[ids >= 0].astype(np.uint32), piece_of[ids >= 0]))
        return result

    @cached_property
    def _template_reader(self) -> _TemplateReader:
        backend = tokenizers.Tokenizer.from_str(self.backend.to_str())
        backend.encode_special_tokens = True
        # note: a new token gets the number of tokens for its id, so gaps are filled first
        gaps = range(self.vocab_size - backend.get_vocab_size())
        backend.add_tokens([f"{PRIVATE}gap{i}" for i in gaps])
        backend.add_tokens([tokenizers.AddedToken(JOINT, normalized=False)])
        own_ids = np.arange(backend.get_vocab_size() + len(self.special_ids))
        own_ids[backend.token_to_id(JOINT)] = -1
        spelling = {}
        for token_id in self.special_ids:
            token = self.backend.get_added_tokens_decoder()[token_id]
            private = f"{PRIVATE}{token_id}\ufdd1"
            spelling[token.content] = private
            # it treats blanks beside it as the real token does
            copy = tokenizers.AddedToken(
                private,
                lstrip=token.lstrip,
                rstrip=token.rstrip,
                single_word=token.single_word,
                normalized=token.normalized,
            )
            backend.add_tokens([copy])
            own_ids[backend.token_to_id(private)] = token_id
        return _TemplateReader(backend, spelling, own_ids)

    @cached_property
    def can_cut(self) -> bool:
        """True if a text may be encoded in pieces: no space is put before each text."""
        # tested on an example, because the reasons are many: prefix spaces, normalisers, Metaspace
        texts = ["A fox\nran home", "A", " fox\n", "ran", " home"]
        encodings = self.backend.encode_batch(texts, add_special_tokens=False)
        joined, *pieces = (encoding.ids for encoding in encodings)
        return joined == [*chain.from_iterable(pieces)]

    # ids -> text

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """Decode ids. Bytes that are not valid UTF-8 become the replacement character."""
        return self.backend.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """Return the bytes of ids, without special tokens; an id may be part of a character."""
        decoder = b""
        if self.backend.decoder is not None:
            decoder = self.backend.decoder.__getstate__()
        parts = []
        for token_id in ids:
            token = self.backend.id_to_token(token_id) or ""
            if token_id in self.special_ids:
                continue
            # Llama spells a byte like this
            byte = re.fullmatch("<0x([0-9A-Fa-f]{2})>", token)
            if b'"ByteLevel"' in decoder and set(token) <= BYTES.keys():
                parts.append(bytes(BYTES[letter] for letter in token))
            elif b'"ByteFallback"' in decoder and byte:
                parts.append(bytes.fromhex(byte[1]))
            else:
                # alone, a token loses the space that it begins with
                before = self.encode("a")[-1]
                text = self.decode([before, token_id]).removeprefix(self.decode([before]))
                parts.append(text.encode())
        return b"".join(parts)

    def token_labels(self, ids: Iterable[int]) -> list[str]:
        """Return a readable string for each id, for pictures."""
        labels = []
        for token_id in ids:
            token = self.backend.id_to_token(token_id)
            if token is None:
                labels.append(f"#{token_id}")
            elif token_id in self.special_ids:
                labels.append(token.replace("<|", "<").replace("|>", ">"))
            else:
                # a byte that is no whole character decodes to a surrogate of its own
                text = self.decode_bytes([token_id]).decode("utf-8", "surrogateescape")
                text = text.translate(VISIBLE)
                labels.append(
                    re.sub("[\udc80-\udcff]", lambda byte: f"⟨{ord(byte[0]) - 0xDC00:X}⟩", text)
                )
        return labels

    def save(self, directory: str | Path, context_length: int | None = None) -> None:
        """Write tokenizer.json and tokenizer_config.json for transformers' AutoTokenizer.

        context_length: the most tokens that the model can read.
        """
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        # there every text begins with the bos token, as documents do in training
        copy = tokenizers.Tokenizer.from_str(self.backend.to_str())
        bos = self.roles["bos_token"]
        copy.post_processor = processors.TemplateProcessing(
            single=[bos, "$A"], pair=[bos, "$A", "$B:1"], special_tokens=[(bos, self.bos_id)]
        )
        (directory / "tokenizer.json").write_text(copy.to_str(pretty=True), encoding="utf-8")
        settings: dict[str, Any] = {
            # any other class would replace our pre-tokenizer
            "tokenizer_class": "PreTrainedTokenizerFast",
            **self.roles,
            "add_bos_token": True,
            "add_eos_token": False,
            # the model takes no token_type_ids
            "model_input_names": ["input_ids", "attention_mask"],
            # a batch of prompts ends where the answers begin
            "padding_side": "left",
            "clean_up_tokenization_spaces": False,
            "chat_template": CHAT_TEMPLATE,
            "unk_token": UNK if self.backend.token_to_id(UNK) is not None else None,
            "model_max_length": context_length,
        }
        settings = {name: value for name, value in settings.items() if value is not None}
        text = json.dumps(settings, indent=2, ensure_ascii=False) + "\n"
        (directory / "tokenizer_config.json").write_text(text, encoding="utf-8")


def train_tokenizer(config: TokenizerConfig, texts: Iterable[str]) -> Tokenizer:
    """Train a tokenizer. `byte` has nothing to learn, and `pretrained` exists already."""
    if config.kind == "pretrained":
        return _adopt(str(config.path), config.vocab_size or 0)
    if config.kind == "char":
        # the chat template needs these letters
        characters = set("".join(HEADERS)).union(*texts)
        tokens = [*SPECIAL_TOKENS, *sorted(characters)]
        vocabulary = {token: i for i, token in enumerate(tokens)}
        backend = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token=UNK))
        # WordLevel knows whole words only, so every character becomes a word
        every_character = tokenizers.Regex(r"[\s\S]")
        backend.pre_tokenizer = pre_tokenizers.Split(every_character, behavior="isolated")
        backend.decoder = decoders.Fuse()
        backend.add_special_tokens(SPECIAL_TOKENS)
    else:
        backend = tokenizers.Tokenizer(models.BPE())
        backend.pre_tokenizer = pre_tokenizer(has_words=config.kind == "bpe")
        backend.decoder = decoders.ByteLevel()
        size = round_up(config.vocab_size or DEFAULT_VOCAB_SIZE)
        # `byte` is bpe without a single merge
        # all 256 bytes are in the alphabet, so any text has ids, and `unk` is not needed
        trainer = trainers.BpeTrainer(
            vocab_size=size if config.kind == "bpe" else len(SPECIAL_TOKENS) + len(BYTES),
            special_tokens=SPECIAL_TOKENS,
            initial_alphabet=sorted(BYTES),
            show_progress=False,
        )
        backend.train_from_iterator(texts if config.kind == "bpe" else [], trainer)
    return Tokenizer(_with_reserved(backend, round_up(backend.get_vocab_size())))


def pre_tokenizer(has_words: bool = True) -> pre_tokenizers.PreTokenizer:
    """Split text into words. has_words=False: only at digits."""
    # GPT-2's pattern: letters with the space before them, punctuation likewise, and white space
    some = f"{{1,{LONGEST}}}"
    space = rf"\s{some}(?!\S)|\s{some}"
    letters = rf" ?\p{{L}}{some}| ?\p{{N}}{some}| ?[^\s\p{{L}}\p{{N}}]{some}"
    words = tokenizers.Regex(f"'s|'t|'re|'ve|'m|'ll|'d|{letters}|{space}")
    # each digit is a token of its own, so 17 and 71 share their tokens
    parts: list[Any] = [pre_tokenizers.Digits(individual_digits=True)]
    if has_words:
        parts.append(pre_tokenizers.Split(words, behavior="isolated"))
    parts.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    return pre_tokenizers.Sequence(parts)


def _adopt(path: str, at_least: int) -> Tokenizer:
    file, backend, settings = _open(path)
    vocabulary = backend.get_vocab()
    last = max(vocabulary.values(), default=-1)
    if last + 1 != len(vocabulary):
        raise InputError(f"{file}: its ids have gaps ({len(vocabulary):,} tokens up to {last:,})")
    # Its own bos, eos and pad tokens are kept if possible. The bos token marks where a document
    # begins, so it must differ from the others and from those of the chat.
    named = settings.named_tokens
    roles = ROLES | {role: named[role] for role in ROLES if named.get(role) in vocabulary}
    if roles["bos_token"] in (roles["eos_token"], roles["pad_token"], *CHAT):
        roles["bos_token"] = BOS
    if roles["pad_token"] in (roles["eos_token"], getattr(backend.model, "unk_token", None)):
        roles["pad_token"] = PAD
    specials = [*roles.values(), *CHAT, *TOOLS]
    # existing ones keep their ids; only those that are missing get new ones
    backend.add_special_tokens(specials)
    # A model beside it often has more rows than there are tokens: added tokens take these rows,
    # and reserved ones the rest.
    used = max(at_least, backend.get_vocab_size())
    size = round_up(used)
    model = file.with_name("config.json")
    if model.is_file():
        rows = read_json(model).get("vocab_size")
        if isinstance(rows, int) and used <= rows <= MOST_TOKENS:
            size = rows
    tokenizer = Tokenizer(_with_reserved(backend, size), roles)
    # in a Unigram vocabulary, a special token may be a piece of text
    for token in specials:
        ids = tokenizer.encode(f"a {token} b") + tokenizer.encode(token)
        if tokenizer.special_id(token) in ids:
            raise InputError(
                f"{file}: a text with {token} would get the id of the special token, so anybody "
                "could open a turn by typing it: use a byte-level BPE tokenizer"
            )
    return tokenizer


def _with_reserved(backend: tokenizers.Tokenizer, size: int) -> tokenizers.Tokenizer:
    names = (f"<|reserved_{i}|>" for i in count())
    new_names = (name for name in names if backend.token_to_id(name) is None)
    backend.add_special_tokens(list(islice(new_names, size - backend.get_vocab_size())))
    return backend


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Load the tokenizer of a run, a directory or a tokenizer.json. Raises InputError."""
    file, backend, settings = _open(path)
    # a foreign one may lack roles: then the token that ends a text begins and pads it, too
    own = {role: ours for role, ours in ROLES.items() if backend.token_to_id(ours) is not None}
    own |= {role: token for role, token in settings.named_tokens.items() if role in ROLES}
    pad = settings.named_tokens.get("pad_token")
    end = own.get("eos_token") or pad or EOS
    roles = {"pad_token": end, "bos_token": pad or end, "eos_token": end} | own
    try:
        return Tokenizer(backend, roles, settings)
    except InputError as error:
        raise InputError(f"{file}: {error}") from None


def _open(path: str | Path) -> tuple[Path, tokenizers.Tokenizer, Settings]:
    # the path of tokenizer.json, the tokenizer, its settings
    path = run_path(path)
    is_missing = not path.exists() and path.suffix != ".json"
    if is_pointer(path) or is_missing or (path / "checkpoints" / "latest").is_file():
        return read_checkpoint(path, _open)
    file = path if path.is_file() else path / "tokenizer.json"
    if not file.is_file():
        raise InputError(f"{path}: holds no tokenizer.json: give a run, a checkpoint or the file")
    config = file.with_name("tokenizer_config.json")
    template = file.with_name("chat_template.jinja")
    text = read_text(file)
    settings = read_json(config) if config.is_file() else {}
    try:
        named = {}
        for name in NAMED:
            token = settings.get(name)
            if token:
                # transformers 4 writes objects
                named[name] = token["content"] if isinstance(token, dict) else token
        templates = settings.get("chat_template") or {}
        if isinstance(templates, list):
            templates = {template["name"]: template["template"] for template in templates}
        templates = {"default": templates} if isinstance(templates, str) else dict(templates)
        backend = tokenizers.Tokenizer.from_str(text)
        # one that is damaged may load, and fail at the first text
        backend.decode(backend.encode("A fox, 7 foxes and an é.\n").ids)
    except (KeyboardInterrupt, SystemExit):
        raise
    # The library raises nothing more precise; a panic of its Rust code is a BaseException.
    except BaseException as error:
        reason = str(error).partition("\n")[0][:200]
        raise InputError(
            f"{file}: it, or {config.name} beside it, cannot be used: {reason}"
        ) from None
    if template.is_file():
        templates["default"] = read_text(template)
    values = {"named_tokens": named, "chat_template": templates}
    return file, backend, checked(values, str(config), Settings)


def cut(text: str, length: int) -> list[str]:
    """Cut a text between words, about every `length` characters: its ids stay the same."""
    pieces = []
    start = 0
    while len(text) > start + length:
        match = BETWEEN_WORDS.search(text, start + length)
        if match is None:
            break
        end = match.end() if match[0] == "\n" else match.start()
        pieces.append(text[start:end])
        start = end
    return [*pieces, text[start:]]


def round_up(size: int) -> int:
    """Round a vocabulary size up to a multiple of 64, for fast matrix products."""
    return -(-size // 64) * 64


def _in_batches(
    encode: Callable[..., list[tokenizers.Encoding]], texts: Iterable[str]
) -> Iterator[tokenizers.Encoding]:
    texts = list(texts)
    batches = zip(accumulate(map(len, texts)), texts, strict=True)
    for _, batch in groupby(batches, key=lambda item: item[0] // TOGETHER):
        try:
            yield from encode([text for _, text in batch], add_special_tokens=False)
        except TypeError:
            raise ValueError("a text holds half a character (a surrogate)") from None
