"""The progress bar: tqdm on a terminal, sparse plain lines elsewhere."""

from __future__ import annotations

import io

import pytest

from edge_albert import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_bar_on_a_terminal() -> None:
    pytest.importorskip("tqdm")
    stream = Terminal()
    with progress.Progress(4, "epoch 1/2", stream) as bar:
        for _ in range(4):
            bar.update(loss=0.25)
    shown = stream.getvalue()
    assert "epoch 1/2" in shown
    assert "\r" in shown
    assert "\n" not in shown


def test_plain_lines_elsewhere_are_sparse(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(float(second) for second in range(0, 1000, 3))  # three seconds pass between two looks
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    stream = io.StringIO()
    with progress.Progress(30, "epoch 1/2", stream) as bar:
        for _ in range(10):
            bar.update(3, loss=1 / 3)
    lines = stream.getvalue().splitlines()
    assert lines[0].startswith("epoch 1/2: ")
    assert lines[0].endswith("/30, loss 0.3333")
    assert 2 <= len(lines) <= 4
    assert "\r" not in stream.getvalue()


def test_quick_work_says_nothing_in_a_log() -> None:
    stream = io.StringIO()
    with progress.Progress(2, "reading", stream) as bar:
        bar.update(2)
    assert stream.getvalue() == ""
    assert bar.done == 2


def test_a_terminal_without_tqdm_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "tqdm", None)
    monkeypatch.setattr(progress, "PLAIN_SECONDS", 0.0)
    stream = Terminal()
    with progress.Progress(2, "reading", stream) as bar:
        bar.update()
    assert stream.getvalue() == "reading: 1/2\n"
