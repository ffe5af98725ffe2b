"""Folders and files that appear whole or not at all.

What is written goes to a hidden neighbour of the target first (`.edge-albert-….tmp`, on the same file system), is
flushed to the disk, and takes the target's name in one rename. An error, a full disk or Ctrl-C removes the neighbour; a
power cut leaves at worst that hidden folder, never something that looks finished. Every failing system call comes out
as an EdgeAlbertError that names the target and the reason.

    with atomic_folder(Path("bundle"), force=False) as folder:
        (folder / "model.onnx").write_bytes(...)

With `force` the old folder is renamed aside, the new one renamed in, and the old one removed last. Between the two
renames (microseconds) the target does not exist: POSIX has no portable exchange of two folders.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from edge_albert.errors import EdgeAlbertError

HALF_WRITTEN = ".edge-albert-*.tmp"  # what a kill leaves beside a target


@contextmanager
def atomic_folder(target: Path, *, force: bool) -> Iterator[Path]:
    """Yield an empty folder beside `target` that becomes `target` when the block ends, and vanishes when it raises.

    target: a path that does not exist, or an empty folder; with `force`, any folder, which is replaced. Missing parents
    are made (and removed again on failure). A symbolic link is followed: what it points to is replaced, the link stays.

    Raises EdgeAlbertError when the target is a file, a non-empty folder without `force`, or one that cannot be replaced
    whole (current or home folder, mount point), and for every OSError inside the block, such as a full disk. Other
    exceptions pass unchanged, after the same cleaning up.
    """
    shown = Path(target)
    real = _real(shown)
    temporary = _beside(real)
    made: list[Path] = []
    try:
        _check_target(shown, real, force)
        _make_parents(real.parent, made)
        temporary.mkdir()
        yield temporary
        _sync_tree(temporary)
        _publish(temporary, real, shown, force)
        made.clear()
        with suppress(OSError):  # it is written; a folder that may not be read cannot be flushed
            _sync(real.parent)
    except OSError as error:
        raise _cannot_write(shown, error, temporary) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        _remove_if_empty(made)


def write_file_atomic(path: Path, content: bytes | str) -> None:
    """Write one file, whole or not at all; an existing file is replaced and keeps its permissions. Text becomes UTF-8.

    Missing parents are made. A symbolic link is followed. Raises EdgeAlbertError when the path is a folder or a device,
    or the system refuses (disk full, no permission); the old content then still stands.
    """
    shown = Path(path)
    real = _real(shown)
    temporary = _beside(real)
    made: list[Path] = []
    data = content.encode("utf-8") if isinstance(content, str) else content
    try:
        if shown.exists() and not shown.is_file():
            raise EdgeAlbertError(f"{shown}: is a folder or a device: name an ordinary file")
        _make_parents(real.parent, made)
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if real.exists():
            shutil.copymode(real, temporary)
        os.replace(temporary, real)
        made.clear()
        with suppress(OSError):  # it is written; a folder that may not be read cannot be flushed
            _sync(real.parent)
    except OSError as error:
        raise _cannot_write(shown, error, temporary) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        _remove_if_empty(made)


def _real(shown: Path) -> Path:
    """The absolute path, symbolic links followed: neither a link nor a later chdir changes what is meant."""
    try:
        return Path(os.path.realpath(shown))
    except OSError as error:  # a relative path in a current folder that was deleted
        raise _cannot_write(shown, error, shown) from error


def _beside(real: Path) -> Path:
    return real.parent / HALF_WRITTEN.replace("*", secrets.token_hex(8))


def _check_target(shown: Path, real: Path, force: bool) -> None:
    if not os.path.lexists(real):
        return
    if not real.is_dir():
        raise EdgeAlbertError(f"{shown}: exists and is not a folder: name a folder to write to")
    here, home = _real(Path(os.curdir)), _real(Path(os.path.expanduser("~")))
    if real in (home, here, *here.parents) or os.path.ismount(real):
        raise EdgeAlbertError(
            f"{shown}: is the current or home folder, one above it, or a mount point, which cannot be replaced whole: "
            "name a folder inside it"
        )
    if not force and any(real.iterdir()):
        raise _exists(shown)


def _exists(shown: Path) -> EdgeAlbertError:
    return EdgeAlbertError(f"{shown}: already exists and is not empty: name another folder, or replace it with --force")


def _make_parents(folder: Path, made: list[Path]) -> None:
    """Make `folder` and what is missing above it; append to `made` what was new, the outermost first."""
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for new in reversed(missing):
        with suppress(FileExistsError):  # another process may make the same parents
            new.mkdir()
            made.append(new)


def _remove_if_empty(folders: list[Path]) -> None:
    for folder in reversed(folders):
        with suppress(OSError):
            folder.rmdir()


def _publish(temporary: Path, real: Path, shown: Path, force: bool) -> None:
    """Give the finished folder its name. Without `force`, nothing but an empty folder is ever replaced."""
    if real.is_dir():
        if not any(real.iterdir()):
            real.rmdir()
        elif force:
            _swap(temporary, real, shown)
            return
    try:
        os.rename(temporary, real)
    except OSError as error:  # somebody else wrote the target while this block ran
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            raise _exists(shown) from None
        raise


def _swap(temporary: Path, real: Path, shown: Path) -> None:
    aside = _beside(real)
    try:
        os.rename(real, aside)
        os.rename(temporary, real)
    except BaseException:
        if aside.exists() and not real.exists():
            os.rename(aside, real)
        raise
    try:
        shutil.rmtree(aside)
    except OSError as error:
        raise EdgeAlbertError(
            f"{shown}: written, but the folder it replaces could not be removed ({_reason(error)}): delete {aside}"
        ) from error
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise


def _sync_tree(folder: Path) -> None:
    """Flush every file and folder below to the disk, so that the rename cannot outrun the content."""
    for path, _, names in os.walk(folder, topdown=False):
        for name in names:
            _sync(Path(path, name))
        _sync(Path(path))


def _sync(path: Path) -> None:
    if os.name == "nt":  # Windows flushes only handles open for writing, and has none for folders
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # network file systems that cannot flush a folder
            raise
    finally:
        os.close(handle)


def _cannot_write(shown: Path, error: OSError, temporary: Path) -> EdgeAlbertError:
    """The error a person reads: the target, the reason, and the culprit where it is neither the target nor above it."""
    culprit = Path(str(error.filename)) if error.filename is not None else temporary
    ours = culprit.is_relative_to(temporary) or temporary.is_relative_to(culprit)
    where = "" if ours else f" on {culprit}"
    remedy = "nothing was left behind"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        remedy = "free some space, or name a folder on another disk"
    elif ours and error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        remedy = "name a folder that you may write to"
    return EdgeAlbertError(f"{shown}: could not be written ({_reason(error)}{where}): {remedy}")


def _reason(error: OSError) -> str:
    return " ".join((error.strerror or str(error) or type(error).__name__).split())
