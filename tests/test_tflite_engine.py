"""The TFLite engine: rows do not depend on their batch, packed weights come from a cache, no file ends the process."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from engine_environments import python_with
from test_converters import feeds, kept, transformers_output
from tiny_models import tiny_config, tiny_tensors

from converters.albert_graph import write_albert
from converters.flatbuffer import write_flatbuffer
from converters.scheme import Scheme
from converters.tflite_writer import TfliteWriter
from edge_albert.config import AlbertConfig
from edge_albert.errors import EngineError
from edge_albert.runtime import tflite_engine
from edge_albert.runtime.engine import open_engine
from edge_albert.tasks import TASKS
from edge_albert.tflite_format import MODEL_SCHEMA, read_model

pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed")
ROOT = Path(__file__).resolve().parents[1]
CLASSIFY = "text-classification"


def write(folder: Path, task: str = CLASSIFY, precision: str = "int8", config: AlbertConfig | None = None, **options):
    config = config or tiny_config(task)
    writer = TfliteWriter(Scheme(precision), task=TASKS[task], **options)
    write_albert(writer, config, tiny_tensors(config, task), TASKS[task])
    path = folder / "model.tflite"
    path.write_bytes(writer.finish())
    return path


def one_row(length: int = 5, number: int = 7) -> dict[str, np.ndarray]:
    ids = np.full((1, length), number)
    return {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}


def run_python(
    script: str, *arguments: object, python: str | Path = sys.executable
) -> subprocess.CompletedProcess[str]:
    """In a process of its own, so that one that dies does not take the tests with it."""
    command = [str(python), "-c", script, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=300)


# -- answers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", TASKS)
def test_batches_equal_transformers(tmp_path, task):
    config = tiny_config(task)
    engine = open_engine(write(tmp_path, task, "fp32"), threads=1)
    assert engine.name == "tflite"
    assert engine.version.startswith("ai-edge-litert ")
    for batch, length in ((3, 16), (1, 64), (4, 2), (1, 1)):
        inputs = feeds(config, batch, length)
        found = engine.run(inputs)[TASKS[task].output]
        expected = transformers_output(config, task, inputs)
        assert found.shape == expected.shape
        np.testing.assert_allclose(kept(found, task, inputs), kept(expected, task, inputs), atol=1e-5)


@pytest.mark.parametrize("task", [CLASSIFY, "token-classification"])
@pytest.mark.parametrize("cached", [False, True])
def test_a_row_does_not_depend_on_its_batch_to_the_last_bit(tmp_path, task, cached):
    engine = open_engine(write(tmp_path, task), threads=1, cache_dir=tmp_path / "cache" if cached else None)
    inputs = feeds(tiny_config(task), batch=6, length=20)
    together = engine.run(inputs)["logits"]
    for row in range(6):
        length = int(inputs["attention_mask"][row].sum())
        alone = engine.run({name: array[row : row + 1, :length] for name, array in inputs.items()})["logits"][0]
        if task == CLASSIFY:
            np.testing.assert_array_equal(together[row], alone)
        else:
            np.testing.assert_array_equal(together[row, :length], alone)
            assert not together[row, length:].any()


def test_a_mask_that_ends_in_the_middle_or_has_holes_keeps_its_meaning(tmp_path):
    config = tiny_config(CLASSIFY)
    inputs = feeds(config, batch=2, length=12)
    inputs["attention_mask"][0, [2, 7]] = 0
    inputs["attention_mask"][1, 5:] = 0
    found = open_engine(write(tmp_path, precision="fp32"), threads=1).run(inputs)["logits"]
    np.testing.assert_allclose(found, transformers_output(config, CLASSIFY, inputs), atol=1e-5)


@pytest.mark.parametrize("cached", [False, True])
def test_memory_of_long_rows_is_given_back_and_answers_stay(tmp_path, monkeypatch, cached):
    monkeypatch.setattr(tflite_engine, "_KEEP_TOKENS", 8)
    engine = open_engine(write(tmp_path), threads=1, cache_dir=tmp_path / "cache" if cached else None)
    session = engine._session
    reopened = []
    monkeypatch.setattr(session, "reopen", lambda reopen=session.reopen: reopened.append(reopen()))
    answers = {5: [], 30: []}
    for length in (5, 30, 30, 5, 5, 30, 5):
        answers[length].append(engine.run(one_row(length))["logits"])
    assert len(reopened) == 2
    for same in answers.values():
        for other in same[1:]:
            np.testing.assert_array_equal(other, same[0])


def test_threads_share_an_engine(tmp_path):
    engine = open_engine(write(tmp_path), threads=1)
    config = tiny_config(CLASSIFY)
    inputs = [feeds(config, batch=2, length=length, seed=length) for length in (3, 9, 17, 30)]
    expected = [engine.run(one)["logits"] for one in inputs]
    wrong = []

    def work(index: int) -> None:
        for _ in range(20):
            if not np.array_equal(engine.run(inputs[index])["logits"], expected[index]):
                wrong.append(index)

    workers = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == []


# -- the cache of packed weights --------------------------------------------------------------------------------------

_SAME_AS_INTERPRETER = """
import random, sys
import numpy as np
from pathlib import Path
from edge_albert.runtime.tflite_engine import TfliteEngine
path, cache, seed = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
plain = TfliteEngine(path, threads=1)
packed = TfliteEngine(path, threads=1, cache_dir=cache)
assert packed.packed and not plain.packed, (packed.packed, plain.packed)
lengths = [1, 64, 2, 64, 33, 1, *random.Random(seed).choices(range(1, 65), k=30)]
for length in lengths:
    ids = np.random.default_rng(length).integers(0, 60, (2, length))
    feeds = dict(input_ids=ids, attention_mask=np.ones_like(ids), token_type_ids=ids % 2)
    for name, value in plain.run(feeds).items():
        np.testing.assert_array_equal(packed.run(feeds)[name], value)
print(packed.packed)
"""


@pytest.mark.parametrize(
    ("task", "changes", "options"),
    [
        (CLASSIFY, {}, {}),
        ("question-answering", {}, {}),  # an output that grows with the length
        (CLASSIFY, {"num_hidden_groups": 3, "tied_across_groups": "attention"}, {}),
        (CLASSIFY, {"num_hidden_layers": 4, "num_hidden_groups": 2}, {"unroll": True}),
        (CLASSIFY, {}, {"precision": "fp32"}),
        (CLASSIFY, {}, {"compat": True}),
    ],
    ids=str,
)
def test_packed_weights_give_the_interpreters_answers_at_all_lengths(tmp_path, task, changes, options):
    path = write(tmp_path, task, config=tiny_config(task, **changes), **options)
    first, second = (run_python(_SAME_AS_INTERPRETER, path, tmp_path / "cache", seed) for seed in (0, 1))
    assert first.returncode == 0, first.stderr[-2000:]
    assert second.returncode == 0, second.stderr[-2000:]
    assert first.stdout == second.stdout != ""


@pytest.mark.parametrize("options", [{}, {"unroll": True}, {"compat": True}, {"precision": "fp32"}], ids=str)
def test_packed_weights_keep_equal_filters_with_other_biases_apart(tmp_path, options):
    """LiteRT 2.3 mixes them up when they lie in one buffer."""
    config = tiny_config(CLASSIFY)
    tensors = tiny_tensors(config, CLASSIFY)
    prefix = "albert.encoder.albert_layer_groups.0.albert_layers.0.attention."
    for part in ("key", "value", "dense"):
        tensors[f"{prefix}{part}.weight"] = tensors[f"{prefix}query.weight"]
    options = dict(options)
    writer = TfliteWriter(Scheme(options.pop("precision", "int8")), **options)
    write_albert(writer, config, tensors, TASKS[CLASSIFY])
    path = tmp_path / "model.tflite"
    path.write_bytes(writer.finish())
    done = run_python(_SAME_AS_INTERPRETER, path, tmp_path / "cache", 0)
    assert done.returncode == 0, done.stderr[-2000:]


def test_damaged_cache_is_made_again(tmp_path):
    path = write(tmp_path)
    engine = open_engine(path, threads=1, cache_dir=tmp_path / "cache")
    right = engine.run(one_row())["logits"]
    weights = engine.packed / "weights.xnnpack"
    good = weights.read_bytes()
    engine.close()
    for damaged in (good[: len(good) // 2], b"", good[:5000] + bytes(100) + good[5100:]):
        assert damaged != good
        weights.write_bytes(damaged)
        again = open_engine(path, threads=1, cache_dir=tmp_path / "cache")
        np.testing.assert_array_equal(again.run(one_row())["logits"], right)
        assert weights.read_bytes() == good
        again.close()


def test_another_model_gets_another_entry(tmp_path):
    for name, precision in (("a", "int8"), ("b", "fp32")):
        (tmp_path / name).mkdir()
        open_engine(write(tmp_path / name, precision=precision), threads=1, cache_dir=tmp_path / "cache").close()
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_a_cache_folder_that_cannot_be_written_means_no_cache(tmp_path):
    (tmp_path / "cache").write_text("a file where the folder should be")
    with pytest.warns(UserWarning, match="no cache of packed weights"):
        engine = open_engine(write(tmp_path), threads=1, cache_dir=tmp_path / "cache")
    assert engine.packed is None
    assert np.isfinite(engine.run(one_row())["logits"]).all()


_NO_ROOM = """
import resource, sys, warnings
from pathlib import Path
import numpy as np
from edge_albert.runtime.tflite_engine import TfliteEngine
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))  # no file may be longer, as on a full disk
with warnings.catch_warnings(record=True) as caught:
    engine = TfliteEngine(Path(sys.argv[1]), threads=1, cache_dir=Path(sys.argv[2]))
assert "no cache of packed weights" in str(caught[0].message), caught
ids = np.array([[5, 6, 7]])
feeds = dict(input_ids=ids, attention_mask=np.ones_like(ids), token_type_ids=np.zeros_like(ids))
print(engine.run(feeds)["logits"].shape)
"""


def test_a_full_disk_means_no_cache(tmp_path):
    """XNNPACK ends its process when it cannot write: that must not be this one."""
    done = run_python(_NO_ROOM, write(tmp_path), tmp_path / "cache")
    assert (done.returncode, done.stdout) == (0, "(1, 3)\n"), done.stderr[-2000:]
    assert not (tmp_path / "cache").exists()


def test_a_litert_without_compiled_model_runs_without_a_cache(tmp_path, monkeypatch):
    from ai_edge_litert import compiled_model

    monkeypatch.delattr(compiled_model.CompiledModel, "get_output_tensor_details")
    engine = open_engine(write(tmp_path), threads=1, cache_dir=tmp_path / "cache")
    assert engine.packed is None
    assert np.isfinite(engine.run(one_row())["logits"]).all()


# -- bad input --------------------------------------------------------------------------------------------------------


def test_files_that_are_no_model_of_ours(tmp_path):
    good = write(tmp_path).read_bytes()
    bad = tmp_path / "bad.tflite"
    for content in (
        b"",
        good[:1000],
        good[:-1000],
        b"\0" * 5000,
        b"TFL3" * 999,
        good.replace(b"attention_mask", b"attention_tusk"),
    ):
        bad.write_bytes(content)
        with pytest.raises(
            EngineError, match=r"bad\.tflite: not a TFLite model of this project .*: export or copy it again"
        ):
            open_engine(bad, threads=1)
    with pytest.raises(EngineError, match=r"missing\.tflite: cannot be read \(No such file"):
        open_engine(tmp_path / "missing.tflite", threads=1)


def _loop_to_itself(model):
    options = [operator["builtin_options"] for operator in model["subgraphs"][0]["operators"]]
    loop = next(one[1] for one in options if one and one[0] == "WhileOptions")
    loop["body_subgraph_index"] = 0


def _endless_loop(model):
    _constant(model, 1, "const.int.3")["data"] = np.array([2_000_000_000], np.int32).view(np.uint8)


def _standing_loop(model):
    _constant(model, 2, "const.int.1")["data"] = np.zeros(4, np.uint8)


def _constant(model, graph, name):
    tensor = next(tensor for tensor in model["subgraphs"][graph]["tensors"] if tensor["name"] == name)
    return model["buffers"][tensor["buffer"]]


def _read_before_write(model):
    operators = model["subgraphs"][0]["operators"]
    operators.append(operators.pop(0))


def _overwrite_an_input(model):
    model["subgraphs"][2]["operators"][-1]["outputs"] = model["subgraphs"][2]["inputs"][:1]


def _short_weight(model):
    buffer = max(model["buffers"], key=lambda one: len(one["data"]))
    buffer["data"] = buffer["data"][:-4]


def _scale_missing(model):
    tensor = next(t for t in model["subgraphs"][2]["tensors"] if t["quantization"])
    tensor["quantization"]["scale"] = tensor["quantization"]["scale"][:-1]


def _foreign_operator(model):
    model["operator_codes"][0] = {"builtin_code": 3, "deprecated_builtin_code": 3}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (_loop_to_itself, "WHILE does not point to two later sub-graphs"),
        (_endless_loop, "WHILE does not count by one to at most 1000"),
        (_standing_loop, "WHILE does not count by one to at most 1000"),
        (_read_before_write, "reads a tensor that nothing has written"),
        (_overwrite_an_input, "writes a tensor that is not its own"),
        (_short_weight, "bytes where its shape needs"),
        (_scale_missing, "scales but"),
        (_foreign_operator, "operator 3 is not one of this project's"),
    ],
)
def test_a_sound_flatbuffer_with_an_impossible_graph_is_refused(tmp_path, change, complaint):
    """Each of these passes flatbuffers' verifier, and an engine would believe it."""
    path = write(tmp_path)
    model = read_model(path.read_bytes(), strict=True)
    path.write_bytes(write_flatbuffer(model, MODEL_SCHEMA))
    open_engine(path, threads=1).run(one_row())  # what is read can be written again
    change(model)
    path.write_bytes(write_flatbuffer(model, MODEL_SCHEMA))
    with pytest.raises(EngineError, match=complaint):
        open_engine(path, threads=1)


_RUN_MANY = """
import sys
import numpy as np
from pathlib import Path
from edge_albert.errors import EngineError
from edge_albert.runtime.tflite_engine import TfliteEngine
ids = np.array([[5, 6, 7]])
feeds = dict(input_ids=ids, attention_mask=np.ones_like(ids), token_type_ids=np.zeros_like(ids))
refused = 0
for path in sorted(Path(sys.argv[1]).glob("*.tflite")):
    print(path.name, flush=True)
    try:
        TfliteEngine(path, threads=1).run(feeds)
    except EngineError as error:
        assert "\\n" not in str(error), error
        refused += 1
print(refused)
"""


def damaged_copies(folder: Path, good: bytes, count: int) -> None:
    """Files with a few bytes changed, some of them cut short."""
    generator = random.Random(0)
    for index in range(count):
        content = bytearray(good)
        for _ in range(generator.choice((1, 2, 8))):
            content[generator.randrange(len(content))] = generator.randrange(256)
        if index % 10 == 0:
            del content[generator.randrange(len(content)) :]
        (folder / f"{index:04}.tflite").write_bytes(content)


def test_damaged_files_never_end_the_process(tmp_path):
    damaged_copies(tmp_path, write(tmp_path).read_bytes(), 100)
    done = run_python(_RUN_MANY, tmp_path)
    assert done.returncode == 0, done.stdout[-50:] + done.stderr[-2000:]
    assert 20 < int(done.stdout.split()[-1]) < 100  # the others were hit in a weight or a name


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tflite-runtime-2.14.0", "tensorflow-cpu-2.16.1"])
def test_damaged_files_never_end_the_process_of_an_older_engine(tmp_path, name):
    damaged_copies(tmp_path, write(tmp_path, compat=True).read_bytes(), 200)
    done = run_python(_RUN_MANY, tmp_path, python=python_with(name))
    assert done.returncode == 0, done.stdout[-50:] + done.stderr[-2000:]
    assert 50 < int(done.stdout.split()[-1]) < 200


_OLD_ENGINE = """
import sys
import numpy as np
from edge_albert.errors import EngineError
from edge_albert.runtime.tflite_engine import TfliteEngine
try:
    TfliteEngine(sys.argv[1], threads=1)
except EngineError as error:
    print(error)
engine = TfliteEngine(sys.argv[2], threads=1)
for length in (3, 16, 3, 64):
    ids = np.arange(length)[None]
    feeds = dict(input_ids=ids, attention_mask=np.ones_like(ids), token_type_ids=np.zeros_like(ids))
    print(*engine.run(feeds)["logits"][0])
print(engine.version)
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tflite-runtime-2.14.0", "tensorflow-cpu-2.16.1"])
def test_an_older_engine_names_the_operator_and_runs_what_it_can(tmp_path, name):
    (tmp_path / "new").mkdir()
    new, exact = write(tmp_path / "new"), write(tmp_path, precision="fp32")
    done = run_python(_OLD_ENGINE, new, exact, python=python_with(name))
    assert done.returncode == 0, done.stderr[-2000:]
    refusal, *answers, version = done.stdout.strip().splitlines()
    assert "is too old for the operator FULLY_CONNECTED version 12: install ai-edge-litert>=2.0" in refusal
    assert "--tflite-compat" in refusal
    assert version.split()[-1] == name.rpartition("-")[2]
    engine = open_engine(exact, threads=1)
    for length, answer in zip((3, 16, 3, 64), answers, strict=True):
        row = {**one_row(length), "input_ids": np.arange(length)[None]}
        np.testing.assert_allclose(np.array(answer.split(), float), engine.run(row)["logits"][0], atol=1e-5)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (
            "Didn't find op for builtin opcode 'FULLY_CONNECTED' version '12'. An older version of this builtin might "
            "be supported. Are you using an old TFLite binary with a newer model?\nRegistration failed.\n",
            "old 1.0 is too old for the operator FULLY_CONNECTED version 12: install ai-edge-litert>=2.0, or export",
        ),
        (
            "Type 'FLOAT16' is not supported by gather.Node number 0 (GATHER) failed to prepare.",
            "old 1.0 is too old for the operator GATHER of FLOAT16: install",
        ),
        ("\nsomething else\nat length", "old 1.0 refuses the file: something else"),
    ],
)
def test_what_an_engine_says_becomes_one_line(tmp_path, monkeypatch, said, expected):
    """The first two messages are those of tflite-runtime 2.14, word for word."""

    def refuse(**_: object) -> None:
        raise ValueError(said)

    package = tflite_engine.Package("old", "1.0", SimpleNamespace(Interpreter=refuse))
    monkeypatch.setattr(tflite_engine, "_find_package", lambda: package)
    with pytest.raises(EngineError) as caught:
        open_engine(write(tmp_path), threads=1)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_engine_that_cannot_be_imported_is_named(tmp_path):
    package = tmp_path / "lib" / "ai_edge_litert"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise OSError('libLiteRt.so: version GLIBC_9.9 not found')")
    script = f"import sys; sys.path.insert(0, {str(package.parent)!r})\n{_OLD_ENGINE}"
    done = run_python(script, write(tmp_path), "unused")
    assert "ai_edge_litert cannot be imported (libLiteRt.so: version GLIBC_9.9 not found): pip install" in done.stdout


def test_lengths_and_numbers_outside_the_model(tmp_path):
    engine = open_engine(write(tmp_path), threads=1)
    right = engine.run(one_row())["logits"]
    with pytest.raises(EngineError, match="65 tokens are more than the 64 the model takes"):
        engine.run(one_row(65))
    vocabulary = tiny_config(CLASSIFY).vocab_size
    for number in (vocabulary, -1, 2**32 + 7):
        with pytest.raises(EngineError, match=f"input_ids must be 0 to {vocabulary - 1}, found"):
            engine.run(one_row(5, number))
    with pytest.raises(EngineError, match="token_type_ids must be 0 to 1, found 0 to 2"):
        engine.run({**one_row(), "token_type_ids": np.array([[0, 1, 2, 0, 0]])})
    for empty in (np.zeros((0, 5), int), np.zeros((1, 0), int)):
        with pytest.raises(EngineError, match="nothing to run"):
            engine.run(dict.fromkeys(one_row(), empty))
    np.testing.assert_array_equal(engine.run(one_row())["logits"], right)
    padded = {name: np.pad(array, ((0, 0), (0, 95))) for name, array in one_row().items()}
    np.testing.assert_array_equal(engine.run(padded)["logits"], right)  # 100 long, of which 5 are tokens


def test_closed_engine_says_so(tmp_path):
    engine = open_engine(write(tmp_path), threads=1)
    engine.close()
    engine.close()
    with pytest.raises(EngineError, match="the model is closed"):
        engine.run(one_row())


def test_engines_opened_in_threads_leave_standard_error_as_it_was(tmp_path):
    script = """
import sys, threading
from edge_albert.runtime.engine import open_engine
work = [threading.Thread(target=lambda: [open_engine(sys.argv[1], threads=1) for _ in range(10)]) for _ in range(6)]
[one.start() for one in work]
[one.join() for one in work]
print("still here", file=sys.stderr)
"""
    done = run_python(script, write(tmp_path))
    assert (done.returncode, done.stderr) == (0, "still here\n")


def test_opening_and_running_prints_nothing_and_needs_no_exporter(tmp_path):
    script = """
import sys
import numpy as np
from edge_albert.runtime.engine import open_engine
engine = open_engine(sys.argv[1], threads=1)
ids = np.array([[5, 6, 7]])
engine.run(dict(input_ids=ids, attention_mask=np.ones_like(ids), token_type_ids=np.zeros_like(ids)))
print(sorted({"torch", "onnx", "transformers", "converters", "flatbuffers", "tensorflow"} & sys.modules.keys()))
"""
    done = run_python(script, write(tmp_path))
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")
