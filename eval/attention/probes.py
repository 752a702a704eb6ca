"""Probes: the token sequences on which heads are measured, the same at every step of a run.

    text         your own texts, or the beginnings of held-out documents: ordinary reading
    repeated_2   random tokens, twice: only a model that looks back predicts the second block
    repeated_4   random tokens, four times (Olsson et al. 2022, arXiv 2209.11895)
    varied       random tokens, twice, in blocks of 12 to 40: no fixed distance is right in all rows
    songs        held-out stories in which a nonsense song comes back word for word
    stories      held-out stories, with the earlier mention of every name, noun and pronoun
    packed       several documents in one row: do they see each other?

Nothing here draws from the global random state, and no probe was trained on.
"""

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
from data.tokenizer import VISIBLE, Tokenizer
from storyworld import Story, align, antecedents, tell

TEXT_ROWS = 8
TEXT_TOKENS = 64  # Gu et al. 2024 measure sinks at this length.
BLOCK_ROWS = {2: 16, 4: 8}  # copies -> rows
BLOCK_TOKENS = 25  # Olsson et al. 2022 repeat blocks of this length.
VARIED_TOKENS = range(12, 41, 2)  # The block's length in each row of varied.
# Every evaluation reads the stories, so they are few, and short ones of these candidates.
STORIES = 4
CANDIDATES = 24
PACKED_ROWS = 2
PACKED_DOCUMENTS = 3
PACKED_TOKENS = 16
LONGEST = 256  # The maps of a probe grow with the square of its tokens.
SCAN = 1 << 17  # At most so many held-out tokens are read.
BUILT_IN_PROBES = ("repeated_2", "repeated_4", "varied", "songs", "stories", "packed")

Pairs = list[tuple[int, list[int]]]  # query position, key positions


@dataclass(frozen=True)
class Probe:
    """Rows of tokens, and their known structure."""

    name: str
    input_ids: Tensor  # (B, T) int64
    labels: list[list[str]]  # a readable string for every token of every row
    # (B, T) bool, False for padding; None: no padding. It is on the right, where no token looks at
    # it, so the model needs no attention_mask.
    real: Tensor | None = None
    document_ids: Tensor | None = None  # (B, T) int64, for packed rows
    isolated: bool = False  # True if the model keeps documents apart
    period: int | None = None  # tokens of the block behind the first token; None: no block
    copies: int = 1  # of the block
    # Kind -> for each row its (query position, [key positions]).
    # induction:      from a token of the second block to what followed it in the first
    # distance:       as far back as in the row before, where nothing repeats
    # song:           from a token of a later singing to what followed it in earlier ones
    # copies, refers: from a token of a mention to the tokens that it copies or refers to
    # writes:         as copies, but from the token before the mention
    targets: dict[str, list[Pairs]] = field(default_factory=dict)
    left_out: str = ""  # the part of a text that is cut off, in words

    def for_model(self, device: torch.device | str = "cpu") -> dict[str, Tensor]:
        """Return the arguments for `capture` and LanguageModel."""
        tensors = {"input_ids": self.input_ids.to(device)}
        if self.isolated and self.document_ids is not None:
            tensors["document_ids"] = self.document_ids.to(device)
        return tensors


Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,40}$")]


class ProbeFile(Section):
    """A YAML file of texts: `texts: {fox: The fox saw the bird.}`."""

    texts: dict[Name, Annotated[str, Field(min_length=1)]] = Field(min_length=1)
    """Texts for the heads, by name. Names of letters, digits, - and _, since they name files."""


def read_probe_file(path: str | Path) -> dict[str, str]:
    """Read the texts of a YAML file, by name. Raises InputError, with file, line and key."""
    texts = validate(ProbeFile, load_config(path)).texts
    # two probes of one name would be one file and one curve
    taken = texts.keys() & set(BUILT_IN_PROBES)
    if taken:
        raise InputError(
            f"{path}: the name {min(taken)} is taken by a built-in probe: choose another"
        )
    return texts


def build_probes(
    tokenizer: Tokenizer,
    data_config: DataConfig,
    context_length: int,
    texts: Mapping[str, str] | None = None,
    held_out: TokenStream | None = None,
    blocks: Sequence[Sequence[int]] = (),
) -> list[Probe]:
    """Build every probe that this run can have, text first, shortened to the context.

    texts:    your own, by name
    held_out: `data.stream("validation")`
    blocks:   tokens for repeated_2 and repeated_4, from the run that this one starts from

    Raises ValueError for an empty text.
    """
    texts = texts or {}
    # your own text may be longer than a row of training, built-in probes may not
    limit = min(context_length, LONGEST)
    longest = min(limit, data_config.sequence_length)
    probes: list[Probe | None] = []
    for name, text in texts.items():
        probes.append(probe_from_text(tokenizer, text, limit, name))
    ids = np.empty(0, np.int64)
    if held_out is not None:
        ids = held_out.read(0, min(len(held_out), SCAN))
        if "text" not in texts:
            # first, because mosaic draws the first probe
            probes.insert(0, text_probe(tokenizer, ids, longest))
    # Both repeat the same blocks: a resumed run, which gets these blocks, measures the same.
    for copies in (2, 4):
        probe = repeated_probe(tokenizer, copies, longest, ids.tolist(), blocks)
        probes.append(probe)
        if probe and not blocks:
            blocks = probe.input_ids[:, 1 : 1 + (probe.period or 0)].tolist()
    if blocks:
        # of the same tokens, so that a resumed run has the same rows
        probes.append(varied_probe(tokenizer, longest, sorted({*chain(*blocks)})))
    source = data_config.source
    sources = [source]
    if isinstance(source, MixSource):
        sources = [part.source for part in source.parts]
    for source in sources:
        if isinstance(source, StoryworldSource) and source.tells_stories:
            # only of the first world: two probes of one name would be one file
            probes.append(story_probe(tokenizer, source, longest, "songs"))
            probes.append(story_probe(tokenizer, source, longest, "stories"))
            break
    if held_out is not None:
        probes.append(packed_probe(tokenizer, ids, longest, data_config.isolate_documents))
    return [probe for probe in probes if probe is not None]


def probe_from_text(tokenizer: Tokenizer, text: str, longest: int, name: str = "text") -> Probe:
    """Build a probe of one text, cut to `longest` tokens. Raises ValueError for an empty text."""
    # training rows begin with this token, and without it the first word would be a strange one
    ids = [tokenizer.bos_id, *tokenizer.encode(text)]
    if len(ids) == 1:
        raise ValueError(f"the text of the probe {name} is empty: give a few words")
    left_out = ""
    if len(ids) > longest:
        left_out = f"tokens {longest} to {len(ids) - 1} of {len(ids)}"
    return _probe(name, tokenizer, [ids[:longest]], left_out=left_out)


def text_probe(tokenizer: Tokenizer, held_out: np.ndarray, longest: int) -> Probe | None:
    """Beginnings of up to 8 held-out documents, equally long, of at most 64 tokens."""
    rows = _beginnings(held_out, tokenizer.bos_id, TEXT_ROWS, min(TEXT_TOKENS, longest))
    return _probe("text", tokenizer, rows) if rows else None


def repeated_probe(
    tokenizer: Tokenizer,
    copies: int,
    longest: int,
    in_use: Iterable[int] = (),
    blocks: Sequence[Sequence[int]] = (),
) -> Probe | None:
    """Rows of a document's first token and a block of random tokens, `copies` times.

    in_use: draw from these tokens, if there are enough
    blocks: use these instead of drawing

    A block has 25 different tokens, or as many as context and vocabulary allow; none is special.
    The same tokenizer and in_use always give the same rows.
    """
    # sorted, because sets have no order: the same tokenizer must give the same rows
    ordinary = sorted({*range(tokenizer.vocab_size)} - {*tokenizer.special_ids})
    # No head can handle a token that training never shows: a quarter of a small BPE vocabulary.
    common = sorted(set(in_use).intersection(ordinary))
    # with fewer, a block could not have its length without a repeat
    pool = common if len(common) >= BLOCK_TOKENS else ordinary
    size = min(BLOCK_TOKENS, (longest - 1) // copies, len(blocks[0] if blocks else pool))
    if size < 2:  # one token alone has nothing that follows it
        return None
    row_count = BLOCK_ROWS[copies]
    if not blocks:
        # its own generator: probes must not move the random state of training
        rng = Random("repeated tokens")
        # `sample` never repeats: a token twice in a block would have two right answers
        blocks = [rng.sample(pool, size) for _ in range(row_count)]
    rows = [[tokenizer.bos_id, *list(block[:size]) * copies] for block in blocks[:row_count]]
    return _probe(f"repeated_{copies}", tokenizer, rows, period=size, copies=copies)


def varied_probe(tokenizer: Tokenizer, longest: int, pool: Sequence[int]) -> Probe | None:
    """Rows as those of `repeated_probe`, each with a block of another length, of tokens of `pool`.

    A head that always attends 24 tokens back scores on blocks of 25 like an induction head. Here it
    scores as much on `distance`.
    """
    sizes = [size for size in VARIED_TOKENS if size <= min((longest - 1) // 2, len(pool))]
    if len(sizes) < 2:
        return None
    rng = Random("blocks of many lengths")
    rows = []
    targets: dict[str, list[Pairs]] = {"induction": [], "distance": []}
    # the first row has no row before it, and takes the distance of the second
    for size, size_before in zip(sizes, [sizes[1], *sizes], strict=False):
        rows.append([tokenizer.bos_id, *rng.sample(pool, size) * 2])
        second_block = range(1 + size, 2 * size)  # nothing follows its last token
        for kind, back in (("induction", size), ("distance", size_before)):
            pairs = [(query, [query - back + 1]) for query in second_block if query >= back]
            targets[kind].append(pairs)
    return _probe("varied", tokenizer, rows, targets=targets)


def story_probe(
    tokenizer: Tokenizer,
    source: StoryworldSource,
    longest: int,
    kind: Literal["songs", "stories"],
) -> Probe | None:
    """Build a probe of four held-out stories with a song, or four without."""
    plot = "song" if kind == "songs" else None
    candidates: list[tuple[list[int], dict[str, Pairs]]] = []
    for index in range(CANDIDATES):
        story = tell(source.seed, index, "validation", source.level, plot=plot)
        if kind == "stories" and story.plot == "song":
            continue
        # the backend's own call, because its result also has the characters of each token
        encoding = tokenizer.backend.encode(story.text, add_special_tokens=False)
        ids = [tokenizer.bos_id, *encoding.ids]
        end = min(len(ids), longest) - 2  # the last token of a row has no next one to predict
        targets: dict[str, Pairs] = {}
        for name, pairs in story_pairs(story, encoding.offsets, kind).items():
            targets[name] = []
            for query, keys in pairs:
                if query < end:
                    # + 1: the row begins with a document's first token
                    targets[name].append((query + 1, [key + 1 for key in keys]))
        if any(targets.values()):
            candidates.append((ids, targets))
    # First the stories with most pronouns, which are rare; among equals the shortest.
    candidates.sort(key=lambda pair: (-len(pair[1].get("refers", ())), len(pair[0])))
    chosen = candidates[:STORIES]
    if not chosen:
        return None
    rows = [ids[:longest] for ids, _ in chosen]
    row_targets = {name: [targets[name] for _, targets in chosen] for name in chosen[0][1]}
    return _probe(kind, tokenizer, rows, targets=row_targets)


def story_pairs(story: Story, offsets: Sequence[tuple[int, int]], kind: str) -> dict[str, Pairs]:
    """Return a story's targets (see Probe), in tokens of its text alone."""
    labels = antecedents(story, "all")
    if kind == "songs":
        song = " ".join(choice.option for choice in story.choices if choice.kind == "song")
        in_song = [label for label in labels if story.text[label.start : label.end] == song]
        sung = dict(align(in_song, offsets))
        pairs = []
        for token, keys in sung.items():
            # something else follows the last token of a singing
            if token + 1 in sung:
                pairs.append((token, [key + 1 for key in keys]))
        return {"song": pairs}
    copies = align((label for label in labels if label.kind == "copies"), offsets)
    refers = align((label for label in labels if label.kind == "refers"), offsets)
    # the token before the mention predicts it
    writes = [(query - 1, keys) for query, keys in copies]
    return {"copies": copies, "refers": refers, "writes": writes}


def packed_probe(
    tokenizer: Tokenizer, held_out: np.ndarray, longest: int, isolated: bool
) -> Probe | None:
    """Two rows of three held-out documents' beginnings, 16 tokens each."""
    size = min(PACKED_TOKENS, longest // PACKED_DOCUMENTS)
    pieces = _beginnings(held_out, tokenizer.bos_id, PACKED_ROWS * PACKED_DOCUMENTS, size)
    rows = []
    for start in range(0, len(pieces) - PACKED_DOCUMENTS + 1, PACKED_DOCUMENTS):
        rows.append(list(chain(*pieces[start : start + PACKED_DOCUMENTS])))
    if not rows:
        return None
    documents = torch.arange(PACKED_DOCUMENTS).repeat_interleave(len(pieces[0]))
    documents = documents.expand(len(rows), -1).contiguous()  # (B, T)
    return _probe("packed", tokenizer, rows, document_ids=documents, isolated=isolated)


def _beginnings(ids: np.ndarray, bos_id: int, count: int, length: int) -> list[list[int]]:
    """Return equally long beginnings of up to `count` documents, or pieces of a single text."""
    starts = np.flatnonzero(ids == bos_id)
    if len(starts) < 2:
        # Training cuts a single text anywhere, so pieces begin with any token.
        size = len(ids) // count
        length = min(length, size)
        starts = np.arange(count) * size
    else:
        sizes = np.diff(starts, append=len(ids))
        # lengths[n - 1]: the length that n documents have. The best n gives the most tokens.
        lengths = np.minimum(length, np.sort(sizes)[::-1][:count])
        length = int(lengths[np.argmax(lengths * np.arange(1, len(lengths) + 1))])
        starts = starts[sizes >= length][:count]
    if length < 2:
        return []
    return [ids[start : start + length].tolist() for start in starts.tolist()]


def _probe(name: str, tokenizer: Tokenizer, rows: list[list[int]], **structure: Any) -> Probe:
    length = max(map(len, rows))
    ids = torch.tensor([row + [tokenizer.pad_id] * (length - len(row)) for row in rows])
    real = torch.arange(length) < torch.tensor([[len(row)] for row in rows])  # (B, T)
    labels = [readable_tokens(tokenizer, row) for row in ids.tolist()]
    return Probe(name, ids, labels, real=None if bool(real.all()) else real, **structure)


def readable_tokens(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """Return one readable string an id.

    If several tokens share a character, the last one shows it and the others show their bytes:
    你 in two tokens is ⟨E4⟩⟨BD⟩ and 你.
    """
    labels = tokenizer.token_labels(ids)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for i, token in enumerate(ids):
        if token in tokenizer.special_ids or "\ufffd" not in tokenizer.decode([token]):
            decoder.reset()  # this token is whole, so bytes before it make no character
            continue
        pending = decoder.getstate()[0]  # bytes that wait for the rest of their character
        text = decoder.decode(tokenizer.decode_bytes([token]))
        if pending and text and "\ufffd" not in text:
            # the first bytes of the next character may follow
            rest = re.sub("(..)", r"⟨\1⟩", decoder.getstate()[0].hex().upper())
            labels[i] = text.translate(VISIBLE) + rest
    return labels
