"""Serve the page: its files, the runs with their figures and heads, and the models of its chat."""

import asyncio
import base64
import json
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Body, Query
from fastapi.responses import FileResponse, JSONResponse, Response
from pydantic import Field

from configs.command import InputError
from configs.files import checkpoints_of
from data.chat import prompt_ids
from eval.attention.capture import AttentionMaps, layers_with_weights, without_weights
from eval.attention.controls import Head, scaled
from eval.attention.probes import probe_from_text
from eval.attention.snapshots import Snapshot, file_of, read, take_snapshot
from eval.band import band_of
from eval.chat.attention import MOST_TOKENS, capture_from
from eval.chat.session import first_line
from eval.config import AttentionConfig
from eval.load_model import open_checkpoint
from eval.page import viewer
from eval.questions import Question, one_question, source_of
from eval.run_files import METRICS
from serve.answers import text_ids
from serve.library import Library, Model
from serve.limits import COOKIE, ApiError, Limits, equal
from serve.requests import WhichModel
from serve.run_folder import settings, summaries, watched_runs

# Scripts, styles and answers come only from this server. The page itself has no script.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEAD = """<title>Headlight</title>
<link rel="stylesheet" href="/page/page.css">
<script defer src="/page/page.js"></script>"""
# The maps of your own text are sent at once, so there are limits.
CONFIG = AttentionConfig(max_tokens=96)
MOST_CHECKPOINTS = 12
# At most so many weights are captured at a time: 256 MB.
NUMBERS = 2**26
OwnText = Annotated[str, Body(embed=True, min_length=1, max_length=2000)]


def page(limits: Limits) -> APIRouter:
    """Return the routes that need no key: the page itself, and the one that takes the key."""
    routes = APIRouter()
    # no other file is served
    files = {
        "page.html": ("text/html", viewer.with_parts(HEAD, "heads", "")),
        "page.css": ("text/css", (viewer.PAGE / "page.css").read_text(encoding="utf-8")),
        "page.js": ("text/javascript", viewer.script(viewer.ON_SERVER)),
    }

    @routes.get("/")
    @routes.get("/page/{name}")
    def file(name: str = "page.html") -> Response:
        return file_of_page(files, name)

    @routes.post("/page/key")
    def key(key: Annotated[str, Body(embed=True, max_length=1000)]) -> Response:
        if not equal(key.encode(), limits.api_key):
            raise ApiError(401, "this is not the key of this server", "invalid_api_key")
        # a cookie, because a page opened from a bookmark sends no header
        response = JSONResponse({})
        # no script can read it, and no other page's request has it
        if limits.cookie is not None:
            response.set_cookie(COOKIE, limits.cookie, httponly=True, samesite="strict")
        return response

    return routes


def file_of_page(files: dict[str, tuple[str, str]], name: str) -> Response:
    """Send one of these files, name -> (media type, content). Raises ApiError 404."""
    # A look-up, not a path: so no name leads to another file of this machine.
    if name not in files:
        raise ApiError(404, "there is no such page")
    kind, content = files[name]
    return Response(content, media_type=kind, headers={"content-security-policy": POLICY})


class AttentionRequest(WhichModel):
    """A text, and the position of a token in it."""

    ids: list[int] = Field(min_length=2)
    position: int = Field(ge=1)


class Live:
    """The routes under /live, which need the key."""

    def __init__(self, library: Library, limits: Limits):
        self.library = library
        self.limits = limits
        # held while many checkpoints are opened one by one
        self.opens_many = asyncio.Lock()
        self.routes = APIRouter(prefix="/live")
        get = self.routes.get
        post = self.routes.post
        # Plain functions run in FastAPI's threads, so reading files holds up no answer.
        get("/runs")(self.runs)
        get("/runs/{name}/config")(self.config)
        get("/runs/{name}/metrics")(self.metrics)
        get("/runs/{name}/attention")(self.attention)
        get("/runs/{name}/attention/{step}/{probe}")(self.maps)
        # a post: the text may be private, and addresses end up in logs
        post("/runs/{name}/look")(self.look)
        get("/models")(self.models)
        get("/models/{name}")(self.model)
        get("/models/{name}/question")(self.question)
        post("/models/{name}/attention")(self.row)

    def _run(self, name: str) -> Path:
        run = watched_runs(self.library.folder).get(name)
        if run is None:
            raise ApiError(404, "there is no run of this name")
        return run

    def runs(self) -> dict[str, Any]:
        """Summarise every run."""
        return {"runs": [*summaries(self.library.folder).values()]}

    def config(self, name: str) -> dict[str, str]:
        """Return the settings of a run by dotted key."""
        values = settings(self._run(name))
        # as text, because the page only shows and compares them
        return {k: v if isinstance(v, str) else json.dumps(v) for k, v in values.items()}

    def metrics(self, name: str) -> FileResponse:
        """Send metrics.jsonl, or a range of its bytes."""
        file = self._run(name) / METRICS
        # a link may lead to a file outside of the runs
        if file.is_symlink() or not file.is_file():
            raise ApiError(404, "nothing is written yet")
        return FileResponse(file, media_type="application/x-ndjson")

    def attention(self, name: str) -> dict[str, Any]:
        """Return every snapshot of the run's heads, without the maps."""
        run = self._run(name)
        # scores of every step at once; the page asks for a map when it is shown
        looks = viewer.Looks(name, healthy=band_of(run))
        problems = []
        for file in sorted((run / "attention").glob("step_????????.npz")):
            try:
                looks.snapshots.append(_without_maps(file, file.stat().st_mtime_ns))
            # a damaged snapshot is a note on the page, not the end of it
            except InputError as error:
                problems.append(str(error))
        return viewer.described([looks]) | {"notes": problems}

    def maps(self, name: str, step: int, probe: str) -> Response:
        """Return the maps of one snapshot on one text."""
        try:
            weights = read(file_of(self._run(name) / "attention", step)).maps[probe].weights
        except (KeyError, InputError):
            raise ApiError(404, "there is no such snapshot of the heads") from None
        # one byte a weight, and no later keys: a picture of 256 tokens has 33 kB a head
        return Response(viewer.quantise(weights).tobytes(), media_type="application/octet-stream")

    async def look(self, name: str, text: OwnText) -> dict[str, Any]:
        """Return the maps of your own text, at checkpoints that are evenly spread."""
        steps = sorted(checkpoints_of(self.library.run(name)).items())
        number = min(len(steps), MOST_CHECKPOINTS)

        def take(step: int, checkpoint: Path) -> Snapshot:
            lm, tokenizer, _ = open_checkpoint(checkpoint, self.library.device)
            probe = probe_from_text(tokenizer, text, lm.config.max_position_embeddings)
            return take_snapshot(lm, [probe], CONFIG, (step, 0, 0.0))

        snapshots: list[Snapshot] = []
        # in a thread, one at a time: two models would need twice the memory
        async with asyncio.timeout(self.limits.seconds), self.opens_many:
            for i in np.linspace(0, len(steps) - 1, number).round().astype(int):
                snapshots.append(await asyncio.to_thread(take, *steps[i]))
        frames = {}
        for snapshot in snapshots:
            for probe, maps in snapshot.maps.items():
                frames[f"{snapshot.step}/{probe}"] = _base64(viewer.quantise(maps.weights))
        return viewer.described([viewer.Looks(name, snapshots)]) | {"frames": frames}

    def models(self) -> dict[str, Any]:
        """List runs with their checkpoints and adapters."""
        bases = self.library.bases()
        models = []
        for name, run in self.library.runs().items():
            adapters = [adapter for adapter, base in bases.items() if base == name]
            models.append(
                {"name": name, "steps": sorted(checkpoints_of(run)), "adapters": adapters}
            )
        return {"models": models}

    def model(
        self, name: str, step: int | None = None, adapter: str | None = None
    ) -> dict[str, Any]:
        """Load a model and return its shape."""
        model = self.library.find(name, step, adapter)
        run = self.library.run(name)
        knows_questions = False
        with suppress(InputError):
            # of the built-in world
            knows_questions = bool(source_of(run))
        # None if training has deleted this checkpoint meanwhile: the model stays in memory
        steps = {path: number for number, path in checkpoints_of(run).items()}
        return {
            "run": name,
            "step": steps.get(model.checkpoint),
            "adapter": adapter,
            "is_chat": model.is_chat,
            "context_length": model.context_length,
            "layers": model.lm.config.num_hidden_layers,
            "heads": model.lm.config.num_attention_heads,
            "linear_layers": [i for i, linear in enumerate(model.lm.config.is_linear) if linear],
            "knows_questions": knows_questions,
            "first_line": first_line(run),
        }

    def question(
        self, name: str, number: Annotated[int, Query(ge=0, le=2**40)], step: int | None = None
    ) -> dict[str, Any]:
        """Return a story of the built-in world, a question about it, and the right answer."""
        model = self.library.find(name, step)

        # with room for the answer and its end
        def fits(question: Question) -> bool:
            prompt = prompt_ids(model.tokenizer, question.messages)
            return len(prompt) + len(model.tokenizer.encode(question.reply)) < model.context_length

        try:
            question = one_question(source_of(self.library.run(name)), number, fits)
        except ValueError as error:
            # no story fits
            raise InputError(str(error)) from None
        messages = list(question.messages)
        return {"messages": messages, "reply": question.reply, "answer": question.answer}

    async def row(self, name: str, body: AttentionRequest) -> dict[str, Any]:
        """Return the attention of every head at the query that predicted one token.

        Heads of linear attention have no weights: zeros.
        weights: (layers, heads, keys), float32, little-endian, base64.
        """
        model, factors = await body.find(self.library, name)
        if not layers_with_weights(model.lm.config):
            raise ApiError(400, without_weights(model.lm.config))
        ids = text_ids(model, body.ids, "ids")
        position = body.position
        limit = model.context_length
        if position >= len(ids) or len(ids) > limit:
            raise ApiError(400, f"ids: position {position} of {len(ids)}, and context {limit}")
        # A range of rows, so that the next tokens need no new capture; all of a short text.
        config = model.lm.config
        weights_of_row = config.num_hidden_layers * config.num_attention_heads * len(ids)
        count = max(1, min(MOST_TOKENS, NUMBERS // weights_of_row))
        begin = (position - 1) // count * count
        rows = (begin, min(begin + count, len(ids)))
        capture = partial(_maps, model, tuple(ids), rows, frozenset(factors.items()))
        # between two tokens: other requests must not see the scaled heads
        async with asyncio.timeout(self.limits.seconds):
            maps = await asyncio.wrap_future(model.batcher.do(capture))
        queries, keys = maps.weights.shape[3:]  # (layers, B, heads, queries, keys)
        row = maps.weights[:, 0, :, position - 1 - (keys - queries), :position]
        _, heads, keys = row.shape
        layers = model.lm.config.num_hidden_layers
        weights = np.zeros((layers, heads, keys), np.dtype("<f4"))
        weights[maps.layers] = row.numpy()
        return {"layers": layers, "heads": heads, "keys": keys, "weights": _base64(weights)}


# The next token is most often one of the same text.
@lru_cache(maxsize=1)
def _maps(
    model: Model, ids: tuple[int, ...], rows: tuple[int, int], heads: frozenset[tuple[Head, float]]
) -> AttentionMaps:
    with scaled(model.lm, dict(heads)):
        return capture_from(model.lm, ids[: rows[1]], rows[0])


@lru_cache(maxsize=4096)
def _without_maps(file: Path, modified: int) -> Snapshot:
    # a changed file is read again
    return viewer.without_weights(read(file))


def _base64(array: np.ndarray) -> str:
    return base64.b64encode(array.tobytes()).decode("ascii")
