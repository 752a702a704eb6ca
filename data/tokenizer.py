"""How does text become token ids? Train, load and save a tokenizer; all kinds are ordinary tokenizer.json files.

The special tokens of the chat template have the lowest ids from the start, so a later fine-tune changes no shape.
Reserved tokens round the vocabulary up to a multiple of 64 (fast matrix products). A pretrained tokenizer keeps its
ids; what it lacks is added after them.

No token crosses the end of a word, so a long text may be cut there. The words of our byte-level tokenizers are what
GPT-2's pattern finds: letters with the space before them, punctuation likewise, white space, and single digits. A word
has at most LONGEST characters, in tokenizer.json too. Without this limit one word of a megabyte takes minutes to learn
from: the work grows with the square of its length. (The longest word of ordinary text: 369, the line of a table.)
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

PAD, BOS, EOS, UNK = "<|pad|>", "<|bos|>", "<|eos|>", "<|unk|>"
CHAT = ["<|im_start|>", "<|im_end|>", "<think>", "</think>"]
TOOLS = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
SPECIAL_TOKENS = [PAD, BOS, EOS, UNK, *CHAT, *TOOLS]
HEADERS = ["system\n", "user\n", "assistant\n", "tool\n"]  # what the chat template itself writes as text
ROLES = {"pad_token": PAD, "bos_token": BOS, "eos_token": EOS}  # transformers' names for them
NAMED = [*ROLES, "unk_token", "sep_token", "cls_token", "mask_token"]  # what a chat template may ask for
DECIDING = ("model", "normalizer", "pre_tokenizer")  # parts of tokenizer.json, for the ids of a text
DEFAULT_VOCAB_SIZE = 2048
PIECE = 1 << 16  # characters of a text that one core encodes at a time
TOGETHER = 1 << 20  # characters that all cores encode at a time; each needs about 100 bytes of memory
LONGEST = 512  # characters of a word
JOINT = f"{PRIVATE}-"  # a token that no other token reaches across
VISIBLE = str.maketrans({" ": "␣", "\n": "⏎", "\t": "⇥"})
# No token of a byte-level tokenizer crosses the end of this line end, or the beginning of this space. The look behind
# comes last: `re` is quick where a pattern begins with the characters that it looks for.
BETWEEN_WORDS = re.compile(r"[\n ](?=\S)(?<=\S[\n ])")
# The letters of a byte-level tokenizer (GPT-2's table): printable bytes stand for themselves, the others come after 255
PRINTABLE = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
BYTES = {chr(byte): byte for byte in PRINTABLE}
BYTES |= {chr(256 + i): byte for i, byte in enumerate(byte for byte in range(256) if byte not in PRINTABLE)}


class Settings(NamedTuple):
    """What is read of tokenizer_config.json: the tokens that a chat template may ask for, by name, and templates by
    name ("default", "tool_use")."""

    named_tokens: dict[str, str]
    chat_template: dict[str, str]


class _TemplateReader(NamedTuple):
    """A tokenizer of texts in which special tokens have a spelling that nobody can type.

    So special strings that a message holds stay plain text. spelling: of each special token.
    own_ids: the id in the real tokenizer of each id, -1 for a joint.
    """

    backend: tokenizers.Tokenizer
    spelling: dict[str, str]
    own_ids: np.ndarray


class Tokenizer:
    """Text <-> token ids. Special strings inside a text stay plain text: typing one never opens a turn.

    roles: which token is the pad_token, the bos_token and the eos_token. settings: those of a model directory: its
    chat template, and what stands before a text; without them they are ours.
    """

    def __init__(
        self, backend: tokenizers.Tokenizer, roles: dict[str, str] | None = None, settings: Settings | None = None
    ):
        self.backend, self.roles = backend, dict(roles or ROLES)
        self.backend.encode_special_tokens = True
        self.backend.no_padding()  # transformers saves how it padded last
        self.backend.no_truncation()
        self.pad_id, self.bos_id, self.eos_id = (self.special_id(self.roles[role]) for role in ROLES)
        special = {i: token.content for i, token in self.backend.get_added_tokens_decoder().items() if token.special}
        self.special_ids, self._specials = frozenset(special), list(special.values())
        self._settings = settings
        self.model_ends: list[int] = []  # as transformers' generate takes them from generation_config.json
        self.first_ids = [self.bos_id]
        if settings is not None:  # what transformers puts before a text: tokenizer.json says it
            begun = self.backend.encode("a", add_special_tokens=True)
            self.first_ids = begun.ids[: begun.special_tokens_mask.index(0)]

    # special tokens, and the chat template that writes them

    @cached_property
    def our_chat(self) -> ChatTemplate:
        """Our own chat template, which all training uses."""
        return ChatTemplate({"default": CHAT_TEMPLATE}, self.roles, {*self._specials, *SPECIAL_TOKENS})

    @cached_property
    def chat(self) -> ChatTemplate:
        """The chat template that the model is prompted with: the one that it brings, or else ours."""
        if self._settings is None or not self._settings.chat_template:
            return self.our_chat
        return ChatTemplate(self._settings.chat_template, self._settings.named_tokens, self._specials)

    def special_id(self, token: str) -> int:
        """The id of a special token. Raises InputError if there is no such token."""
        token_id = self.backend.token_to_id(token)
        if token_id is None:
            raise InputError(f"the tokenizer has no {token} token, which Headlight needs")
        return token_id

    @property
    def unk_id(self) -> int | None:
        """The id of a character that `char` has not seen; None where every text has ids of its own."""
        unk = getattr(self.backend.model, "unk_token", None)
        return self.backend.token_to_id(unk) if unk else None

    def unknown_in(self, text: str) -> str:
        """The characters of a text that the tokenizer has no token for, each once."""
        return "".join(letter for letter in dict.fromkeys(text) if self.unk_id in self.encode(letter))

    @property
    def stop_ids(self) -> list[int]:
        """The ids that end a document and a turn, and those that the model's own config names."""
        turn = [] if self.turn_end is None else [self.turn_end]
        return list(dict.fromkeys([self.eos_id, *turn, *self.model_ends]))

    @cached_property
    def turn_end(self) -> int | None:
        """The special token that the chat template writes behind an answer. Raises CannotRender."""
        answer = f"{PRIVATE}."
        pieces = self.chat.render([{"role": "user", "content": "."}, {"role": "assistant", "content": answer}])
        behind = dropwhile(lambda piece: answer not in piece.text, pieces)
        return next((self.backend.token_to_id(piece.text) for piece in behind if piece.special), None)

    @cached_property
    def vocab_size(self) -> int:
        """Number of ids, special and reserved ones included; a multiple of 64. Unused ids between them count too."""
        return 1 + max(self.backend.get_vocab().values(), default=-1)

    # which tokenizer it is

    def sha256(self) -> str:
        """Of everything that decides ids: two tokenizers with the same hash give every document the same ids.

        Left out is what other programs add to tokenizer.json when they save it: padding, truncation, post-processor.
        """
        described = json.loads(self.backend.to_str())
        deciding = [described[key] for key in (*DECIDING, "added_tokens")]
        return hashlib.sha256(json.dumps([deciding, self.roles], sort_keys=True).encode()).hexdigest()

    def tokens_beyond(self, other: Tokenizer) -> list[str] | None:
        """The tokens that were added to the other one's, reserved ones left out; None if an id of the other one stands
        for something else here. Which tokens begin and end a text does not matter: it changes no id."""
        ours, theirs = (json.loads(tokenizer.backend.to_str()) for tokenizer in (self, other))
        here, there = (tokenizer.backend.get_vocab() for tokenizer in (self, other))
        if any(ours[key] != theirs[key] for key in DECIDING) or not there.items() <= here.items():
            return None
        added = sorted(here.keys() - there.keys(), key=here.__getitem__)
        return [token for token in added if not token.startswith("<|reserved_")]

    # text -> ids

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without the first and last token of a document. Raises ValueError for half a character."""
        return self.encode_many([text])[0]

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of several texts, on all cores, without the first and last token of a document; see `encode`."""
        return [ids.tolist() for ids in self.encode_arrays(texts)]

    def encode_arrays(self, texts: Sequence[str]) -> list[np.ndarray]:
        """As encode_many; uint32 arrays. A long text goes through in pieces whose joined ids are its own, so that all
        cores share it."""
        pieces = [cut(text, PIECE) if len(text) > PIECE and self.can_cut else [text] for text in texts]
        encodings = _in_batches(self.backend.encode_batch_fast, chain.from_iterable(pieces))
        arrays = (np.array(encoding.ids, dtype=np.uint32) for encoding in encodings)
        return [np.concatenate(list(islice(arrays, len(parts)))) for parts in pieces]

    def encode_documents(self, texts: Sequence[str]) -> list[list[int]]:
        """Whole documents: first token, text, last token."""
        return [[self.bos_id, *ids, self.eos_id] for ids in self.encode_many(texts)]

    def begin(self, text: str) -> list[int]:
        """The ids of a text that the model is to continue, as transformers gives them: its first token, if it has one.

        Raises ValueError as `encode` does.
        """
        return [*self.first_ids, *self.encode(text)] or [self.bos_id]

    def encode_pieces(self, texts: Sequence[Sequence[Piece]]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Encode texts that a chat template wrote -> (ids, the piece that each id ends in), uint32.

        A text is encoded once and whole. If a text may be cut, no token reaches across a joint.
        """
        reader = self._template_reader
        joined, ends = [], []
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
            ids = reader.own_ids[np.array(encoding.ids, dtype=np.int64)]
            begins, stops = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2).T
            last = np.maximum(begins, stops - 1)  # character of each token
            piece_of = np.searchsorted(end, last, "right")
            result.append((ids[ids >= 0].astype(np.uint32), piece_of[ids >= 0]))
        return result

    @cached_property
    def _template_reader(self) -> _TemplateReader:
        backend = tokenizers.Tokenizer.from_str(self.backend.to_str())
        backend.encode_special_tokens = True
        # A new token gets the number of tokens for its id, so ids without a token come first.
        gaps = range(self.vocab_size - backend.get_vocab_size())
        backend.add_tokens([f"{PRIVATE}gap{i}" for i in gaps])
        backend.add_tokens([tokenizers.AddedToken(JOINT, normalized=False)])
        own_ids = np.arange(backend.get_vocab_size() + len(self.special_ids))
        own_ids[backend.token_to_id(JOINT)] = -1
        spelling = {}
        for token_id in self.special_ids:
            token = self.backend.get_added_tokens_decoder()[token_id]
            spelling[token.content] = private = f"{PRIVATE}{token_id}\ufdd1"
            flags = ("lstrip", "rstrip", "single_word", "normalized")  # how it reads blanks beside it
            options = {name: getattr(token, name) for name in flags}
            backend.add_tokens([tokenizers.AddedToken(private, **options)])
            own_ids[backend.token_to_id(private)] = token_id
        return _TemplateReader(backend, spelling, own_ids)

    @cached_property
    def can_cut(self) -> bool:
        """Whether a text may be encoded in pieces. False if the tokenizer puts a space before each text."""
        texts = ["A fox\nran home", "A", " fox\n", "ran", " home"]
        joined, *pieces = (encoding.ids for encoding in self.backend.encode_batch(texts, add_special_tokens=False))
        return joined == [*chain.from_iterable(pieces)]

    # ids -> text

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """Ids -> text. Bytes that are not valid UTF-8 become the replacement character."""
        return self.backend.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """The bytes that ids stand for, special tokens left out. Each id alone has its own: part of a character too."""
        decoder, parts = self.backend.decoder.__getstate__() if self.backend.decoder is not None else b"", []
        for token_id in ids:
            token = self.backend.id_to_token(token_id) or ""
            if token_id in self.special_ids:
                continue
            if b'"ByteLevel"' in decoder and set(token) <= BYTES.keys():
                parts.append(bytes(BYTES[letter] for letter in token))
            elif b'"ByteFallback"' in decoder and (byte := re.fullmatch("<0x([0-9A-Fa-f]{2})>", token)):
                parts.append(bytes.fromhex(byte[1]))
            else:
                before = self.encode("a")[-1]  # alone, a token loses the space that it begins with
                parts.append(self.decode([before, token_id]).removeprefix(self.decode([before])).encode())
        return b"".join(parts)

    def token_labels(self, ids: Iterable[int]) -> list[str]:
        """One readable string an id, for pictures: spaces and line ends are visible, special tokens short."""
        labels = []
        for token_id in ids:
            if (token := self.backend.id_to_token(token_id)) is None:
                labels.append(f"#{token_id}")
            elif token_id in self.special_ids:
                labels.append(token.replace("<|", "<").replace("|>", ">"))
            else:  # a byte that is no whole character decodes to a surrogate of its own
                text = self.decode_bytes([token_id]).decode("utf-8", "surrogateescape").translate(VISIBLE)
                labels.append(re.sub("[\udc80-\udcff]", lambda byte: f"⟨{ord(byte[0]) - 0xDC00:X}⟩", text))
        return labels

    def save(self, directory: str | Path, context_length: int | None = None) -> None:
        """Write tokenizer.json and tokenizer_config.json, which transformers' AutoTokenizer reads.

        There every text begins with the bos token, as every document did in training; `encode` adds none.
        context_length: the most tokens that the model can read, where one is known.
        """
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        for_others, bos = tokenizers.Tokenizer.from_str(self.backend.to_str()), self.roles["bos_token"]
        for_others.post_processor = processors.TemplateProcessing(
            single=[bos, "$A"], pair=[bos, "$A", "$B:1"], special_tokens=[(bos, self.bos_id)]
        )
        (directory / "tokenizer.json").write_text(for_others.to_str(pretty=True), encoding="utf-8")
        settings: dict[str, Any] = {
            "tokenizer_class": "PreTrainedTokenizerFast",  # any other class would replace our pre-tokenizer
            **self.roles,
            "add_bos_token": True,
            "add_eos_token": False,
            "model_input_names": ["input_ids", "attention_mask"],  # no token_type_ids, which the model does not take
            "padding_side": "left",  # so that a batch of prompts ends where the answers begin
            "clean_up_tokenization_spaces": False,
            "chat_template": CHAT_TEMPLATE,
            "unk_token": UNK if self.backend.token_to_id(UNK) is not None else None,
            "model_max_length": context_length,
        }
        known = {name: value for name, value in settings.items() if value is not None}
        text = json.dumps(known, indent=2, ensure_ascii=False) + "\n"
        (directory / "tokenizer_config.json").write_text(text, encoding="utf-8")


def train_tokenizer(config: TokenizerConfig, texts: Iterable[str]) -> Tokenizer:
    """Train a tokenizer on texts; `byte` has nothing to learn, and `pretrained` exists already."""
    if config.kind == "pretrained":
        return adopt(str(config.path), config.vocab_size or 0)
    if config.kind == "char":
        characters = {character for text in (*HEADERS, *texts) for character in text}
        vocabulary = {token: i for i, token in enumerate([*SPECIAL_TOKENS, *sorted(characters)])}
        backend = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token=UNK))
        backend.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex(r"[\s\S]"), behavior="isolated")
        backend.decoder = decoders.Fuse()
        backend.add_special_tokens(SPECIAL_TOKENS)
    else:
        backend = tokenizers.Tokenizer(models.BPE())
        backend.pre_tokenizer = pre_tokenizer(has_words=config.kind == "bpe")
        backend.decoder = decoders.ByteLevel()
        size = round_up(config.vocab_size or DEFAULT_VOCAB_SIZE)
        trainer = trainers.BpeTrainer(
            vocab_size=size if config.kind == "bpe" else len(SPECIAL_TOKENS) + len(BYTES),
            special_tokens=SPECIAL_TOKENS,
            initial_alphabet=sorted(BYTES),
            show_progress=False,
        )
        backend.train_from_iterator(texts if config.kind == "bpe" else [], trainer)
    return Tokenizer(_with_reserved(backend, round_up(backend.get_vocab_size())))


def pre_tokenizer(has_words: bool = True) -> pre_tokenizers.PreTokenizer:
    """Text -> words of at most LONGEST characters, as bytes. has_words: False leaves all but digits together."""
    some = f"{{1,{LONGEST}}}"
    space = rf"\s{some}(?!\S)|\s{some}"
    words = rf"'s|'t|'re|'ve|'m|'ll|'d| ?\p{{L}}{some}| ?\p{{N}}{some}| ?[^\s\p{{L}}\p{{N}}]{some}|{space}"
    parts = [
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.Split(tokenizers.Regex(words), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
    return pre_tokenizers.Sequence(parts if has_words else [parts[0], parts[2]])


def adopt(path: str | Path, at_least: int = 0) -> Tokenizer:
    """A pretrained tokenizer: its ids stay, and the special tokens that it lacks are added after them.

    Its own bos, eos and pad tokens are kept if possible. The bos token marks where a document begins, so it must
    differ from the others and from those of the chat. A model beside it often has rows for more ids than there are
    tokens: the added ones take these rows, and reserved ones the rest. Raises InputError.
    """
    file, backend, settings = open_tokenizer(path)
    vocabulary = backend.get_vocab()
    if (last := max(vocabulary.values(), default=-1)) + 1 != len(vocabulary):
        raise InputError(f"{file}: its ids have gaps ({len(vocabulary):,} tokens, the last one is {last:,})")
    named = settings.named_tokens
    roles = {role: named[role] if named.get(role) in vocabulary else ours for role, ours in ROLES.items()}
    if roles["bos_token"] in (roles["eos_token"], roles["pad_token"], *CHAT):
        roles["bos_token"] = BOS
    if roles["pad_token"] in (roles["eos_token"], getattr(backend.model, "unk_token", None)):
        roles["pad_token"] = PAD
    specials = [*roles.values(), *CHAT, *TOOLS]
    backend.add_special_tokens(specials)
    used, model = max(at_least, backend.get_vocab_size()), file.with_name("config.json")
    rows = read_json(model).get("vocab_size") if model.is_file() else None
    size = rows if isinstance(rows, int) and used <= rows <= MOST_TOKENS else round_up(used)
    tokenizer = Tokenizer(_with_reserved(backend, size), roles)
    for token in specials:
        if tokenizer.special_id(token) in tokenizer.encode(f"a {token} b") + tokenizer.encode(token):
            raise InputError(
                f"{file}: a text that holds {token} would get the id of the special token, so anybody could open a "
                "turn or a document by typing it: use a byte-level BPE tokenizer"
            )
    return tokenizer


def _with_reserved(backend: tokenizers.Tokenizer, size: int) -> tokenizers.Tokenizer:
    """With reserved tokens up to this size."""
    names = (name for i in count() if backend.token_to_id(name := f"<|reserved_{i}|>") is None)
    backend.add_special_tokens(list(islice(names, size - backend.get_vocab_size())))
    return backend


def load_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer of a run (its newest checkpoint), of a checkpoint directory, or of a tokenizer.json.

    A foreign one may lack roles: then the token that ends a text begins and pads it too. Raises InputError when there
    is none, and for one that cannot be used.
    """
    file, backend, settings = open_tokenizer(path)
    own = {role: ours for role, ours in ROLES.items() if backend.token_to_id(ours) is not None}
    own |= {role: token for role, token in settings.named_tokens.items() if role in ROLES}
    pad = settings.named_tokens.get("pad_token")
    end = own.get("eos_token") or pad or EOS
    try:
        return Tokenizer(backend, {"pad_token": end, "bos_token": pad or end, "eos_token": end} | own, settings)
    except InputError as error:
        raise InputError(f"{file}: {error}") from None


def open_tokenizer(path: str | Path) -> tuple[Path, tokenizers.Tokenizer, Settings]:
    """The tokenizer of a run, a directory or a file: where it is, tokenizer.json, its settings. Raises InputError."""
    path = run_path(path)
    is_missing = not path.exists() and path.suffix != ".json"
    if is_pointer(path) or is_missing or (path / "checkpoints" / "latest").is_file():
        return read_checkpoint(path, open_tokenizer)
    file = path if path.is_file() else path / "tokenizer.json"
    if not file.is_file():
        raise InputError(f"{path}: holds no tokenizer.json: give a run, a checkpoint directory or the file itself")
    config, template = file.with_name("tokenizer_config.json"), file.with_name("chat_template.jinja")
    text, settings = read_text(file), read_json(config) if config.is_file() else {}
    try:
        tokens = {name: settings[name] for name in NAMED if settings.get(name)}  # transformers 4 writes objects
        named = {name: token["content"] if isinstance(token, dict) else token for name, token in tokens.items()}
        templates = settings.get("chat_template") or {}
        if isinstance(templates, list):
            templates = {template["name"]: template["template"] for template in templates}
        templates = {"default": templates} if isinstance(templates, str) else dict(templates)
        backend = tokenizers.Tokenizer.from_str(text)
        backend.decode(backend.encode("A fox, 7 foxes and an é.\n").ids)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of its Rust code, too; the library raises nothing more precise
        reason = str(error).partition("\n")[0][:200]
        raise InputError(f"{file}: is not a tokenizer.json that works, or {config.name} is not: {reason}") from None
    templates |= {"default": read_text(template)} if template.is_file() else {}
    return file, backend, checked({"named_tokens": named, "chat_template": templates}, str(config), Settings)


def cut(text: str, length: int) -> list[str]:
    """A text in pieces of about `length` characters, cut between words. Their joined ids are those of the text."""
    pieces, start = [], 0
    while len(text) > start + length and (match := BETWEEN_WORDS.search(text, start + length)):
        end = match.end() if match[0] == "\n" else match.start()
        pieces.append(text[start:end])
        start = end
    return [*pieces, text[start:]]


def round_up(size: int) -> int:
    """The vocabulary size that this one becomes: the next multiple of 64."""
    return -(-size // 64) * 64


def _in_batches(
    encode: Callable[..., list[tokenizers.Encoding]], texts: Iterable[str]
) -> Iterator[tokenizers.Encoding]:
    """The encodings of texts, about TOGETHER characters at a time. Raises ValueError for half a character."""
    texts = list(texts)
    batches = zip(accumulate(map(len, texts)), texts, strict=True)
    for _, batch in groupby(batches, key=lambda item: item[0] // TOGETHER):
        try:
            yield from encode([text for _, text in batch], add_special_tokens=False)
        except TypeError:
            raise ValueError("a text holds half a character (a surrogate): it is not valid UTF-8") from None
