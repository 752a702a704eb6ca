"""On which texts are heads measured? Probes: fixed token sequences, the same at every step of a run.

    text         texts of your own, or how the first held-out documents begin: what a head does in ordinary reading
    repeated_2   random tokens, and the same again: a model predicts the second block only if it looks back
    repeated_4   the same blocks four times (Olsson et al. 2022, arXiv 2209.11895)
    songs        held-out stories of the built-in world in which a nonsense song comes back word for word
    stories      held-out stories with the earlier mention that every name, noun and pronoun stands for
    packed       several documents in one row: whether they see each other

Nothing here draws from the global random state, and none of it was trained on.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from random import Random
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from configs.command import InputError
from configs.loader import Section, load_config, validate
from data.config import DataConfig, MixSource, StoryworldSource
from data.packing import TokenStream
from data.tokenizer import Tokenizer
from storyworld import Story, align, antecedents, tell

TEXT_ROWS, TEXT_TOKENS = 8, 64  # 64: the length at which Gu et al. 2024 measure sinks
BLOCK_ROWS, BLOCK_TOKENS = {2: 16, 4: 8}, 25  # copies -> rows; 25: the block of Olsson et al. 2022
STORIES, CANDIDATES = 4, 24  # few and short: they are read at every evaluation
PACKED_ROWS, PACKED_DOCUMENTS, PACKED_TOKENS = 2, 3, 16
LONGEST = 256  # tokens of any probe; its maps grow with the square
SCAN = 1 << 17  # held-out tokens that are looked through
BUILT_IN_PROBES = ("repeated_2", "repeated_4", "songs", "stories", "packed")

Pairs = list[tuple[int, list[int]]]  # query position, key positions


@dataclass(frozen=True)
class Probe:
    """Rows of tokens, and what is known about them.

    input_ids:    (B, T) int64; labels: a readable string for every token of every row
    real:         (B, T) bool, False for padding, which is on the right: no token looks at it, so that the model needs
                  no attention_mask; None = no padding
    document_ids: (B, T) int64 of a packed row, else None; isolated: whether the model keeps documents apart
    period, copies: of a block that begins behind the first token: its tokens (None: no block), how often it is there
    targets:      kind -> for each row its (query position, [key positions]):
                  "song": a token of a later singing, and what followed the same token in each earlier one;
                  "copies", "refers": a token of a mention, and the earlier tokens that it copies or refers to;
                  "writes": as "copies", for the token before, where the model is about to write the mention
    left_out:     what of a text is not here, in words, or ""
    """

    name: str
    input_ids: Tensor
    labels: list[list[str]]
    real: Tensor | None = None
    document_ids: Tensor | None = None
    isolated: bool = False
    period: int | None = None
    copies: int = 1
    targets: dict[str, list[Pairs]] = field(default_factory=dict)
    left_out: str = ""

    def for_model(self, device: torch.device | str = "cpu") -> dict[str, Tensor]:
        """What `capture` and LanguageModel are to be given."""
        documents = {"document_ids": self.document_ids} if self.isolated and self.document_ids is not None else {}
        return {name: values.to(device) for name, values in {"input_ids": self.input_ids, **documents}.items()}


Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,40}$")]


class ProbeFile(Section):
    """A YAML file of texts: `texts: {fox: The fox saw the bird.}`."""

    texts: dict[Name, Annotated[str, Field(min_length=1)]] = Field(min_length=1)
    """What the heads look at, by name; a name has letters, digits, - and _, since it names files."""


def read_probe_file(path: str | Path) -> dict[str, str]:
    """The texts of a YAML file, by name. Raises InputError, with file, line and key."""
    texts = validate(ProbeFile, load_config(path)).texts
    if taken := texts.keys() & set(BUILT_IN_PROBES):
        raise InputError(f"{path}: the name {min(taken)} is taken by a built-in probe: choose another")
    return texts


def build_probes(
    tokenizer: Tokenizer,
    data_config: DataConfig,
    context_length: int,
    texts: Mapping[str, str] | None = None,
    held_out: TokenStream | None = None,
    blocks: Sequence[Sequence[int]] = (),
) -> list[Probe]:
    """Every probe that this run can have, text first; what does not fit the context is shortened or left out.

    texts: to look at, by name. If none is called text, `text` is how the documents of held_out
    (`data.stream("validation")`) begin. blocks: what repeated_2 and repeated_4 repeat, if it is given: a run that
    starts from another one looks at the same. Raises ValueError for an empty text.
    """
    longest = min(context_length, data_config.sequence_length, LONGEST)
    built: list[Probe | None] = [
        probe_from_text(tokenizer, text, min(context_length, LONGEST), name) for name, text in (texts or {}).items()
    ]
    ids = np.empty(0, np.int64) if held_out is None else held_out.read(0, min(len(held_out), SCAN))
    if held_out is not None and "text" not in (texts or {}):
        built.insert(0, text_probe(tokenizer, ids, longest))
    for copies in (2, 4):  # both repeat the same blocks, so that a resumed run, which is given them, looks at the same
        built.append(probe := repeated_probe(tokenizer, copies, longest, ids.tolist(), blocks))
        blocks = blocks or (probe.input_ids[:, 1 : 1 + (probe.period or 0)].tolist() if probe else ())
    source = data_config.source
    parts = [part.source for part in source.parts] if isinstance(source, MixSource) else [source]
    for part in [part for part in parts if isinstance(part, StoryworldSource)][:1]:
        built += [story_probe(tokenizer, part, longest, "songs"), story_probe(tokenizer, part, longest, "stories")]
    if held_out is not None:
        built.append(packed_probe(tokenizer, ids, longest, data_config.isolate_documents))
    return [probe for probe in built if probe is not None]


def probe_from_text(tokenizer: Tokenizer, text: str, longest: int, name: str = "text") -> Probe:
    """One text, with the first token of a document before it; what is longer is cut. Raises ValueError for an empty
    text."""
    ids = [tokenizer.bos_id, *tokenizer.encode(text)]
    if len(ids) == 1:
        raise ValueError(f"the text of the probe {name} is empty: give a few words")
    left_out = f"tokens {longest} to {len(ids) - 1} of {len(ids)}" if len(ids) > longest else ""
    return _probe(name, tokenizer, [ids[:longest]], left_out=left_out)


def text_probe(tokenizer: Tokenizer, held_out: np.ndarray, longest: int) -> Probe | None:
    """How held-out documents begin: up to 8 rows of one length, at most 64 tokens, so that nothing is padding."""
    rows = _beginnings(held_out, tokenizer.bos_id, TEXT_ROWS, min(TEXT_TOKENS, longest))
    return _probe("text", tokenizer, rows) if rows else None


def repeated_probe(
    tokenizer: Tokenizer, copies: int, longest: int, in_use: Iterable[int] = (), blocks: Sequence[Sequence[int]] = ()
) -> Probe | None:
    """The first token of a document, and a block of random tokens, no two alike, `copies` times: 16 or 8 rows.

    Special and reserved tokens are never in it. in_use: draw from these, if there are enough: what training never
    shows (a quarter of a small BPE vocabulary) no head can have learned to handle. The block has 25 tokens, or as
    many as context and vocabulary allow. Always the same for the same tokenizer and in_use. blocks: take these.
    """
    ordinary = [token for token in range(tokenizer.vocab_size) if token not in tokenizer.special_ids]
    common = sorted(set(in_use).intersection(ordinary))
    pool = common if len(common) >= BLOCK_TOKENS else ordinary
    size = min(BLOCK_TOKENS, (longest - 1) // copies, len(blocks[0] if blocks else pool))
    if size < 2:
        return None
    rng = Random("repeated tokens")
    blocks = blocks or [rng.sample(pool, size) for _ in range(BLOCK_ROWS[copies])]
    rows = [[tokenizer.bos_id, *list(block[:size]) * copies] for block in blocks[: BLOCK_ROWS[copies]]]
    return _probe(f"repeated_{copies}", tokenizer, rows, period=size, copies=copies)


def story_probe(
    tokenizer: Tokenizer, source: StoryworldSource, longest: int, kind: Literal["songs", "stories"]
) -> Probe | None:
    """Four held-out stories in which a song is sung two or three times, or four without a song, padded on the right.

    Of those that have targets within the context, the ones with most pronouns, which are rare, and among equal ones
    the shortest.
    """
    plot = "song" if kind == "songs" else None
    candidates: list[tuple[list[int], dict[str, Pairs]]] = []
    for story in (tell(source.seed, index, "validation", source.level, plot=plot) for index in range(CANDIDATES)):
        if kind == "stories" and story.plot == "song":
            continue
        encoding = tokenizer.backend.encode(story.text, add_special_tokens=False)
        ids = [tokenizer.bos_id, *encoding.ids]
        end = min(len(ids), longest) - 2  # the last token that is shown has no next one to take the loss of
        targets = {  # counted with the first token
            name: [(query + 1, [key + 1 for key in keys]) for query, keys in pairs if query < end]
            for name, pairs in story_pairs(story, encoding.offsets, kind).items()
        }
        if any(targets.values()):
            candidates.append((ids, targets))
    chosen = sorted(candidates, key=lambda each: (-len(each[1].get("refers", ())), len(each[0])))[:STORIES]
    if not chosen:
        return None
    targets_of = {name: [targets[name] for _, targets in chosen] for name in chosen[0][1]}
    return _probe(kind, tokenizer, [ids[:longest] for ids, _ in chosen], targets=targets_of)


def story_pairs(story: Story, offsets: Sequence[tuple[int, int]], kind: str) -> dict[str, Pairs]:
    """The targets of a story, in tokens of its text alone: see Probe. A head may look at any earlier mention."""
    labels = antecedents(story, "all")
    if kind == "songs":
        song = " ".join(choice.option for choice in story.choices if choice.kind == "song")
        sung = dict(align((label for label in labels if story.text[label.start : label.end] == song), offsets))
        # the last token of a singing is followed by something else
        return {"song": [(token, [key + 1 for key in keys]) for token, keys in sung.items() if token + 1 in sung]}
    pairs = {name: align((label for label in labels if label.kind == name), offsets) for name in ("copies", "refers")}
    return pairs | {"writes": [(query - 1, keys) for query, keys in pairs["copies"]]}


def packed_probe(tokenizer: Tokenizer, held_out: np.ndarray, longest: int, isolated: bool) -> Probe | None:
    """Two rows of three held-out documents' beginnings, 16 tokens each."""
    size = min(PACKED_TOKENS, longest // PACKED_DOCUMENTS)
    pieces = _beginnings(held_out, tokenizer.bos_id, PACKED_ROWS * PACKED_DOCUMENTS, size)
    starts = range(0, len(pieces) - PACKED_DOCUMENTS + 1, PACKED_DOCUMENTS)
    rows = [list(chain(*pieces[at : at + PACKED_DOCUMENTS])) for at in starts]
    if not rows:
        return None
    documents = torch.arange(PACKED_DOCUMENTS).repeat_interleave(len(pieces[0])).expand(len(rows), -1).contiguous()
    return _probe("packed", tokenizer, rows, document_ids=documents, isolated=isolated)


def _beginnings(ids: np.ndarray, bos_id: int, count: int, length: int) -> list[list[int]]:
    """How up to `count` documents begin, all equally long, at most `length`; of a single text, pieces of it.

    Where documents are few or short, there are as many rows, of such a length, as give the most tokens.
    """
    starts = np.flatnonzero(ids == bos_id)
    if len(starts) < 2:  # training cuts such a text anywhere, so its pieces begin with any token
        length = min(length, len(ids) // count)
        starts = np.arange(count) * (len(ids) // count)
    else:
        sizes = np.diff(starts, append=len(ids))
        lengths = np.minimum(length, np.sort(sizes)[::-1][:count])  # of 1, 2, … rows
        length = int(lengths[np.argmax(lengths * np.arange(1, len(lengths) + 1))])
        starts = starts[sizes >= length][:count]
    return [ids[at : at + length].tolist() for at in starts.tolist()] if length >= 2 else []


def _probe(name: str, tokenizer: Tokenizer, rows: list[list[int]], **known: Any) -> Probe:
    """Rows of any lengths -> a probe; the shorter ones are padded on the right."""
    length = max(map(len, rows))
    ids = torch.tensor([row + [tokenizer.pad_id] * (length - len(row)) for row in rows])
    real = torch.arange(length) < torch.tensor([[len(row)] for row in rows])
    labels = [readable_tokens(tokenizer, row) for row in ids.tolist()]
    return Probe(name, ids, labels, real=None if bool(real.all()) else real, **known)


def readable_tokens(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """One readable string an id. Where a character is spread over several tokens, the last of them shows it whole,
    the others the bytes that they hold: 你 in two tokens is ⟨E4⟩⟨BD⟩ and 你."""
    labels = tokenizer.token_labels(ids)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for place, token in enumerate(ids):
        if token in tokenizer.special_ids or "\ufffd" not in tokenizer.decode([token]):
            decoder.reset()  # a whole token: what stood open before it is no character
            continue
        begun, text = decoder.getstate()[0], decoder.decode(tokenizer.decode_bytes([token]))
        if begun and text and "\ufffd" not in text:
            rest = re.sub("(..)", r"⟨\1⟩", decoder.getstate()[0].hex().upper())
            labels[place] = text.replace(" ", "␣").replace("\n", "⏎").replace("\t", "⇥") + rest
    return labels
