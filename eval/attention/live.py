"""What can you see while a run trains? live.html: a page that loads itself again, and shows the head as it forms.

It is one file that asks for nothing else, written whole or not at all at every look at the heads. A run that stops says
so in it. A run that is killed cannot: so a few lines of script notice that the page no longer changes.
"""

from __future__ import annotations

import base64
import hashlib
import html
import io
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from string import Template
from urllib.parse import quote

import numpy as np

from eval.attention.changes import WATCHED, Changes
from eval.attention.findings import in_one_sentence, without_them
from eval.attention.history import best_head, looked_at, of_best_head, phase_change
from eval.attention.metrics import SCORES
from eval.attention.pictures.plots import quick_mosaic
from eval.attention.render import VIEWER
from eval.attention.snapshots import Snapshot

LIVE = "live.html"
SECONDS = 3  # after which the page loads itself again
RARELY = 60  # the same, where it no longer changes
REPEATED = SCORES["induction"].probe
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 600, 280, 34, 12, 26  # of the drawing of the curves, and its margins
UNTOUCHED = np.empty(0, np.float32)  # in place of the maps that the page does not show


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


@dataclass
class Live:
    """What was seen so far: every look, but of its maps only what the page shows; and the lines that said it."""

    changes: Changes = field(default_factory=Changes)
    looks: list[Snapshot] = field(default_factory=list)
    lines: list[tuple[int, str]] = field(default_factory=list)  # step, what changed
    said: set[str] = field(default_factory=set)  # "watch it" and "warning", each once

    def notice(self, snapshot: Snapshot) -> list[str]:
        """Keep this look. The lines that say what changed, as on the terminal."""
        lines = self.changes.notice(snapshot)
        self.lines += [(snapshot.step, line) for line in lines]
        while self.looks and (self.looks[-1].step >= snapshot.step or looked_at(self.looks[-1]) != looked_at(snapshot)):
            self.looks.pop()  # of other heads or texts: no curve with these
        if len(self.looks) > 1:  # between the first look and the last one only the scores are shown
            self.looks[-1] = _only(self.looks[-1], "")
        self.looks.append(_only(snapshot, REPEATED))
        return lines

    def show(self, directory: Path, now: Moment, say: Callable[[str], None]) -> None:
        """Write live.html, and say its address once. That it cannot be written is said once too, and stops nothing."""
        try:
            file = self.write(directory, now)
        except Exception as error:  # of the disk, or of the drawing
            problem = (isinstance(error, OSError) and error.strerror) or f"{type(error).__name__}: {error}"
            said = f"warning: {directory / LIVE} cannot be written ({problem}); training continues"
        else:
            said = "" if now.is_over or now.stopped else f"watch it: {file.resolve().as_uri()}"
        if said and said.partition(": ")[0] not in self.said:
            say(said)
            if said.startswith("watch it"):
                say(f"or beside other runs: {on_the_page(directory)}")
        self.said.add(said.partition(": ")[0])

    def write(self, directory: Path, now: Moment) -> Path:
        """live.html in the run's directory. Raises OSError if it cannot be written; then nothing has changed."""
        file, temporary = directory / LIVE, directory / "live.tmp"
        has_viewer = now.is_over and (directory / "attention" / VIEWER).is_file()
        try:
            temporary.write_text(self.page(directory.resolve().name, now, has_viewer), encoding="utf-8")
            temporary.replace(file)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        return file

    def page(self, name: str, now: Moment, has_viewer: bool = False) -> str:
        """The page as a string; it loads itself again until the run is over or has stopped."""
        looks = self.looks
        seen = in_one_sentence(looks) or "Induction is not measured in this run (eval.attention.metrics)."
        total = now.total or (now.step if now.is_over else None)
        parts = [f"step {now.step:,}" + (f" of {total:,}" if total else "")]
        if now.loss is not None and not now.is_over:  # a run that resumes after its last step does not know it
            parts.append(f"training loss {now.loss:.3f} nats a token")
        parts.append(f"{now.seconds:.0f} seconds")
        found = [f"<li><b>step {step:,}</b> {html.escape(line)}</li>" for step, line in reversed(self.lines)]
        is_running = not (now.is_over or now.stopped)
        again = (
            f"This page loads itself again every {SECONDS} seconds; what it shows changes at every look at the heads. "
            f"Written at {time.strftime('%H:%M:%S')}."
        )
        command = f"<code>{html.escape(now.command)}</code>"
        viewer = '<a class="next" href="attention/viewer.html">Open the viewer</a>'
        return PAGE.substitute(
            allowed=f"script-src '{HASH}'; " if is_running else "",
            refresh=f'<noscript><meta http-equiv="refresh" content="{SECONDS}"></noscript>\n' if is_running else "",
            script=f"<script>{SCRIPT}</script>\n" if is_running else "",
            written=f' data-written="{time.time():.0f}" data-patience="{now.patience:.0f}"' if is_running else "",
            name=html.escape(name),
            does="is trained" if now.is_over else "has stopped" if now.stopped else "is learning",
            stopped=STOPPED.format(html.escape(now.stopped), command)
            if now.stopped
            else QUIET.format(command)
            if is_running
            else "",
            status=" · ".join(parts),
            progress=f'<progress value="{now.step}" max="{total}" aria-label="training steps"></progress>'
            if total
            else "",
            seen=html.escape(seen),
            ablation=html.escape(without_them(looks[-1])),
            viewer=viewer if has_viewer else "",
            curves=curves(looks, total or now.step),
            maps=maps(looks, "at the end" if now.is_over else "at the last look" if now.stopped else "now"),
            found="\n".join(found) or "<li>Nothing yet: no head looks anywhere much more than at the start.</li>",
            end=again if is_running else "The run is over." if now.is_over else "The run has stopped.",
        )


def on_the_page(directory: Path) -> str:
    """How to open the heads of this run on the page of serve/, in words."""
    folder, name = shlex.quote(str(directory.parent)), quote(directory.resolve().name, safe="")
    return f"python -m serve {folder}   then open http://127.0.0.1:8000/#/heads/{name}"


def _only(snapshot: Snapshot, kept: str) -> Snapshot:
    """The same without the weights of its maps, but of one that is kept: as the snapshot's file keeps it, so that a run
    that is resumed writes the same page."""
    maps = {
        name: replace(one, weights=one.weights.astype(np.float16).astype(np.float32) if name == kept else UNTOUCHED)
        for name, one in snapshot.maps.items()
    }
    return replace(snapshot, maps=maps, similarity=None)


def curves(looks: list[Snapshot], last_step: int) -> str:
    """The two scores of copying, each of the head that has most of it now, over steps; dashed: chance. As SVG."""
    right, low = WIDTH - 10, HEIGHT - BOTTOM
    lines, legend = [], []

    def x(step: int) -> float:
        return round(LEFT + (right - LEFT) * step / max(1, last_step), 1)

    def y(score: float) -> float:
        return round(low - (low - TOP) * score, 1)

    for score in (0, 0.5, 1):
        lines.append(f'<path class="line" d="M{LEFT} {y(score)}H{right}"/>')
        lines.append(f'<text x="{LEFT - 6}" y="{y(score) + 4}" text-anchor="end">{score:g}</text>')
    for step, anchor in ((0, "start"), (last_step // 2, "middle"), (last_step, "end")):
        lines.append(f'<text x="{x(step)}" y="{low + 18}" text-anchor="{anchor}">step {step:,}</text>')
    if change := phase_change(looks):
        lines.append(f'<path class="formed" d="M{x(change.step)} {low}V{TOP}"/>')
        lines.append(f'<text x="{x(change.step) - 6}" y="{TOP + 14}" text-anchor="end">the head forms</text>')
    for name in WATCHED:
        curve, chance = of_best_head(looks, name), looks[-1].chance.get(name)
        if curve is None:
            continue
        points = [(one.step, value) for one, value in zip(looks, curve.values, strict=True) if np.isfinite(value)]
        lines.append(f'<polyline class="{name}" points="{" ".join(f"{x(s)},{y(v)}" for s, v in points)}"/>')
        lines += [
            f'<circle class="{name}" cx="{x(step)}" cy="{y(value)}" r="3"><title>{SCORES[name].title}, {curve.title}, '
            f"step {step}: {value:.4f}</title></circle>"
            for step, value in points
        ]
        if chance:
            lines.append(f'<path class="chance {name}" d="M{LEFT} {y(chance)}H{right}"/>')
        level = f" (chance {chance:.2f})" if chance else ""
        legend.append(
            f'<li class="{name}"><b>{SCORES[name].title}</b>, {_head(looks[-1], name)}, looks at '
            f"{SCORES[name].looks_at}: <b>{points[-1][1]:.2f}</b>{level}</li>"
        )
    label = "The share of its attention that each of two heads gives to one place, over training"
    drawing = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{"".join(lines)}</svg>'
    return f'{drawing}\n<ul class="legend">{"".join(legend)}</ul>' if legend else ""


def maps(looks: list[Snapshot], when: str) -> str:
    """The head with most induction, on words written twice, at the first look and at the last; "" without them."""
    first, last = looks[0], looks[-1]
    place = best_head(last, "induction")
    if place is None or REPEATED not in last.maps:
        return ""
    tokens = last.maps[REPEATED].labels
    period = (len(tokens) - 1) // 2  # after the first token of a document
    later = range(1 + period, len(tokens) - 1)  # of these the next one is known
    now, before = (one.maps[REPEATED].weights[place] for one in (last, first))
    row = max(later, key=lambda i: now[i, i - period + 1])
    word, after = (html.escape(tokens[i].lstrip("␣") or tokens[i]) for i in (row, row + 1))
    figures = [
        f'<figure><figcaption>{caption}</figcaption><img alt="what it looks at, {caption}" '
        f'src="data:image/png;base64,{_png(one, place)}"></figure>'
        for caption, one in ((f"at step {first.step:,}", first), (f"{when}, at step {last.step:,}", last))
    ]
    return (
        f"<h2>{_head(last, 'induction').capitalize()}: {period} random words, written twice</h2>"
        f'<div class="pair">{"".join(figures)}</div>'
        "<p>A row is a word that looks, a column is what it looks at; dark is much. A dark stripe in the lower half: "
        "when the words come again, the head finds what comes next. It is best at the second "
        f"<b>{word}</b>: <b>{now[row, row - period + 1]:.2f}</b> of its attention goes to <b>{after}</b>, which "
        f"followed the first <b>{word}</b> (at step {first.step:,}: {before[row, row - period + 1]:.2f}).</p>"
    )


def _head(snapshot: Snapshot, score: str) -> str:
    place = best_head(snapshot, score)
    assert place is not None
    return f"layer {snapshot.layers[place[0]]}, head {snapshot.heads[place[1]]}"


def _png(snapshot: Snapshot, place: tuple[int, int]) -> str:
    """The map of one head, in base64."""
    layer, head = place
    picture = io.BytesIO()
    quick_mosaic(snapshot.maps[REPEATED].weights[layer : layer + 1, head : head + 1], picture)
    return base64.b64encode(picture.getvalue()).decode()


STOPPED = '<p class="stopped">{}<br>This command continues from the newest checkpoint: {}</p>'
QUIET = """<p class="stopped" id="quiet" hidden>Nothing has changed for <span id="minutes"></span> minutes. The run may
have been killed. Look at its terminal; if it is gone, this command continues from the newest checkpoint: {}</p>"""
SCRIPT = f"""
const {{ written, patience }} = document.body.dataset, age = Date.now() / 1000 - written, isQuiet = age > patience;
document.getElementById("minutes").textContent = Math.floor(age / 60);
document.getElementById("quiet").hidden = !isQuiet;
setTimeout(() => location.reload(), 1000 * (isQuiet ? {RARELY} : {SECONDS}));
"""
HASH = f"sha256-{base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()}"  # this script and no other runs
PAGE = Template("""<!doctype html>
<html lang="en"><head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy"
  content="default-src 'none'; ${allowed}style-src 'unsafe-inline'; img-src data:">
$refresh<title>$name: $status</title>
<link rel="icon" href="data:,">
<style>
:root { --page: #fff; --panel: #f6f7f9; --text: #1b1e24; --soft: #5c6370; --line: #dfe2e8;
  --induction: #7a2d8f; --previous: #0b6fc2; color-scheme: light dark; }
@media (prefers-color-scheme: dark) { :root { --page: #14161a; --panel: #1c1f25; --text: #e6e8ec; --soft: #a0a7b4;
  --line: #30353e; --induction: #d58be8; --previous: #5fb0f5; } }
* { box-sizing: border-box; }
html { font: 15px/1.45 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "Noto Sans CJK SC", sans-serif; }
body { margin: 0 auto; padding: 12px 24px 32px; max-width: 1240px; background: var(--page); color: var(--text); }
h1 { font-size: 1.3rem; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1rem; margin: 0 0 4px; }
p { margin: 4px 0; }
.top { display: flex; flex-wrap: wrap; align-items: center; gap: 2px 20px; min-height: 36px; }
.soft { color: var(--soft); font-variant-numeric: tabular-nums; }
progress { display: block; width: 100%; height: 8px; margin: 4px 0; accent-color: var(--induction); }
.stopped { margin: 8px 0; padding: 8px 16px; border-left: 4px solid var(--induction); background: var(--panel); }
code { font-family: ui-monospace, monospace; overflow-wrap: anywhere; user-select: all; }
.seen { font-size: 1.2rem; line-height: 1.35; }
.next { margin-left: auto; padding: 6px 16px; border-radius: 6px; font-weight: 600;
  background: var(--induction); color: var(--page); text-decoration: none; }
.columns { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 460px), 1fr)); gap: 12px 28px;
  margin: 8px 0; padding: 10px 16px; background: var(--panel); border: 1px solid var(--line); border-radius: 8px; }
svg { width: 100%; display: block; }
svg text { font-size: 12px; fill: var(--soft); }
.line { stroke: var(--line); }
.formed { stroke: var(--soft); stroke-dasharray: 2 4; }
polyline { fill: none; stroke: currentColor; stroke-width: 2.5; }
circle { fill: currentColor; }
.chance { stroke: currentColor; stroke-dasharray: 6 5; }
.induction { color: var(--induction); }
.previous_token { color: var(--previous); }
.legend { list-style: none; margin: 4px 0; padding: 0; font-size: 0.93rem; }
.pair { display: grid; grid-template-columns: 1fr 1fr; gap: 16px; max-width: 560px; }
figure { margin: 0; }
img { width: 100%; display: block; image-rendering: pixelated; border-radius: 4px; }
ol { list-style: none; margin: 0; padding: 0; columns: 2 480px; column-gap: 28px; font-size: 0.93rem; }
li { break-inside: avoid; }
</style>
</head>
<body$written>
<div class="top">
<h1>Headlight: $name $does</h1>
<span class="soft">$status</span>
$viewer
</div>
$progress
$stopped
<p class="seen">$seen</p>
<p>$ablation</p>
<div class="columns">
<section><h2>How much of its attention each head gives to one place</h2>
$curves
<p class="soft">Dashed: chance, a head that looks at everything equally.</p></section>
<section>$maps</section>
</div>
<h2>Seen so far, the newest first</h2>
<ol>
$found
</ol>
<p class="soft">$end An attention head is a part of the model that looks back at earlier words; layers and heads count
from zero.</p>
$script</body></html>
""")
