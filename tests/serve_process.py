"""A service in a process of its own, and requests to it over real sockets."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit


@dataclass
class Service:
    """A running service: where it listens, and its process."""

    url: str
    process: subprocess.Popen[str]

    def connect(self) -> http.client.HTTPConnection:
        """A connection that is kept open between requests."""
        return http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=120)

    def ask(self, method: str, path: str, body: bytes | None = None) -> tuple[int, Any]:
        """One request on a connection of its own: the status, and the body (read as JSON where it is JSON)."""
        connection = self.connect()
        try:
            return ask(connection, method, path, body)
        finally:
            connection.close()

    def metrics(self) -> dict[str, float]:
        """The figures of /metrics by name, labels included, as in 'edge_albert_requests_total{status="200"}'."""
        text = self.ask("GET", "/metrics")[1]
        lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
        return {name: float(value) for name, _, value in lines}


def ask(connection: http.client.HTTPConnection, method: str, path: str, body: bytes | None = None) -> tuple[int, Any]:
    connection.request(method, path, body)
    response = connection.getresponse()
    text = response.read().decode()
    is_json = response.headers["content-type"] == "application/json"
    return response.status, json.loads(text) if is_json else text


@contextmanager
def serving(bundle: Path, *options: str) -> Iterator[Service]:
    """`edge_albert.serve BUNDLE …` on a free port; ended by SIGTERM, after which it must leave with status 0."""
    command = [sys.executable, "-m", "edge_albert.serve", str(bundle), "--port", "0", "--threads", "1", "--json"]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            first = process.stdout.readline()
            assert first, process.stderr.read()
            yield Service(json.loads(first)["url"], process)
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=60) == 0, process.stderr.read()
        finally:
            process.kill()
