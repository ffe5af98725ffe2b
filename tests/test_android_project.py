"""The Android project, as far as it can be held together from here.

Gradle cannot run in CI (its Android plugin is not on Maven Central), Maven can: what both builds must share is read
back from both. The table of characters is read back with a reader of its own and compared with Python's string methods.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import unicodedata
from pathlib import Path
from xml.etree import ElementTree

import pytest
from conftest import ROOT

from edge_albert.android import TABLE, copy_bundle_to_assets, tokenizer_table
from edge_albert.bundle import MANIFEST, open_bundle, write_manifest
from edge_albert.errors import EdgeAlbertError
from edge_albert.tokenization.text_rules import albert_table

DEMO = ROOT / "android_demo"
MAIN = DEMO / "app" / "src" / "main"
JVM = DEMO / "jvm-tests"
RULES = {"kind": "sentencepiece", "do_lower_case": True, "keep_accents": False}


def maven_properties() -> dict[str, str]:
    root = ElementTree.parse(JVM / "pom.xml").getroot()
    space = {"m": "http://maven.apache.org/POM/4.0.0"}
    found = root.find("m:properties", space)
    assert found is not None
    return {element.tag.partition("}")[2]: element.text or "" for element in found}


def gradle_versions() -> dict[str, str]:
    section = (DEMO / "gradle" / "libs.versions.toml").read_text().partition("[versions]")[2].partition("[")[0]
    return dict(re.findall(r'^([\w-]+) = "(.*)"$', section, re.MULTILINE))


def gradle_file(module: str) -> str:
    return (DEMO / module / "build.gradle.kts").read_text(encoding="utf-8")


# -- both builds ------------------------------------------------------------------------------------------------------


def test_versions_are_the_same_in_both_builds():
    maven, gradle = maven_properties(), gradle_versions()
    for ours, theirs in {
        "android.minSdk": "minSdk",
        "android.targetSdk": "targetSdk",
        "kotlin.version": "kotlin",
        "onnxruntime.version": "onnxruntime",
        "tensorflow-lite.version": "tensorflow-lite",
    }.items():
        assert maven[ours] == gradle[theirs], theirs


def test_gradle_takes_its_versions_from_the_catalogue():
    for module in ("app", "edgealbert"):
        content = gradle_file(module)
        assert "minSdk = libs.versions.minSdk.get().toInt()" in content
        assert "compileSdk = libs.versions.targetSdk.get().toInt()" in content
    assert "targetSdk = libs.versions.targetSdk.get().toInt()" in gradle_file("app")


def test_both_builds_compile_the_same_folders():
    pom = (JVM / "app" / "pom.xml").read_text(encoding="utf-8")
    for module in ("app", "edgealbert"):
        assert 'srcDir("src/main/kotlin")' in gradle_file(module)
        assert f"<sourceDir>../../{module}/src/main/kotlin</sourceDir>" in pom
        assert list((DEMO / module / "src" / "main" / "kotlin").rglob("*.kt"))


def test_the_bytecode_is_that_of_java_8_in_both_builds():
    assert "<jvmTarget>1.8</jvmTarget>" in (JVM / "app" / "pom.xml").read_text()
    for module in ("app", "edgealbert"):
        assert "jvmTarget.set(JvmTarget.JVM_1_8)" in gradle_file(module)


def test_packages_and_namespaces_agree():
    assert 'namespace = "io.edgealbert.demo"' in gradle_file("app")
    assert 'namespace = "io.edgealbert"' in gradle_file("edgealbert")
    assert 'package="io.edgealbert.demo"' in (DEMO / "scripts" / "apk.sh").read_text()
    assert "package io.edgealbert.demo" in (JVM / "app/src/prebuilt/java/io/edgealbert/demo/R.java").read_text()
    assert "package=" not in (MAIN / "AndroidManifest.xml").read_text(), "AGP 8 takes it from the namespace alone"


def test_models_are_stored_uncompressed_by_both_builds():
    listed = re.search(r"noCompress \+= listOf\((.*)\)", gradle_file("app"))
    assert listed is not None
    suffixes = re.findall(r'"(\w+)"', listed[1])
    assert {"onnx", "tflite", "model"} <= set(suffixes)
    script = (DEMO / "scripts" / "apk.sh").read_text()
    assert "-0 .tflite" in script
    assert "-0 .model" in script


def test_the_same_processors_in_both_builds():
    gradle = re.search(r"include\((\"[^)]*)\)", gradle_file("app"))
    script = re.search(r'^abis="(.*)"$', (DEMO / "scripts" / "apk.sh").read_text(), re.MULTILINE)
    assert gradle is not None
    assert script is not None
    assert re.findall(r'"([\w-]+)"', gradle[1]) == script[1].split()


def test_library_rules_reach_both_shrinkers():
    assert 'consumerProguardFiles("consumer-rules.pro")' in gradle_file("edgealbert")
    assert "-include ../../edgealbert/consumer-rules.pro" in (DEMO / "tools/apk/app.pro").read_text()


def test_the_prebuilt_resources_are_those_of_the_sources():
    """The JVM tests see the app's resources as scripts/compile_resources.sh compiled them."""
    listed = dict(
        reversed(line.split("  ", 1)) for line in (JVM / "app/src/prebuilt/sources.sha256").read_text().splitlines()
    )
    sources = [MAIN / "AndroidManifest.xml", *(path for path in (MAIN / "res").rglob("*") if path.is_file())]
    found = {path.relative_to(MAIN).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in sources}
    assert found == listed, "run android_demo/scripts/compile_resources.sh"


def test_the_app_asks_for_no_permission():
    manifest = ElementTree.parse(MAIN / "AndroidManifest.xml").getroot()
    assert [element.tag for element in manifest] == ["application"]


def test_only_one_file_of_the_library_knows_android():
    """Plain Kotlin elsewhere, so that the JVM tests run what a phone runs. org.json is part of Android."""
    sources = (DEMO / "edgealbert" / "src" / "main" / "kotlin").rglob("*.kt")
    seams = {path.name for path in sources if re.search(r"^import android", path.read_text(), re.MULTILINE)}
    assert seams == {"BundleAssets.kt"}


def test_kotlin_reproduces_the_pinned_sentencepiece():
    kotlin = (DEMO / "edgealbert/src/main/kotlin/io/edgealbert/tokenizer/Tokenizer.kt").read_text()
    pinned = re.search(r'"sentencepiece==([\d.]+)"', (ROOT / "pyproject.toml").read_text())
    assert pinned is not None
    assert f'SENTENCEPIECE_VERSION = "{pinned[1]}"' in kotlin


def test_kotlin_names_python_files_that_exist():
    named = set()
    for path in (DEMO / "edgealbert").rglob("*.kt"):
        named |= set(re.findall(r"edge_albert/[\w/]+\.py", path.read_text(encoding="utf-8")))
    assert named
    assert not [name for name in named if not (ROOT / name).is_file()]


# -- the demo's bundle ------------------------------------------------------------------------------------------------


def test_the_demos_bundle_is_whole_and_has_one_model():
    bundle = open_bundle(MAIN / "assets" / "bundle")
    assert bundle.formats == ("onnx",)
    assert TABLE in bundle.manifest["files"]
    assert {path.name for path in bundle.folder.iterdir()} == {MANIFEST, *bundle.manifest["files"]}


def test_the_test_vectors_are_of_the_demos_bundle():
    files = open_bundle(MAIN / "assets" / "bundle").manifest["files"]
    vectors = JVM / "app/src/test/resources/vectors"
    tokenizer = json.loads((vectors / "tokenizer.json").read_text(encoding="utf-8"))
    classifier = json.loads((vectors / "classifier.json").read_text(encoding="utf-8"))
    assert tokenizer["spiece_sha256"] == files["spiece.model"]["sha256"], (
        "run android_demo/scripts/make_test_vectors.py"
    )
    assert classifier["model_sha256"] == files["model.onnx"]["sha256"], "run android_demo/scripts/make_test_vectors.py"
    assert len(classifier["texts"]) == 500


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A bundle with two empty models and a table."""
    folder = tmp_path / "bundle"
    folder.mkdir()
    for name in ("model.onnx", "model.tflite"):
        (folder / name).write_bytes(name.encode())
    (folder / TABLE).write_bytes(b"table")
    (folder / "report.md").write_text("about this machine")
    demo = json.loads((MAIN / "assets" / "bundle" / MANIFEST).read_text(encoding="utf-8"))
    fields = {name: demo[name] for name in ("task", "labels", "config", "tokenizer")}
    models = {"onnx": {"file": "model.onnx"}, "tflite": {"file": "model.tflite"}}
    write_manifest(folder, {**fields, "models": models}, ["model.onnx", "model.tflite", TABLE])
    return folder


@pytest.mark.parametrize(("wanted", "file"), [(None, "model.onnx"), ("tflite", "model.tflite")])
def test_an_app_carries_one_model_and_no_report(bundle: Path, tmp_path: Path, wanted: str | None, file: str):
    target = copy_bundle_to_assets(bundle, tmp_path / "app" / "assets", format=wanted)
    assert target == tmp_path / "app" / "assets" / "bundle"
    assert {path.name for path in target.iterdir()} == {MANIFEST, TABLE, file}
    assert open_bundle(target).model_path(wanted or "onnx").read_bytes() == file.encode()


def test_assets_are_replaced_on_request_only(bundle: Path, tmp_path: Path):
    copy_bundle_to_assets(bundle, tmp_path / "assets")
    with pytest.raises(EdgeAlbertError, match="assets"):
        copy_bundle_to_assets(bundle, tmp_path / "assets")
    copy_bundle_to_assets(bundle, tmp_path / "assets", force=True)


def test_what_android_cannot_use_is_refused(bundle: Path, tmp_path: Path):
    with pytest.raises(EdgeAlbertError, match="coreml"):
        copy_bundle_to_assets(bundle, tmp_path / "assets", format="coreml")
    manifest = json.loads((bundle / MANIFEST).read_text(encoding="utf-8"))
    del manifest["files"][TABLE]
    (bundle / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
    with pytest.raises(EdgeAlbertError, match=TABLE):
        copy_bundle_to_assets(bundle, tmp_path / "assets")
    assert not (tmp_path / "assets").exists()


# -- the table of characters ------------------------------------------------------------------------------------------


class TableReader:
    """Another reader of the format in edge_albert/android.py: what each character becomes, as one dictionary."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.at = 4
        assert content[:4] == b"EATR"
        assert self.varint() == 1
        self.flags = self.varint()
        length = self.varint()
        self.unicode = content[self.at : self.at + length].decode("ascii")
        self.at += length
        self.spaces = self.ranges()
        self.digits = self.ranges()
        self.changes = self.runs()
        assert self.at == len(content)

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.content[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def zigzag(self) -> int:
        value = self.varint()
        return value // 2 if value % 2 == 0 else -(value // 2) - 1

    def ranges(self) -> set[int]:
        found: set[int] = set()
        end = 0
        for _ in range(self.varint()):
            first = end + self.varint()
            end = first + self.varint() + 1
            found.update(range(first, end))
        return found

    def runs(self) -> dict[int, str]:
        found: dict[int, str] = {}
        first = 0
        for _ in range(self.varint()):
            first += self.varint()
            length, step, growth = self.varint() + 1, self.varint() + 1, self.varint()
            value = [first + self.zigzag() for _ in range(self.varint())]
            for k in range(length):
                grown = [*value[:-1], value[-1] + k * growth] if value else []
                assert first + k * step not in found
                found[first + k * step] = "".join(map(chr, grown))
        return found


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("accents", [True, False])
def test_the_table_says_what_python_does_to_every_character(lower: bool, accents: bool):
    content = tokenizer_table({"kind": "sentencepiece", "do_lower_case": lower, "keep_accents": accents})
    assert content is not None
    assert len(content) < 40_000
    table = TableReader(content)
    assert table.flags == lower + 2 * accents
    assert table.unicode == unicodedata.unidata_version
    expected = albert_table(do_lower_case=lower, keep_accents=accents)
    changes = table.changes
    for code in range(sys.maxunicode + 1):
        if not 0xD800 <= code < 0xE000:
            assert changes.get(code, chr(code)) == expected.rule(chr(code)), hex(code)


def test_the_table_says_what_python_calls_whitespace_and_digits():
    table = TableReader(tokenizer_table(RULES) or b"")
    codes = [code for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000]
    assert table.spaces == {code for code in codes if chr(code).isspace()}
    assert table.digits == {code for code in codes if chr(code).isdigit()}


def test_the_table_is_the_same_each_time_and_wordpiece_has_none():
    assert tokenizer_table(RULES) == tokenizer_table(dict(reversed(RULES.items())))
    assert tokenizer_table({"kind": "wordpiece"}) is None
