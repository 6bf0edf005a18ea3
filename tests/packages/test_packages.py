"""What people install: wheel and sdist by pip, pipx and uv, and the Debian package in a clean Debian (make packages).

Everything is built from this checkout and installed where nothing of ours is; libraries come from the package index.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from slurmwrap import __version__

ROOT = Path(__file__).resolve().parents[2]
DIST = ROOT / "build" / "dist"

pytestmark = [pytest.mark.packages, pytest.mark.timeout(900)]


@pytest.fixture(scope="session")
def built() -> Iterator[Path]:
    """build/dist with wheel, sdist and Debian package of this checkout."""
    for what in ("wheel", "deb"):
        done = subprocess.run([ROOT / ".ci" / "package", what], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    yield DIST


@pytest.fixture
def clean(tmp_path: Path) -> Mapping[str, str]:
    """An environment of a user who has nothing: a home of his own, and pip's way to its index alone."""
    index = {name: value for name, value in os.environ.items() if name.startswith("PIP_") or name.endswith("_proxy")}
    path = f"{tmp_path}/.local/bin:/usr/local/bin:/usr/bin:/bin"
    return {**index, "HOME": str(tmp_path), "PATH": path, "LANG": "C.UTF-8"}


def said(argv: list[str | Path], environ: Mapping[str, str]) -> str:
    """Its output; the test fails with its words where it fails."""
    done = subprocess.run(argv, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}"
    return done.stdout


def works(programs: Path, environ: Mapping[str, str], tmp_path: Path) -> None:
    """Both programs run, find what is shipped beside the code, and tell a failure's category."""
    assert said([programs / "slurmwrap", "--version"], environ) == f"slurmwrap {__version__}\n"
    told = subprocess.run([programs / "gsub", "--help"], env=environ, capture_output=True, text=True).stdout
    assert "gsub submits a GPU job as sbatch does" in told  # sbatch's own answer, where there is one, stands before it
    assert "_gsub" in said([programs / "slurmwrap", "completion", "bash"], environ)
    log = tmp_path / "slurm-1.out"
    log.write_text("torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n")
    assert "gpu_oom" in said([programs / "slurmwrap", "classify", log], environ)


def test_the_sdist_makes_the_same_wheel(built: Path, clean: Mapping[str, str], tmp_path: Path) -> None:
    """What a distributor builds from the sdist is what we publish."""
    argv = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", tmp_path / "again"]
    said([*argv, built / f"slurmwrap-{__version__}.tar.gz"], clean)
    again = tmp_path / "again" / f"slurmwrap-{__version__}-py3-none-any.whl"
    assert content(again) == content(built / again.name)


def content(wheel: Path) -> dict[str, bytes]:
    """File → bytes, without the list of digests, which names its own time of packing nowhere but in its order."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("RECORD")}


def test_the_sdist_holds_what_the_tests_and_the_pages_need(built: Path) -> None:
    with tarfile.open(built / f"slurmwrap-{__version__}.tar.gz") as archive:
        folders = {name.split("/")[1] for name in archive.getnames() if "/" in name}
    wanted = {"slurmwrap", "templates", "prolog", "hooks", "tests", "examples", "docs", "bench", ".ci"}
    assert folders >= wanted | {"README.md", "LICENSE", "CHANGELOG.md", "Makefile", "pyproject.toml"}


@pytest.mark.parametrize("kind", ["py3-none-any.whl", ".tar.gz"])
def test_pipx_installs_it(kind: str, built: Path, clean: Mapping[str, str], tmp_path: Path) -> None:
    pipx = shutil.which("pipx")
    assert pipx, "apt-get install pipx"
    file = f"slurmwrap-{__version__}{'-' if kind.endswith('whl') else ''}{kind}"
    said([pipx, "install", built / file], clean)
    works(tmp_path / ".local" / "bin", clean, tmp_path)
    said([pipx, "uninstall", "slurmwrap"], clean)
    assert not (tmp_path / ".local" / "bin" / "gsub").is_symlink()


@pytest.mark.parametrize("kind", ["py3-none-any.whl", ".tar.gz"])
def test_uv_installs_it(kind: str, built: Path, clean: Mapping[str, str], tmp_path: Path) -> None:
    uv = Path(sys.executable).with_name("uv")
    theirs = {"PIP_INDEX_URL": "UV_DEFAULT_INDEX", "PIP_FIND_LINKS": "UV_FIND_LINKS", "PIP_CERT": "SSL_CERT_FILE"}
    environ = {**clean, **{ours: clean[pips] for pips, ours in theirs.items() if pips in clean}}
    file = f"slurmwrap-{__version__}{'-' if kind.endswith('whl') else ''}{kind}"
    said([uv, "tool", "install", "--python", "/usr/bin/python3", built / file], environ)
    works(tmp_path / ".local" / "bin", clean, tmp_path)


def test_the_programs_of_the_wheel_are_these_two(built: Path) -> None:
    with zipfile.ZipFile(built / f"slurmwrap-{__version__}-py3-none-any.whl") as archive:
        names = archive.namelist()
        points = archive.read(f"slurmwrap-{__version__}.dist-info/entry_points.txt").decode()
    assert points.split() == ["[console_scripts]", "slurmwrap", "=", "slurmwrap.cli.slurmwrap:main"]
    scripts = [name for name in names if ".data/scripts/" in name]
    assert scripts == [f"slurmwrap-{__version__}.data/scripts/gsub"]


@pytest.mark.skipif(os.geteuid() != 0, reason="a clean Debian is made by root")
@pytest.mark.parametrize("suite", ["bookworm", "trixie"])
def test_the_debian_package_in_a_clean_debian(suite: str, built: Path) -> None:
    """.ci/debian/check: installs it, submits jobs by it on that Debian's Slurm, and removes it without a trace."""
    done = subprocess.run([ROOT / ".ci" / "package", "try", suite], capture_output=True, text=True)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["check: passed"]), done.stdout + done.stderr


def test_lintian_finds_no_fault(built: Path) -> None:
    """All of Debian's own checks but one: the maintainer has no address on a real host."""
    lintian = shutil.which("lintian")
    assert lintian, "apt-get install lintian"
    (package,) = built.glob("*.deb")
    argv = [lintian, "--suppress-tags", "bogus-mail-host,bogus-mail-host-in-debian-changelog", package]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")
