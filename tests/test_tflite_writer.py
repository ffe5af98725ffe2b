"""The .tflite file computes what transformers computes, in every form, on every engine, and holds each weight once."""

from __future__ import annotations

import json
import struct
from dataclasses import replace

import numpy as np
import pytest
from engine_environments import run_there
from test_converters import PRECISIONS, feeds, kept, transformers_output
from tiny_models import TINY, tiny_config, tiny_tensors

from converters.albert_graph import write_albert
from converters.audit import audit_file
from converters.onnx_writer import OnnxWriter
from converters.scheme import Scheme
from converters.tflite_reader import read_tflite
from converters.tflite_writer import TfliteWriter
from edge_albert.config import AlbertConfig, preset
from edge_albert.errors import EngineError
from edge_albert.tasks import TASKS

litert = pytest.importorskip("ai_edge_litert.interpreter", reason="ai-edge-litert is not installed")
LENGTHS = (1, 2, 16, 64)
OLD_ENGINES = ("tflite-runtime-2.14.0", "tensorflow-cpu-2.16.1")
CLASSIFY = "text-classification"


def content(config: AlbertConfig, task: str = CLASSIFY, precision: str = "fp32", **options) -> bytes:
    writer = TfliteWriter(Scheme(precision), task=TASKS[task], **options)
    write_albert(writer, config, tiny_tensors(config, task), TASKS[task])
    return writer.finish()


def interpret(file: bytes, inputs: dict[str, np.ndarray]) -> np.ndarray:
    """Each row through LiteRT's interpreter with its padding, so that the graph's own mask is what counts."""
    interpreter = litert.Interpreter(model_content=file, num_threads=1)
    numbers = {detail["name"]: detail["index"] for detail in interpreter.get_input_details()}
    (output,) = interpreter.get_output_details()
    rows = []
    for row in range(len(inputs["input_ids"])):
        for name, index in numbers.items():
            interpreter.resize_tensor_input(index, (1, inputs[name].shape[1]))
        interpreter.allocate_tensors()
        for name, index in numbers.items():
            interpreter.set_tensor(index, inputs[name][row : row + 1].astype(np.int32))
        interpreter.invoke()
        rows.append(interpreter.get_tensor(output["index"]))
    return np.concatenate(rows)


# -- the numbers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("unroll", [False, True])
def test_fp32_equals_transformers(task, unroll):
    config = tiny_config(task)
    file = content(config, task, unroll=unroll)
    for length in LENGTHS:
        inputs = feeds(config, batch=3, length=length)
        expected = transformers_output(config, task, inputs)
        found = interpret(file, inputs)
        assert found.shape == expected.shape
        np.testing.assert_allclose(kept(found, task, inputs), kept(expected, task, inputs), atol=1e-5)


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_act": "gelu"},
        {"hidden_act": "relu"},
        {"num_hidden_layers": 5, "num_hidden_groups": 2},
        {"num_hidden_layers": 4, "num_hidden_groups": 2, "inner_group_num": 2},
        {"num_hidden_layers": 1},
        {"num_hidden_groups": 3},
        {"embedding_size": 64},
        {"layer_norm_eps": 0.1},
        {"num_attention_heads": 1},
    ],
    ids=str,
)
@pytest.mark.parametrize("unroll", [False, True])
def test_every_shape_of_albert_equals_transformers(changes, unroll):
    config = tiny_config(CLASSIFY, **changes)
    inputs = feeds(config, batch=2, length=16)
    found = interpret(content(config, unroll=unroll), inputs)
    np.testing.assert_allclose(found, transformers_output(config, CLASSIFY, inputs), atol=1e-5)


def test_a_mask_with_holes_is_obeyed():
    config = tiny_config(CLASSIFY)
    inputs = feeds(config, batch=1, length=12)
    inputs["attention_mask"][0, [3, 4, 9]] = 0
    expected = transformers_output(config, CLASSIFY, inputs)
    np.testing.assert_allclose(interpret(content(config), inputs), expected, atol=1e-5)
    other = {**inputs, "input_ids": inputs["input_ids"].copy()}
    other["input_ids"][0, [3, 4, 9]] = 7
    np.testing.assert_allclose(interpret(content(config), other), expected, atol=1e-5)


@pytest.mark.parametrize("compat", [False, True])
def test_int8_stays_close_and_fp16_closer(compat):
    config = replace(TINY, hidden_size=128, intermediate_size=512).with_labels(("a", "b", "c"))
    inputs = feeds(config, batch=1, length=32)
    exact = interpret(content(config, precision="fp32"), inputs)
    half, eighth = (interpret(content(config, precision=p, compat=compat), inputs) for p in ("fp16", "int8"))
    scale = np.abs(exact).max()
    assert 0 < np.abs(half - exact).max() < 5e-3 * scale
    assert 0 < np.abs(eighth - exact).max() < 0.1 * scale


def test_compat_and_plain_int8_have_the_same_weights():
    config = tiny_config(CLASSIFY)
    plain, compat = (
        {c.name: c for c in read_tflite(content(config, precision="int8", compat=one)).constants}
        for one in (False, True)
    )
    name = "layer.ffn.weight"
    np.testing.assert_array_equal(compat[f"{name}.int8"].values, plain[f"{name}.int8"].values)
    np.testing.assert_array_equal(compat[f"{name}.scale"].values, plain[f"{name}.int8"].scale)
    assert compat[f"{name}.int8"].scale.tolist() == [1.0]
    exact = tiny_tensors(config, CLASSIFY)["albert.encoder.albert_layer_groups.0.albert_layers.0.ffn.weight"]
    steps = plain[f"{name}.int8"].scale[:, None]
    assert (np.abs(plain[f"{name}.int8"].values * steps - exact) <= steps / 2 * 1.001).all()


# -- the file ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("unroll", [False, True])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_file_holds_each_weight_once(tmp_path, task, unroll, precision):
    config = tiny_config(task, num_hidden_layers=4, num_hidden_groups=2)
    path = tmp_path / "model.tflite"
    path.write_bytes(content(config, task, precision, unroll=unroll))
    audit = audit_file(path, tiny_tensors(config, task), floor_bytes=0)
    assert audit.copies
    assert audit.repeated == {}
    assert audit.loops == (0 if unroll else 2)
    if precision == "int8":  # only the head is left in float
        assert len(set(audit.float_products)) == (TASKS[task].head is not None)
    buffers = {constant.buffer: constant.values.tobytes() for constant in read_tflite(path).constants}
    assert len(set(buffers.values())) == len(buffers)


def test_tied_groups_stand_once(tmp_path):
    config = tiny_config(CLASSIFY).with_sharing("attention")
    path = tmp_path / "model.tflite"
    path.write_bytes(content(config, precision="int8"))
    audit = audit_file(path, tiny_tensors(config, CLASSIFY), floor_bytes=0)
    assert audit.repeated == {}
    assert len([name for name in audit.copies if ".attention." in name]) == 4  # of three groups, stored once
    assert len([name for name in audit.copies if ".ffn" in name]) == 6


@pytest.mark.parametrize("precision", PRECISIONS)
def test_weights_are_called_as_in_the_onnx_file(precision):
    onnx = pytest.importorskip("onnx")
    config = tiny_config(CLASSIFY)
    writer = OnnxWriter(Scheme(precision))
    write_albert(writer, config, tiny_tensors(config, CLASSIFY), TASKS[CLASSIFY])
    theirs = {tensor.name for tensor in onnx.load_from_string(writer.finish()).graph.initializer}
    ours = {constant.name for constant in read_tflite(content(config, precision=precision)).constants}
    theirs = {
        name for name in theirs if "query_key_value" not in name and not name.startswith(("const.", "encoder.group"))
    }
    scales = {name for name in theirs if name.endswith(".scale") and "embeddings" not in name}  # a field in TFLite
    assert theirs - scales <= ours
    assert any(name.startswith("layer.attention.query.weight") for name in ours)


def test_same_input_same_bytes():
    config = tiny_config(CLASSIFY)
    assert content(config, precision="int8") == content(config, precision="int8")


def test_generated_schema_reads_what_we_wrote():
    """The classes that flatc generated, which know nothing of ours, find signature, versions and aligned weights."""
    schema = pytest.importorskip("ai_edge_litert.schema_py_generated")
    config = tiny_config(CLASSIFY, num_hidden_layers=4, num_hidden_groups=2)
    file = content(config, precision="int8", description="a description")
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(file))
    assert model.description == b"a description"
    assert len(model.subgraphs) == 5  # main, and a condition and a body for each group
    (signature,) = model.signatureDefs
    assert signature.signatureKey == b"serving_default"
    names = {entry.name: model.subgraphs[0].tensors[entry.tensorIndex].name for entry in signature.inputs}
    assert names == {name: name for name in (b"input_ids", b"token_type_ids", b"attention_mask")}
    assert [entry.name for entry in signature.outputs] == [b"logits"]
    codes = {code.builtinCode: code for code in model.operatorCodes}
    operator = schema.BuiltinOperator
    assert codes[operator.GELU].deprecatedBuiltinCode == operator.PLACEHOLDER_FOR_GREATER_OP_CODES
    assert codes[operator.WHILE].deprecatedBuiltinCode == operator.WHILE
    versions = {code.version for code in model.operatorCodes if code.builtinCode == operator.FULLY_CONNECTED}
    assert versions == {12, 5}  # per channel, which old engines must refuse, and the head
    for buffer in model.buffers:
        if buffer.data is not None:
            assert (buffer.data.ctypes.data - np.frombuffer(file, np.uint8).ctypes.data) % 16 == 0
    weight = next(t for t in model.subgraphs[2].tensors if t.name == b"layer.ffn.weight.int8")
    assert len(weight.quantization.scale) == len(weight.quantization.zeroPoint) == config.intermediate_size
    assert not weight.quantization.zeroPoint.any()


def test_litert_verifies_what_it_loads():
    """The interpreter runs flatbuffers' own verifier: our files pass it (all tests above), a broken one does not."""
    file = bytearray(content(tiny_config(CLASSIFY)))
    struct.pack_into("<i", file, struct.unpack_from("<I", file)[0], 1 << 24)  # the root table's vtable lies elsewhere
    with pytest.raises(ValueError, match="not a valid Flatbuffer"):
        litert.Interpreter(model_content=bytes(file))


def test_records_tell_how_each_matrix_was_stored():
    config = tiny_config(CLASSIFY)
    for precision, scheme in (("fp32", "fp32"), ("fp16", "fp16"), ("int8", "int8 per row")):
        writer = TfliteWriter(Scheme(precision))
        write_albert(writer, config, tiny_tensors(config, CLASSIFY), TASKS[CLASSIFY])
        writer.finish()
        assert writer.records["layer.attention.query.weight"].scheme == scheme
        assert writer.records["classifier.weight"].scheme == "fp32"
        error = writer.records["embeddings.word.weight"].relative_error
        assert error == 0 if precision == "fp32" else 0 < error < 0.02


@pytest.mark.parametrize(
    "damage", [b"", b"TFL3", b"nonsense" * 10, slice(0, 4000)], ids=["empty", "magic", "other", "cut"]
)
def test_reader_refuses_what_is_no_model(tmp_path, damage):
    path = tmp_path / "model.tflite"
    path.write_bytes(content(tiny_config(CLASSIFY))[damage] if isinstance(damage, slice) else damage)
    with pytest.raises(EngineError, match=r"model\.tflite: not a readable TFLite file"):
        read_tflite(path)
    with pytest.raises(EngineError, match="cannot be read"):
        read_tflite(tmp_path / "missing.tflite")


# -- metadata ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_googles_reader_shows_our_metadata_and_their_task_library_runs_the_file(tmp_path, genuine_spiece):
    """tflite-support 0.4.4: the displayer, and BertNLClassifier on a compat file with tokenizer and labels appended."""
    config = replace(tiny_config(CLASSIFY, vocab_size=30000)).with_labels(("ham", "spam"))
    file = content(config, precision="int8", compat=True, description="a test")
    script = f"""
import zipfile
try:
    from tflite_support import metadata
    from tflite_support.task import text
except ImportError as error:
    found['missing'] = str(error)
else:
    open('model.tflite', 'wb').write(given['model'].tobytes())
    found['json'] = metadata.MetadataDisplayer.with_model_file('model.tflite').get_metadata_json()
    with zipfile.ZipFile('model.tflite', 'a') as archive:
        archive.write({str(genuine_spiece)!r}, 'spiece.model')
        archive.writestr('labels.txt', 'ham\\nspam\\n')
    classifier = text.BertNLClassifier.create_from_file('model.tflite')
    for name, line in (('short', 'this is a test'), ('long', 'this is a test of another length')):
        scores = {{c.category_name: c.score for c in classifier.classify(line).classifications[0].categories}}
        found[name] = np.array([scores['ham'], scores['spam']], np.float32)
"""
    found = run_there("tflite-support-0.4.4", script, tmp_path, model=np.frombuffer(file, np.uint8))
    if "missing" in found:
        pytest.skip(f"tflite-support cannot be loaded here: {found['missing']}")
    shown = json.loads(str(found["json"]))
    graph = shown["subgraph_metadata"][0]
    assert [tensor["name"] for tensor in graph["input_tensor_metadata"]] == ["ids", "segment_ids", "mask"]
    assert graph["output_tensor_metadata"][0]["name"] == "probability"
    assert graph["output_tensor_metadata"][0]["associated_files"][0]["type"] == "TENSOR_AXIS_LABELS"
    assert graph["input_process_units"][0]["options"]["sentencePiece_model"][0]["name"] == "spiece.model"
    assert shown["description"] == "a test"
    for name, ids in (("short", [48, 25, 21, 1289]), ("long", [48, 25, 21, 1289, 16, 226, 2476])):
        row = np.array([[2, *ids, 3]])
        inputs = {"input_ids": row, "attention_mask": np.ones_like(row), "token_type_ids": np.zeros_like(row)}
        exact = interpret(content(config), inputs)[0]
        assert np.abs(found[name] - exact).max() < 0.1 * np.abs(exact).max()


# -- older engines ----------------------------------------------------------------------------------------------------

_ROWS = """
import io
try:
    from tflite_runtime.interpreter import Interpreter
except ImportError:
    from tensorflow.lite.python.interpreter import Interpreter
def rows(file, fresh):
    interpreter = None
    for length in given['lengths']:
        if interpreter is None or fresh:
            interpreter = Interpreter(model_content=file.tobytes(), num_threads=1)
        numbers = {d['name']: d['index'] for d in interpreter.get_input_details()}
        for name, index in numbers.items():
            interpreter.resize_tensor_input(index, (1, length))
        interpreter.allocate_tensors()
        for name, index in numbers.items():
            interpreter.set_tensor(index, given[name + str(length)][:1].astype(np.int32))
        interpreter.invoke()
        yield interpreter.get_tensor(interpreter.get_output_details()[0]['index'])
"""


@pytest.mark.slow
@pytest.mark.parametrize("engine", OLD_ENGINES)
def test_older_engines_compute_the_same_or_refuse(tmp_path, engine):
    """fp32 in both forms, compat int8 through changing lengths in one interpreter, per-channel int8 refused by name."""
    config = tiny_config(CLASSIFY, hidden_size=128, intermediate_size=512)
    files = {
        "loop": content(config),
        "unrolled": content(config, unroll=True),
        "int8": content(config, precision="int8", compat=True),
        "fp16": content(config, precision="fp16", compat=True),
        "refused": content(config, precision="int8"),
    }
    script = f"""{_ROWS}
for name, fresh in (('loop', True), ('unrolled', False), ('int8', False), ('fp16', True)):
    found[name] = np.concatenate(list(rows(given[name], fresh)))
try:
    list(rows(given['refused'], True))
except ValueError as error:
    found['error'] = str(error)
"""
    inputs = {length: feeds(config, batch=2, length=length, seed=length) for length in LENGTHS}
    found = run_there(engine, script, tmp_path, **_given(inputs, files))
    expected = np.concatenate([transformers_output(config, CLASSIFY, inputs[length])[1:] for length in LENGTHS])
    np.testing.assert_allclose(found["loop"], expected, atol=1e-5)
    np.testing.assert_allclose(found["unrolled"], expected, atol=1e-5)
    scale = np.abs(expected).max()
    assert 0 < np.abs(found["fp16"] - expected).max() < 5e-3 * scale
    assert 0 < np.abs(found["int8"] - expected).max() < 0.1 * scale
    assert "'FULLY_CONNECTED' version '12'" in str(found["error"])


@pytest.mark.slow
@pytest.mark.parametrize("engine", OLD_ENGINES)
def test_older_engines_run_every_task(tmp_path, engine):
    config = {task: tiny_config(task, hidden_act="gelu") for task in TASKS}
    inputs = {16: feeds(config[CLASSIFY], batch=2, length=16)}
    files = {f"{task} {p}": content(config[task], task, p, compat=True) for task in TASKS for p in ("fp32", "int8")}
    script = f"""{_ROWS}
for name in [name for name in given if ' ' in name]:
    found[name] = np.concatenate(list(rows(given[name], True)))
"""
    found = run_there(engine, script, tmp_path, **_given(inputs, files))
    row = {name: array[1:] for name, array in inputs[16].items()}
    for task in TASKS:
        expected = kept(transformers_output(config[task], task, row), task, row)
        np.testing.assert_allclose(kept(found[f"{task} fp32"], task, row), expected, atol=1e-5)
        error = np.abs(kept(found[f"{task} int8"], task, row) - expected).max()
        assert 0 < error < 0.15 * np.abs(expected).max()


def _given(inputs: dict[int, dict[str, np.ndarray]], files: dict[str, bytes]) -> dict[str, np.ndarray]:
    """What `_ROWS` wants: the second, padded row of the inputs of each length, and the files by name."""
    rows = {f"{name}{length}": array[1:] for length, one in inputs.items() for name, array in one.items()}
    models = {name: np.frombuffer(file, np.uint8) for name, file in files.items()}
    return {"lengths": np.array(list(inputs)), **rows, **models}


# -- ALBERT-base ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_albert_base_at_every_length():
    config = replace(preset("albert-base-v2"), architectures=("AlbertForSequenceClassification",)).with_labels(
        ("a", "b")
    )
    exact, small = content(config), content(config, precision="int8")
    assert len(small) <= 12_000_000
    angles = []
    for length in (1, 2, 16, 128, 511, 512):
        inputs = feeds(config, batch=2, length=length, seed=length)
        expected = transformers_output(config, CLASSIFY, inputs)
        np.testing.assert_allclose(interpret(exact, inputs), expected, atol=1e-5)
        found = interpret(small, inputs)
        angles.extend((found * expected).sum(1) / np.linalg.norm(found, axis=1) / np.linalg.norm(expected, axis=1))
    assert np.mean(angles) > 0.99
