"""Kotlin's tokenizer against Python's: every token and offset of 100,000 lines, and Kotlin's speed.

    python benchmarks/android_tokenizer_parity.py --spiece 30k-clean.model --data DATA
    python benchmarks/android_tokenizer_parity.py --spiece edge_albert/default_model/spiece.model

The lines: real ones where --data is given (SST-2, SNIPS, SMS, SQuAD and a plain-text corpus, in the folders that
tests/tokenizer_lines.py expects, each with an equal share), generated ones full of hard Unicode, and strings of random
pieces of the vocabulary, which are full of ties. One line in eight goes with a pair, and is cut to a random length.
Each is tokenized under the default rules; generated ones also under every combination of do_lower_case, keep_accents
and remove_space. Needs a JDK 17 and Maven, which compiles the Kotlin sources first. Exit status 1 when a line differs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import lzma
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from tokenizer_lines import CORPORA, generated_lines  # noqa: E402

from edge_albert.android import TABLE, tokenizer_table  # noqa: E402
from edge_albert.bundle import write_manifest  # noqa: E402
from edge_albert.tokenizer import Encoding, Tokenizer, load_tokenizer  # noqa: E402

JVM_TESTS = ROOT / "android_demo" / "jvm-tests"
MAIN_CLASS = "io.edgealbert.TokenizeMain"
_OPTIONS = ("do_lower_case", "keep_accents", "remove_space")

Line = tuple[str, str | None, int]  # text, pair, max_length


def corpus(data: Path) -> Iterator[str]:
    for path in sorted((data / "corpus").glob("*.txt.xz")):
        with lzma.open(path, "rt", encoding="utf-8") as file:
            yield from (line.rstrip("\n") for line in itertools.islice(file, 4000))


def piece_strings(tokenizer: Tokenizer, count: int, rng: random.Random) -> Iterator[str]:
    """Two to ten random pieces in a row, mostly without a space between: the same text cut in many ways."""
    pieces = [tokenizer.id_to_token(i) for i in range(tokenizer.vocab_size) if i not in tokenizer.special_ids]
    for _ in range(count):
        text = "".join(rng.choice(pieces) for _ in range(rng.randint(2, 10)))
        yield text.replace("▁", " " if rng.random() < 0.3 else "")


def collect(tokenizer: Tokenizer, data: Path | None, count: int) -> list[Line]:
    rng = random.Random(7)
    sources: list[Iterator[str]] = [iter(generated_lines(count)), piece_strings(tokenizer, count, rng)]
    if data is not None:
        sources += [corpus(data), *(read(data) for read in CORPORA.values())]
    texts: list[str] = []
    while len(texts) < count and sources:
        share = (count - len(texts)) // len(sources) + 1
        taken = [list(itertools.islice(source, share)) for source in sources]
        sources = [source for source, part in zip(sources, taken, strict=True) if len(part) == share]
        texts += [text for part in taken for text in part]
    return [with_pair(texts, i, rng) for i in range(min(count, len(texts)))]


def with_pair(texts: Sequence[str], i: int, rng: random.Random) -> Line:
    return (texts[i], texts[i - 1], rng.randint(3, 80)) if i % 8 == 0 else (texts[i], None, 2**31 - 1)


def tokens(encoding: Encoding) -> str:
    """As TokenizeMain.kt writes them."""
    places = zip(encoding.input_ids, encoding.offsets, strict=True)
    return " ".join(f"{token}:{start}:{end}" for token, (start, end) in places)


def write_tokenizer_bundle(folder: Path, tokenizer: Tokenizer, rules: dict[str, Any]) -> None:
    """A bundle with a tokenizer and an empty model, which nobody opens."""
    (folder / rules["file"]).write_bytes(tokenizer.path.read_bytes())
    (folder / TABLE).write_bytes(tokenizer_table(rules) or b"")
    (folder / "model.onnx").touch()
    fields: dict[str, Any] = {
        "task": "text-classification",
        "labels": ["no", "yes"],
        "config": {"max_position_embeddings": 512, "vocab_size": tokenizer.vocab_size},
        "models": {"onnx": {"file": "model.onnx"}},
        "tokenizer": rules,
    }
    write_manifest(folder, fields, [rules["file"], TABLE, "model.onnx"])


def compile_kotlin() -> str:
    """Compile the Kotlin sources; returns the class path of the JVM tests."""
    command = ["mvn", "-B", "-ntp", "-q", "-f", str(JVM_TESTS / "pom.xml"), "test-compile"]
    goal = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:build-classpath"
    subprocess.run([*command, goal, "-Dmdep.outputFile=target/classpath.txt"], check=True)
    target = JVM_TESTS / "app" / "target"
    return f"{target / 'classes'}:{target / 'test-classes'}:{(target / 'classpath.txt').read_text().strip()}"


def run_kotlin(classpath: str, bundle: Path, lines: Sequence[Line]) -> tuple[list[str], dict[str, float]]:
    """Tokens of each line, and {"bytes", "seconds"} of the tokenizer alone."""
    stdin = "".join(json.dumps(line) + "\n" for line in lines)
    command = ["java", "-Xmx1g", "-cp", classpath, MAIN_CLASS, str(bundle)]
    done = subprocess.run(command, input=stdin.encode(), capture_output=True, check=False)
    if done.returncode:
        sys.exit(done.stderr.decode())
    return done.stdout.decode().split("\n")[:-1], json.loads(done.stderr.decode().splitlines()[-1])


def compare(classpath: str, tokenizer: Tokenizer, lines: Sequence[Line], **options: bool) -> tuple[int, float]:
    """(lines that differ, MB per second) under these options."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rules = {**tokenizer.rules, **options}
        write_tokenizer_bundle(folder, tokenizer, rules)
        found, cost = run_kotlin(classpath, folder, lines)
        python = Tokenizer.from_rules(folder, rules)
        expected = [tokens(python.encode(text, pair, max_length=length)) for text, pair, length in lines]
    wrong = [i for i, (a, b) in enumerate(zip(expected, found, strict=True)) if a != b]
    for i in wrong[:5]:
        print(f"  {lines[i]!r}\n    Python {expected[i]}\n    Kotlin {found[i]}")
    return len(wrong), cost["bytes"] / max(cost["seconds"], 1e-9) / 1e6


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spiece", type=Path, required=True, help="a spiece.model of an ALBERT")
    parser.add_argument("--data", type=Path, help="folder with real lines (see above)")
    parser.add_argument("--lines", type=int, default=100_000)
    options = parser.parse_args()

    classpath = compile_kotlin()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "spiece.model").write_bytes(options.spiece.read_bytes())
        tokenizer = load_tokenizer(folder)
        lines = collect(tokenizer, options.data, options.lines)
        wrong, speed = compare(classpath, tokenizer, lines)
        print(
            f"{len(lines)} lines, default rules: {wrong} differ, Kotlin {speed:.1f} MB per second of processor time",
            flush=True,
        )
        hard: list[Line] = [(text, None, 2**31 - 1) for text in generated_lines(options.lines // 10, seed=1)]
        for values in itertools.product((True, False), repeat=len(_OPTIONS)):
            chosen = dict(zip(_OPTIONS, values, strict=True))
            differ, _ = compare(classpath, tokenizer, hard, **chosen)
            print(f"{len(hard)} generated lines, {chosen}: {differ} differ", flush=True)
            wrong += differ
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
