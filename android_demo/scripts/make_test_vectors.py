"""Writes what the JVM tests compare Kotlin with: Python's answers from the demo's bundle. For every new bundle:

    python android_demo/scripts/make_test_vectors.py [--bundle DIR] [--output DIR]

    vectors/tokenizer.json    generated lines full of hard Unicode, with pairs and truncation ► tokens and offsets
    vectors/classifier.json   500 texts ► logits
    bundles/NAME/             tiny random models with the demo's vocabulary, one per task or engine that the demo has
                              not, without the tokenizer's files, which the tests take from the demo's bundle
    vectors/NAME.json         what each of them answers

int8 kernels differ in the last digits from one ONNX Runtime and processor to the next. The vectors in the repository
are compared loosely; with vectors made on the same machine by the onnxruntime of the version that jvm-tests/pom.xml
names, `mvn … -Dvectors=DIR -Dlogit.tolerance=1e-4 test` is exact.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "benchmarks")]

from android_tokenizer_parity import tokens, with_pair  # noqa: E402
from tiny_models import tiny_tensors  # noqa: E402
from tokenizer_lines import generated_lines  # noqa: E402

from calibration.agreement import default_texts  # noqa: E402
from edge_albert import load  # noqa: E402
from edge_albert.android import TABLE  # noqa: E402
from edge_albert.bundle import MANIFEST  # noqa: E402
from edge_albert.checkpoint import write_checkpoint  # noqa: E402
from edge_albert.config import AlbertConfig  # noqa: E402
from edge_albert.errors import DataError  # noqa: E402
from edge_albert.exporter import Request, export_bundle  # noqa: E402
from edge_albert.runtime.classify import TextClassifier  # noqa: E402
from edge_albert.tasks import get_task  # noqa: E402

EXITS_AT = 0.5  # the confidence at which texts leave the tiny model with early exit
DEMO = ROOT / "android_demo"
ASSETS = DEMO / "app" / "src" / "main" / "assets" / "bundle"
RESOURCES = DEMO / "jvm-tests" / "app" / "src" / "test" / "resources"
LABELS = {
    "token-classification": ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"],
    "question-answering": ["start", "end"],
    "text-classification": ["no", "yes", "maybe"],
}
STRIDE = 16


def tokenizer_vectors(model: TextClassifier) -> dict[str, Any]:
    rng = random.Random(3)
    texts = [*generated_lines(400, seed=5), *default_texts()[:100], "", " ", "a " * 700, "😀" * 40]
    lines = [with_pair(texts, i, rng) for i in range(len(texts))]
    tokenizer = model.session.tokenizer
    encode = [[*line, tokens(tokenizer.encode(line[0], line[1], max_length=line[2]))] for line in lines]
    return {"spiece_sha256": _hash_of(model, tokenizer.path.name), "lines": encode}


def classifier_vectors(model: TextClassifier) -> dict[str, Any]:
    texts = [text for text in [*default_texts(), *generated_lines(400, seed=6)] if _answerable(model, text)][:500]
    encodings = [model.session.encode(text, truncate=True) for text in texts]
    logits = [_rounded(row) for row in model.session.infer(encodings)]
    return {"model_sha256": model.session.bundle.model_hash("onnx"), "texts": texts, "logits": logits}


def _rounded(row: Any) -> list[float]:
    return [round(float(x), 6) for x in row]


def _answerable(model: TextClassifier, text: str) -> bool:
    try:
        model.session.encode(text, truncate=True)
    except DataError:
        return False
    return True


def _hash_of(model: TextClassifier, name: str) -> str:
    return model.session.bundle.manifest["files"][name]["sha256"]


def tiny_bundle(demo: TextClassifier, task: str, folder: Path, **options: Any) -> Path:
    """A model of the task with random weights and the demo's tokenizer; `options` go to the export."""
    config = AlbertConfig(
        vocab_size=demo.session.tokenizer.vocab_size,
        embedding_size=4,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=160,
        architectures=(get_task(task).architecture,),
    ).with_labels(LABELS[task])
    if "early_exit" in options:
        config = replace(config, num_hidden_layers=5).with_exits("shared")
    tensors = tiny_tensors(config, task, seed=1)
    write_checkpoint(folder / "source", config, tensors, task=task, tokenizer_folder=demo.session.bundle.folder)
    output = folder / "bundle"
    export_bundle(
        Request(source=str(folder / "source"), output=output, task=task, measure=False, android=True, **options)
    )
    return output


def token_classification_vectors(model: Any) -> list[Any]:
    texts = [*default_texts()[:40], " ".join(default_texts()[40:60]), "Zoë O'Neil, 92,000 😀 fans ﬁnd Tōkyō — naïve?"]
    return [
        {"text": text, "entities": [[e.label, e.text, e.start, e.end, e.score] for e in model(text, stride=STRIDE)]}
        for text in texts
    ]


def question_answering_vectors(model: Any) -> list[Any]:
    texts = default_texts()
    questions = sorted(texts, key=len)[40:60]
    rows = []
    for i, question in enumerate(questions):
        context = " ".join(texts[30 + i : 32 + 3 * i])
        answer = model(question, context, stride=STRIDE)
        found = [answer.text, answer.start, answer.end, answer.score]
        rows.append({"question": question, "context": context, "answer": found})
    return rows


def _few_texts(model: TextClassifier) -> list[str]:
    return [text for text in default_texts() if _answerable(model, text)][:60]


def tflite_vectors(model: TextClassifier) -> list[Any]:
    texts = _few_texts(model)
    rows = model.session.infer([model.session.encode(text, truncate=True) for text in texts])
    return [{"text": text, "logits": _rounded(row)} for text, row in zip(texts, rows, strict=True)]


def early_exit_vectors(model: TextClassifier) -> list[Any]:
    """Logits, and after which iteration they were final; the threshold is such that not all leave at once."""
    texts = _few_texts(model)
    found = model.session.outputs([model.session.encode(text, truncate=True) for text in texts])
    if len({output.iterations for output in found}) < 3:
        raise SystemExit("text-classification-early-exit: choose another threshold: nearly all leave together")
    return [
        {"text": text, "logits": _rounded(output.row), "iterations": output.iterations}
        for text, output in zip(texts, found, strict=True)
    ]


# name of the tiny bundle and its vectors ► task, engine, how it is exported, what is asked
TINY = {
    "token-classification": ("token-classification", "onnx", {"precision": "fp32"}, token_classification_vectors),
    "question-answering": ("question-answering", "onnx", {"precision": "fp32"}, question_answering_vectors),
    "text-classification-tflite": (
        "text-classification",
        "tflite",
        {"precision": "fp32", "compat": True},
        tflite_vectors,
    ),
    "text-classification-early-exit": (
        "text-classification",
        "onnx",
        {"precision": "fp32", "formats": ("onnx", "tflite"), "early_exit": "confidence", "exit_threshold": EXITS_AT},
        early_exit_vectors,
    ),
}


def write_tiny(demo: TextClassifier, name: str, output: Path) -> None:
    """One tiny bundle without the tokenizer's files, and its vectors."""
    task, engine, options, make = TINY[name]
    with tempfile.TemporaryDirectory() as folder:
        bundle = tiny_bundle(demo, task, Path(folder), **{"formats": (engine,), **options})
        write_vectors(output, name, make(load(bundle, engine=engine, threads=1)))
        target = output / "bundles" / name
        target.mkdir(parents=True, exist_ok=True)
        files = json.loads((bundle / MANIFEST).read_text(encoding="utf-8"))["files"]
        for file in {MANIFEST, *files} - {demo.session.tokenizer.path.name, TABLE}:
            (target / file).write_bytes((bundle / file).read_bytes())


def write_vectors(output: Path, name: str, content: Any) -> None:
    (output / "vectors").mkdir(parents=True, exist_ok=True)
    text = json.dumps(content, separators=(",", ":")).replace('],["', '],\n["')
    (output / "vectors" / f"{name}.json").write_text(text + "\n", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", type=Path, default=ASSETS)
    parser.add_argument("--output", type=Path, default=RESOURCES)
    options = parser.parse_args()
    demo: Any = load(options.bundle, engine="onnx", threads=1)
    write_vectors(options.output, "tokenizer", tokenizer_vectors(demo))
    write_vectors(options.output, "classifier", classifier_vectors(demo))
    for name in TINY:
        write_tiny(demo, name, options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
