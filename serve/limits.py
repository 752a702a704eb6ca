"""What a client may not do: come without the key, or send too much. Errors are in OpenAI's form."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError, StarletteHTTPException
from fastapi.responses import JSONResponse, Response
from fastapi.security import APIKeyCookie, HTTPAuthorizationCredentials, HTTPBearer

from configs.command import InputError
from configs.text import escape
from serve.batching import TooManyRequests

TOO_LONG = "the answer took too long: ask for fewer tokens, or try again later"
COOKIE = "headlight"  # of the page, after the key was typed into it
Bearer = Annotated[HTTPAuthorizationCredentials | None, Depends(HTTPBearer(auto_error=False))]
Cookie = Annotated[str | None, Depends(APIKeyCookie(name=COOKIE, auto_error=False))]


@dataclass(frozen=True)
class Limits:
    """body: bytes of a request. seconds: of an answer. max_new_tokens: of an answer. api_key: None: none is needed."""

    body: int = 1_000_000
    seconds: float = 120.0
    max_new_tokens: int = 2048
    api_key: str | None = None

    @property
    def cookie(self) -> str | None:
        """What the page's cookie holds in place of the key: who reads it does not learn the key."""
        return self.api_key and hmac.new(self.api_key.encode(), b"headlight page", "sha256").hexdigest()

    def check_key(self, bearer: Bearer, cookie: Cookie) -> None:
        """A dependency of every route that tells something of the runs. Raises ApiError 401."""
        header = bearer.credentials if bearer else ""
        if not (equal(header.encode("latin-1"), self.api_key) or equal((cookie or "").encode(), self.cookie)):
            raise ApiError(401, "Incorrect API key: send the header Authorization: Bearer KEY", "invalid_api_key")


def equal(given: bytes, right: str | None) -> bool:
    """Whether this is the key (None: none is needed); in constant time, so that nobody learns it letter by letter."""
    return right is None or hmac.compare_digest(given, right.encode())


class ApiError(StarletteHTTPException):
    """An HTTP status, a sentence, and OpenAI's word for what is wrong."""

    def __init__(self, status: int, message: str, code: str | None = None):
        super().__init__(status, message)
        self.code = code


def error_body(error: StarletteHTTPException, param: str | None = None) -> dict[str, Any]:
    """An error as OpenAI writes it."""
    kinds = {401: "authentication_error", 429: "rate_limit_error", 500: "server_error", 503: "server_error"}
    kind = kinds.get(error.status_code, "invalid_request_error")
    return {"error": {"message": error.detail, "type": kind, "param": param, "code": getattr(error, "code", None)}}


def handle_errors(app: FastAPI) -> None:
    """Every error of this application has OpenAI's form. One of the program's own has no details in it."""

    @app.exception_handler(StarletteHTTPException)
    async def refused(request: Request, error: StarletteHTTPException) -> JSONResponse:
        headers = {401: {"WWW-Authenticate": "Bearer"}, 429: {"Retry-After": "1"}, 503: {"Retry-After": "1"}}
        return JSONResponse(error_body(error), error.status_code, headers.get(error.status_code))

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where = escape(".".join(str(part) for part in first["loc"] if part != "body"))  # a key may be half a character
        message = escape(str(first["msg"]).removeprefix("Value error, "))
        if first["type"] == "extra_forbidden":
            message = "is not supported here: leave it out"
        return JSONResponse(error_body(ApiError(400, f"{where}: {message}" if where else message), where or None), 400)

    @app.exception_handler(InputError)
    @app.exception_handler(TooManyRequests)
    @app.exception_handler(TimeoutError)
    async def known(request: Request, error: Exception) -> Response:
        if isinstance(error, InputError):
            return await refused(request, ApiError(400, str(error)))
        if isinstance(error, TooManyRequests):
            return await refused(request, ApiError(429, str(error), "rate_limit_exceeded"))
        return await refused(request, ApiError(503, TOO_LONG))

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> JSONResponse:
        return await refused(request, ApiError(500, "the server made a mistake: its terminal has the details"))


class BodyLimit:
    """Around the application: a body is refused as soon as it is too long, whatever its headers say."""

    def __init__(self, app: Any, most: int):
        self.app, self.most = app, most

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        size = 0

        async def receive_counted() -> Any:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > self.most:
                raise ApiError(413, f"the request has more than {self.most:,} bytes: make it shorter")
            return message

        await self.app(scope, receive_counted, send)
