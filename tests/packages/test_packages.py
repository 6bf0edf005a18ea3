"""The installable packages: wheel and sdist by pip, pipx and uv, the Debian package and the RPM (make packages).

All are built from this checkout and installed in a clean environment; libraries come from the package index.
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
    """The environment of a new user: an empty home, and only pip's variables for the package index."""
    index = {name: value for name, value in os.environ.items() if name.startswith("PIP_") or name.endswith("_proxy")}
    path = f"{tmp_path}/.local/bin:/usr/local/bin:/usr/bin:/bin"
    return {**index, "HOME": str(tmp_path), "PATH": path, "LANG": "C.UTF-8"}


def run_checked(argv: list[str | Path], environ: Mapping[str, str]) -> str:
    """Run a program and return its output; if it fails, the test fails with that output."""
    done = subprocess.run(argv, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}"
    return done.stdout


def check_programs(programs: Path, environ: Mapping[str, str], tmp_path: Path) -> None:
    """Check that both programs run, find the shipped files, and classify a failure."""
    assert run_checked([programs / "slurmwrap", "--version"], environ) == f"slurmwrap {__version__}\n"
    help_text = subprocess.run([programs / "gsub", "--help"], env=environ, capture_output=True, text=True).stdout
    assert "gsub submits a GPU job as sbatch does" in help_text  # sbatch's own help, if any, comes first
    assert "_gsub" in run_checked([programs / "slurmwrap", "completion", "bash"], environ)
    log = tmp_path / "slurm-1.out"
    log.write_text("torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n")
    assert "gpu_oom" in run_checked([programs / "slurmwrap", "classify", log], environ)


def test_the_sdist_builds_the_same_wheel(built: Path, clean: Mapping[str, str], tmp_path: Path) -> None:
    """A wheel that a distributor builds from the sdist is the published wheel."""
    argv = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", tmp_path / "again"]
    run_checked([*argv, built / f"slurmwrap-{__version__}.tar.gz"], clean)
    again = tmp_path / "again" / f"slurmwrap-{__version__}-py3-none-any.whl"
    assert content(again) == content(built / again.name)


def content(wheel: Path) -> dict[str, bytes]:
    """File → bytes, without RECORD, whose order depends on the build."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("RECORD")}


def test_the_sdist_contains_what_tests_and_documentation_need(built: Path) -> None:
    with tarfile.open(built / f"slurmwrap-{__version__}.tar.gz") as archive:
        folders = {name.split("/")[1] for name in archive.getnames() if "/" in name}
    wanted = {"slurmwrap", "templates", "prolog", "hooks", "tests", "examples", "docs", "bench", ".ci"}
    assert folders >= wanted | {"README.md", "LICENSE", "CHANGELOG.md", "Makefile", "pyproject.toml"}


@pytest.mark.parametrize("kind", ["py3-none-any.whl", ".tar.gz"])
def test_pipx_installs_slurmwrap(kind: str, built: Path, clean: Mapping[str, str], tmp_path: Path) -> None:
    pipx = shutil.which("pipx")
    assert pipx, "apt-get install pipx"
    file = f"slurmwrap-{__version__}{'-' if kind.endswith('whl') else ''}{kind}"
    run_checked([pipx, "install", built / file], clean)
    check_programs(tmp_path / ".local" / "bin", clean, tmp_path)
    run_checked([pipx, "uninstall", "slurmwrap"], clean)
    assert not (tmp_path / ".local" / "bin" / "gsub").is_symlink()


@pytest.mark.parametrize("kind", ["py3-none-any.whl", ".tar.gz"])
def test_uv_installs_slurmwrap(kind: str, built: Path, clean: Mapping[str, str], tmp_path: Path) -> None:
    uv = Path(sys.executable).with_name("uv")
    theirs = {"PIP_INDEX_URL": "UV_DEFAULT_INDEX", "PIP_FIND_LINKS": "UV_FIND_LINKS", "PIP_CERT": "SSL_CERT_FILE"}
    environ = {**clean, **{ours: clean[pips] for pips, ours in theirs.items() if pips in clean}}
    file = f"slurmwrap-{__version__}{'-' if kind.endswith('whl') else ''}{kind}"
    run_checked([uv, "tool", "install", "--python", "/usr/bin/python3", built / file], environ)
    check_programs(tmp_path / ".local" / "bin", clean, tmp_path)


def test_the_wheel_has_the_programs_slurmwrap_and_gsub_only(built: Path) -> None:
    with zipfile.ZipFile(built / f"slurmwrap-{__version__}-py3-none-any.whl") as archive:
        names = archive.namelist()
        points = archive.read(f"slurmwrap-{__version__}.dist-info/entry_points.txt").decode()
    assert points.split() == ["[console_scripts]", "slurmwrap", "=", "slurmwrap.cli.slurmwrap:main"]
    scripts = [name for name in names if ".data/scripts/" in name]
    assert scripts == [f"slurmwrap-{__version__}.data/scripts/gsub"]


@pytest.mark.skipif(os.geteuid() != 0, reason="a clean Debian is made by root")
@pytest.mark.parametrize("suite", ["bookworm", "trixie"])
def test_the_debian_package_works_in_a_clean_debian(suite: str, built: Path) -> None:
    """.ci/debian/check installs the package, submits jobs on that Debian's Slurm, and removes it completely."""
    done = subprocess.run([ROOT / ".ci" / "package", "try", suite], capture_output=True, text=True)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["check: passed"]), done.stdout + done.stderr


@pytest.fixture
def rpm(built: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The RPM, for the Python of Debian 12; the one for RHEL differs in this name alone."""
    if not shutil.which("rpmbuild"):
        pytest.skip("apt-get install rpm")
    monkeypatch.setenv("RPM_PYTHON", "3.11")
    done = subprocess.run([ROOT / ".ci" / "package", "rpm"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (found,) = built.glob("*.rpm")
    return found


@pytest.mark.skipif(os.geteuid() != 0, reason="a clean Debian is made by root")
def test_the_rpm_works_in_a_clean_debian(rpm: Path) -> None:
    """No RHEL can be had here: Debian's rpm installs it with its scriptlets, on Debian's Python (.ci/debian/check)."""
    done = subprocess.run([ROOT / ".ci" / "package", "try", "bookworm", "rpm"], capture_output=True, text=True)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["check: passed"]), done.stdout + done.stderr


def test_the_rpm_is_roots_and_names_its_python_and_bundled_libraries(rpm: Path) -> None:
    def query(*options: str) -> list[str]:
        return subprocess.run(["rpm", "-qp", *options, rpm], capture_output=True, text=True, check=True).stdout.split(
            "\n"
        )

    rows = [line.split(None, 4)[:4] for line in query("-lv") if line]
    assert {(row[2], row[3]) for row in rows} == {("root", "root")}
    assert {row[0] for row in rows} == {"drwxr-xr-x", "-rw-r--r--", "-rwxr-xr-x", "lrwxrwxrwx"}
    assert query("--configfiles") == [""]  # an administrator's first step is `slurmwrap hooks plan`
    assert "/usr/bin/python3.11" in query("--requires")
    wanted = [line for name in ("debian", "rpm") for line in (ROOT / ".ci" / name / "bundled.txt").read_text().split()]
    bundled = [line for line in query("--provides") if line.startswith("bundled(")]
    assert len(bundled) == sum("==" in word for word in wanted)


def test_rpmlint_reports_no_fault(rpm: Path) -> None:
    """.ci/rpm/rpmlint.toml names what stays, with the reasons."""
    rpmlint = shutil.which("rpmlint")
    assert rpmlint, "apt-get install rpmlint"
    done = subprocess.run([rpmlint, "-c", ROOT / ".ci/rpm/rpmlint.toml", rpm], capture_output=True, text=True)
    assert done.returncode == 0 and " 0 errors, 0 warnings" in done.stdout, done.stdout


def test_lintian_reports_no_fault(built: Path) -> None:
    """All checks of lintian except for the mail address: the maintainer's host does not exist."""
    lintian = shutil.which("lintian")
    assert lintian, "apt-get install lintian"
    (package,) = built.glob("*.deb")
    argv = [lintian, "--suppress-tags", "bogus-mail-host,bogus-mail-host-in-debian-changelog", package]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")
