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
import json
from collections.abc import AsyncGenerator
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Body, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from configs.command import InputError
from eval.attention import viewer
from eval.attention.probes import probe_from_text
from eval.attention.snapshots import Snapshot, file_of, look, read
from eval.config import AttentionConfig
from eval.experts import for_viewer
from eval.experts import read as read_experts
from serve.limits import COOKIE, ApiError, Limits, equal, event
from serve.run_folder import Tail, settings, summaries, tail, watched_runs
from serve.workbench import Workbench, checkpoints_of

POLICY = (  # scripts, styles and answers of this server alone; no script within the page
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data: blob:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEAD = """<title>Headlight</title>
<link rel="stylesheet" href="/page/page.css">
<script defer src="/page/page.js"></script>"""
EVERY = 0.5  # seconds between two looks at the files
OwnText = Annotated[str, Body(embed=True, min_length=1, max_length=2000)]
MOST_TOKENS = 96  # of its maps, which are sent whole,
MOST_CHECKPOINTS = 12  # and of a run that looks at it


def page(limits: Limits) -> APIRouter:
    """The page itself, and where it gives the key."""
    routes = APIRouter()
    files = {  # what is not in this list does not exist
        "page.html": ("text/html", viewer.with_parts(HEAD, "")),
        "page.css": ("text/css", (viewer.PAGE / "page.css").read_text(encoding="utf-8")),
        "page.js": ("text/javascript", viewer.script(viewer.ON_SERVER)),
    }

    @routes.get("/")
    @routes.get("/page/{name}")
    def part(name: str = "page.html") -> Response:
        if name not in files:
            raise ApiError(404, "there is no such page")
        kind, content = files[name]
        return Response(content, media_type=kind, headers={"content-security-policy": POLICY})

    @routes.post("/page/key")
    def key(key: Annotated[str, Body(embed=True, max_length=1000)]) -> Response:
        if not equal(key.encode(), limits.api_key):
            raise ApiError(401, "this is not the key of this server", "invalid_api_key")
        answer = JSONResponse({})
        if limits.cookie is not None:
            answer.set_cookie(COOKIE, limits.cookie, httponly=True, samesite="strict")
        return answer

    return routes


def router(bench: Workbench) -> APIRouter:
    """What the page asks for."""
    routes, folder = APIRouter(prefix="/live"), bench.library.folder

    def run_named(name: str) -> Path:
        try:
            return watched_runs(folder)[name]
        except KeyError:
            raise ApiError(404, "there is no run of this name") from None

    @routes.get("/runs")
    def runs() -> dict[str, Any]:
        return {"runs": [*summaries(folder).values()]}

    @routes.get("/runs/{name}/config")
    def config(name: str) -> dict[str, str]:
        values = settings(run_named(name))
        return {key: value if isinstance(value, str) else json.dumps(value) for key, value in values.items()}

    @routes.get("/runs/{name}/metrics")
    def metrics(name: str, offset: int = 0, mark: int = 0) -> Response:
        run = run_named(name)
        try:
            lines = tail(run, max(0, offset), mark)
        except (OSError, InputError):
            lines = Tail(0, 0, 0, True, [])  # nothing is written yet
        return JSONResponse(lines._asdict())

    @routes.get("/runs/{name}/attention")
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
            raise ApiError(404, str(error), "no_look") from None
        return about | {"notes": about["notes"] + problems}

    @routes.get("/runs/{name}/attention/{step}/{probe}")
    def maps(name: str, step: int, probe: str) -> Response:
        try:
            weights = read(file_of(run_named(name) / "attention", step)).maps[probe].weights
        except (KeyError, InputError):
            raise ApiError(404, "there is no such look at the heads") from None
        return Response(viewer.quantise(weights).tobytes(), media_type="application/octet-stream")

    @routes.post("/runs/{name}/look")
    async def own_text(name: str, text: OwnText) -> dict[str, Any]:
        steps = sorted(checkpoints_of(bench.library.run(name)))
        few = np.linspace(0, len(steps) - 1, min(len(steps), MOST_CHECKPOINTS)).round().astype(int)

        def look_at(step: int) -> Snapshot:
            model = bench.find(name, step)
            try:
                probe = probe_from_text(model.tokenizer, text, model.context_length)
            except ValueError as error:
                raise ApiError(400, str(error)) from None
            return look(model.lm, [probe], AttentionConfig(max_tokens=MOST_TOKENS), (step, 0, 0.0))

        looks = await bench.do(lambda: [look_at(steps[place]) for place in few])
        frames = {
            f"{snapshot.step}/{probe}": base64.b64encode(viewer.quantise(maps.weights).tobytes()).decode()
            for snapshot in looks
            for probe, maps in snapshot.maps.items()
        }
        return viewer.described([viewer.Looks(name, looks)]) | {"frames": frames}

    @routes.get("/events")
    async def events(request: Request) -> Response:
        return StreamingResponse(_news(request, folder), media_type="text/event-stream")

    return routes


@lru_cache(maxsize=4096)
def _without_maps(file: Path, written: int) -> Snapshot:
    """The scores and texts of one look; read again where the file changed."""
    return viewer.without_weights(read(file))


async def _news(request: Request, folder: Path) -> AsyncGenerator[str]:
    """One event for each run whose files changed, the first time for all of them; until the page is closed."""
    known: dict[str, dict[str, Any]] = {}
    while not request.app.state.server.should_exit:  # it waits for its connections to end
        now = await asyncio.to_thread(summaries, folder)
        changed = [run for name, run in now.items() if known.get(name) != run]
        gone = [name for name in known if name not in now]
        known = now
        if changed or gone:
            yield event({"runs": changed, "gone": gone})
        await asyncio.sleep(EVERY)
