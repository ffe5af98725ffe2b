"""edge_albert.load: a folder in, something to call out."""

from __future__ import annotations

from pathlib import Path

from edge_albert.runtime.classify import MultipleChoice, SentenceEmbedder, TextClassifier, TextRegressor
from edge_albert.runtime.latency import LatencyRequest
from edge_albert.runtime.session import Depth, Session
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
    depth: int | None = None,
    exit_threshold: float | str | None = None,
    latency_ms: float | None = None,
    benchmark: str | Path | None = None,
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

    depth, exit_threshold: of a bundle exported with --early-exit: at most that many iterations for an input, and the
    value its criterion takes in place of the exported one ("never": no input leaves early). A call may say both anew;
    the answer's `iterations` tells how many it took. latency_ms: of one inference; it limits the iterations of long
    texts by the times in `benchmark`, a file that `python -m edge_albert.bench --output` wrote on this device for this
    bundle; threads: None then takes as many as were timed. Not with a batch_size above 1.

    Raises BundleError for a damaged bundle, EngineError when nothing installed can run it or the budget is too small.
    `.session.close()` frees it.
    """
    session = Session(
        folder,
        engine=engine,
        threads=threads,
        cache_dir=cache_dir,
        batch_size=batch_size,
        memory_mb=memory_mb,
        depth=Depth(depth, exit_threshold),
        latency=LatencyRequest.of(latency_ms, benchmark),
    )
    return RUNNERS[session.bundle.task.name](session)
