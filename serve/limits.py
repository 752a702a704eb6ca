"""What a client may not do: send too much, wait without end, come without the key, or from another web page."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TypeVar

from fastapi import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serve.errors import ApiError, response

Result = TypeVar("Result")
COOKIE = "headlight"  # of the page, after the key was typed into it
HEADERS = {
    b"content-security-policy": b"default-src 'none'; frame-ancestors 'none'",
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-resource-policy": b"same-origin",
    b"cache-control": b"no-store",
}


@dataclass(frozen=True)
class Limits:
    """body: bytes of a request. seconds: of an answer. max_new_tokens: of an answer. api_key: None: none is needed."""

    body: int = 1_000_000
    seconds: float = 120.0
    max_new_tokens: int = 2048
    api_key: str | None = None


def is_open(path: str) -> bool:
    """Whether anybody may ask for it: the page itself, which holds nothing of the runs, and where it gives the key."""
    return path == "/" or path.startswith("/page/")


def token(key: str) -> str:
    """What the page's cookie holds in place of the key: who reads it does not learn the key."""
    return hmac.new(key.encode(), b"headlight page", "sha256").hexdigest()


def shown(key: str, cookies: bytes) -> bool:
    """Whether the cookies of a request show that the page was given the key."""
    pairs = (part.strip().partition(b"=") for part in cookies.split(b";"))
    return any(name == COOKIE.encode() and hmac.compare_digest(value, token(key).encode()) for name, _, value in pairs)


async def within(result: Awaitable[Result], seconds: float) -> Result:
    """What is awaited. Raises ApiError 503 where it takes longer; what was running is cancelled."""
    try:
        return await asyncio.wait_for(result, seconds)
    except TimeoutError:
        raise ApiError(
            503, "the answer took too long: ask for fewer tokens, or try again later", "server_error"
        ) from None


async def unless_gone(work: Awaitable[Result], request: Request) -> Result:
    """What is awaited, unless the client goes away: then it is cancelled, and ApiError 499 is raised for nobody."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ApiError(499, "the client went away")
        return task.result()
    finally:
        for one in (task, gone):
            one.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class Guard:
    """Before the application: the key, the size of the body. Behind it: headers for browsers.

    The key is compared in constant time, so that nobody learns it letter by letter.
    """

    def __init__(self, app: ASGIApp, limits: Limits):
        self.app, self.limits = app, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                there = {name.lower() for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *((k, v) for k, v in HEADERS.items() if k not in there)]
            await send(message)

        given = dict(scope["headers"])
        try:
            if not is_open(scope["path"]):
                self._check_key(given.get(b"authorization", b""), given.get(b"cookie", b""))
            whole = await self._body(int(given.get(b"content-length") or 0), receive)
        except (ApiError, ValueError) as error:
            known = error if isinstance(error, ApiError) else ApiError(400, "content-length is not a number")
            return await response(known)(scope, receive, with_headers)
        if whole is None:
            return None

        async def again() -> Message:
            nonlocal whole
            if whole is not None:
                body, whole = whole, None
                return {"type": "http.request", "body": body, "more_body": False}
            return await receive()

        return await self.app(scope, again, with_headers)

    def _check_key(self, header: bytes, cookies: bytes) -> None:
        key = self.limits.api_key
        if key is not None and not hmac.compare_digest(header, b"Bearer " + key.encode()) and not shown(key, cookies):
            message = "Incorrect API key provided: send the header Authorization: Bearer KEY"
            raise ApiError(401, message, "authentication_error", "invalid_api_key")

    async def _body(self, announced: int, receive: Receive) -> bytes | None:
        """The whole body; None where the client went away. Raises ApiError as soon as it is too long."""
        parts, size, more = list[bytes](), announced, True
        while more:
            if max(size, announced) > self.limits.body:
                raise ApiError(413, f"the request has more than {self.limits.body:,} bytes: make it shorter")
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            parts.append(message.get("body", b""))
            size, more = sum(map(len, parts)), message.get("more_body", False)
        if size > self.limits.body:
            raise ApiError(413, f"the request has more than {self.limits.body:,} bytes: make it shorter")
        return b"".join(parts)
