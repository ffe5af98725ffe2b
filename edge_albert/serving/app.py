"""The routes, as an ASGI application on Starlette.

    POST /answer    JSON in, JSON out: edge_albert/serving/questions.py
    GET  /health    200 while requests are taken
    GET  /metrics   Prometheus' text format

Every error is one line of JSON, {"error": "…"}: 400 no JSON, 404 and 405 no such route, 408 a body that does not
come, 413 a body that is too large, 422 a field that cannot be answered, 503 with Retry-After a full queue.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edge_albert.errors import DataError
from edge_albert.runtime.load import Runner
from edge_albert.serving.metrics import CONTENT_TYPE, Metrics
from edge_albert.serving.questions import Limits, MalformedError, answer, read_question
from edge_albert.serving.worker import QueueFullError, Worker

_ANSWER = "/answer"
_BODY_SECONDS = 30.0  # a body has to come within
_DRAINED = 16  # times the largest body


@dataclass(frozen=True)
class Settings:
    """queue: requests that may wait. max_body: bytes of a request. limits: of the texts in it."""

    queue: int = 32
    max_body: int = 1 << 20
    limits: Limits = field(default_factory=Limits)


def make_app(model: Runner, settings: Settings) -> ASGIApp:
    """The application that answers with an open model. It owns the inference thread, not the model."""
    worker = Worker(settings.queue)
    metrics = Metrics(lambda: worker.waiting)
    session = model.session
    about = {"task": session.bundle.task.name, "engine": session.engine.version}

    async def give_answer(request: Request) -> Response:
        body = await _body(request, settings.max_body)
        question = read_question(body, about["task"], settings.limits)
        return JSONResponse(await worker.run(lambda: answer(model, question)))

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ok", **about})

    async def show_metrics(request: Request) -> Response:
        return Response(metrics.text(), headers={"content-type": CONTENT_TYPE})

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        worker.stop()

    app = Starlette(
        routes=[
            Route(_ANSWER, give_answer, methods=["POST"]),
            Route("/health", health, methods=["GET"]),
            Route("/metrics", show_metrics, methods=["GET"]),
        ],
        exception_handlers={
            HTTPException: _http_error,
            DataError: _bad_input,
            QueueFullError: _queue_full,
            Exception: _failed,
        },
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False  # "/answer/" is no route: a redirected POST would be sent twice
    return _Counted(app, metrics)  # around Starlette's own handling of errors, so that a 500 is counted too


async def _body(request: Request, largest: int) -> bytes:
    """The request's body. HTTPException 413 above `largest` bytes, which are never kept; 408 when it does not come."""
    try:
        return await asyncio.wait_for(_read(request, largest), _BODY_SECONDS)
    except asyncio.TimeoutError:
        raise _refused(408, f"the request's body did not come within {_BODY_SECONDS:.0f} s") from None
    except ClientDisconnect:
        raise _refused(400, "the request's body ends early") from None


async def _read(request: Request, largest: int) -> bytes:
    """A body that is somewhat too large is read to its end, unkept: a sender that is cut off sees no answer."""
    too_large = _refused(413, f"the request is larger than {largest} bytes: send fewer texts at a time")
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > _DRAINED * largest:
        raise too_large
    body, size = bytearray(), 0
    async for block in request.stream():
        size += len(block)
        if size > _DRAINED * largest:
            break
        if size <= largest:
            body += block
    if size > largest:
        raise too_large
    return bytes(body)


def _refused(status: int, reason: str) -> HTTPException:
    """For a body that may not have been read to its end: the connection cannot be used again."""
    return HTTPException(status, reason, headers={"connection": "close"})


def _error(status: int, reason: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"error": reason}, status, headers)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    reasons = {
        404: f"no route {request.url.path}: POST /answer, GET /health, GET /metrics",
        405: f"{request.method} is not a method of {request.url.path}",
    }
    headers = dict(error.headers) if error.headers else None
    return _error(error.status_code, reasons.get(error.status_code, error.detail), headers)


async def _bad_input(request: Request, error: Exception) -> Response:
    return _error(400 if isinstance(error, MalformedError) else 422, " ".join(str(error).split()))


async def _queue_full(request: Request, error: Exception) -> Response:
    assert isinstance(error, QueueFullError)
    return _error(503, str(error), {"retry-after": str(error.retry_after)})


async def _failed(request: Request, error: Exception) -> Response:
    """Starlette passes the exception on to the server, which logs it."""
    return _error(500, "the model failed on this request: the service's log has the reason")


class _Counted:
    """ASGI middleware: counts every response and times the answers."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start = time.perf_counter()

        async def counted_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                seconds = time.perf_counter() - start if scope["path"] == _ANSWER else None
                self._metrics.count(message["status"], seconds)
            await send(message)

        await self._app(scope, receive, counted_send)
