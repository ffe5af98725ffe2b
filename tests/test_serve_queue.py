"""The queue before the model, without sockets: the ASGI application is called directly, with a model that waits."""

from __future__ import annotations

import asyncio
import json
import threading

import pytest
from tiny_models import tiny_bundle

from edge_albert.errors import EngineError
from edge_albert.runtime.classify import TextClassifier
from edge_albert.runtime.session import Session

pytest.importorskip("starlette")
pytest.importorskip("onnxruntime")
from edge_albert.serving import app as app_module
from edge_albert.serving.app import Settings, make_app
from edge_albert.serving.worker import QueueFullError, Worker


class Gated(TextClassifier):
    """Answers when `gate` opens; fails, as an engine does, on the text "fail"."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self.gate = threading.Event()
        self.asked: list[str] = []

    def top(self, text, pair=None, *, k, truncate=False, windows=False):
        self.asked.append(text)
        assert self.gate.wait(30)
        if text == "fail":
            raise EngineError("out of memory")
        return super().top(text, pair, k=k, truncate=truncate, windows=windows)


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    with Session(tiny_bundle(tmp_path_factory.mktemp("queue") / "bundle"), threads=1) as opened:
        yield opened


async def call(app, method: str, path: str, body: bytes = b"", *, comes: bool = True) -> tuple[int, dict, bytes]:
    """Status, headers and body of one request. comes: whether its body does."""
    sent: list[dict] = []
    parts = [{"type": "http.request", "body": body, "more_body": False}] if comes else []

    async def receive():
        return parts.pop() if parts else await asyncio.Event().wait()

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "headers": [], "query_string": b""}
    await app(scope, receive, send)
    headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], headers, b"".join(message.get("body", b"") for message in sent[1:])


def question(text: str) -> bytes:
    return json.dumps({"text": text}).encode()


def test_a_full_queue_says_when_to_come_back_and_loses_nothing(session):
    model = Gated(session)
    app = make_app(model, Settings(queue=2))

    async def scenario():
        accepted = []
        for text in ("the dog", "the door", "the phone"):  # one runs, two wait
            accepted.append(asyncio.create_task(call(app, "POST", "/answer", question(text))))
            await asyncio.sleep(0.01)
        status, headers, body = await call(app, "POST", "/answer", question("one too many"))
        assert status == 503
        assert int(headers["retry-after"]) >= 1
        assert json.loads(body)["error"].startswith("busy: the queue is full, try again in ")
        # the model is busy, the event loop is not
        assert (await call(app, "GET", "/health"))[0] == 200
        assert b"edge_albert_queue_length 2.0" in (await call(app, "GET", "/metrics"))[2]
        model.gate.set()
        answers = await asyncio.gather(*accepted)
        assert [status for status, _, _ in answers] == [200, 200, 200]
        assert model.asked == ["the dog", "the door", "the phone"]
        assert (await call(app, "POST", "/answer", question("a phone")))[0] == 200
        assert b"edge_albert_queue_length 0.0" in (await call(app, "GET", "/metrics"))[2]

    asyncio.run(scenario())


def test_a_failing_engine_is_a_500_and_the_next_request_is_answered(session):
    model = Gated(session)
    model.gate.set()
    app = make_app(model, Settings())

    async def failing():
        sent = []

        async def send(message):
            sent.append(message)

        async def receive():
            return {"type": "http.request", "body": question("fail"), "more_body": False}

        scope = {"type": "http", "method": "POST", "path": "/answer", "headers": [], "query_string": b""}
        with pytest.raises(EngineError):  # what the server logs
            await app(scope, receive, send)
        return sent

    async def scenario():
        start, body = await failing()
        assert start["status"] == 500
        assert "the service's log" in json.loads(body["body"])["error"]
        assert (await call(app, "POST", "/answer", question("a phone")))[0] == 200
        assert b'edge_albert_requests_total{status="500"} 1.0' in (await call(app, "GET", "/metrics"))[2]

    asyncio.run(scenario())


def test_a_body_that_does_not_come_is_a_408(session, monkeypatch):
    monkeypatch.setattr(app_module, "_BODY_SECONDS", 0.05)
    app = make_app(Gated(session), Settings())
    status, headers, body = asyncio.run(call(app, "POST", "/answer", comes=False))
    assert status == 408
    assert headers["connection"] == "close"
    assert "did not come within" in json.loads(body)["error"]


def test_the_worker_runs_one_at_a_time_in_order_and_finishes_at_its_end():
    running, order = [], []

    def job(number: int) -> int:
        running.append(number)
        assert len(running) == 1
        order.append(number)
        running.pop()
        return number

    async def scenario():
        worker = Worker(capacity=9)
        tasks = [asyncio.create_task(worker.run(lambda n=n: job(n))) for n in range(10)]
        await asyncio.sleep(0)
        assert worker.waiting == 9
        with pytest.raises(QueueFullError):
            await worker.run(lambda: job(10))
        worker.stop()
        assert await asyncio.gather(*tasks) == list(range(10))

    asyncio.run(scenario())
    assert order == list(range(10))
