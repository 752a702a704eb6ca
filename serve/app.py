"""The web application: the page, the API, its errors and its limits, put together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import uvicorn
from fastapi import Depends, FastAPI
from fastapi.middleware.cors import CORSMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware

from serve import chat_api, openai_api, page_api
from serve.library import Library
from serve.limits import Guard, Limits, handle_errors
from serve.workbench import Workbench

LOCAL = ["127.0.0.1", "localhost", "[::1]"]


def create_app(library: Library, limits: Limits, hosts: Sequence[str] = LOCAL, origins: Sequence[str] = ()) -> FastAPI:
    """The application. hosts: names by which it may be called (against DNS rebinding). origins: of web pages that may
    read its answers; by default none but its own."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(library.close)

    app = FastAPI(title="Headlight", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    handle_errors(app)
    bench = Workbench(library, limits.seconds)
    app.include_router(page_api.page(limits))  # open to everybody: it holds nothing of the runs, and takes the key
    for router in (openai_api.router(library, limits), page_api.router(bench), chat_api.router(bench, limits)):
        app.include_router(router, dependencies=[Depends(limits.check_key)])
    app.add_middleware(Guard, most=limits.body)
    if origins:
        headers = ["Authorization", "Content-Type"]
        app.add_middleware(CORSMiddleware, allow_origins=list(origins), allow_methods=["*"], allow_headers=headers)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))
    return app


def make_server(app: FastAPI, host: str, port: int, seconds: float) -> uvicorn.Server:
    """The server that runs it. seconds: for what is running when it is stopped."""
    quiet = {"log_level": "warning", "server_header": False}
    config = uvicorn.Config(app, host, port, timeout_graceful_shutdown=int(seconds) + 1, **quiet)  # type: ignore[arg-type]
    app.state.server = uvicorn.Server(config)  # so that streams without an end of their own see that it stops
    return app.state.server
