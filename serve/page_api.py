"""What the page reads: its own files, the runs, their figures, their heads, and what its chat needs besides
/v1/chat/completions. The routes under /live say each what it gives.
"""

from __future__ import annotations

import asyncio
import base64
import json
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Body, Query
from fastapi.responses import FileResponse, JSONResponse, Response
from pydantic import Field

from configs.command import InputError
from configs.files import checkpoints_of
from data.chat import prompt_ids
from eval.attention.capture import AttentionMaps
from eval.attention.controls import Head, scaled
from eval.attention.probes import probe_from_text
from eval.attention.snapshots import Snapshot, file_of, read, take_snapshot
from eval.chat.attention import capture_from, rows_around
from eval.chat.session import first_line
from eval.config import AttentionConfig
from eval.load_model import open_checkpoint
from eval.page import viewer
from eval.questions import Question, one_question, source_of
from eval.run_files import METRICS
from serve.answers import text_ids
from serve.library import Library, Model
from serve.limits import COOKIE, ApiError, Limits, equal
from serve.openai_api import WhichModel
from serve.run_folder import settings, summaries, watched_runs

POLICY = (  # scripts, styles and answers of this server alone; no script within the page
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data: blob:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEAD = """<title>Headlight</title>
<link rel="stylesheet" href="/page/page.css">
<script defer src="/page/page.js"></script>"""
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

    @routes.post("/page/key")  # once, where the server has one
    def key(key: Annotated[str, Body(embed=True, max_length=1000)]) -> Response:
        if not equal(key.encode(), limits.api_key):
            raise ApiError(401, "this is not the key of this server", "invalid_api_key")
        answer = JSONResponse({})
        if limits.cookie is not None:
            answer.set_cookie(COOKIE, limits.cookie, httponly=True, samesite="strict")
        return answer

    return routes


class AttentionRequest(WhichModel):
    """What predicted the token at `position` of these ids."""

    ids: list[int] = Field(min_length=2)
    position: int = Field(ge=1)


def router(library: Library, limits: Limits) -> APIRouter:
    """What the page asks for."""
    routes, folder = APIRouter(prefix="/live"), library.folder
    one_at_a_time = asyncio.Lock()  # of what opens many checkpoints

    def run_named(name: str) -> Path:
        try:
            return watched_runs(folder)[name]
        except KeyError:
            raise ApiError(404, "there is no run of this name") from None

    @routes.get("/runs")
    def runs() -> dict[str, Any]:
        """Every run in a few figures."""
        return {"runs": [*summaries(folder).values()]}

    @routes.get("/runs/{name}/config")
    def config(name: str) -> dict[str, str]:
        """Its settings by dotted key."""
        values = settings(run_named(name))
        return {key: value if isinstance(value, str) else json.dumps(value) for key, value in values.items()}

    @routes.get("/runs/{name}/metrics")
    def metrics(name: str) -> FileResponse:
        """metrics.jsonl, or a range of its bytes."""
        file = run_named(name) / METRICS
        if file.is_symlink() or not file.is_file():
            raise ApiError(404, "nothing is written yet")
        return FileResponse(file, media_type="application/x-ndjson")

    @routes.get("/runs/{name}/attention")
    def attention(name: str) -> dict[str, Any]:
        """Every look at its heads, without the maps."""
        run = run_named(name)
        looks, problems = viewer.Looks(name, experts=viewer.experts_of(run)), []
        for file in sorted((run / "attention").glob("step_????????.npz")):
            try:
                looks.snapshots.append(_without_maps(file, file.stat().st_mtime_ns))
            except InputError as error:
                problems.append(str(error))
        about = viewer.described([looks])
        return about | {"notes": about["notes"] + problems}

    @routes.get("/runs/{name}/attention/{step}/{probe}")
    def maps(name: str, step: int, probe: str) -> Response:
        """The maps of one look on one text."""
        try:
            weights = read(file_of(run_named(name) / "attention", step)).maps[probe].weights
        except (KeyError, InputError):
            raise ApiError(404, "there is no such look at the heads") from None
        return Response(viewer.quantise(weights).tobytes(), media_type="application/octet-stream")

    @routes.post("/runs/{name}/look")
    async def own_text(name: str, text: OwnText) -> dict[str, Any]:
        """What the heads look at in your own text, at every checkpoint."""
        steps = sorted(checkpoints_of(library.run(name)).items())
        few = np.linspace(0, len(steps) - 1, min(len(steps), MOST_CHECKPOINTS)).round().astype(int)

        def look_at(step: int, checkpoint: Path) -> Snapshot:
            lm, tokenizer, _ = open_checkpoint(checkpoint, library.device)
            probe = probe_from_text(tokenizer, text, lm.config.max_position_embeddings)
            return take_snapshot(lm, [probe], AttentionConfig(max_tokens=MOST_TOKENS), (step, 0, 0.0))

        async with asyncio.timeout(limits.seconds), one_at_a_time:
            looks = [await asyncio.to_thread(look_at, *steps[place]) for place in few]
        frames = {
            f"{snapshot.step}/{probe}": base64.b64encode(viewer.quantise(maps.weights).tobytes()).decode()
            for snapshot in looks
            for probe, maps in snapshot.maps.items()
        }
        return viewer.described([viewer.Looks(name, looks)]) | {"frames": frames}

    @routes.get("/models")
    def models() -> dict[str, Any]:
        """The runs that have checkpoints, which, and the adapters for each."""
        bases = library.bases()
        adapters = {name: [adapter for adapter, base in bases.items() if base == name] for name in bases}
        runs = library.runs().items()
        return {
            "models": [{"name": n, "steps": sorted(checkpoints_of(run)), "adapters": adapters[n]} for n, run in runs]
        }

    @routes.get("/models/{name}")
    def opened(name: str, step: int | None = None, adapter: str | None = None) -> dict[str, Any]:
        """One of them, opened: its layers and heads, whether it was trained on chats."""
        model, run = library.find(name, step, adapter), library.run(name)
        try:
            knows_questions = bool(source_of(run))  # it was trained on the built-in world
        except InputError:
            knows_questions = False
        return {
            "run": name,
            "step": next((step for step, path in checkpoints_of(run).items() if path == model.checkpoint), None),
            "adapter": adapter,
            "is_chat": model.is_chat,
            "context_length": model.context_length,
            "layers": model.lm.config.num_hidden_layers,
            "heads": model.lm.config.num_attention_heads,
            "knows_questions": knows_questions,
            "first_line": first_line(run),
        }

    @routes.get("/models/{name}/question")
    def question(name: str, number: Annotated[int, Query(ge=0, le=2**40)], step: int | None = None) -> dict[str, Any]:
        """A story of the built-in world, a question about it, and the right answer."""
        model = library.find(name, step)

        def fits(question: Question) -> bool:
            prompt = prompt_ids(model.tokenizer, question.messages)
            return len(prompt) + len(model.tokenizer.encode(question.reply)) < model.context_length

        try:
            drawn = one_question(source_of(library.run(name)), number, fits)
        except ValueError as error:  # no story fits
            raise InputError(str(error)) from None
        return {"messages": list(drawn.messages), "reply": drawn.reply, "answer": drawn.answer}

    @routes.post("/models/{name}/attention")
    async def attention_row(name: str, body: AttentionRequest) -> dict[str, Any]:
        """What every head looked at to predict one token: weights, float32, little-endian, base64: of each layer, of
        each head, one number for each token before."""
        model, factors = await body.find(library, name)
        text_ids(model, body.ids, "ids")
        if body.position >= len(body.ids) or len(body.ids) > model.context_length:
            raise ApiError(400, f"ids: position {body.position} of {len(body.ids)}, and context {model.context_length}")
        rows = rows_around(model.lm, body.ids, body.position)

        def work() -> AttentionMaps:
            return _maps(model, tuple(body.ids), rows, frozenset(factors.items()))

        async with asyncio.timeout(limits.seconds):
            maps = await asyncio.wrap_future(model.batcher.do(work))
        queries, keys = maps.weights.shape[3:]
        row = maps.weights[:, 0, :, body.position - 1 - (keys - queries), : body.position]  # (layer, head, key)
        layers, heads, keys = row.shape
        weights = base64.b64encode(row.numpy().astype(np.dtype("<f4")).tobytes()).decode("ascii")
        return {"layers": layers, "heads": heads, "keys": keys, "weights": weights}

    return routes


@lru_cache(maxsize=1)  # the next token that somebody looks at is most often of the same text
def _maps(
    model: Model, ids: tuple[int, ...], rows: tuple[int, int], factors: frozenset[tuple[Head, float]]
) -> AttentionMaps:
    """What the rows from the first to the end look at, from one capture."""
    with scaled(model.lm, dict(factors)):
        return capture_from(model.lm, ids[: rows[1]], rows[0])


@lru_cache(maxsize=4096)
def _without_maps(file: Path, written: int) -> Snapshot:
    """The scores and texts of one look; read again where the file changed."""
    return viewer.without_weights(read(file))
