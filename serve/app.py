"""The web application: the page, the API, its errors and its limits."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from fastapi import Depends, FastAPI
from fastapi.middleware.cors import CORSMiddleware
from fastapi.middleware.trustedhost import TrustedHostMiddleware

from serve import openai_api, page_api
from serve.library import Library
from serve.limits import BodyLimit, Limits, handle_errors

LOCAL = ["127.0.0.1", "localhost", "[::1]"]
# Every answer has these headers: no other page can embed it, and no cache keeps it.
HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


def create_app(
    library: Library, limits: Limits, hosts: Sequence[str] = LOCAL, origins: Sequence[str] = ()
) -> FastAPI:
    """Return the application. origins: other web pages that may read its answers."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        # in a thread: the loop still sends the last answers
        await asyncio.to_thread(library.close)

    # no pages of documentation: they load scripts from elsewhere
    app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    handle_errors(app)
    # without the key: this page takes it, and shows no run
    app.include_router(page_api.page(limits))
    for router in (openai_api.router(library, limits), page_api.Live(library, limits).routes):
        app.include_router(router, dependencies=[Depends(limits.check_key)])
    # before a body is read: a long one must not fill the memory first
    app.add_middleware(BodyLimit, most=limits.body)
    if origins:
        rights: dict[str, Any] = {"allow_methods": ["*"], "allow_origins": list(origins)}
        headers = ["Authorization", "Content-Type"]
        app.add_middleware(CORSMiddleware, **rights, allow_headers=headers)
    # DNS rebinding: another page's name may lead here, so a browser sends it our data. The header
    # `Host` still has that name.
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))
    return app


def make_server(app: FastAPI, host: str, port: int, seconds: float) -> uvicorn.Server:
    """Return the server. seconds: time for running answers when it is stopped."""
    # no server header: the name and version of a server help only those who attack it
    options: dict[str, Any] = {"log_level": "warning", "server_header": False}
    options |= {"headers": [*HEADERS.items()], "timeout_graceful_shutdown": int(seconds) + 1}
    return uvicorn.Server(uvicorn.Config(app, host, port, **options))
