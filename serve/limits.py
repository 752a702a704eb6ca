"""Refuse clients without the key, and requests that are too large. Errors have OpenAI's form."""

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
# The page has this cookie after the key was typed into it.
COOKIE = "headlight"
Bearer = Annotated[HTTPAuthorizationCredentials | None, Depends(HTTPBearer(auto_error=False))]
Cookie = Annotated[str | None, Depends(APIKeyCookie(name=COOKIE, auto_error=False))]
# OpenAI's type of an error, by HTTP status.
KINDS = dict.fromkeys((500, 503), "server_error")
KINDS |= {401: "authentication_error", 429: "rate_limit_error"}


@dataclass(frozen=True)
class Limits:
    """Limits of a request."""

    # bytes
    body: int = 1_000_000
    # of an answer
    seconds: float = 120.0
    max_new_tokens: int = 2048
    # None: no key is required
    api_key: str | None = None

    @property
    def cookie(self) -> str | None:
        """The value of the page's cookie, from which nobody can learn the key."""
        if not self.api_key:
            return self.api_key
        # one-way, and the same after a restart: nobody has to type the key again
        return hmac.new(self.api_key.encode(), b"headlight page", "sha256").hexdigest()

    def check_key(self, bearer: Bearer, cookie: Cookie) -> None:
        """Raise ApiError 401 without the key. Every route that shows a run depends on this."""
        # headers are bytes, which Starlette decodes as latin-1
        header = (bearer.credentials if bearer else "").encode("latin-1")
        if not equal(header, self.api_key) and not equal((cookie or "").encode(), self.cookie):
            message = "Incorrect API key: send the header Authorization: Bearer KEY"
            raise ApiError(401, message, "invalid_api_key")


def equal(text: bytes, key: str | None) -> bool:
    """Compare with the key. None: no key is required."""
    # in constant time: `==` ends at the first wrong letter, so its time would help to guess
    return key is None or hmac.compare_digest(text, key.encode())


class ApiError(StarletteHTTPException):
    """An HTTP status, a sentence, and OpenAI's code."""

    def __init__(self, status: int, message: str, code: str | None = None):
        super().__init__(status, message)
        # a word for programs; the message is for people
        self.code = code


def error_body(error: StarletteHTTPException, param: str | None = None) -> dict[str, Any]:
    """Return an error in OpenAI's form."""
    kind = KINDS.get(error.status_code, "invalid_request_error")
    code = getattr(error, "code", None)
    return {"error": {"message": error.detail, "type": kind, "param": param, "code": code}}


def handle_errors(app: FastAPI) -> None:
    """Give every error OpenAI's form. An error of our own shows no details."""

    @app.exception_handler(StarletteHTTPException)
    async def refused(request: Request, error: StarletteHTTPException) -> JSONResponse:
        headers = {"WWW-Authenticate": "Bearer"} if error.status_code == 401 else None
        if error.status_code in (429, 503):
            # OpenAI's clients wait as long, and try again by themselves
            headers = {"Retry-After": "1"}
        return JSONResponse(error_body(error), error.status_code, headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        problem = error.errors()[0]
        path = [str(part) for part in problem["loc"] if part != "body"]
        # a key may be half a character
        field = escape(".".join(path))
        # pydantic quotes the client's own text, which must not control a terminal
        message = escape(str(problem["msg"]).removeprefix("Value error, "))
        if problem["type"] == "extra_forbidden":
            message = "is not supported here: leave it out"
        if field:
            message = f"{field}: {message}"
        return JSONResponse(error_body(ApiError(400, message), field or None), 400)

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
        return await refused(request, ApiError(500, "the server failed: its terminal has details"))


class BodyLimit:
    """Middleware that refuses a body as soon as it is too long, whatever its headers claim."""

    def __init__(self, app: Any, most: int):
        self.app = app
        self.most = most

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        size = 0

        async def receive_counted() -> Any:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > self.most:
                raise ApiError(413, f"the request is longer than {self.most:,} bytes")
            return message

        await self.app(scope, receive_counted, send)
