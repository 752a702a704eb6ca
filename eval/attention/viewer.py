"""Where can you see every head at every step? In viewer.html, one file that needs no network, also while a run trains.

The page is one program, in `page/`. A server sends it without numbers, and it asks for them (serve/page_api.py). Here
the program and the numbers, deflated, in base64, are one file. While a run trains, the file is written again at every
look, and loads itself again. It needs a browser of 2024 or later (Chrome 123, Firefox 120, Safari 17.5). It reads
nothing else, stores nothing and sends nothing, so a double click, a notebook and wandb show the same. For wandb:
`wandb.Html(str(path), inject=False)`.
"""

from __future__ import annotations

import base64
import html
import json
import math
import re
import shlex
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from configs.command import InputError
from eval.attention.history import Changes, in_one_sentence, like_the_last, moments, phase_change, without_them
from eval.attention.metrics import SCORES
from eval.attention.pictures.drawing import GROUP_COLOURS
from eval.attention.snapshots import ProbeMap, Snapshot
from eval.run_files import EXPERTS

VIEWER = "viewer.html"
PAGE = Path(__file__).parent / "page"
# One scope for all of them, in this order; the file has what shows heads, the server's page also runs and a chat.
HEADS = "dom views save colours data state chart map tokens scores panes experts controls heads".split()
IN_FILE = [*HEADS, "file"]
ON_SERVER = [*HEADS, "runs", "server", "chat", "chat_answer", "chat_heads", "chat_forms"]
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:"
FEW_STEPS = 12  # rather a text less than fewer steps than this: the page is there to show change
LEVELS = 255
WHILE_TRAINING = 2_000_000  # bytes of the file while it loads itself again and again
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
SHAPE = ("layers", "heads", "num_attention_heads", "num_key_value_heads", "attention")
NO_WEIGHTS = np.empty(0, np.float32)


def quantise(weights: np.ndarray) -> np.ndarray:
    """Weights (..., T, T) in 0 … 1 -> 255 sqrt(weight) of the lower triangle, row by row, (..., T(T+1)/2) uint8.

    The square root keeps small weights apart: a weight w comes back as (code / 255)² with an error of at most
    sqrt(w) / 255 + 4e-6, so 0.01 to 0.0004 and 1 to 0.004. A non-finite weight becomes 0.
    """
    rows, columns = np.tril_indices(weights.shape[-1])
    triangle = np.nan_to_num(weights[..., rows, columns].astype(np.float32), nan=0.0)
    return np.round(LEVELS * np.sqrt(triangle.clip(0, 1))).astype(np.uint8)


def pack(raw: bytes) -> str:
    """Deflated, in base64: a line of the file."""
    deflate = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)  # 9 takes four times as long for half a percent
    return base64.b64encode(deflate.compress(raw) + deflate.flush()).decode("ascii")


def without_weights(snapshot: Snapshot) -> Snapshot:
    """The scores and texts of a look."""
    maps = {name: replace(one, weights=NO_WEIGHTS) for name, one in snapshot.maps.items()}
    return replace(snapshot, maps=maps)


# ---------------------------------------------------------------------------------------------------------
# one run


@dataclass
class Looks:
    """The looks of one run as the page shows them: their scores and texts, without the weights of their maps.

    packed: (step, probe) -> the maps of all heads, a line of the file. experts: as eval.experts says them.
    """

    name: str
    snapshots: list[Snapshot] = field(default_factory=list)
    experts: dict[str, Any] | None = None
    packed: dict[tuple[int, str], str] = field(default_factory=dict)
    broken: set[int] = field(default_factory=set)  # steps with non-finite weights

    def add(self, snapshot: Snapshot, most: int) -> None:
        """Keep a look, each of its maps in at most so many bytes: a longer text loses its end.

        Looks of this step and of later ones were taken back by a run that is resumed.
        """
        while self.snapshots and self.snapshots[-1].step >= snapshot.step:
            self.snapshots.pop()
        cut = dict[str, ProbeMap]()
        for probe, one in snapshot.maps.items():
            tokens = longest = len(one.labels)
            if not np.isfinite(one.weights).all():
                self.broken.add(snapshot.step)
            while len(line := pack(quantise(one.weights[..., :longest, :longest]).tobytes())) > most and longest > 8:
                longest //= 2
            self.packed[snapshot.step, probe] = line
            if longest < tokens:
                gone = f"tokens {longest} to {tokens - 1} of {tokens}, to keep this file small"
                both = "; ".join(filter(None, (one.left_out, gone)))
                documents = one.documents and one.documents[:longest]
                cut[probe] = replace(one, labels=one.labels[:longest], documents=documents, left_out=both)
        self.snapshots.append(without_weights(replace(snapshot, maps=snapshot.maps | cut)))

    def shown(self) -> list[Snapshot]:
        """Those of the last one's shape. Raises InputError for none."""
        there = [one for one in self.snapshots if one.maps]
        if not there:
            what = "no attention snapshot to show: train with eval.attention on, or look into its folder"
            raise InputError(f"{self.name}: {what}")
        last = [getattr(there[-1], key) for key in SHAPE]
        return [one for one in there if [getattr(one, key) for key in SHAPE] == last]

    def texts(self) -> list[str]:
        """The names of its texts, in the order of the last look, so that the last step always has the first of them."""
        return list(dict.fromkeys(name for one in reversed(self.shown()) for name in one.maps))

    def notes(self) -> list[str]:
        steps = [one.step for one in self.shown()]
        other = [str(one.step) for one in self.snapshots if one.maps and one.step not in steps]
        broken = [str(step) for step in steps if step in self.broken]
        return [
            f"{what.format(', '.join(which), self.name)}"
            for what, which in (
                ("Not shown: steps {} of {}, which have other layers or heads than the last.", other),
                ("Steps {} of {} have non-finite weights: they are drawn as 0.", broken),
            )
            if which
        ]


NameOf = Callable[[int, int, str], Any]


def described(
    runs: Sequence[Looks],
    steps: Sequence[set[int]] | None = None,
    name_of: NameOf = lambda run, step, probe: f"{step}/{probe}",
) -> dict[str, Any]:
    """Everything that the page shows but the maps, ready for JSON. steps: of each run, if not all.

    name_of: what a step calls its maps: the server's address of them, or a line of the file; None: they are not there.
    """
    shown = [[one for one in run.shown() if steps is None or one.step in steps[r]] for r, run in enumerate(runs)]
    lasts = [looks[-1] for looks in shown]
    names = [name for name in SCORES if any(name in last.scores for last in lasts)]
    names += sorted({name for last in lasts for name in last.scores} - set(names))
    told = [_run(r, run, looks, names, name_of) for r, (run, looks) in enumerate(zip(runs, shown, strict=True))]
    there = {probe for run in told for step in run["steps"] for probe in step["maps"]}
    probes = [name for name in dict.fromkeys(name for run in runs for name in run.texts()) if name in there]
    return {
        "scores": [_score(name) for name in names],
        "probes": [{"name": name, "title": _title(name), "note": PROBE_NOTES.get(name, "")} for name in probes],
        "colours": GROUP_COLOURS,
        "runs": told,
        "head": None,
        "notes": [note for run in runs for note in run.notes()],
    }


def _score(name: str) -> dict[str, Any]:
    if name in SCORES:
        about = {key: value for key, value in vars(SCORES[name]).items() if key != "measure"}
        return about | {"measured_on": _title(SCORES[name].probe)}
    plain = {"probe": "", "low": 0, "high": None, "unit": "", "meaning": "", "looks_at": ""}
    return {**plain, "name": name, "title": name.replace("_", " ")}


def _title(probe: str) -> str:
    return PROBE_TITLES.get(probe, probe.replace("_", " "))


def _run(r: int, run: Looks, looks: list[Snapshot], names: list[str], name_of: NameOf) -> dict[str, Any]:
    texts: list[dict[str, Any]] = []
    steps = []
    for one in looks:
        maps = {}
        for probe, shown in one.maps.items():
            if (name := name_of(r, one.step, probe)) is None:
                continue
            labels = [_readable(label) for label in shown.labels]
            text = {"labels": labels, "documents": shown.documents, "left_out": shown.left_out}
            if text not in texts:
                texts.append(text)
            maps[probe] = [texts.index(text), name]
        scalars = {key: _number(value) for key, value in one.scalars.items()}
        when = {"step": one.step, "tokens": one.tokens, "seconds": round(one.seconds, 1)}
        steps.append({**when, "scalars": scalars, "maps": maps})
    last, alike = looks[-1], like_the_last(looks)
    formed = phase_change(alike)
    return {
        "name": _readable(run.name),
        **{key: getattr(last, key) for key in SHAPE},
        "texts": texts,
        "steps": steps,
        "chance": {name: _number(last.chance.get(name)) for name in names},
        "scores": {name: [_numbers(one.scores.get(name)) for one in looks] for name in names},
        "experts": run.experts,
        "formed": formed and {"layer": formed.layer, "head": formed.head, "step": formed.step},
        "moments": moments(alike),
        "seen": " ".join(filter(None, (in_one_sentence(alike), without_them(last)))),
    }


def _readable(text: str) -> str:
    """What has no shape (control characters, joiners, halves of a character) as its number, as the tokenizer does."""
    return "".join(letter if letter.isprintable() else f"⟨{ord(letter):02X}⟩" for letter in text)


def _number(value: float | None) -> float | None:
    """Four digits; None for a non-finite number, which JSON does not have."""
    return float(f"{value:.4g}") if value is not None and math.isfinite(value) else None


def _numbers(values: np.ndarray | None) -> list[float | None] | None:
    """The same of every head; all at once, since a run that trains does it at every look."""
    if values is None:
        return None
    exact = np.where(np.isfinite(values), values, 0).astype(np.float64).ravel()
    size = 10.0 ** (3 - np.floor(np.log10(np.maximum(np.abs(exact), 1e-30))))
    rounded = (np.round(exact * size) / size).tolist()
    return [value if there else None for value, there in zip(rounded, np.isfinite(values).ravel(), strict=True)]


# ---------------------------------------------------------------------------------------------------------
# one file


def write_viewer(
    runs: Sequence[tuple[str, list[Snapshot]]],
    path: Path,
    max_bytes: int = 5_000_000,
    head: tuple[int, int] | None = None,
    experts: Sequence[dict[str, Any] | None] = (),
) -> Path:
    """Write one self-contained page with the snapshots of all runs, each (its name, its snapshots), to path.

    head: the layer and head of the first run that the page opens on; default: the strongest induction head.
    experts: of each run, what eval.experts says; the page has a tab for them if any run has some.
    Where the maps are too many for max_bytes, steps go first (the first, the last and the early ones stay longest),
    then texts from the last; a map that is too large alone loses tokens from its end. The page says which. Raises
    InputError if there is nothing to show, or if max_bytes is too little for two steps.
    """
    if not runs:
        raise InputError("the viewer has no run to show: give at least one")
    held = []
    for r, (name, snapshots) in enumerate(runs):
        held.append(Looks(name, experts=experts[r] if r < len(experts) else None))
        for one in sorted(snapshots, key=lambda snapshot: snapshot.step):
            held[-1].add(one, max_bytes // 4)
    text = page(held, max_bytes, head)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def page(
    runs: Sequence[Looks], max_bytes: int, head: tuple[int, int] | None = None, status: dict[str, Any] | None = None
) -> str:
    """The same as a string. status: of a run that trains or has stopped (`Moment`)."""
    title = " and ".join(run.name for run in runs)
    orders = [_by_importance([one.step for one in run.shown()]) for run in runs]
    room = max_bytes - len(assemble(title, "").encode()) - 1000  # for notes
    kept = [len(order) for order in orders]

    def numbers(name_of: NameOf) -> dict[str, Any]:
        return described(runs, [set(order[:count]) for order, count in zip(orders, kept, strict=True)], name_of)

    while (size := len(_json(numbers(lambda *key: "1234")))) > room // 3 and max(kept) > 2:
        kept = [max(2, count // 2) for count in kept]  # scores are small; where they are not, looks are left out
    orders = [order[:count] for order, count in zip(orders, kept, strict=True)]
    chosen = _that_fit(runs, orders, room - size)
    if not chosen:
        raise InputError(
            f"max_bytes ({max_bytes:,}) is too little for two steps of these runs: allow more, or fewer heads"
        )
    lines = {key: line for line, key in enumerate(chosen, start=1)}
    about = numbers(lambda *key: lines.get(key)) | {"status": status}
    about["notes"] += _left_out(runs, about["runs"], kept)
    if head:
        last = runs[0].shown()[-1]
        about["head"] = {"layer": last.layers.index(head[0]), "head": last.heads.index(head[1])}
    return assemble(title, "\n".join([_json(about), *(runs[r].packed[step, probe] for r, step, probe in chosen)]))


def _that_fit(runs: Sequence[Looks], orders: list[list[int]], room: int) -> list[tuple[int, int, str]]:
    """(run, step, probe) of the maps that fit, the most important steps first; [] where not even two steps do."""
    texts, most = [run.texts() for run in runs], max(len(order) for order in orders)
    for count in range(max(map(len, texts)), 0, -1):
        chosen, left, fitting = list[tuple[int, int, str]](), room, 0
        for rank in range(most):
            maps = [
                (r, order[rank], probe)
                for r, order in enumerate(orders)
                for probe in texts[r][:count]
                if rank < len(order) and (order[rank], probe) in runs[r].packed
            ]
            left -= sum(len(runs[r].packed[step, probe]) + 1 for r, step, probe in maps)
            if left < 0:
                break
            chosen, fitting = chosen + maps, rank + 1
        if fitting >= min(FEW_STEPS if count > 1 else 2, most):
            return chosen
    return []


def _by_importance(steps: list[int]) -> list[int]:
    """Steps, those to keep longest first: last, first, then what leaves the smallest gaps in sqrt(step)."""
    left, dropped = list(steps), list[int]()
    while len(left) > 2:
        places = [math.sqrt(max(0, step)) for step in left]  # -1: of no step
        gaps = [after - before for before, after in zip(places, places[2:], strict=False)]
        dropped.append(left.pop(1 + gaps.index(min(gaps))))
    return left[::-1] + dropped[::-1]


def _left_out(runs: Sequence[Looks], told: list[dict[str, Any]], kept: list[int]) -> list[str]:
    """What is not in the file, for the page to say."""
    notes = []
    for run, about, count in zip(runs, told, kept, strict=True):
        shown, there = sum(bool(step["maps"]) for step in about["steps"]), len(run.shown())
        if shown < there:
            scores = "all" if count >= there else str(count)
            notes.append(
                f"To stay small, this file has the maps of {shown} of {there} steps of {run.name}, scores of {scores}."
            )
    probes = {probe for about in told for step in about["steps"] for probe in step["maps"]}
    without = [_title(name) for name in dict.fromkeys(n for run in runs for n in run.texts()) if name not in probes]
    return [*notes, f"The maps of {', '.join(without)} did not fit."] if without else notes


def _json(about: dict[str, Any]) -> str:
    return pack(json.dumps(about, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode())


def script(names: Sequence[str]) -> str:
    """Scripts of the page, as one, in a scope of their own."""
    parts = [(PAGE / f"{name}.js").read_text(encoding="utf-8") for name in names]
    return '"use strict";\n(() => {\n' + "\n".join(parts) + "})();\n"


def assemble(title: str, data: str) -> str:
    """The page and its data in one file."""
    style = (PAGE / "page.css").read_text(encoding="utf-8")
    policy = f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
    head = f"{policy}\n<title>{html.escape(title)}: attention heads</title>\n<style>\n{style}</style>"
    numbers = f'<script type="text/plain" id="data">\n{data}\n</script>'
    return with_parts(head, f"{numbers}\n<script>\n{script(IN_FILE)}</script>")


def with_parts(head: str, end: str) -> str:
    """page.html with something in its head and at its end. What is put in is not searched again, whatever it says."""
    whole = (PAGE / "page.html").read_text(encoding="utf-8")
    return re.sub("@@([A-Z]+)@@", lambda place: {"HEAD": head, "END": end}[place[1]], whole)


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


def notebook(file: Path | str, height: int = 900) -> Notebook:
    """Show a viewer's file in a notebook cell; height in pixels."""
    return Notebook(Path(file).read_text(encoding="utf-8"), height)


# ---------------------------------------------------------------------------------------------------------
# while a run trains


@dataclass(frozen=True)
class Moment:
    """How far a run is. total: its steps; None where a clock ends it. loss: of the last step, in nats a token.

    stopped: why it stopped before its end, in a sentence. command: what continues it. patience: after how many seconds
    without a change it has probably been killed.
    """

    step: int
    total: int | None
    seconds: float
    loss: float | None
    is_over: bool = False
    stopped: str = ""
    command: str = ""
    patience: float = 180.0


class Live:
    """The viewer of a run that trains: every look so far, and a file that is written again at each."""

    def __init__(self) -> None:
        self.run = Looks("")
        self.changes = Changes()
        self.said: set[str] = set()  # "watch it" and "warning", each once

    def notice(self, snapshot: Snapshot) -> list[str]:
        """Keep this look. The lines that say what changed, as on the terminal."""
        self.run.add(snapshot, WHILE_TRAINING // 4)
        return self.changes.notice(snapshot)

    def show(self, directory: Path, now: Moment, say: Callable[[str], None]) -> None:
        """Write the file, and say its address once. That it cannot be written is said once too, and stops nothing."""
        file = directory / "attention" / VIEWER
        try:
            self.write(directory, now)
        except Exception as error:  # of the disk, or of the numbers
            problem = (isinstance(error, OSError) and error.strerror) or f"{type(error).__name__}: {error}"
            said = f"warning: {file} cannot be written ({problem}); training continues"
        else:
            said = "" if now.is_over or now.stopped else f"watch it: {file.resolve().as_uri()}"
        if said and said.partition(": ")[0] not in self.said:
            say(said)
            if said.startswith("watch it"):
                say(f"beside other runs: python -m serve {shlex.quote(str(directory.parent))}")
        self.said.add(said.partition(": ")[0])

    def write(self, directory: Path, now: Moment) -> None:
        """viewer.html in the run's attention folder, whole or not at all. Raises OSError; then nothing has changed."""
        self.run.name = directory.resolve().name
        if (directory / EXPERTS).is_file():
            from eval.experts import for_viewer, read  # of runs that have some

            self.run.experts = for_viewer(read(directory, lambda problem: None))
        state = "finished" if now.is_over else "stopped" if now.stopped else "training"
        status = asdict(now) | {"loss": _number(now.loss), "state": state, "written": time.time()}
        file = directory / "attention" / VIEWER
        temporary = file.with_suffix(".tmp")
        try:
            temporary.write_text(page([self.run], WHILE_TRAINING, status=status), encoding="utf-8")
            temporary.replace(file)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
