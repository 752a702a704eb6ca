"""What the server answers when something is wrong, in OpenAI's form."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from configs.text import escape

KINDS = {401: "authentication_error", 404: "invalid_request_error", 429: "rate_limit_error"}


class ApiError(Exception):
    """An HTTP status, a sentence, and OpenAI's words for the kind of error."""

    def __init__(self, status: int, message: str, kind: str = "invalid_request_error", code: str | None = None):
        super().__init__(message)
        self.status, self.message, self.kind, self.code = status, message, kind, code

    def body(self, param: str | None = None) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.kind, "param": param, "code": self.code}}


def response(error: ApiError, param: str | None = None) -> JSONResponse:
    """The error as a response; 429 and 503 say when to try again."""
    headers = {"Retry-After": "1"} if error.status in (429, 503) else {}
    headers |= {"WWW-Authenticate": "Bearer"} if error.status == 401 else {}
    return JSONResponse(error.body(param), error.status, headers)


def handle_errors(app: FastAPI) -> None:
    """Every error of this application has OpenAI's form. One of the program's own has no details in it."""

    @app.exception_handler(ApiError)
    async def ours(request: Request, error: ApiError) -> JSONResponse:
        return response(error)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where = escape(".".join(str(part) for part in first["loc"] if part != "body"))  # a key may be half a character
        message = escape(str(first["msg"]).removeprefix("Value error, "))
        return response(ApiError(400, f"{where}: {message}" if where else message), where or None)

    @app.exception_handler(HTTPException)
    async def of_http(request: Request, error: HTTPException) -> JSONResponse:
        kind = KINDS.get(error.status_code, "invalid_request_error")
        return response(ApiError(error.status_code, str(error.detail), kind))

    @app.exception_handler(Exception)
    async def of_the_program(request: Request, error: Exception) -> JSONResponse:
        return response(ApiError(500, "the server made a mistake: its terminal has the details", "server_error"))
