"""What the page reads: its own files, the runs, their figures, and their heads; and news, as soon as there are any.

GET /                                        the page
POST /page/key                               the key, once, where the server has one
GET /page/NAME                               its scripts and styles, and those of the viewer
GET /live/runs                               every run in a few figures
GET /live/runs/NAME/config                   its settings by dotted key
GET /live/runs/NAME/metrics?file=…&offset=…&mark=…  the lines of metrics.jsonl from there on
GET /live/runs/NAME/attention                every look at its heads, without the maps
GET /live/runs/NAME/attention/STEP/PROBE     the maps of one look on one text
GET /live/events                             server-sent events: a run whose files changed, in the same few figures
"""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import BaseModel, Field

from configs.command import InputError
from eval.attention.viewer import module as viewer
from serve.errors import ApiError
from serve.limits import COOKIE, Limits, token
from serve.looks import Looks
from serve.run_folder import RunFolder, Tail, settings, tail

PAGE = Path(__file__).parent / "page"
KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
POLICY = (  # scripts, styles and answers of this server alone; no script within the page
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data: blob:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
EVERY = 0.5  # seconds between two looks at the files
SILENCE = 15.0  # seconds after which a line without news keeps the connection open
MOST_READERS = 64  # of news


class Given(BaseModel):
    """POST /page/key: what was typed into the page of a server that has a key."""

    key: str = Field(max_length=1000)


def router(folder: RunFolder, limits: Limits) -> APIRouter:
    """The routes of this file."""
    routes, looks, readers = APIRouter(), Looks(), set[object]()
    files = page_files()

    @routes.get("/")
    def index() -> Response:
        return _file("index.html", files)

    @routes.get("/page/{name}")
    def part(name: str) -> Response:
        return _file(name, files)

    @routes.post("/page/key")
    def key(given: Given) -> Response:
        right = limits.api_key
        if right is not None and not hmac.compare_digest(given.key.encode(), right.encode()):
            raise ApiError(401, "this is not the key of this server", "authentication_error", "invalid_api_key")
        answer = JSONResponse({})
        if right is not None:
            answer.set_cookie(COOKIE, token(right), httponly=True, samesite="strict")
        return answer

    @routes.get("/live/runs")
    def runs() -> dict[str, Any]:
        return {"runs": [*folder.summaries().values()]}

    @routes.get("/live/runs/{name}/config")
    def config(name: str) -> dict[str, str]:
        values = settings(run_named(folder, name))
        return {key: value if isinstance(value, str) else json.dumps(value) for key, value in values.items()}

    @routes.get("/live/runs/{name}/metrics")
    def metrics(name: str, file: int = 0, offset: int = 0, mark: int = 0) -> Response:
        try:
            found = tail(run_named(folder, name), file, max(0, offset), mark)
        except InputError:
            return JSONResponse(vars(Tail(0, 0, 0, 0, True, [])))  # nothing is written yet
        return JSONResponse(vars(found))

    @routes.get("/live/runs/{name}/attention")
    def attention(name: str) -> Response:
        run = run_named(folder, name)
        try:
            return JSONResponse(looks.told(name, run))
        except InputError as error:
            raise ApiError(404, str(error), code="no_look") from None

    @routes.get("/live/runs/{name}/attention/{step}/{probe}")
    def maps(name: str, step: int, probe: str) -> Response:
        try:
            return Response(looks.map(run_named(folder, name), step, probe), media_type="application/octet-stream")
        except (KeyError, InputError):
            raise ApiError(404, "there is no such look at the heads") from None

    @routes.get("/live/events")
    async def events(request: Request) -> Response:
        if len(readers) >= MOST_READERS:
            raise ApiError(429, "too many pages are open: close one", "rate_limit_error")
        return StreamingResponse(_news(request, folder, readers), media_type="text/event-stream")

    return routes


def page_files() -> dict[str, tuple[bytes, str]]:
    """Name -> content and kind of every file that a page may ask for. What is not in this list does not exist."""
    found = {
        path.name: (path.read_bytes(), KINDS[path.suffix]) for path in sorted(PAGE.iterdir()) if path.suffix in KINDS
    }
    made = {
        "viewer.js": (viewer.module(), ".js"),
        "viewer.css": (viewer.style(), ".css"),
        "viewer.html": (viewer.fragment(), ".html"),
    }
    return found | {name: (text.encode(), KINDS[kind]) for name, (text, kind) in made.items()}


def _file(name: str, files: dict[str, tuple[bytes, str]]) -> Response:
    if name not in files:
        raise ApiError(404, "there is no such page")
    content, kind = files[name]
    return Response(content, media_type=kind, headers={"content-security-policy": POLICY})


def run_named(folder: RunFolder, name: str) -> Path:
    """The directory of a run. Raises ApiError 404."""
    try:
        return folder.runs()[name]
    except KeyError:
        raise ApiError(404, "there is no run of this name") from None


async def _news(request: Request, folder: RunFolder, readers: set[object]) -> AsyncGenerator[str]:
    """One event for each run whose files changed, the first time for all of them; until the page is closed."""
    known: dict[str, dict[str, Any]] = {}
    me, quiet = object(), 0.0
    readers.add(me)
    try:
        while not _is_stopping(request):
            now = await asyncio.to_thread(folder.summaries)
            changed = [one for name, one in now.items() if known.get(name) != one]
            gone = [name for name in known if name not in now]
            known, quiet = now, 0.0 if changed or gone else quiet + EVERY
            if changed or gone:
                yield f"data: {json.dumps({'runs': changed, 'gone': gone})}\n\n"
            elif quiet >= SILENCE:
                quiet = 0.0
                yield ": still here\n\n"
            await asyncio.sleep(EVERY)
    finally:
        readers.discard(me)


def _is_stopping(request: Request) -> bool:
    """Whether the server waits for its connections to end."""
    server = getattr(request.app.state, "server", None)
    return server is not None and server.should_exit
