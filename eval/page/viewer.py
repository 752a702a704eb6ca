"""viewer.html: every head at every step in one file, which needs no network.

The server sends the same page without data, and it requests them (serve/page_api.py). Here program
and data (deflated, in base64) are one file. During training it is rewritten after each snapshot,
and reloads itself.

It needs a browser of 2024 or later (Chrome 123, Firefox 120, Safari 17.5), and stores only the
reader's language. It also works in a notebook, and in wandb: `wandb.Html(str(path), inject=False)`.
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
from eval.attention.history import (
    changes,
    choose,
    formed,
    like_the_last,
    phase_change,
    without_them,
)
from eval.attention.metrics import SCORES
from eval.attention.snapshots import SHAPE, Snapshot, read_all
from eval.band import Band, band_of
from eval.pictures.drawing import GROUP_COLOURS

VIEWER = "viewer.html"
PAGE = Path(__file__).parent
# The scripts share one scope, in this order. The file shows heads; the server's page also has runs
# and a chat.
HEADS = (
    "language dom views save colours own data state chart map tokens here scores panes "
    "controls tour heads"
).split()
ON_SERVER = [*HEADS, "runs", "server", "chat", "chat_answer", "chat_heads", "chat_forms"]
# The page may load nothing from anywhere, nor send anything.
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:"
)
LEVELS = 255
# The maps of a run have at most so many bytes. During training the page reloads again and again.
AT_THE_END = 20_000_000
WHILE_TRAINING = 4_000_000
# Probe -> title and note.
PROBES = {
    "text": ("ordinary text", "your own, or how an unseen document begins"),
    "repeated_2": (
        "repeated words",
        "random tokens, written twice: an induction head predicts the second half",
    ),
    "repeated_4": ("words repeated four times", "random tokens, written four times"),
    "varied": ("repeated words, other lengths", "random tokens, written twice, 12 to 40 of them"),
    "songs": ("songs", "a story in which a nonsense song comes back word for word"),
    "stories": (
        "stories",
        "a held-out story, in which names and pronouns refer to earlier mentions",
    ),
    "packed": ("several documents", "several documents in one row: thin lines show where one ends"),
}
OWN = {
    "name": "own",
    "title": "your own text",
    "note": "the model reads it here, in the page",
}
Key = tuple[int, int, str]  # The maps of all heads belong to a run, a step and a probe.


def quantise(weights: np.ndarray) -> np.ndarray:
    """Code weights (..., T, T) in 0 … 1 as 255 sqrt(weight), uint8.

    Returns the lower triangle, row by row: (..., T(T+1)/2).
    """
    rows, columns = np.tril_indices(weights.shape[-1])  # a query sees no later key
    triangle = np.nan_to_num(weights[..., rows, columns].astype(np.float32), nan=0.0)
    # The root gives small weights more levels: the error of a weight w is at most
    # sqrt(w) / 255 + 4e-6, so 0.01 has 0.0004 and 1 has 0.004.
    return np.round(LEVELS * np.sqrt(triangle.clip(0, 1))).astype(np.uint8)


def pack(raw: bytes) -> str:
    """Deflate and code in base64, for one line of the file."""
    # level 9 takes four times as long for half a percent
    deflate = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
    return base64.b64encode(deflate.compress(raw) + deflate.flush()).decode("ascii")


def without_weights(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot with empty maps, to save memory."""
    empty = np.empty(0, np.float32)
    maps = {name: replace(item, weights=empty) for name, item in snapshot.maps.items()}
    return replace(snapshot, maps=maps)


@dataclass
class Looks:
    """The snapshots of one run, without the weights of their maps."""

    name: str
    snapshots: list[Snapshot] = field(default_factory=list)
    healthy: Band | None = None  # of recorded runs like this one
    # (step, probe) -> the maps of all heads, a line of the file.
    packed: dict[tuple[int, str], str] = field(default_factory=dict)
    # For a model that computes in the page: page_model.described, and step -> its weights, a line.
    network: dict[str, Any] | None = None
    weights: dict[int, str] = field(default_factory=dict)

    def add(self, snapshot: Snapshot) -> None:
        # once for each snapshot: the page is written again after every one
        for probe, item in snapshot.maps.items():
            self.packed[snapshot.step, probe] = pack(quantise(item.weights).tobytes())
        # the maps are packed now, and would fill the memory of a long run
        self.snapshots.append(without_weights(snapshot))

    def shown(self) -> list[Snapshot]:
        """Return the snapshots of the last one's shape. Raises InputError for none."""
        snapshots = [snapshot for snapshot in self.snapshots if snapshot.maps]
        if not snapshots:
            raise InputError(
                f"{self.name}: no attention snapshot to show: "
                f"train with eval.attention on, or look into its folder"
            )

        def shape(snapshot: Snapshot) -> list[Any]:
            return [getattr(snapshot, key) for key in SHAPE]

        return [snapshot for snapshot in snapshots if shape(snapshot) == shape(snapshots[-1])]


def described(runs: Sequence[Looks], lines: Mapping[Key, int] | None = None) -> dict[str, Any]:
    """Return the page's data without the maps, for JSON.

    lines: the line of each map in the file. None: the page asks the server for each map.
    """
    # from the last snapshot back, so that the last step always has the first of the texts
    snapshots = [snapshot for run in runs for snapshot in reversed(run.shown())]
    scores = []
    for score in SCORES.values():
        if any(score.name in snapshot.scores for snapshot in snapshots):
            fields = {key: value for key, value in vars(score).items() if key != "measure"}
            fields["measured_on"] = about_probe(score.probe)[0]
            scores.append(fields)
    names = dict.fromkeys(name for snapshot in snapshots for name in snapshot.maps)
    probes = []
    for name in names:
        title, note = about_probe(name)
        probes.append({"name": name, "title": title, "note": note})
    score_names = [score["name"] for score in scores]
    return {
        "scores": scores,
        "probes": probes,
        "colours": GROUP_COLOURS,
        "runs": [_run(r, run, score_names, lines) for r, run in enumerate(runs)],
        "head": None,
        "notes": [],
    }


def about_probe(name: str) -> tuple[str, str]:
    """Return title and note of a probe; your own text has only its name."""
    return PROBES.get(name, (name.replace("_", " "), ""))


def _run(
    r: int, run: Looks, names: Sequence[str], lines: Mapping[Key, int] | None
) -> dict[str, Any]:
    snapshots = run.shown()
    texts: list[dict[str, Any]] = []
    steps = []
    scores: dict[str, list] = {name: [] for name in names}
    for snapshot in snapshots:
        maps = {}
        for probe, item in snapshot.maps.items():
            if lines is None:
                address: str | int | None = f"{snapshot.step}/{probe}"
            else:
                address = lines.get((r, snapshot.step, probe))
            # without an address, page() left this map out
            if address is not None:
                text = {
                    "labels": [escape(label) for label in item.labels],
                    "documents": item.documents,
                    "left_out": item.left_out,
                }
                if text not in texts:  # most steps share their texts
                    texts.append(text)
                maps[probe] = [texts.index(text), address]
        steps.append(
            {
                "step": snapshot.step,
                "tokens": snapshot.tokens,
                "seconds": round(snapshot.seconds, 1),
                "maps": maps,
            }
        )
        for name in names:
            values = None
            if name in snapshot.scores:
                values = [_number(value) for value in snapshot.scores[name].ravel().tolist()]
            scores[name].append(values)
    last = snapshots[-1]
    # a phase change needs the same heads and texts throughout; the slider shows all
    alike = like_the_last(snapshots)
    change = phase_change(alike)
    return {
        "name": escape(run.name),
        **{key: getattr(last, key) for key in SHAPE},
        "texts": texts,
        "steps": steps,
        "chance": {name: _number(last.chance.get(name)) for name in names},
        "scores": scores,
        "band": run.healthy and induction_band(run.healthy, last),
        "formed": change and {"layer": change.layer, "head": change.head, "step": change.step},
        "moments": [{"step": step, "what": line} for step, line in changes(alike)],
        "seen": " ".join(filter(None, (formed(alike), without_them(last)))),
    }


def _number(value: float | None) -> float | None:
    # JSON has no NaN
    return round(value, 4) if value is not None and math.isfinite(value) else None


def induction_band(healthy: Band, last: Snapshot) -> dict[str, Any]:
    """Return the page's data about a band: [step, low, high] up to the last snapshot."""
    # padding is the only difference between steps and tokens
    tokens_per_step = last.tokens / max(1, last.step)
    points = []
    ends = (healthy.tokens["induction"], healthy.low["induction"], healthy.high["induction"])
    for tokens, low, high in zip(*ends, strict=True):
        if tokens <= last.tokens:
            points.append([round(tokens / max(1, tokens_per_step)), _number(low), _number(high)])
    return {"seeds": healthy.seeds, "points": points}


def write_viewer(
    runs: Sequence[tuple[str, Sequence[Snapshot]]],
    path: Path,
    head: tuple[int, int] | None = None,
    networks: Mapping[str, tuple[dict[str, Any], Mapping[int, bytes]]] | None = None,
    healthy: Band | None = None,
) -> Path:
    """Write one self-contained page with the snapshots of all runs.

    runs:     (name, snapshots) each
    head:     layer and head of the first run to open on; default: the best induction head
    networks: name -> `page_model.read_models`; the page then reads any text
    healthy:  the band of the first run

    Raises InputError if there is nothing to show.
    """
    looks = []
    for name, snapshots in runs:
        run = Looks(name)
        for snapshot in sorted(snapshots, key=lambda snapshot: snapshot.step):
            run.add(snapshot)
        if networks and name in networks:
            run.network, weights = networks[name]
            run.weights = {step: pack(raw) for step, raw in weights.items()}
        looks.append(run)
    looks[0].healthy = healthy
    path.write_text(page(looks, AT_THE_END, head), encoding="utf-8")
    return path


def write_page(run: Looks, directory: Path, status: dict[str, Any]) -> None:
    """Write viewer.html of a run that trains or has stopped, atomically.

    status: step, total (steps; None where a clock ends the run), seconds, loss (nats a token)
            state: training, finished or stopped; stopped: the reason, a sentence
            command: continues the run
            patience: seconds without a change after which it has probably been killed
    """
    run.healthy = band_of(directory)
    # the time, so that an open page sees that nobody writes it any more
    status = status | {"loss": _number(status["loss"]), "written": time.time()}
    text = page([run], WHILE_TRAINING, status=status)
    write_atomically(directory / "attention" / VIEWER, text.encode())


def page(
    runs: Sequence[Looks],
    max_bytes: int,
    head: tuple[int, int] | None = None,
    status: dict[str, Any] | None = None,
) -> str:
    """Return the page with its data. head, status: see `write_viewer`, `write_page`."""
    # If the maps exceed max_bytes, leave those of some steps out, but no scores.
    most = max(len(run.shown()) for run in runs)
    while True:
        chosen = [choose(run.shown(), most) for run in runs]
        keys = []
        maps = []
        for r, snapshots in enumerate(chosen):
            for snapshot in snapshots:
                for probe in snapshot.maps:
                    keys.append((r, snapshot.step, probe))
                    maps.append(runs[r].packed[snapshot.step, probe])
        if most <= 2 or sum(map(len, maps)) <= max_bytes:
            break
        # A tenth less each time, which takes a few rounds. At least the first and the last stay.
        most = max(2, most * 9 // 10)
    data = described(runs, {key: line for line, key in enumerate(keys, start=1)})
    data["status"] = status
    for run, snapshots in zip(runs, chosen, strict=True):
        count = len(run.shown())
        if len(snapshots) < count:
            data["notes"].append(
                f"To stay small, this file has the maps of {len(snapshots)} of {count} steps "
                f"of {run.name}, scores of all."
            )
    if head:
        last = runs[0].shown()[-1]
        data["head"] = {"layer": last.layers.index(head[0]), "head": last.heads.index(head[1])}
    weights: list[str] = []
    for run, fields in zip(runs, data["runs"], strict=True):
        if run.network:
            first = 1 + len(maps) + len(weights)  # line 0 has the data
            lines = {step: first + i for i, step in enumerate(run.weights)}
            fields["network"] = run.network | {"lines": lines}
            weights += run.weights.values()
    if weights:
        # The page opens on the first probe. With one step only, that is a text of all steps.
        opens = any(len(run.weights) > 1 for run in runs)
        data["probes"].insert(0 if opens else len(data["probes"]), OWN)
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    title = " and ".join(run.name for run in runs)
    return assemble(title, "\n".join([pack(text.encode()), *maps, *weights]), bool(weights))


def script(names: Sequence[str]) -> str:
    """Join scripts of a page, in a scope of their own, with its Chinese sentences."""
    sentences = json.loads((PAGE / "zh.json").read_text(encoding="utf-8"))
    tables = [json.dumps(sentences[name], ensure_ascii=False) for name in ("page", "runs")]
    parts = [f"const ZH = {tables[0]};\nconst ZH_OF_RUNS = {tables[1]};"]
    parts += [(PAGE / f"{name}.js").read_text(encoding="utf-8") for name in names]
    return '"use strict";\n(() => {\n' + "\n".join(parts) + "})();\n"


def assemble(title: str, data: str, computes: bool) -> str:
    """Put the page and its data into one file. computes: True with a model in it."""
    names = [*HEADS, "file"]
    if computes:
        names = ["numbers", "network", *names]
    data = f'<script type="text/plain" id="data">\n{data}\n</script>'
    return one_file(f"{title}: attention heads", POLICY, ["page"], "heads", data, names)


def one_file(
    title: str, policy: str, styles: Sequence[str], body: str, data: str, scripts: Sequence[str]
) -> str:
    """Return a page that needs no file beside it. data: an element that its scripts read"""
    style = "\n".join((PAGE / f"{name}.css").read_text(encoding="utf-8") for name in styles)
    head = (
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f"<title>{html.escape(title)}</title>\n<style>\n{style}</style>"
    )
    return with_parts(head, body, f"{data}\n<script>\n{script(scripts)}</script>")


def with_parts(head: str, body: str, end: str) -> str:
    """Fill in page.html. body: the file with a view's templates"""
    # one pass: a part is not searched again, so it may contain @@END@@
    templates = (PAGE / f"{body}.html").read_text(encoding="utf-8")
    parts = {"HEAD": head, "BODY": templates, "END": end}
    page = (PAGE / "page.html").read_text(encoding="utf-8")
    return re.sub("@@([A-Z]+)@@", lambda match: parts[match[1]], page)


class Notebook:
    """A run's viewer.html in a notebook cell, stored in the notebook."""

    def __init__(self, file: Path | str):
        file = Path(file)
        if not file.exists():  # pretrained/ has only the snapshots
            run = file.parents[1]
            write_viewer([(run.name, read_all(run)[0])], file)
        self.page = file.read_text(encoding="utf-8")

    def __repr__(self) -> str:
        size = len(self.page) / 1e6
        return f"the viewer ({size:.1f} MB): run this cell to see it, or open docs/demo_viewer.html"

    def _repr_html_(self) -> str:
        style = 'width="100%" height="720" style="border:0" allow="fullscreen"'
        # srcdoc keeps the page apart: its styles and scripts do not reach the notebook
        text = html.escape(self.page)
        return f'<iframe title="attention viewer" srcdoc="{text}" {style}></iframe>'
