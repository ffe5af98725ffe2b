"""edge_albert.load: a folder in, something to call out."""

from __future__ import annotations

from pathlib import Path

from edge_albert.runtime.classify import MultipleChoice, SentenceEmbedder, TextClassifier, TextRegressor
from edge_albert.runtime.session import Session
from edge_albert.runtime.spans import QuestionAnswerer, TokenClassifier

Runner = TextClassifier | TextRegressor | TokenClassifier | QuestionAnswerer | MultipleChoice | SentenceEmbedder

RUNNERS: dict[str, type] = {
    "text-classification": TextClassifier,
    "text-regression": TextRegressor,
    "token-classification": TokenClassifier,
    "question-answering": QuestionAnswerer,
    "multiple-choice": MultipleChoice,
    "sentence-embedding": SentenceEmbedder,
}


def load(
    folder: str | Path,
    *,
    engine: str | None = None,
    threads: int | None = None,
    cache_dir: str | Path | None = None,
    batch_size: int = 1,
    memory_mb: float | None = None,
) -> Runner:
    """Open a bundle and return the callable of its task.

    >>> model = edge_albert.load("bundle")          # a text-classification bundle
    >>> model("You have won a holiday. Call now to claim your prize")
    Label(label='spam', score=0.99, windows=1)

    engine: "onnx" or "tflite"; None takes the first that is installed. threads: None for as many as the processor has,
    four at most. cache_dir: a folder on the device where weights packed for its processor are kept and mapped from at
    the next start; None uses what `python -m edge_albert.prepare` left in the bundle, or none. batch_size: texts run
    together, see edge_albert/runtime/session.py. memory_mb: what the whole process may take, in MB of 10^6 bytes:
    engine, longest text and batch are planned for it before anything is loaded (edge_albert/runtime/budget.py); the
    plan is `model.session.plan`.

    Raises BundleError for a damaged bundle, EngineError when nothing installed can run it or the budget is too small.
    `.session.close()` frees it.
    """
    session = Session(
        folder, engine=engine, threads=threads, cache_dir=cache_dir, batch_size=batch_size, memory_mb=memory_mb
    )
    return RUNNERS[session.bundle.task.name](session)
