"""The service: answers as the runtime gives them, every bad request refused in one line, nothing lost when it ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from serve_process import Service, ask, serving
from tiny_models import tiny_bundle, tiny_checkpoint

import edge_albert
from edge_albert import export, run
from edge_albert.errors import DataError

pytest.importorskip("uvicorn")
pytest.importorskip("onnxruntime")

TEXTS = [
    "the baker painted the blue door in the morning.",
    "nobody?",
    "my neighbour reads two letters from london, again? a small dog wants a quiet phone without help!",
    "(twice).",
]
CHOICES = ["a dog", "a small phone", "nobody"]
STARTS = (0, 100, 200, 300)
LIMITS = ("--max-texts", "4", "--max-chars", "1000", "--max-body", "8000", "--queue", "32")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory) -> Path:
    return tiny_bundle(tmp_path_factory.mktemp("serve") / "bundle", "text-classification")


@pytest.fixture(scope="module")
def service(bundle):
    with serving(bundle, *LIMITS) as running:
        yield running


def post(service: Service, **fields) -> tuple[int, dict]:
    return service.ask("POST", "/answer", json.dumps(fields).encode())


def printed(capsys, *arguments: str) -> list:
    """The answers that `python -m edge_albert.run --json` prints."""
    capsys.readouterr()
    assert run.main([*arguments, "--threads", "1", "--json"]) == 0
    return [json.loads(line)["answer"] for line in capsys.readouterr().out.splitlines()]


# -- answers ----------------------------------------------------------------------------------------------------------


def test_answers_as_the_run_command(service, bundle, capsys):
    expected = printed(capsys, str(bundle), *TEXTS, "--top", "2")
    assert post(service, text=TEXTS[0], top=2) == (200, {"answer": expected[0]})
    assert post(service, texts=TEXTS, top=2) == (200, {"answers": expected})
    (paired,) = printed(capsys, str(bundle), TEXTS[0], "--pair", TEXTS[1])
    assert post(service, text=TEXTS[0], pair=TEXTS[1]) == (200, {"answer": paired})
    assert post(service, texts=TEXTS[:2], pairs=TEXTS[1:3])[1]["answers"][0] == paired
    long = "the baker " * 90
    (cut,) = printed(capsys, str(bundle), long, "--truncate")
    assert post(service, text=long, truncate=True) == (200, {"answer": cut})
    (averaged,) = printed(capsys, str(bundle), long, "--windows")
    assert post(service, text=long, windows=True) == (200, {"answer": averaged})


@pytest.mark.parametrize(
    ("task", "fields", "arguments"),
    [
        ("text-regression", {"text": TEXTS[0], "pair": TEXTS[1]}, [TEXTS[0], "--pair", TEXTS[1]]),
        ("token-classification", {"text": TEXTS[2]}, [TEXTS[2]]),
        ("question-answering", {"text": TEXTS[1], "pair": TEXTS[2]}, [TEXTS[1], "--pair", TEXTS[2]]),
        ("multiple-choice", {"text": TEXTS[0], "choices": CHOICES}, [TEXTS[0], *CHOICES]),
        ("sentence-embedding", {"text": TEXTS[0]}, [TEXTS[0]]),
    ],
)
def test_every_task_answers_as_the_run_command(tmp_path, capsys, task, fields, arguments):
    from edge_albert.serving.questions import Limits, answer, read_question

    folder = tiny_bundle(tmp_path / "bundle", task)
    question = read_question(json.dumps(fields).encode(), task, Limits())
    found = answer(edge_albert.load(folder, threads=1), question)
    assert json.loads(json.dumps(found)) == {"answer": printed(capsys, str(folder), *arguments)[0]}


def test_a_request_may_say_where_the_loop_is_left(tmp_path, capsys):
    from edge_albert.serving.questions import Limits, answer, read_question

    extra = {"early_exit": {"heads": "shared"}}
    source = tiny_checkpoint(tmp_path / "model", num_hidden_layers=4, extra=extra)
    words = ["--model", source, "--fp32", "--early-exit", "patience", "--exit-threshold", "1", "--no-measure"]
    assert export.main([*map(str, words), "--output", str(tmp_path / "bundle")]) == 0
    model = edge_albert.load(tmp_path / "bundle", threads=1)

    def asked(**fields):
        body = json.dumps({"text": TEXTS[0], **fields}).encode()
        return answer(model, read_question(body, "text-classification", Limits()))["answer"][0]

    assert asked(depth=1)["iterations"] == 1
    assert asked(exit_threshold="never")["iterations"] == 4
    assert asked(exit_threshold=3)["iterations"] >= asked()["iterations"] >= 2
    for fields, message in [
        ({"depth": 5}, "depth 5: the model has 1 to 4 iterations"),
        ({"depth": True}, "depth: expected a whole number of iterations, found true"),
        ({"depth": "never"}, "depth: expected a whole number of iterations"),
        ({"exit_threshold": "soon"}, 'exit_threshold: expected a number or "never", found "soon"'),
        ({"exit_threshold": 9}, "exit_threshold 9: the patience criterion takes"),
    ]:
        with pytest.raises(DataError, match=message):
            asked(**fields)


def test_health_names_what_is_served(service):
    status, about = service.ask("GET", "/health")
    assert status == 200
    assert about["status"] == "ok"
    assert about["task"] == "text-classification"
    assert about["engine"].startswith("onnxruntime ")


# -- bad requests -----------------------------------------------------------------------------------------------------

BAD = [
    ("POST", "/answer", b"", 400, "not valid JSON"),
    ("POST", "/answer", b'{"text": "nobody?"', 400, "not valid JSON"),
    ("POST", "/answer", b'{"text": "\xff"}', 400, "not valid JSON"),
    ("POST", "/answer", b"[" * 5000, 400, "not valid JSON"),
    ("POST", "/answer", b'["nobody?"]', 400, "not a JSON object"),
    ("POST", "/answer", b"{}", 422, "either text or texts"),
    ("POST", "/answer", b'{"text": "nobody?", "depth": 2}', 422, "depth: this model always runs every iteration"),
    ("POST", "/answer", b'{"text": "nobody?", "texts": ["nobody?"]}', 422, "either text or texts"),
    ("POST", "/answer", b'{"text": 3}', 422, "text: expected a text, found int"),
    ("POST", "/answer", b'{"text": ""}', 422, "text: empty"),
    ("POST", "/answer", b'{"text": "\\ud800"}', 422, "surrogate"),
    ("POST", "/answer", b'{"text": "nobody?", "tpo": 1}', 422, "'tpo' is not one of text"),
    ("POST", "/answer", b'{"text": "nobody?", "choices": ["a", "b"]}', 422, "'choices' is not one of"),
    ("POST", "/answer", b'{"text": "nobody?", "top": 0}', 422, "top: expected a whole number"),
    ("POST", "/answer", b'{"text": "nobody?", "top": true}', 422, "top: expected a whole number"),
    ("POST", "/answer", b'{"text": "nobody?", "truncate": 1}', 422, "truncate: expected true or false"),
    ("POST", "/answer", b'{"text": "nobody?", "truncate": true, "windows": true}', 422, "exclude each other"),
    ("POST", "/answer", b'{"text": "nobody?", "pairs": ["a"]}', 422, "'pairs' does not go with text"),
    ("POST", "/answer", b'{"texts": ["nobody?"], "pairs": ["a", "b"]}', 422, "1 texts and 2 pairs"),
    ("POST", "/answer", b'{"texts": []}', 422, "texts: expected a list of at least 1"),
    ("POST", "/answer", b'{"texts": "nobody?"}', 422, "texts: expected a list"),
    ("POST", "/answer", b'{"texts": ["nobody?", ""]}', 422, "texts[1]: empty"),
    ("POST", "/answer", b'{"texts": ["a", "a", "a", "a", "a"]}', 422, "5 of them, at most 4"),
    ("POST", "/answer", b'{"text": "' + b"door " * 300 + b'"}', 422, "1500 characters, at most 1000"),
    ("POST", "/answer", b'{"text": "' + b"door " * 150 + b'"}', 422, '"truncate": true'),
    ("POST", "/answer", b'{"text": "' + b"door " * 2000 + b'"}', 413, "larger than 8000 bytes"),
    ("POST", "/answer", b"x" * 1_000_000, 413, "larger than 8000 bytes"),
    ("GET", "/answer", None, 405, "GET is not a method of /answer"),
    ("POST", "/health", b"", 405, "POST is not a method"),
    ("POST", "/answer/", b"{}", 404, "no route /answer/"),
    ("GET", "/", None, 404, "no route /"),
    ("GET", "/../bundle.json", None, 404, "no route"),
]


@pytest.mark.parametrize(("method", "path", "body", "status", "reason"), BAD)
def test_bad_request_is_one_line_of_json(service, method, path, body, status, reason):
    try:
        found, answer = service.ask(method, path, body)
    except ConnectionError:  # a body far beyond the limit may be cut off while it is sent
        assert len(body) > 16 * 8000
    else:
        assert (found, list(answer)) == (status, ["error"])
        assert reason in answer["error"]
        assert "\n" not in answer["error"]
    assert post(service, text=TEXTS[1])[0] == 200


def test_body_in_chunks_is_limited_too(service):
    connection = service.connect()
    connection.request("POST", "/answer", iter([b"x" * 4000] * 4), encode_chunked=True)
    assert connection.getresponse().status == 413
    connection.close()


def test_hundreds_of_requests_in_turn_and_at_once(bundle):
    """Mixed good and bad ones on four kept connections: each gets its own answer, and the figures add up."""
    model = edge_albert.load(bundle, threads=1)
    labels = {text: run.plain_answer(model.top(text, k=1)) for text in TEXTS}
    bad = [one for one in BAD if one[3] != 413]

    def client(service: Service, first: int) -> list[int]:
        connection, statuses = service.connect(), []
        for i in range(first, first + 100):
            if i % 3:
                text = TEXTS[i % len(TEXTS)]
                status, answer = ask(connection, "POST", "/answer", json.dumps({"text": text}).encode())
                assert (status, answer) == (200, {"answer": labels[text]})
            else:
                method, path, body, expected, _ = bad[i // 3 % len(bad)]
                status, _ = ask(connection, method, path, body)
                assert status == expected
            statuses.append(status)
        connection.close()
        return statuses

    with serving(bundle, *LIMITS) as service, ThreadPoolExecutor(4) as pool:
        statuses = [status for part in pool.map(lambda first: client(service, first), STARTS) for status in part]
        found = service.metrics()
    for status in set(statuses):
        assert found[f'edge_albert_requests_total{{status="{status}"}}'] == statuses.count(status)
    assert found["edge_albert_errors_total"] == sum(status >= 400 for status in statuses)
    assert found['edge_albert_answer_seconds_bucket{le="+Inf"}'] == found["edge_albert_answer_seconds_count"]
    assert found["edge_albert_queue_length"] == 0
    assert found["edge_albert_resident_bytes"] > found["edge_albert_anonymous_bytes"] > 1e6


# -- starting and ending ----------------------------------------------------------------------------------------------


def test_sigterm_answers_what_is_queued(bundle):
    """Six requests of 600 texts each wait; SIGTERM comes; all are answered, nothing new is, and the status is 0."""
    body = json.dumps({"texts": TEXTS * 150}).encode()
    with serving(bundle, "--max-texts", "600") as service, ThreadPoolExecutor(6) as pool:
        waiting = [pool.submit(service.ask, "POST", "/answer", body) for _ in range(6)]
        while service.metrics()["edge_albert_queue_length"] < 4 and not all(one.done() for one in waiting):
            threading.Event().wait(0.005)
        service.process.send_signal(signal.SIGTERM)
        answers = [one.result() for one in waiting]
        assert [status for status, _ in answers] == [200] * 6
        assert {len(answer["answers"]) for _, answer in answers} == {600}
        assert service.process.wait(timeout=30) == 0
        with pytest.raises(ConnectionRefusedError):
            service.ask("GET", "/health")


def test_listens_on_this_machine_alone_unless_told(bundle, service):
    assert service.url.startswith("http://127.0.0.1:")
    with serving(bundle, "--host", "0.0.0.0") as open_service:
        assert open_service.url.startswith("http://0.0.0.0:")
        open_service.process.send_signal(signal.SIGTERM)
        assert "warning: listening on 0.0.0.0: everyone who reaches" in open_service.process.stderr.read()


def refused(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "edge_albert.serve", *arguments], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    return line


def test_bad_options_are_refused_in_one_line(bundle, tmp_path):
    assert "no such folder" in refused(str(tmp_path / "none"))
    assert "--queue -1: at least 0 is needed" in refused(str(bundle), "--queue", "-1")
    assert "--max-texts 0: at least 1" in refused(str(bundle), "--max-texts", "0")
    assert "--port 70000" in refused(str(bundle), "--port", "70000")
    assert "threads is 0" in refused(str(bundle), "--threads", "0")
    assert "does not fit into memory_mb 5" in refused(str(bundle), "--memory-mb", "5")
    assert "cannot listen on no.such.host.invalid" in refused(str(bundle), "--host", "no.such.host.invalid")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert "Address already in use" in refused(str(bundle), "--port", str(taken.getsockname()[1]))


@pytest.mark.parametrize("package", ["starlette", "uvicorn", "prometheus_client"])
def test_missing_package_names_its_extra(bundle, package):
    script = (
        f"import runpy, sys; sys.modules[{package!r}] = None; sys.argv = ['serve', {str(bundle)!r}]; "
        "runpy.run_module('edge_albert.serve', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=os.environ)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        f"edge_albert: error: the package {package} is not installed: pip install 'edge-albert[serve]'"
    ]
