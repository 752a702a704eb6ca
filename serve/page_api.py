"""What the page reads: its own files, the runs, their figures, and their heads; and news, as soon as there are any.

GET  /                                        the page (eval/attention/page/)
POST /page/key                                the key, once, where the server has one
GET  /page/NAME                               its script and its style
GET  /live/runs                               every run in a few figures
GET  /live/runs/NAME/config                   its settings by dotted key
GET  /live/runs/NAME/metrics?offset=…&mark=…  the lines of metrics.jsonl from there on
GET  /live/runs/NAME/attention                every look at its heads, without the maps
GET  /live/runs/NAME/attention/STEP/PROBE     the maps of one look on one text
POST /live/runs/NAME/look                     what the heads look at in your own text, at every checkpoint
GET  /live/events                             server-sent events: a run whose files changed, in the same few figures
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
from collections.abc import AsyncGenerator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import BaseModel, Field

from configs.command import InputError
from eval.attention import viewer
from eval.attention.probes import probe_from_text
from eval.attention.snapshots import Snapshot, file_of, look, read
from eval.config import AttentionConfig
from eval.experts.log import for_viewer
from eval.experts.log import read as read_experts
from serve.errors import ApiError
from serve.events import event
from serve.limits import COOKIE, Limits, token, within
from serve.run_folder import RunFolder, Tail, settings, tail
from serve.workbench import ModelAsked, Workbench, checkpoints_of

POLICY = (  # scripts, styles and answers of this server alone; no script within the page
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data: blob:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEAD = """<title>Headlight</title>
<link rel="stylesheet" href="/page/page.css">
<script defer src="/page/page.js"></script>"""
EVERY = 0.5  # seconds between two looks at the files
SILENCE = 15.0  # seconds after which a line without news keeps the connection open
MOST_READERS = 64  # of news
MOST_LETTERS = 2000  # of your own text,
MOST_TOKENS = 96  # of its maps, which are sent whole,
MOST_CHECKPOINTS = 12  # and of a run that looks at it


class Given(BaseModel):
    """POST /page/key: what was typed into the page of a server that has a key."""

    key: str = Field(max_length=1000)


class OwnText(BaseModel):
    """POST /live/runs/NAME/look."""

    text: str = Field(min_length=1, max_length=MOST_LETTERS)


def router(folder: RunFolder, bench: Workbench, limits: Limits) -> APIRouter:
    """The routes of this file."""
    routes, readers = APIRouter(), set[object]()
    files = {  # what is not in this list does not exist
        "page.html": ("text/html", viewer.with_parts(HEAD, "")),
        "page.css": ("text/css", (viewer.PAGE / "page.css").read_text(encoding="utf-8")),
        "page.js": ("text/javascript", viewer.script(viewer.ON_SERVER)),
    }

    @routes.get("/")
    def index() -> Response:
        return part("page.html")

    @routes.get("/page/{name}")
    def part(name: str) -> Response:
        if name not in files:
            raise ApiError(404, "there is no such page")
        kind, content = files[name]
        return Response(content, media_type=kind, headers={"content-security-policy": POLICY})

    @routes.post("/page/key")
    def key(given: Given) -> Response:
        right = limits.api_key
        if right is not None and not hmac.compare_digest(given.key.encode(), right.encode()):
            raise ApiError(401, "this is not the key of this server", "authentication_error", "invalid_api_key")
        answer = JSONResponse({})
        if right is not None:
            answer.set_cookie(COOKIE, token(right), httponly=True, samesite="strict")
        return answer

    def run_named(name: str) -> Path:
        try:
            return folder.runs()[name]
        except KeyError:
            raise ApiError(404, "there is no run of this name") from None

    @routes.get("/live/runs")
    def runs() -> dict[str, Any]:
        return {"runs": [*folder.summaries().values()]}

    @routes.get("/live/runs/{name}/config")
    def config(name: str) -> dict[str, str]:
        values = settings(run_named(name))
        return {key: value if isinstance(value, str) else json.dumps(value) for key, value in values.items()}

    @routes.get("/live/runs/{name}/metrics")
    def metrics(name: str, offset: int = 0, mark: int = 0) -> Response:
        run = run_named(name)
        try:
            return JSONResponse(tail(run, max(0, offset), mark)._asdict())
        except (OSError, InputError):
            return JSONResponse(Tail(0, 0, 0, True, [])._asdict())  # nothing is written yet

    @routes.get("/live/runs/{name}/attention")
    def attention(name: str) -> dict[str, Any]:
        run = run_named(name)
        looks, problems = viewer.Looks(name, experts=for_viewer(read_experts(run, lambda problem: None))), []
        for file in sorted((run / "attention").glob("step_????????.npz")):
            try:
                looks.snapshots.append(_without_maps(file, file.stat().st_mtime_ns))
            except InputError as error:
                problems.append(str(error))
        try:
            about = viewer.described([looks])
        except InputError as error:
            raise ApiError(404, str(error), code="no_look") from None
        return about | {"notes": about["notes"] + problems}

    @routes.get("/live/runs/{name}/attention/{step}/{probe}")
    def maps(name: str, step: int, probe: str) -> Response:
        file = file_of(run_named(name) / "attention", step)
        try:
            return Response(
                viewer.quantise(read(file).maps[probe].weights).tobytes(), media_type="application/octet-stream"
            )
        except (KeyError, InputError):
            raise ApiError(404, "there is no such look at the heads") from None

    @routes.post("/live/runs/{name}/look")
    async def own_text(name: str, asked: OwnText) -> dict[str, Any]:
        there = bench.library.runs()
        if name not in there:
            raise ApiError(404, "this run has no checkpoint yet" if there else "there is no run of this name")
        steps = sorted(checkpoints_of(there[name]))
        few = np.linspace(0, len(steps) - 1, min(len(steps), MOST_CHECKPOINTS)).round().astype(int)

        def looked() -> list[Snapshot]:
            return [_look(bench, ModelAsked(run=name, step=steps[place]), asked.text) for place in few]

        looks = await within(bench.do(looked), limits.seconds)
        frames = {
            f"{one.step}/{probe}": base64.b64encode(viewer.quantise(maps.weights).tobytes()).decode()
            for one in looks
            for probe, maps in one.maps.items()
        }
        return viewer.described([viewer.Looks(name, looks)]) | {"frames": frames}

    @routes.get("/live/events")
    async def events(request: Request) -> Response:
        if len(readers) >= MOST_READERS:
            raise ApiError(429, "too many pages are open: close one", "rate_limit_error")
        return StreamingResponse(_news(request, folder, readers), media_type="text/event-stream")

    return routes


@lru_cache(maxsize=4096)
def _without_maps(file: Path, written: int) -> Snapshot:
    """The scores and texts of one look; read again where the file changed."""
    return viewer.without_weights(read(file))


def _look(bench: Workbench, name: ModelAsked, text: str) -> Snapshot:
    opened = bench.find(name)
    try:
        probe = probe_from_text(opened.tokenizer, text, opened.context_length)
    except ValueError as error:
        raise ApiError(400, str(error)) from None
    return look(opened.lm, [probe], AttentionConfig(max_tokens=MOST_TOKENS), (name.step or 0, 0, 0.0))


async def _news(request: Request, folder: RunFolder, readers: set[object]) -> AsyncGenerator[str]:
    """One event for each run whose files changed, the first time for all of them; until the page is closed."""
    known: dict[str, dict[str, Any]] = {}
    me, quiet = object(), 0.0
    server = getattr(request.app.state, "server", None)
    readers.add(me)
    try:
        while not (server and server.should_exit):  # it waits for its connections to end
            now = await asyncio.to_thread(folder.summaries)
            changed = [one for name, one in now.items() if known.get(name) != one]
            gone = [name for name in known if name not in now]
            known, quiet = now, 0.0 if changed or gone else quiet + EVERY
            if changed or gone:
                yield event({"runs": changed, "gone": gone})
            elif quiet >= SILENCE:
                quiet = 0.0
                yield ": still here\n\n"
            await asyncio.sleep(EVERY)
    finally:
        readers.discard(me)
