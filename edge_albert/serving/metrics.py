"""The service's figures in Prometheus' text format (prometheus.io, "Exposition formats"), by its own client library."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from edge_albert.runtime.memory import read_memory

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)  # seconds


class Metrics:
    """waiting: tells how many requests are in the queue. Every figure is this service's alone, not the process-wide
    registry's."""

    def __init__(self, waiting: Callable[[], int]) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "edge_albert_requests", "Requests answered, by HTTP status.", ["status"], registry=self._registry
        )
        self._errors = Counter(
            "edge_albert_errors", "Requests answered with a status of 400 or more.", registry=self._registry
        )
        self._seconds = Histogram(
            "edge_albert_answer_seconds",
            "From a request for an answer to its response, the queue included.",
            buckets=_BUCKETS,
            registry=self._registry,
        )
        self._gauge("edge_albert_queue_length", "Requests that wait for the model.", waiting)
        self._gauge("edge_albert_resident_bytes", "Memory of the process in RAM.", lambda: read_memory().rss)
        self._gauge(
            "edge_albert_anonymous_bytes", "Memory that the system cannot drop (RssAnon).", lambda: read_memory().anon
        )

    def _gauge(self, name: str, purpose: str, read: Callable[[], int | None]) -> None:
        def value() -> float:
            found = read()
            return float("nan") if found is None else found

        Gauge(name, purpose, registry=self._registry).set_function(value)

    def count(self, status: int, seconds: float | None) -> None:
        """A request was answered; seconds: how long an answer took, None for the other routes."""
        self._requests.labels(str(status)).inc()
        if status >= 400:
            self._errors.inc()
        if seconds is not None:
            self._seconds.observe(seconds)

    def text(self) -> bytes:
        return generate_latest(self._registry)
