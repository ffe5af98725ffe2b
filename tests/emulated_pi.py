"""A Raspberry Pi without a Pi: Debian's own Python and the real ARM wheels, run by QEMU's user-mode emulator.

Raspberry Pi OS is Debian: bookworm brings Python 3.11, trixie 3.13. `emulated_pi(name)` unpacks that Python and what it
needs from Debian's archive, and QEMU runs it (`qemu-aarch64-static -L ROOT`, qemu.org, user mode emulation). Nothing
here needs root, a container or binfmt; nothing outside the cache folder is touched. It proves that the wheels load, and
which numbers they give; it says nothing about a Pi's speed or memory.

Needs Linux with apt and a Debian archive among its sources. Kept in the folder that EDGE_ALBERT_ENVS names, or in
~/.cache/edge_albert/envs. Where it cannot be made the test is skipped with the reason; in CI (CI set) it fails.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest

ROOT = Path(__file__).resolve().parents[1]
_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")

# import onnxruntime crashes where it finds no processor it knows (or the emulating machine's own): a Pi 4's.
_CORE = """\
processor\t: {core}
BogoMIPS\t: 108.00
Features\t: {features}
CPU implementer\t: 0x41
CPU architecture: {architecture}
CPU variant\t: 0x0
CPU part\t: 0xd08
CPU revision\t: 3

"""
_BOARD = "Hardware\t: BCM2711\nRevision\t: c03111\nModel\t\t: Raspberry Pi 4 Model B Rev 1.1\n"


@dataclass(frozen=True)
class System:
    """suite, architecture: Debian's names. cpu: QEMU's. machine: as in the tags of wheels. glibc: 2.x of the suite."""

    suite: str
    architecture: str
    python: str
    emulator: str
    cpu: str
    machine: str
    glibc: int
    features: str
    extra_packages: tuple[str, ...] = ()

    @property
    def packages(self) -> tuple[str, ...]:
        python = self.python
        return (f"python{python}-minimal", f"libpython{python}-stdlib", "libstdc++6", *self.extra_packages)

    @property
    def wheel_tags(self) -> list[str]:
        """pip's --platform arguments: what pip itself accepts on such a system."""
        names = [f"manylinux_2_{minor}_{self.machine}" for minor in range(self.glibc, 16, -1)]
        return [word for name in (*names, f"manylinux2014_{self.machine}") for word in ("--platform", name)]


_AARCH64 = ("arm64", "qemu-aarch64-static", "cortex-a53", "aarch64", "fp asimd evtstrm crc32 cpuid")
_ARMV7 = ("armhf", "qemu-arm-static", "cortex-a7", "armv7l", "half thumb fastmult vfp edsp neon vfpv3 tls vfpv4 idiva")


def _system(suite: str, python: str, glibc: int, hardware: tuple[str, ...], *extra: str) -> System:
    architecture, emulator, cpu, machine, features = hardware
    return System(suite, architecture, python, emulator, cpu, machine, glibc, features, extra)


SYSTEMS = {
    "aarch64-3.11": _system("bookworm", "3.11", 36, _AARCH64),
    "aarch64-3.13": _system("trixie", "3.13", 41, _AARCH64),
    "armv7-3.11": _system("bookworm", "3.11", 36, _ARMV7, "python3-numpy"),  # PyPI has no numpy for it
}


@dataclass(frozen=True)
class EmulatedPi:
    """An emulated system. python: a script that runs its Python; packages: folders where that finds more packages."""

    system: System
    python: Path
    packages: tuple[Path, ...] = ()

    def run(self, *arguments: str, folder: Path, cpu: str | None = None) -> subprocess.CompletedProcess[str]:
        """Its `python3 …` in a folder of this machine. Nothing of the tests' environment reaches it.

        cpu: QEMU's name of another processor than the system's.
        """
        environment = {
            "PATH": "/usr/bin:/bin",
            "HOME": str(folder),
            "OMP_NUM_THREADS": "1",
            "QEMU_CPU": cpu or self.system.cpu,
            "PYTHONPATH": os.pathsep.join(map(str, self.packages)),
        }
        command = [str(self.python), *arguments]
        return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900)


# Python takes the name it was started by for sys.executable, so that its children are emulated too; -0 is that name.
_PYTHON = """\
#!/bin/sh
exec '{emulator}' -L '{root}' -0 "$0" '{root}/usr/bin/python{version}' "$@"
"""


def emulated_pi(name: str) -> EmulatedPi:
    """The emulated system of that name in SYSTEMS, made if need be: about 90 MB to download, 90 MB on disk."""
    if sys.platform != "linux":
        _unavailable("user mode emulation needs Linux")
    for tool in ("apt-get", "dpkg-deb", "tar"):
        if shutil.which(tool) is None:
            _unavailable(f"{tool} is not installed here")
    if not _KEYRING.is_file():
        _unavailable("Debian's keys are not installed here: apt-get install debian-archive-keyring")
    system = SYSTEMS[name]
    try:
        emulator = _emulator(system)
        root = kept(f"debian-{system.suite}-{system.architecture}", lambda folder: _make_root(system, folder))
    except subprocess.CalledProcessError as error:
        _unavailable(f"{name} cannot be made here: {_last_line(error)}")
    python = root / "usr" / "bin" / "emulated-python"
    text = _PYTHON.format(emulator=emulator, root=root, version=system.python)
    if not python.exists() or python.read_text() != text:
        python.write_text(text)
        python.chmod(0o755)
    return EmulatedPi(system, python)


def install_project(pi: EmulatedPi, target: Path, *extras: str) -> None:
    """The project's wheel, and its dependencies of the versions in constraints.txt, for that system into `target`.

    pip chooses by the wheel's own metadata, as it does on a Pi; wheels only, nothing is compiled.
    """
    wheel = project_wheel(target.parent)
    requirement = f"{wheel}[{','.join(extras)}]" if extras else str(wheel)
    pip_install(pi.system, target, requirement, "-c", str(ROOT / "constraints.txt"))


def project_wheel(folder: Path) -> Path:
    """Build the project's wheel from a copy of its sources: a build leaves its traces beside them."""
    sources = folder / "sources"
    for name in ("edge_albert", "converters", "calibration"):
        shutil.copytree(ROOT / name, sources / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, sources)
    run_tool(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder), str(sources))
    return next(folder.glob("edge_albert-*.whl"))


def pip_install(system: System, target: Path, *arguments: str) -> None:
    """`pip install` of wheels for that system, by this machine's pip."""
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-compile", "--only-binary=:all:"]
    command += ["--python-version", system.python, *system.wheel_tags, "--target", str(target), *arguments]
    try:
        run_tool(*command)
    except subprocess.CalledProcessError as error:
        _unavailable(f"the wheels for {system.machine} cannot be had here: {_last_line(error)}")


def kept(name: str, make: Callable[[Path], None]) -> Path:
    """A folder of the cache: made once, in a neighbour that takes its name when it is complete."""
    cache = Path(os.environ.get("EDGE_ALBERT_ENVS", Path.home() / ".cache" / "edge_albert" / "envs"))
    folder = cache / name
    if not folder.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix=f".{name}-") as scratch:
            making = Path(scratch) / name
            making.mkdir()
            make(making)
            if not folder.is_dir():  # another process may have been faster
                making.rename(folder)
    return folder


def debian_packages(suite: str, architecture: str, names: Sequence[str], folder: Path, *, alone: bool) -> list[Path]:
    """Download packages of any Debian suite and architecture, signatures checked; `alone`: without dependencies.

    apt works on a configuration of its own (apt.conf(5)), so the machine's own packages and lists are not touched.
    """
    for part in ("lists/partial", "archives/partial", "parts"):
        (folder / part).mkdir(parents=True)
    (folder / "status").touch()
    (folder / "sources.list").write_text(f"deb [signed-by={_KEYRING}] {_archive()} {suite} main\n")
    settings = {
        "Dir::State": folder,
        "Dir::State::Lists": folder / "lists",
        "Dir::State::Status": folder / "status",
        "Dir::Cache": folder,
        "Dir::Cache::Archives": folder / "archives",
        "Dir::Etc::SourceList": folder / "sources.list",
        **{f"Dir::Etc::{kind}": folder / "parts" for kind in ("SourceParts", "Parts", "PreferencesParts")},
        "APT::Architecture": architecture,
        "APT::Architectures": architecture,
        "APT::Install-Recommends": "false",
        "APT::Sandbox::User": "root",
        "Acquire::Languages": "none",
        "Debug::NoLocking": "true",
    }
    configuration = folder / "apt.conf"
    configuration.write_text("".join(f'{name} "{value}";\n' for name, value in settings.items()))
    environment = {**os.environ, "APT_CONFIG": str(configuration)}
    run_tool("apt-get", "-qq", "update", env=environment)
    if alone:
        run_tool("apt-get", "-qq", "download", *names, cwd=folder / "archives", env=environment)
    else:
        run_tool("apt-get", "-qq", "-y", "--download-only", "install", *names, env=environment)
    return sorted((folder / "archives").glob("*.deb"))


def unpack(package: Path, folder: Path, *members: str) -> None:
    """A .deb's files (or only those named) into a folder, as they are: no script of the package runs."""
    # tar, since dpkg-deb -x would replace the links lib ► usr/lib by folders
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(package)], stdout=subprocess.PIPE) as archive:
        run_tool("tar", "-x", "--keep-directory-symlink", "-C", str(folder), *members, stdin=archive.stdout)


def run_tool(*command: str, **options) -> None:
    """Run a tool in silence. CalledProcessError, with what it said, when it fails."""
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=900, **options)


def _make_root(system: System, folder: Path) -> None:
    for name in ("bin", "lib", "sbin"):
        (folder / "usr" / name).mkdir(parents=True)
        (folder / name).symlink_to(f"usr/{name}")
    with tempfile.TemporaryDirectory() as scratch:
        packages = debian_packages(system.suite, system.architecture, system.packages, Path(scratch), alone=False)
        for package in packages:
            unpack(package, folder)
    for library in ("blas/libblas.so.3", "lapack/liblapack.so.3"):  # what update-alternatives links on a real system
        for found in folder.glob(f"usr/lib/*/{library}"):
            (found.parents[1] / found.name).symlink_to(library)
    version = "8" if system.machine == "aarch64" else "7"
    cores = [_CORE.format(core=core, features=system.features, architecture=version) for core in range(4)]
    (folder / "proc").mkdir()
    (folder / "proc" / "cpuinfo").write_text("".join(cores) + _BOARD)


def _emulator(system: System) -> Path:
    """QEMU's static emulator: this machine's, or else Debian's, unpacked."""
    installed = shutil.which(system.emulator)
    if installed is not None:
        return Path(installed)
    member = f"usr/bin/{system.emulator}"

    def make(folder: Path) -> None:
        here = subprocess.run(["dpkg", "--print-architecture"], check=True, capture_output=True, text=True).stdout
        with tempfile.TemporaryDirectory() as scratch:
            found = debian_packages("bookworm", here.strip(), ["qemu-user-static"], Path(scratch), alone=True)
            unpack(found[0], folder, f"./{member}")

    return kept(system.emulator, make) / member


def _archive() -> str:
    """The Debian archive that this machine's own apt uses: a mirror near it, where it has one."""
    found = subprocess.run(["apt-get", "--print-uris", "update"], check=True, capture_output=True, text=True).stdout
    archives = [line.strip("'").partition("/dists/")[0] for line in found.splitlines()]
    debian = [uri for uri in archives if uri.endswith("/debian")]
    return debian[0] if debian else _unavailable("apt's sources name no Debian archive")


def _unavailable(reason: str) -> NoReturn:
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


def _last_line(error: subprocess.CalledProcessError) -> str:
    lines = (error.stderr or b"").decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else str(error)
