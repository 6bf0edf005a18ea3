"""The suite given by the user: select its tests that concern sbatch, and make a copy that fits this machine."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

SYSTEM_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
_SUBMITS = re.compile(r"\bsbatch\b|submit_job")
# Debian's programs report their version as slurm-wlm; tests expect "slurm" and a number.
_SLURM_AND_A_NUMBER = re.compile(rb"^(.*(?:regexp|-re |re\.search).*?)slurm (?=[($\\[])", re.MULTILINE)
_TMP = b"/tmp/pytest-of-"


def folder_of(given: Path) -> Path:
    """Return the path of `testsuite`, for a path to it or to Slurm's sources."""
    return (given / "testsuite" if (given / "testsuite").is_dir() else given).resolve()


def tests_of(suite: Path, only: str, *, python_alone: bool = False) -> list[str]:
    """Return the names of the test files that concern sbatch, in the order of their numbers."""
    files = [] if python_alone else [*suite.glob("expect/test*[0-9].*[0-9]")]
    files += suite.glob("python/tests/test_*.py")
    names = [path.name for path in files if path.is_file() and _SUBMITS.search(path.read_text("utf-8", "replace"))]
    return sorted(filter(re.compile(only).search, names), key=lambda name: [int(d) for d in re.findall(r"\d+", name)])


def copy_suite(suite: Path, to: Path, temp: Path) -> None:
    """Copy the suite, with changes where a test would fail with any program or access files outside its own."""
    shutil.copytree(suite, to, symlinks=True)
    conftest = to / "python" / "conftest.py"
    if conftest.exists():  # it makes all of /tmp/pytest-of-USER accessible to all users; tests here use another folder
        conftest.write_bytes(conftest.read_bytes().replace(_TMP, f"{temp}/pytest-of-".encode()))
    if _version()[0] == "slurm-wlm":
        for path in (*to.glob("expect/test*"), *to.glob("python/tests/*.py"), *to.glob("python/lib/*.py")):
            if path.is_file():
                text = _SLURM_AND_A_NUMBER.sub(rb"\1slurm-wlm ", path.read_bytes())
                path.write_bytes(text.replace(b'.replace("slurm ", "")', b'.replace("slurm-wlm ", "")'))


def _version() -> tuple[str, str]:
    """Return the name and release that Slurm's daemons report."""
    program = shutil.which("slurmctld", path=SYSTEM_PATH) or "slurmctld"
    name, _, release = subprocess.run([program, "-V"], capture_output=True, text=True, timeout=30).stdout.partition(" ")
    return name, release.strip()


def config_h() -> str:
    """Return the definitions that tests look up in the header that Slurm's configure writes."""
    return f'#define VERSION "{_version()[1]}"\n'


def globals_local(settings: Mapping[str, object]) -> str:
    """Return the file with which expect tests find paths and programs."""
    return "".join(f'set {name} "{value}"\n' for name, value in settings.items())


def testsuite_conf(home: Path, slurm_conf: Path) -> str:
    """Return the corresponding file for the Python tests."""
    return f"SlurmSourceDir={home}\nSlurmBuildDir={home}\nSlurmInstallDir=/usr\nSlurmConfigDir={slurm_conf.parent}\n"
