"""Folders and files that appear whole or not at all: what is left on the disk after every kind of failure."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge_albert import EdgeAlbertError
from edge_albert.atomic import atomic_folder, write_file_atomic


def _write(target: Path, content: str = "new", *, force: bool = False) -> None:
    with atomic_folder(target, force=force) as folder:
        (folder / "sub").mkdir()
        (folder / "sub" / "file.txt").write_text(content)


def _content(target: Path) -> str:
    return (target / "sub" / "file.txt").read_text()


def _old_folder(target: Path) -> Path:
    _write(target, "old")
    return target


# -- a folder -------------------------------------------------------------------------------------------------------


def test_appears_only_at_the_end(tmp_path: Path) -> None:
    target = tmp_path / "bundle"
    with atomic_folder(target, force=False) as folder:
        assert folder.parent == tmp_path
        assert not target.exists()
        (folder / "a").write_text("x")
    assert [p.name for p in tmp_path.iterdir()] == ["bundle"]
    assert [p.name for p in target.iterdir()] == ["a"]


def test_missing_parents_are_made_and_on_failure_removed(tmp_path: Path) -> None:
    target = tmp_path / "a" / "b" / "bundle"
    with pytest.raises(ZeroDivisionError), atomic_folder(target, force=False):
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []
    _write(target)
    assert _content(target) == "new"


def test_an_existing_folder_is_refused_before_any_work(tmp_path: Path) -> None:
    target = _old_folder(tmp_path / "bundle")
    with (
        pytest.raises(EdgeAlbertError, match=r"bundle: already exists .* --force"),
        atomic_folder(target, force=False),
    ):
        pytest.fail("the block must not run")
    assert _content(target) == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["bundle"]


def test_force_replaces_and_leaves_nothing_of_the_old(tmp_path: Path) -> None:
    target = _old_folder(tmp_path / "bundle")
    (target / "stale").write_text("x")
    _write(target, force=True)
    assert _content(target) == "new"
    assert not (target / "stale").exists()
    assert [p.name for p in tmp_path.iterdir()] == ["bundle"]


@pytest.mark.parametrize("force", [False, True])
def test_an_empty_folder_is_fine(tmp_path: Path, force: bool) -> None:
    target = tmp_path / "bundle"
    target.mkdir()
    _write(target, force=force)
    assert _content(target) == "new"


@pytest.mark.parametrize("force", [False, True])
def test_a_file_is_never_replaced_by_a_folder(tmp_path: Path, force: bool) -> None:
    target = tmp_path / "bundle"
    target.write_text("mine")
    with pytest.raises(EdgeAlbertError, match="exists and is not a folder"):
        _write(target, force=force)
    assert target.read_text() == "mine"
    assert [p.name for p in tmp_path.iterdir()] == ["bundle"]


def test_a_parent_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(EdgeAlbertError, match=r"file/bundle: could not be written \(Not a directory"):
        _write(tmp_path / "file" / "bundle")


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, RuntimeError])
@pytest.mark.parametrize("force", [False, True])
def test_any_exception_passes_and_changes_nothing(tmp_path: Path, error: type[BaseException], force: bool) -> None:
    target = tmp_path / "bundle"
    if force:
        _old_folder(target)

    def interrupted() -> None:
        with atomic_folder(target, force=force) as folder:
            (folder / "half").write_text("x")
            raise error

    with pytest.raises(error):
        interrupted()
    assert [p.name for p in tmp_path.iterdir()] == (["bundle"] if force else [])
    assert not force or _content(target) == "old"


def test_an_os_error_inside_names_target_and_culprit(tmp_path: Path) -> None:
    with (
        pytest.raises(EdgeAlbertError, match=r"bundle: could not be written \(No such file or directory on .*spiece"),
        atomic_folder(tmp_path / "bundle", force=False),
    ):
        (tmp_path / "spiece.model").read_bytes()
    assert list(tmp_path.iterdir()) == []


def test_the_message_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(EdgeAlbertError) as caught, atomic_folder(tmp_path / "b", force=False):
        raise OSError("several\nlines")
    assert "several lines" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(os.name != "posix", reason="POSIX permissions")
def test_permissions_follow_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        _write(tmp_path / "bundle")
        write_file_atomic(tmp_path / "file", "x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "bundle").stat().st_mode) == 0o750
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640


def test_a_symbolic_link_stays_and_what_it_points_to_is_replaced(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    real = _old_folder(disk / "real")
    link = tmp_path / "link"
    link.symlink_to(real)
    with pytest.raises(EdgeAlbertError, match="link: already exists"):
        _write(link)
    _write(link, force=True)
    assert link.is_symlink()
    assert _content(real) == "new"
    assert [p.name for p in disk.iterdir()] == ["real"]


def test_a_dangling_link_is_filled_and_a_loop_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "later" / "bundle")
    _write(tmp_path / "link")
    assert _content(tmp_path / "later" / "bundle") == "new"
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(EdgeAlbertError, match="exists and is not a folder"):
        _write(tmp_path / "loop")


@pytest.mark.parametrize("where", [".", "..", "below/.."])
def test_the_current_folder_and_those_above_are_never_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    here = tmp_path / "here"
    (here / "below").mkdir(parents=True)
    monkeypatch.chdir(here)
    with pytest.raises(EdgeAlbertError, match="cannot be replaced whole: name a folder inside it"):
        _write(Path(where), force=True)
    assert (here / "below").is_dir()


def test_home_and_mount_points_are_never_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for target in (tmp_path, Path("/")):
        with pytest.raises(EdgeAlbertError, match="cannot be replaced whole"):
            _write(target, force=True)


def test_a_relative_target_means_where_it_was_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with atomic_folder(Path("bundle"), force=False) as folder:
        os.chdir("elsewhere")
        (folder / "a").write_text("x")
    assert (tmp_path / "bundle" / "a").exists()


def test_somebody_else_writing_the_target_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    target = tmp_path / "bundle"
    with pytest.raises(EdgeAlbertError, match="already exists"), atomic_folder(target, force=False):
        _write(target, "theirs")
    assert _content(target) == "theirs"
    assert [p.name for p in tmp_path.iterdir()] == ["bundle"]


def test_the_old_folder_comes_back_when_the_rename_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = _old_folder(tmp_path / "bundle")
    rename = os.rename

    def fails_into_place(source: Path, destination: Path) -> None:
        if Path(destination) == target and not Path(source, "sub", "file.txt").read_text() == "old":
            raise OSError(5, "Input/output error")
        rename(source, destination)

    monkeypatch.setattr(os, "rename", fails_into_place)
    with pytest.raises(EdgeAlbertError, match="Input/output error"):
        _write(target, force=True)
    assert _content(target) == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["bundle"]


def test_content_reaches_the_disk_before_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    fsync, rename = os.fsync, os.rename

    def traced_fsync(handle: int) -> None:
        events.append(Path(os.readlink(f"/proc/self/fd/{handle}")).name)
        fsync(handle)

    def traced_rename(source: Path, destination: Path) -> None:
        events.append("rename")
        rename(source, destination)

    if not Path("/proc/self/fd").is_dir():
        pytest.skip("needs /proc to name open files")
    monkeypatch.setattr(os, "fsync", traced_fsync)
    monkeypatch.setattr(os, "rename", traced_rename)
    _write(tmp_path / "bundle")
    before = events[: events.index("rename")]
    assert {"file.txt", "sub"} <= set(before)
    assert before[-1].startswith(".edge-albert-")
    assert events[-1] == tmp_path.name


# -- a file ---------------------------------------------------------------------------------------------------------


def test_file_is_written_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "new" / "report.json"
    write_file_atomic(path, "é\n")
    assert path.read_bytes() == "é\n".encode()
    path.chmod(0o600)
    write_file_atomic(path, b"\x00\r\n")
    assert path.read_bytes() == b"\x00\r\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [p.name for p in path.parent.iterdir()] == ["report.json"]


def test_file_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_file_atomic(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


def test_file_never_replaces_a_folder_or_a_device(tmp_path: Path) -> None:
    for path in (tmp_path, Path(os.devnull)):
        with pytest.raises(EdgeAlbertError, match="is a folder or a device"):
            write_file_atomic(path, "x")
    assert not Path(os.devnull).is_file()


def test_file_failure_keeps_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.json"
    path.write_text("old")

    def fails(source: Path, destination: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(EdgeAlbertError, match=r"report.json: could not be written \(No space left on device\): free"):
        write_file_atomic(path, "new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["report.json"]


# -- a full disk ----------------------------------------------------------------------------------------------------


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB; skipped where this user may not mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    try:
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)], capture_output=True)
    except FileNotFoundError:
        pytest.skip("no mount command")
    if mounted.returncode:
        pytest.skip("mounting a tmpfs needs root")
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_really_full_disk(tiny_disk: Path) -> None:
    old = _old_folder(tiny_disk / "bundle")
    for force, target in ((False, tiny_disk / "sub" / "new"), (True, old)):
        with (
            pytest.raises(
                EdgeAlbertError, match=rf"{target.name}: could not be written \(No space left on device\): free"
            ),
            atomic_folder(target, force=force) as folder,
        ):
            (folder / "model.onnx").write_bytes(bytes(1 << 20))
    with pytest.raises(EdgeAlbertError, match="No space left on device"):
        write_file_atomic(tiny_disk / "report.json", bytes(1 << 20))
    assert _content(old) == "old"
    assert [p.name for p in tiny_disk.iterdir()] == ["bundle"]


def test_a_mount_point_is_refused(tiny_disk: Path) -> None:
    with pytest.raises(EdgeAlbertError, match="a mount point, which cannot be replaced whole: name a folder inside"):
        _write(tiny_disk)


@pytest.mark.skipif(os.name != "posix", reason="POSIX resource limits")
def test_a_file_size_limit_in_another_process(tmp_path: Path) -> None:
    script = """
import resource, sys
from pathlib import Path
from edge_albert import EdgeAlbertError
from edge_albert.atomic import atomic_folder
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    with atomic_folder(Path(sys.argv[1]), force=False) as folder:
        (folder / "model.onnx").write_bytes(bytes(1 << 20))
except EdgeAlbertError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "bundle")], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith(f"{tmp_path / 'bundle'}: could not be written (File too large): free some space")
    assert done.stderr == ""
    assert list(tmp_path.iterdir()) == []
