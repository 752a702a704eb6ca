"""How is viewer.html made? Every head at every step of one or more runs, in one file that needs no network.

The page is the parts in `viewer/` put together, and the numbers, deflated, in base64. It needs a browser of 2023 or
later (Chrome 103, Firefox 113, Safari 16.4: DecompressionStream); it reads nothing else, stores nothing and sends
nothing, so a double click, a notebook and wandb show the same. For wandb: `wandb.Html(str(path), inject=False)`.
"""

from __future__ import annotations

import base64
import html
import json
import math
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from configs.command import InputError
from eval.attention.history import like_the_last, phase_change
from eval.attention.metrics import SCORES
from eval.attention.pictures.drawing import GROUP_COLOURS
from eval.attention.snapshots import ProbeMap, Snapshot

PARTS = Path(__file__).parent
SCRIPTS = "data colours state grid caption map tokens scores curve panes experts controls picture main begin".split()
FEW_STEPS = 12  # rather a probe less than fewer steps than this: the page is there to show change
LEVELS = 255
PROBE_TITLES = {  # where a name says too little
    "text": "ordinary text",
    "repeated_2": "repeated words",
    "repeated_4": "words repeated four times",
    "packed": "several documents",
}
PROBE_NOTES = {
    "text": "your own, or how an unseen document begins",
    "repeated_2": "random tokens, written twice: an induction head knows the second half",
    "repeated_4": "random tokens, written four times",
    "songs": "a story in which a nonsense song comes back word for word",
    "stories": "a held-out story, in which names and pronouns stand for earlier mentions",
    "packed": "several documents in one row: thin lines show where one ends",
}

Run = tuple[str, list[Snapshot]]


def quantise(weights: np.ndarray) -> np.ndarray:
    """Weights (..., T, T) in 0 … 1 -> 255 sqrt(weight) of the lower triangle, row by row, (..., T(T+1)/2) uint8.

    The square root keeps small weights apart: a weight w comes back as (code / 255)² with an error of at most
    sqrt(w) / 255 + 4e-6, so 0.01 to 0.0004 and 1 to 0.004. A non-finite weight becomes 0.
    """
    rows, columns = np.tril_indices(weights.shape[-1])
    triangle = np.nan_to_num(weights[..., rows, columns].astype(np.float32), nan=0.0)
    return np.round(LEVELS * np.sqrt(triangle.clip(0, 1))).astype(np.uint8)


def write_viewer(
    runs: Sequence[Run],
    path: Path,
    max_bytes: int = 5_000_000,
    head: tuple[int, int] | None = None,
    experts: Sequence[dict[str, Any] | None] = (),
) -> Path:
    """Write one self-contained page with the snapshots of all runs, each (its name, its snapshots), to path.

    head: the layer and head of the first run that the page opens on; default: the strongest induction head.
    experts: of each run, what eval.experts.log says; the page has a tab for them if any run has some.
    Where the maps are too many for max_bytes, steps go first (the first, the last and the early ones stay longest),
    then probes from the last, then tokens from the end; the page says which. Raises InputError if there is nothing
    to show, or if max_bytes is too little for a single step.
    """
    text = page(runs, max_bytes, head, experts)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def page(
    runs: Sequence[Run],
    max_bytes: int = 5_000_000,
    head: tuple[int, int] | None = None,
    experts: Sequence[dict[str, Any] | None] = (),
) -> str:
    """The same as a string."""
    if not runs:
        raise InputError("the viewer has no run to show: give at least one")
    kept = [_one_shape(name, snapshots) for name, snapshots in runs]
    for one, its_experts in zip(kept, experts, strict=False):
        one.experts = its_experts
    last = kept[0].snapshots[-1]
    first = {"layer": last.layers.index(head[0]), "head": last.heads.index(head[1])} if head else None
    title = " and ".join(one.name for one in kept)
    room = max_bytes - len(_assemble(title, "").encode())
    for plan in _plans(kept):
        lines = _fill(kept, plan, room, first)
        if lines is not None:
            return _assemble(title, "\n".join(lines))
    raise InputError(f"max_bytes ({max_bytes:,}) is too little for one step of these runs: allow more, or fewer heads")


@dataclass(frozen=True)
class Notebook:
    """A page inside a notebook: Jupyter calls _repr_html_. The page lives in the notebook, not in a file beside it."""

    page: str
    height: int = 900

    def __repr__(self) -> str:
        return f"the viewer ({len(self.page) / 1e6:.1f} MB): run this cell to see it, or open docs/demo_viewer.html"

    def _repr_html_(self) -> str:
        return (
            f'<iframe title="attention viewer" srcdoc="{html.escape(self.page)}" width="100%" height="{self.height}" '
            'style="border:0" allow="fullscreen"></iframe>'
        )


def notebook(path_or_html: Path | str, height: int = 900) -> Notebook:
    """Show a viewer, a file or the page itself, in a notebook cell; height in pixels."""
    is_page = isinstance(path_or_html, str) and path_or_html.lstrip().startswith("<")
    return Notebook(str(path_or_html) if is_page else Path(path_or_html).read_text(encoding="utf-8"), height)


@dataclass
class _Kept:
    """The snapshots of a run that have the shape of its last one, and what is encoded of them so far."""

    name: str
    snapshots: list[Snapshot]
    notes: list[str]
    encoded: dict[tuple[int, str, int], str] = field(default_factory=dict)
    experts: dict[str, Any] | None = None

    @property
    def probes(self) -> list[str]:
        """In the order of the last snapshot, so that the last step always has the first of them."""
        names = [name for snapshot in reversed(self.snapshots) for name in snapshot.maps]
        return list(dict.fromkeys(names))

    def frame(self, index: int, probe: str, longest: int) -> str:
        key = (index, probe, longest)
        if key not in self.encoded:
            weights = self.snapshots[index].maps[probe].weights[..., :longest, :longest]
            self.encoded[key] = _pack(quantise(weights).tobytes())
        return self.encoded[key]


@dataclass(frozen=True)
class _Plan:
    """What to try to fit: probes of each run, the most tokens, and the least number of steps of each run."""

    probes: int
    longest: int
    steps: int

    def of(self, one: _Kept, index: int) -> list[str]:
        """The probes of this snapshot that are to be in the page."""
        return [name for name in one.probes[: self.probes] if name in one.snapshots[index].maps]

    def names(self, kept: list[_Kept]) -> list[str]:
        """The probes that are in the page, of any run."""
        return list(dict.fromkeys(name for one in kept for name in one.probes[: self.probes]))


def _one_shape(name: str, snapshots: list[Snapshot]) -> _Kept:
    if not any(one.maps for one in snapshots):
        raise InputError(
            f"{name}: no attention snapshot to show: train with eval.attention on, or look into its folder"
        )
    ordered = sorted((one for one in snapshots if one.maps), key=lambda one: one.step)
    fields = ("layers", "heads", "num_attention_heads", "num_key_value_heads", "attention")
    last = [getattr(ordered[-1], key) for key in fields]
    kept = [one for one in ordered if [getattr(one, key) for key in fields] == last]
    notes = []
    if len(kept) < len(ordered):
        other = [str(one.step) for one in ordered if one not in kept]
        notes.append(f"Not shown: steps {', '.join(other)} of {name}, which have other layers or heads than the last.")
    broken = [str(one.step) for one in kept if not all(np.isfinite(m.weights).all() for m in one.maps.values())]
    if broken:
        notes.append(f"Steps {', '.join(broken)} of {name} have non-finite weights: they are drawn as 0.")
    return _Kept(_readable(name), kept, notes)


def _plans(kept: list[_Kept]) -> Iterator[_Plan]:
    """From everything to the least."""
    longest = max(m.weights.shape[-1] for one in kept for s in one.snapshots for m in s.maps.values())
    for count in range(max(len(one.probes) for one in kept), 0, -1):
        yield _Plan(count, longest, FEW_STEPS)
    yield _Plan(1, longest, 2)
    while longest >= 16:
        longest //= 2
        yield _Plan(1, longest, 2)


def _fill(kept: list[_Kept], plan: _Plan, room: int, first: dict[str, int] | None) -> list[str] | None:
    """The lines of data that fit: the first says what there is, each other one is the maps of one step and probe."""
    orders = [_by_importance([snapshot.step for snapshot in one.snapshots]) for one in kept]
    share = room // 3  # scores are small; if they are not, they are thinned out as the maps are
    scored = [len(order) for order in orders]
    while len(_about(kept, plan, orders, scored, {}, first)) > share and max(scored) > 2:
        scored = [min(count, max(2, count // 2)) for count in scored]
    batches: list[dict[tuple[int, int, str], str]] = []  # one more step of every run
    while len(batches) < max(scored) and _size(batches) <= room:
        places = [(r, orders[r][len(batches)]) for r in range(len(kept)) if len(batches) < scored[r]]
        batches.append(
            {(r, i, name): kept[r].frame(i, name, plan.longest) for r, i in places for name in plan.of(kept[r], i)}
        )
    while batches:
        frames = {key: line for batch in batches for key, line in batch.items()}
        lines = [_about(kept, plan, orders, scored, frames, first), *frames.values()]
        if sum(len(line) + 1 for line in lines) <= room:
            break
        batches.pop()
    return lines if len(batches) >= min(plan.steps, max(scored)) else None


def _size(batches: list[dict[tuple[int, int, str], str]]) -> int:
    return sum(len(line) + 1 for batch in batches for line in batch.values())


def _by_importance(steps: list[int]) -> list[int]:
    """Indices of steps, those to keep longest first: last, first, then what leaves the smallest gaps in sqrt(step)."""
    places = [math.sqrt(max(0, step)) for step in steps]  # -1: of no step
    left, dropped = list(range(len(steps))), list[int]()
    while len(left) > 2:
        gaps = [places[left[i + 1]] - places[left[i - 1]] for i in range(1, len(left) - 1)]
        dropped.append(left.pop(1 + gaps.index(min(gaps))))
    return left[::-1] + dropped[::-1]


def _about(
    kept: list[_Kept],
    plan: _Plan,
    orders: list[list[int]],
    scored: list[int],
    frames: dict,
    first: dict[str, int] | None,
) -> str:
    """Everything but the maps: one line of JSON, packed."""
    numbers = {key: line for line, key in enumerate(frames, start=1)}
    indices = [sorted(order[:count]) for order, count in zip(orders, scored, strict=True)]
    about = _told(kept, plan, indices, numbers) | {"head": first, "notes": _notes(kept, plan, scored, frames)}
    return _pack(json.dumps(about, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode())


def described(name: str, snapshots: list[Snapshot], experts: dict[str, Any] | None) -> dict[str, Any]:
    """Everything but the maps, of every step; a step names its map of a probe "STEP/PROBE". Raises InputError."""
    one = _one_shape(name, snapshots)
    one.experts = experts
    longest = max((len(m.labels) for snapshot in one.snapshots for m in snapshot.maps.values()), default=0)
    plan = _Plan(len(one.probes), longest, len(one.snapshots))
    names = {(0, i, probe): f"{s.step}/{probe}" for i, s in enumerate(one.snapshots) for probe in s.maps}
    return _told([one], plan, [[*range(len(one.snapshots))]], names) | {"head": None, "notes": one.notes}


def _told(kept: list[_Kept], plan: _Plan, indices: list[list[int]], frames: dict) -> dict[str, Any]:
    """The scores, texts and steps of all runs. frames: (run, place, probe) -> what a step calls its map."""
    names = [name for name in SCORES if any(name in one.snapshots[-1].scores for one in kept)]
    names += sorted({name for one in kept for name in one.snapshots[-1].scores} - set(names))
    plain = {"probe": "", "low": 0, "high": None, "unit": "", "meaning": "", "looks_at": ""}
    return {
        "scores": [
            {**plain, "name": name, "title": name.replace("_", " ")} if name not in SCORES else _about_score(name)
            for name in names
        ],
        "probes": [
            {"name": name, "title": _title(name), "note": PROBE_NOTES.get(name, "")} for name in plan.names(kept)
        ],
        "colours": GROUP_COLOURS,
        "runs": [_about_run(r, one, plan, indices[r], names, frames) for r, one in enumerate(kept)],
    }


def _about_score(name: str) -> dict[str, Any]:
    return asdict(SCORES[name]) | {"measured_on": _title(SCORES[name].probe)}


def _title(probe: str) -> str:
    return PROBE_TITLES.get(probe, probe.replace("_", " "))


def _about_run(r: int, one: _Kept, plan: _Plan, indices: list[int], names: list[str], numbers: dict) -> dict[str, Any]:
    texts: list[dict[str, Any]] = []
    steps = []
    for index in indices:
        snapshot, maps = one.snapshots[index], {}
        for probe in plan.of(one, index):
            if (r, index, probe) in numbers:
                text = _text(snapshot.maps[probe], plan.longest)
                if text not in texts:
                    texts.append(text)
                maps[probe] = [texts.index(text), numbers[r, index, probe]]
        scalars = {name: _number(value) for name, value in snapshot.scalars.items()}
        when = {"step": snapshot.step, "tokens": snapshot.tokens, "seconds": round(snapshot.seconds, 1)}
        steps.append({**when, "scalars": scalars, "maps": maps})
    last, formed = one.snapshots[-1], phase_change(like_the_last(one.snapshots))
    return {
        "name": one.name,
        "layers": last.layers,
        "heads": last.heads,
        "num_attention_heads": last.num_attention_heads,
        "num_key_value_heads": last.num_key_value_heads,
        "attention": last.attention,
        "texts": texts,
        "steps": steps,
        "chance": {name: _number(last.chance.get(name)) for name in names},
        "scores": {name: [_numbers(one.snapshots[index].scores.get(name)) for index in indices] for name in names},
        "experts": one.experts,
        "formed": formed and {"layer": formed.layer, "head": formed.head, "step": formed.step},
    }


def _text(probe_map: ProbeMap, longest: int) -> dict[str, Any]:
    tokens = len(probe_map.labels)
    note = f"tokens {longest} to {tokens - 1} of {tokens}, to keep this file small" if tokens > longest else ""
    documents = None if probe_map.documents is None else probe_map.documents[:longest]
    both = "; ".join(words for words in (probe_map.left_out, note) if words)
    labels = [_readable(label) for label in probe_map.labels[:longest]]
    return {"labels": labels, "documents": documents, "left_out": both}


def _notes(kept: list[_Kept], plan: _Plan, scored: list[int], frames: dict) -> list[str]:
    """What is not in the page, for the page to say."""
    notes = [note for one in kept for note in one.notes]
    for r, one in enumerate(kept):
        shown, there = len({index for run, index, _ in frames if run == r}), len(one.snapshots)
        if shown < there:
            scores = "all" if scored[r] >= there else str(scored[r])
            notes.append(
                f"To stay small, this file has the maps of {shown} of {there} steps of {one.name}, scores of {scores}."
            )
    probes = dict.fromkeys(name for one in kept for name in one.probes)
    without = [_title(name) for name in probes if name not in plan.names(kept)]
    return [*notes, f"The maps of {', '.join(without)} did not fit."] if without else notes


def _readable(text: str) -> str:
    """What has no shape (control characters, joiners, halves of a character) as its number, as the tokenizer does."""
    return "".join(letter if letter.isprintable() else f"⟨{ord(letter):02X}⟩" for letter in text)


def _number(value: float | None) -> float | None:
    """Four digits; None for a non-finite number, which JSON does not have."""
    return float(f"{value:.4g}") if value is not None and math.isfinite(value) else None


def _numbers(values: np.ndarray | None) -> list[float | None] | None:
    return None if values is None else [_number(value) for value in values.ravel().tolist()]


def _pack(raw: bytes) -> str:
    deflate = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    return base64.b64encode(deflate.compress(raw) + deflate.flush()).decode("ascii")


def _assemble(title: str, data: str) -> str:
    """The parts in one file. What is put in is not searched again, whatever a run is called."""
    parts = {"STYLE": (PARTS / "style.css").read_text(encoding="utf-8"), "TITLE": html.escape(title), "DATA": data}
    parts["SCRIPT"] = "\n".join((PARTS / f"{name}.js").read_text(encoding="utf-8") for name in SCRIPTS)
    whole = (PARTS / "page.html").read_text(encoding="utf-8")
    return re.sub("@@([A-Z]+)@@", lambda place: parts[place[1]], whole)
