"""The web application: the page, the API, its errors and its limits, put together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import uvicorn
from fastapi import Depends, FastAPI
from fastapi.middleware.cors import CORSMiddleware
from fastapi.middleware.trustedhost import TrustedHostMiddleware

from serve import openai_api, page_api
from serve.library import Library
from serve.limits import BodyLimit, Limits, handle_errors

LOCAL = ["127.0.0.1", "localhost", "[::1]"]
HEADERS = {  # of every answer
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


def create_app(library: Library, limits: Limits, hosts: Sequence[str] = LOCAL, origins: Sequence[str] = ()) -> FastAPI:
    """The application. hosts: names by which it may be called (against DNS rebinding). origins: of web pages that may
    read its answers; by default none but its own."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(library.close)

    app = FastAPI(title="Headlight", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    handle_errors(app)
    app.include_router(page_api.page(limits))  # open to everybody: it holds nothing of the runs, and takes the key
    for router in (openai_api.router(library, limits), page_api.Live(library, limits).routes):
        app.include_router(router, dependencies=[Depends(limits.check_key)])
    app.add_middleware(BodyLimit, most=limits.body)
    if origins:
        headers = ["Authorization", "Content-Type"]
        app.add_middleware(CORSMiddleware, allow_origins=list(origins), allow_methods=["*"], allow_headers=headers)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))
    return app


def make_server(app: FastAPI, host: str, port: int, seconds: float) -> uvicorn.Server:
    """The server that runs it. seconds: for what is running when it is stopped."""
    options = {"log_level": "warning", "server_header": False, "headers": [*HEADERS.items()]}
    config = uvicorn.Config(app, host, port, timeout_graceful_shutdown=int(seconds) + 1, **options)  # type: ignore[arg-type]
    return uvicorn.Server(config)
