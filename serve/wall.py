"""The wall of a class: guesses, then births as runs report them (`python -m serve --class`).

Everything is in memory, and ends with the server. Whoever is in the network can send: each field
has limits, and its text is only shown as text. The teacher has two buttons more, on the machine
that serves.
"""

import ipaddress
import socket
from typing import Annotated, Any

from fastapi import FastAPI, Request
from fastapi.responses import Response
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from eval.page import viewer
from serve.limits import ApiError, BodyLimit, handle_errors
from serve.page_api import file_of_page
from train.config import load_run_config

# Of each kind. A class is smaller.
MOST = 500
FOLDER = viewer.PAGE / "wall"
CONFIG = viewer.PAGE.parents[1] / "configs/small.yaml"
HEAD = """<title>Headlight: the wall</title>
<link rel="stylesheet" href="/page.css">
<script defer src="/page.js"></script>"""


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("has invisible characters: leave them out")
    return text


Words = Annotated[str, Field(max_length=100), AfterValidator(_printable)]
Id = Annotated[str, Field(pattern="^[0-9a-f]{8}$")]
Number = Annotated[int, Field(ge=0, le=10**9)]


class Birth(BaseModel):
    """A report of one run (train/run/wall.py). step, layer, head None: no head formed."""

    model_config = ConfigDict(extra="forbid")

    id: Id
    name: Annotated[Words, Field(max_length=24)] = ""
    config: Words
    seed: Annotated[int, Field(ge=0, lt=2**63)]
    step: Number | None
    layer: Number | None
    head: Number | None
    copy_gain: Annotated[float, Field(ge=-1000, le=1000)] | None


class Guess(BaseModel):
    """A step that somebody expects. id: of their browser, so that a new guess replaces the old."""

    model_config = ConfigDict(extra="forbid")

    id: Id
    step: Number


def create_wall(address: str) -> FastAPI:
    """Return the application. address: where the class finds it."""
    births: dict[str, Birth] = {}
    guesses: dict[str, Guess] = {}
    # nobody guesses after the first birth is seen
    is_open = False
    steps = load_run_config(CONFIG).train.max_steps or 0
    style = [viewer.PAGE / "page.css", FOLDER / "page.css"]
    files = {
        "page.html": ("text/html", viewer.with_parts(HEAD, "wall/page", "")),
        "page.css": ("text/css", "\n".join(path.read_text(encoding="utf-8") for path in style)),
        "page.js": (
            "text/javascript",
            viewer.script("language dom views colours wall/page".split()),
        ),
    }
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    handle_errors(app)
    # a report has some 200 bytes
    app.add_middleware(BodyLimit, most=2000)

    def check_teacher(request: Request) -> None:
        if not _is_here(request):
            raise ApiError(403, "only the machine that serves the wall can do this")

    # by id: a run that reports again, and a browser that guesses again, take no second place
    def keep(items: dict[str, Any], item: Birth | Guess) -> None:
        if item.id not in items and len(items) >= MOST:
            raise ApiError(429, f"the wall is full: it has {MOST}")
        items[item.id] = item

    # Coroutines: they run one after the other, so none needs a lock.

    @app.get("/wall")
    async def wall(request: Request, id: str = "") -> dict[str, Any]:
        is_teacher = _is_here(request)
        # with its id, anybody could replace the birth of another
        hidden = set() if is_teacher else {"id"}
        return {
            "address": address,
            "steps": steps,
            "is_open": is_open,
            "is_teacher": is_teacher,
            "guesses": sorted(guess.step for guess in guesses.values()),
            "yours": guesses[id].step if id in guesses else None,
            "reports": len(births),
            "births": [birth.model_dump(exclude=hidden) for birth in births.values() if is_open],
        }

    @app.post("/births")
    async def add_birth(birth: Birth) -> None:
        keep(births, birth)

    @app.post("/guesses")
    async def add_guess(guess: Guess) -> None:
        # whoever has seen a birth could guess it
        if is_open:
            raise ApiError(409, "the wall is open: guesses are closed")
        # a guess that no run can reach would only widen the picture of all
        if guess.step > steps:
            raise ApiError(400, f"step: a run has {steps:,} steps")
        keep(guesses, guess)

    @app.post("/open")
    async def open_wall(request: Request) -> None:
        nonlocal is_open
        check_teacher(request)
        is_open = True

    @app.delete("/births/{id}")
    async def remove(request: Request, id: str) -> None:
        check_teacher(request)
        # None: two clicks on one button are no error
        births.pop(id, None)

    @app.get("/")
    @app.get("/{name}")
    async def file(name: str = "page.html") -> Response:
        return file_of_page(files, name)

    return app


def _is_here(request: Request) -> bool:
    return request.client is not None and ipaddress.ip_address(request.client.host).is_loopback


def local_address() -> str:
    """Return this machine's address in the local network, or 127.0.0.1 without one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # sends nothing: the system only chooses an address of its own
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])
