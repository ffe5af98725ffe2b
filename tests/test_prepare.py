"""Caches of packed weights: made once, found again, whole under any accident, and never a reason not to start."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from tiny_models import tiny_checkpoint

import edge_albert
from edge_albert import atomic, prepare
from edge_albert.errors import EngineError
from edge_albert.exporter import Request, export_bundle
from edge_albert.runtime import cache
from edge_albert.runtime.cache import cached_files
from edge_albert.runtime.engine import installed

pytest.importorskip("onnxruntime")
ENGINES = tuple(name for name in ("onnx", "tflite") if installed(name))
TEXT = "the baker painted the blue door"


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("prepare") / "source")


@pytest.fixture
def bundle(source, tmp_path) -> Path:
    export_bundle(Request(source=str(source), output=tmp_path / "bundle", formats=ENGINES, measure=False))
    return tmp_path / "bundle"


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def stamps(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


# -- the command -------------------------------------------------------------------------------------------------------


def test_caches_are_made_once_and_found_by_every_later_start(bundle):
    first = run("edge_albert.prepare", bundle, "--json")
    assert first.returncode == 0, first.stderr
    made = json.loads(first.stdout)
    assert [entry["engine"].split()[0] for entry in made] == [
        {"onnx": "onnxruntime", "tflite": "ai-edge-litert"}[name] for name in ENGINES
    ]
    assert all(entry["state"] == "made" for entry in made)
    for entry in made:
        assert entry["bytes"] == sum(path.stat().st_size for path in Path(entry["entry"]).iterdir())
    before = stamps(bundle / "cache")
    again = run("edge_albert.prepare", bundle)
    assert again.stdout.count("there already") == len(ENGINES)
    for engine, entry in zip(ENGINES, made, strict=True):
        with edge_albert.load(bundle, engine=engine).session as session:
            assert session.engine.packed == Path(entry["entry"])
    assert stamps(bundle / "cache") == before


def test_a_start_without_preparation_writes_nothing(bundle):
    before = stamps(bundle)
    with edge_albert.load(bundle).session as session:
        assert session.engine.packed is None
    assert stamps(bundle) == before


def test_another_folder_and_one_engine(bundle, tmp_path):
    done = run("edge_albert.prepare", bundle, "--engine", "onnx", "--cache-dir", tmp_path / "elsewhere")
    assert done.returncode == 0
    assert [path.name.split("-")[0] for path in (tmp_path / "elsewhere").iterdir()] == ["onnxruntime"]
    assert not (bundle / "cache").exists()
    assert f"{cache.cache_folder(bundle, None)}" == str(bundle / "cache")


def test_a_changed_model_is_packed_anew(bundle, source, tmp_path):
    run("edge_albert.prepare", bundle, "--engine", "onnx", "--cache-dir", tmp_path / "cache")
    export_bundle(
        Request(source=str(source), output=bundle, formats=ENGINES, precision="fp32", measure=False, force=True)
    )
    model = edge_albert.load(bundle, engine="onnx", cache_dir=tmp_path / "cache")
    plain = edge_albert.load(bundle, engine="onnx")
    assert model.session.engine.packed is not None
    assert model(TEXT) == plain(TEXT)
    assert len(list((tmp_path / "cache").iterdir())) == 2


# -- accidents ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
def test_damaged_entries_are_made_again_without_a_word(bundle, engine):
    run("edge_albert.prepare", bundle)
    (entry,) = [path for path in (bundle / "cache").iterdir() if path.name.startswith(cache._PACKAGES[engine])]
    expected = edge_albert.load(bundle, engine=engine)(TEXT)
    for name in [path.name for path in entry.iterdir()]:
        for content in (b"", b"\0" * 100):
            (entry / name).write_bytes(content)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                model = edge_albert.load(bundle, engine=engine)
            assert model.session.engine.packed == entry
            assert (entry / name).read_bytes() != content
            assert model(TEXT) == expected
            model.session.close()


_START = """
import sys, warnings
from pathlib import Path
import edge_albert
warnings.simplefilter("error")
sys.stdin.readline()
model = edge_albert.load(sys.argv[1], engine=sys.argv[2], threads=1, cache_dir=sys.argv[3])
print(model.session.engine.packed, model(sys.argv[4]).score)
"""


@pytest.mark.parametrize("engine", ENGINES)
def test_processes_that_start_together_pack_once_and_agree(bundle, engine, tmp_path):
    command = [sys.executable, "-c", _START, str(bundle), engine, str(tmp_path / "cache"), TEXT]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    starting = [subprocess.Popen(command, **pipes) for _ in range(4)]
    for process in starting:
        process.stdin.write("go\n")
        process.stdin.flush()
    said = {process.communicate(timeout=120) for process in starting}
    assert {process.returncode for process in starting} == {0}, said
    assert len({output for output, _ in said}) == 1
    assert "None" not in next(iter(said))[0]
    (entry,) = (tmp_path / "cache").iterdir()
    assert cache._whole(entry)


def test_a_second_process_waits_and_does_not_pack_again(tmp_path):
    """The order of two processes, by hand: the second is let in when the first has finished."""
    made = []

    def make(folder: Path) -> None:
        made.append(folder)
        (folder / "weights").write_bytes(b"packed")

    entry = cached_files(tmp_path / "cache", "0" * 64, "engine 1", make)
    with cache._alone(tmp_path / "cache"):
        assert cached_files(tmp_path / "cache", "0" * 64, "engine 1", make) == entry  # whole: no need to wait
    assert len(made) == 1


def test_what_a_killed_process_left_is_removed(tmp_path):
    left = tmp_path / "cache" / ".edge-albert-0123456789abcdef.tmp"
    left.mkdir(parents=True)
    (left / "weights").write_bytes(b"half")
    cached_files(tmp_path / "cache", "0" * 64, "engine 1", lambda folder: (folder / "w").write_bytes(b"x") and None)
    assert not left.exists()
    assert len(list((tmp_path / "cache").iterdir())) == 1


def one_warning(bundle: Path, cache_dir: Path, said: str) -> None:
    """A start with this cache folder answers, with no cache, after one warning that says `said`."""
    with pytest.warns(UserWarning, match="no cache of packed weights") as caught:
        model = edge_albert.load(bundle, engine="onnx", cache_dir=cache_dir)
    assert len(caught) == 1
    assert said in str(caught[0].message)
    assert model.session.engine.packed is None
    assert model(TEXT) == edge_albert.load(bundle, engine="onnx", cache_dir=cache_dir.parent / "good")(TEXT)


_HOLDER = """
import fcntl, os, sys, time
fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX)
print(1, flush=True)
time.sleep(60)
"""


def test_a_locked_folder_means_no_cache(bundle, tmp_path, monkeypatch):
    pytest.importorskip("fcntl")
    (tmp_path / "cache").mkdir()
    with subprocess.Popen([sys.executable, "-c", _HOLDER, tmp_path / "cache"], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"1\n"
        monkeypatch.setattr(cache, "_PATIENCE", 0.3)
        one_warning(bundle, tmp_path / "cache", "another process has locked it")
        process.kill()
    assert edge_albert.load(bundle, engine="onnx", cache_dir=tmp_path / "cache").session.engine.packed is not None


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="the administrator may write everywhere")
def test_a_folder_without_permission_means_no_cache(bundle, tmp_path):
    (tmp_path / "cache").mkdir(mode=0o500)
    one_warning(bundle, tmp_path / "cache", "Permission denied")


def test_a_file_where_the_folder_should_be_means_no_cache(bundle, tmp_path):
    (tmp_path / "cache").write_text("in the way")
    one_warning(bundle, tmp_path / "cache", "exists")


def test_a_read_only_file_system_means_no_cache(bundle, tmp_path, monkeypatch):
    real = Path.mkdir

    def refuse(self, *arguments, **options):
        if tmp_path / "cache" in (self, *self.parents):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(self))
        return real(self, *arguments, **options)

    monkeypatch.setattr(Path, "mkdir", refuse)
    one_warning(bundle, tmp_path / "cache", "Read-only file system")
    assert not (tmp_path / "cache").exists()


def test_a_full_disk_while_writing_means_no_cache(bundle, tmp_path, monkeypatch):
    real = atomic._sync_tree

    def full(folder: Path) -> None:
        if tmp_path / "cache" in folder.parents:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(folder)

    monkeypatch.setattr(atomic, "_sync_tree", full)
    one_warning(bundle, tmp_path / "cache", "No space left on device")
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_disk_that_is_really_full(bundle, tmp_path, engine):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", disk], capture_output=True)
    if mounted.returncode:
        pytest.skip("no file system can be mounted here")
    try:
        with pytest.warns(UserWarning, match="no cache of packed weights") as caught:
            model = edge_albert.load(bundle, engine=engine, cache_dir=disk / "cache")
        assert len(caught) == 1
        assert model.session.engine.packed is None
        assert model(TEXT).label
        assert not (disk / "cache").exists()
        model.session.close()
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)


def test_preparing_what_cannot_be_prepared_is_one_line_and_status_2(bundle, tmp_path):
    (tmp_path / "file").touch()
    for arguments, said in (
        ((bundle, "--cache-dir", tmp_path / "file"), "name a folder you may write to with --cache-dir"),
        ((tmp_path / "absent",), "no such folder"),
    ):
        done = run("edge_albert.prepare", *arguments)
        assert done.returncode == 2
        assert said in done.stderr
        assert done.stderr.count("\n") == 1
    with pytest.raises(EngineError, match="--cache-dir"):
        prepare.main([str(bundle), "--cache-dir", str(tmp_path / "file")])


def test_an_engine_that_cannot_map_is_no_error(bundle, monkeypatch, capsys):
    compiled_model = pytest.importorskip("ai_edge_litert.compiled_model")
    monkeypatch.delattr(compiled_model.CompiledModel, "get_output_tensor_details")
    assert prepare.main([str(bundle), "--json"]) == 0
    entries = {entry["engine"].split()[0]: entry["entry"] for entry in json.loads(capsys.readouterr().out)}
    assert entries["ai-edge-litert"] is None
    assert entries["onnxruntime"] is not None


def test_mapped_weights_print_nothing_not_even_at_the_end(bundle):
    if "tflite" not in ENGINES:
        pytest.skip("ai-edge-litert is not installed")
    assert run("edge_albert.prepare", bundle, "--engine", "tflite").stderr == ""
    done = run("edge_albert.run", bundle, "--engine", "tflite", TEXT)
    assert (done.returncode, done.stderr) == (0, "")
    script = (
        "import sys, edge_albert; edge_albert.load(sys.argv[1], engine='tflite'); raise SystemExit('the last word')"
    )
    done = subprocess.run([sys.executable, "-c", script, str(bundle)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "the last word\n")
