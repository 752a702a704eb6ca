"""Where can you see every head at every step? In viewer.html, one file that needs no network, also while a run trains.

The page is one program, in `page/`. A server sends it without numbers, and it asks for them (serve/page_api.py). Here
the program and the numbers, deflated, in base64, are one file. While a run trains, the file is written again at every
look, and loads itself again. It needs a browser of 2024 or later (Chrome 123, Firefox 120, Safari 17.5). It reads
and sends nothing, and stores only the language that a reader chose, so a double click, a notebook and wandb show the
same. For wandb: `wandb.Html(str(path), inject=False)`.
"""

from __future__ import annotations

import base64
import html
import json
import math
import re
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from configs.command import InputError
from configs.files import write_atomically
from configs.text import escape
from eval.attention.history import changes, choose, formed, like_the_last, phase_change, without_them
from eval.attention.metrics import SCORES
from eval.attention.snapshots import SHAPE, Snapshot, read_all
from eval.pictures.drawing import GROUP_COLOURS
from eval.run_files import EXPERTS

VIEWER = "viewer.html"
PAGE = Path(__file__).parent
# One scope for all of them, in this order; the file has what shows heads, the server's page also runs and a chat.
HEADS = "zh language dom views save colours own data state chart map tokens scores panes experts controls heads".split()
IN_FILE, COMPUTES = [*HEADS, "file"], ["network"]
ON_SERVER = [*HEADS, "runs", "server", "chat", "chat_answer", "chat_heads", "chat_forms"]
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:"
LEVELS = 255
AT_THE_END, WHILE_TRAINING = 20_000_000, 4_000_000  # bytes of the maps; the file loads itself again and again
PROBES = {  # title, where a name says too little, and a note
    "text": ("ordinary text", "your own, or how an unseen document begins"),
    "repeated_2": ("repeated words", "random tokens, written twice: an induction head knows the second half"),
    "repeated_4": ("words repeated four times", "random tokens, written four times"),
    "songs": ("songs", "a story in which a nonsense song comes back word for word"),
    "stories": ("stories", "a held-out story, in which names and pronouns stand for earlier mentions"),
    "packed": ("several documents", "several documents in one row: thin lines show where one ends"),
}
OWN = {"name": "own", "title": "your own text", "note": "the model reads it here, in the page"}
Key = tuple[int, int, str]  # of the maps of all heads: the run, the step, the probe


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
    maps = {name: replace(shown, weights=np.empty(0, np.float32)) for name, shown in snapshot.maps.items()}
    return replace(snapshot, maps=maps)


@dataclass
class Looks:
    """The looks of one run as the page shows them: their scores and texts, without the weights of their maps.

    packed: (step, probe) -> the maps of all heads, a line of the file. experts: as eval.experts says them.
    """

    name: str
    snapshots: list[Snapshot] = field(default_factory=list)
    experts: dict[str, Any] | None = None
    packed: dict[tuple[int, str], str] = field(default_factory=dict)
    network: dict[str, Any] | None = None  # of a model that computes in the page: page_model.described
    weights: dict[int, str] = field(default_factory=dict)  # step -> its weights, a line of the file

    def add(self, snapshot: Snapshot) -> None:
        for probe, shown in snapshot.maps.items():
            self.packed[snapshot.step, probe] = pack(quantise(shown.weights).tobytes())
        self.snapshots.append(without_weights(snapshot))

    def shown(self) -> list[Snapshot]:
        """Those of the last one's shape. Raises InputError for none."""
        there = [snapshot for snapshot in self.snapshots if snapshot.maps]
        if not there:
            what = "no attention snapshot to show: train with eval.attention on, or look into its folder"
            raise InputError(f"{self.name}: {what}")
        last = [getattr(there[-1], key) for key in SHAPE]
        return [snapshot for snapshot in there if [getattr(snapshot, key) for key in SHAPE] == last]


def described(runs: Sequence[Looks], lines: Mapping[Key, int] | None = None) -> dict[str, Any]:
    """Everything that the page shows but the maps, ready for JSON. lines: the line of the file in which maps are;
    default, all of them have an address at the server."""
    # in the order of the last look, so that the last step always has the first of the texts
    looks = [snapshot for run in runs for snapshot in reversed(run.shown())]
    names = [name for name in SCORES if any(name in snapshot.scores for snapshot in looks)]
    scores = [{key: value for key, value in vars(SCORES[name]).items() if key != "measure"} for name in names]
    return {
        "scores": [score | {"measured_on": about_probe(score["probe"])[0]} for score in scores],
        "probes": [
            {"name": name, "title": about_probe(name)[0], "note": about_probe(name)[1]}
            for name in dict.fromkeys(name for snapshot in looks for name in snapshot.maps)
        ],
        "colours": GROUP_COLOURS,
        "runs": [_run(r, run, names, lines) for r, run in enumerate(runs)],
        "head": None,
        "notes": [],
    }


def about_probe(name: str) -> tuple[str, str]:
    """Title and note of a probe; a text of one's own has its name."""
    return PROBES.get(name, (name.replace("_", " "), ""))


def _run(r: int, run: Looks, names: Sequence[str], lines: Mapping[Key, int] | None) -> dict[str, Any]:
    texts, steps, looks = list[dict[str, Any]](), [], run.shown()
    for snapshot in looks:
        maps = {}
        for probe, shown in snapshot.maps.items():
            where = f"{snapshot.step}/{probe}" if lines is None else lines.get((r, snapshot.step, probe))
            if where is not None:
                labels = [escape(label) for label in shown.labels]
                text = {"labels": labels, "documents": shown.documents, "left_out": shown.left_out}
                if text not in texts:
                    texts.append(text)
                maps[probe] = [texts.index(text), where]
        scalars = {key: _number(value) for key, value in snapshot.scalars.items()}
        when = {"step": snapshot.step, "tokens": snapshot.tokens, "seconds": round(snapshot.seconds, 1)}
        steps.append({**when, "scalars": scalars, "maps": maps})
    last, alike = looks[-1], like_the_last(looks)
    change = phase_change(alike)

    def numbers(snapshot: Snapshot, name: str) -> list[float | None] | None:
        return [_number(value) for value in snapshot.scores[name].ravel().tolist()] if name in snapshot.scores else None

    return {
        "name": escape(run.name),
        **{key: getattr(last, key) for key in SHAPE},
        "texts": texts,
        "steps": steps,
        "chance": {name: _number(last.chance.get(name)) for name in names},
        "scores": {name: [numbers(snapshot, name) for snapshot in looks] for name in names},
        "experts": run.experts,
        "formed": change and {"layer": change.layer, "head": change.head, "step": change.step},
        "moments": [{"step": step, "what": line} for step, line in changes(alike)],
        "seen": " ".join(filter(None, (formed(alike), without_them(last)))),
    }


def _number(value: float | None) -> float | None:
    """Four decimals; None for a non-finite number, which JSON does not have."""
    return round(value, 4) if value is not None and math.isfinite(value) else None


def experts_of(directory: Path) -> dict[str, Any] | None:
    """What the page shows of the experts of a run that has some."""
    if not (directory / EXPERTS).is_file():
        return None
    from eval.experts import for_viewer, read

    return for_viewer(read(directory, lambda problem: None))


def write_viewer(
    runs: Sequence[tuple[str, Sequence[Snapshot]]],
    path: Path,
    head: tuple[int, int] | None = None,
    experts: Mapping[str, Any] | None = None,
    networks: Mapping[str, tuple[dict[str, Any], Mapping[int, bytes]]] | None = None,
) -> Path:
    """Write one self-contained page with the snapshots of all runs, each (its name, its snapshots), to path.

    head: the layer and head of the first run that the page opens on; default: the strongest induction head.
    experts: what eval.experts says, by run; the page has a tab for them if any run has some.
    networks: what page_model.read_models says, by run: the page then reads any text, at those steps.
    Raises InputError if there is nothing to show.
    """
    looks = []
    for name, snapshots in runs:
        looks.append(Looks(name, experts=(experts or {}).get(name)))
        for snapshot in sorted(snapshots, key=lambda snapshot: snapshot.step):
            looks[-1].add(snapshot)
        if name in (networks or {}):
            looks[-1].network, weights = (networks or {})[name]
            looks[-1].weights = {step: pack(raw) for step, raw in weights.items()}
    path.write_text(page(looks, AT_THE_END, head), encoding="utf-8")
    return path


def write_page(run: Looks, directory: Path, status: dict[str, Any]) -> None:
    """viewer.html of a run that trains, or has stopped, whole or not at all.

    status: step; total (steps; None where a clock ends the run), seconds, loss (nats a token); state: training,
    finished or stopped; stopped: why, in a sentence; command: what continues it; patience: after how many seconds
    without a change it has probably been killed.
    """
    run.experts = experts_of(directory)
    status = status | {"loss": _number(status["loss"]), "written": time.time()}
    write_atomically(directory / "attention" / VIEWER, page([run], WHILE_TRAINING, status=status).encode())


def page(
    runs: Sequence[Looks], max_bytes: int, head: tuple[int, int] | None = None, status: dict[str, Any] | None = None
) -> str:
    """The same as a string. status: of a run that trains or has stopped, as `write_page` takes it.

    Where the maps have more than max_bytes, those of some steps are left out, and the page says so: the first, the last
    and early ones stay. Scores stay.
    """
    most = max(len(run.shown()) for run in runs)
    while True:
        chosen = [choose(run.shown(), most) for run in runs]
        keys = [(r, s.step, probe) for r, looks in enumerate(chosen) for s in looks for probe in s.maps]
        maps = [runs[r].packed[step, probe] for r, step, probe in keys]
        if most <= 2 or sum(map(len, maps)) <= max_bytes:
            break
        most = max(2, most * 9 // 10)
    about = described(runs, {key: line for line, key in enumerate(keys, start=1)}) | {"status": status}
    for run, looks in zip(runs, chosen, strict=True):
        if len(looks) < len(run.shown()):
            steps = f"{len(looks)} of {len(run.shown())} steps of {run.name}"
            about["notes"].append(f"To stay small, this file has the maps of {steps}, scores of all.")
    if head:
        last = runs[0].shown()[-1]
        about["head"] = {"layer": last.layers.index(head[0]), "head": last.heads.index(head[1])}
    weights = list[str]()
    for run, shown in zip(runs, about["runs"], strict=True):
        if run.network:
            first = 1 + len(maps) + len(weights)  # line 0 are the numbers
            shown["network"] = run.network | {"lines": {step: first + i for i, step in enumerate(run.weights)}}
            weights += run.weights.values()
    if weights:
        about["probes"].insert(0, OWN)
    numbers = pack(json.dumps(about, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode())
    return assemble(" and ".join(run.name for run in runs), "\n".join([numbers, *maps, *weights]), bool(weights))


def script(names: Sequence[str]) -> str:
    """Scripts of the page, as one, in a scope of their own."""
    parts = [(PAGE / f"{name}.js").read_text(encoding="utf-8") for name in names]
    return '"use strict";\n(() => {\n' + "\n".join(parts) + "})();\n"


def assemble(title: str, data: str, computes: bool) -> str:
    """The page and its data in one file. computes: a model is in it."""
    style = (PAGE / "page.css").read_text(encoding="utf-8")
    policy = f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
    head = f"{policy}\n<title>{html.escape(title)}: attention heads</title>\n<style>\n{style}</style>"
    numbers = f'<script type="text/plain" id="data">\n{data}\n</script>'
    return with_parts(head, f"{numbers}\n<script>\n{script([*COMPUTES * computes, *IN_FILE])}</script>")


def with_parts(head: str, end: str) -> str:
    """page.html with something in its head and at its end. What is put in is not searched again, whatever it says."""
    page = (PAGE / "page.html").read_text(encoding="utf-8")
    return re.sub("@@([A-Z]+)@@", lambda place: {"HEAD": head, "END": end}[place[1]], page)


class Notebook:
    """The page of a run's viewer.html in a notebook cell: it lives in the notebook, not in a file beside it."""

    def __init__(self, file: Path | str):
        file = Path(file)
        if not file.exists():  # pretrained/ has none: its snapshots make one
            write_viewer([(file.parents[1].name, read_all(file.parents[1])[0])], file)
        self.page = file.read_text(encoding="utf-8")

    def __repr__(self) -> str:
        return f"the viewer ({len(self.page) / 1e6:.1f} MB): run this cell to see it, or open docs/demo_viewer.html"

    def _repr_html_(self) -> str:
        style = 'width="100%" height="720" style="border:0" allow="fullscreen"'
        return f'<iframe title="attention viewer" srcdoc="{html.escape(self.page)}" {style}></iframe>'
