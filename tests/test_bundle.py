"""A bundle is opened only when every byte of it is what the manifest says, and nothing in it leads outside."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from edge_albert.bundle import FORMAT_VERSION, MANIFEST, open_bundle, write_manifest
from edge_albert.errors import BundleError


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A bundle whose model and tokenizer are stand-ins: nothing here runs them."""
    folder = tmp_path / "bundle"
    folder.mkdir()
    (folder / "model.onnx").write_bytes(bytes(range(256)) * 20)
    (folder / "spiece.model").write_bytes(b"pieces" * 100)
    (folder / "golden.json").write_text('{"examples": []}\n')
    fields = {
        "task": "text-classification",
        "labels": ["ham", "spam"],
        "config": {"model_type": "albert", "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128},
        "tokenizer": {"kind": "sentencepiece", "file": "spiece.model"},
        "models": {"onnx": {"file": "model.onnx", "precision": "int8"}},
    }
    write_manifest(folder, fields, ["model.onnx", "spiece.model", "golden.json"])
    return folder


def edit(folder: Path, change) -> None:
    manifest = json.loads((folder / MANIFEST).read_text())
    change(manifest)
    (folder / MANIFEST).write_text(json.dumps(manifest))


def test_opens(bundle):
    opened = open_bundle(bundle)
    assert opened.labels == ("ham", "spam")
    assert opened.config.hidden_size == 64
    assert opened.formats == ("onnx",)
    assert opened.model_path("onnx") == bundle / "model.onnx"
    with pytest.raises(BundleError, match="no tflite model"):
        opened.model_path("tflite")


def test_unknown_fields_are_ignored(bundle):
    edit(bundle, lambda m: m.update(colour="blue"))
    assert open_bundle(bundle).task.name == "text-classification"


@pytest.mark.parametrize("name", ["model.onnx", "spiece.model", "golden.json"])
def test_one_flipped_byte_is_found(bundle, name):
    content = bytearray((bundle / name).read_bytes())
    content[len(content) // 2] ^= 1
    (bundle / name).write_bytes(content)
    with pytest.raises(BundleError, match=rf"{name}: sha256"):
        open_bundle(bundle)


def test_truncated_file_is_found(bundle):
    (bundle / "model.onnx").write_bytes((bundle / "model.onnx").read_bytes()[:-1])
    with pytest.raises(BundleError, match=r"model\.onnx: 5119 bytes, the manifest says 5120"):
        open_bundle(bundle)


def test_missing_file_and_missing_manifest(bundle):
    (bundle / "spiece.model").unlink()
    with pytest.raises(BundleError, match=r"spiece\.model: missing"):
        open_bundle(bundle)
    (bundle / MANIFEST).unlink()
    with pytest.raises(BundleError, match=r"bundle\.json: missing"):
        open_bundle(bundle)
    shutil.rmtree(bundle)
    with pytest.raises(BundleError, match="no such folder"):
        open_bundle(bundle)


def test_manifest_from_the_future_is_refused(bundle):
    edit(bundle, lambda m: m.update(format_version=FORMAT_VERSION + 1))
    with pytest.raises(BundleError, match="newer than this edge_albert reads"):
        open_bundle(bundle)


@pytest.mark.parametrize("name", ["../model.onnx", "/etc/passwd", "a/b", "..", "a\\b", "C:x", ""])
def test_names_that_leave_the_folder_are_refused(bundle, name):
    def change(manifest):
        manifest["files"][name] = manifest["files"].pop("spiece.model")

    edit(bundle, change)
    with pytest.raises(BundleError, match="plain file names"):
        open_bundle(bundle)


def test_link_out_of_the_folder_is_refused(bundle, tmp_path):
    outside = tmp_path / "outside.model"
    shutil.move(bundle / "spiece.model", outside)
    (bundle / "spiece.model").symlink_to(outside)
    with pytest.raises(BundleError, match="leads out of the bundle"):
        open_bundle(bundle)


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.update(format="other"),
        lambda m: m.update(format_version="1"),
        lambda m: m.update(format_version=True),
        lambda m: m.pop("task"),
        lambda m: m.update(task="poetry"),
        lambda m: m.update(labels="ham"),
        lambda m: m.update(labels=[1, 2]),
        lambda m: m.update(files=[]),
        lambda m: m.update(models={}),
        lambda m: m["files"].update({"model.onnx": {"size": 5120}}),
        lambda m: m["files"].update({"model.onnx": 7}),
        lambda m: m["models"]["onnx"].update(file="absent.onnx"),
        lambda m: m["models"].update(onnx=None),
        lambda m: m["config"].update(hidden_size=63),
        lambda m: m["config"].update(hidden_size="large"),
        lambda m: m["config"].update(model_type="bert"),
    ],
)
def test_damaged_manifests_are_refused_by_name(bundle, change):
    edit(bundle, change)
    with pytest.raises(BundleError, match=r"bundle\.json"):
        open_bundle(bundle)


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"format": 1}', "[" * 100_000, "\ud800"])
def test_garbage_for_a_manifest(bundle, content):
    (bundle / MANIFEST).write_bytes(content.encode("utf-8", "surrogatepass"))
    with pytest.raises(BundleError, match=r"bundle\.json"):
        open_bundle(bundle)


def test_same_content_same_bytes(bundle):
    before = (bundle / MANIFEST).read_bytes()
    manifest = json.loads(before)
    files = list(reversed(manifest.pop("files")))
    del manifest["format"], manifest["format_version"]
    write_manifest(bundle, dict(reversed(manifest.items())), files)
    assert (bundle / MANIFEST).read_bytes() == before
