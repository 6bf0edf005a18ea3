"""The suite that the user brings: which of its tests concern sbatch, and a copy of it that fits this machine."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

SYSTEM_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
_SUBMITS = re.compile(r"\bsbatch\b|submit_job")
# Debian's programs call themselves slurm-wlm; tests look for "slurm" and a number.
_SLURM_AND_A_NUMBER = re.compile(rb"^(.*(?:regexp|-re |re\.search).*?)slurm (?=[($\\[])", re.MULTILINE)
_TMP = b"/tmp/pytest-of-"


def folder_of(given: Path) -> Path:
    """`testsuite` itself, for a path to it or to Slurm's sources."""
    return (given / "testsuite" if (given / "testsuite").is_dir() else given).resolve()


def tests_of(suite: Path, only: str, *, python_alone: bool = False) -> list[str]:
    """The names of the test files that have to do with sbatch, in the order of their numbers."""
    files = [] if python_alone else [*suite.glob("expect/test*[0-9].*[0-9]")]
    files += suite.glob("python/tests/test_*.py")
    names = [path.name for path in files if path.is_file() and _SUBMITS.search(path.read_text("utf-8", "replace"))]
    return sorted(filter(re.compile(only).search, names), key=lambda name: [int(d) for d in re.findall(r"\d+", name)])


def copy_suite(suite: Path, to: Path, temp: Path) -> None:
    """The copy differs where a test would fail whatever submits, or reach beyond its own files."""
    shutil.copytree(suite, to, symlinks=True)
    conftest = to / "python" / "conftest.py"
    if conftest.exists():  # it opens all of /tmp/pytest-of-USER to everybody: ours is elsewhere
        conftest.write_bytes(conftest.read_bytes().replace(_TMP, f"{temp}/pytest-of-".encode()))
    if _version()[0] == "slurm-wlm":
        for path in (*to.glob("expect/test*"), *to.glob("python/tests/*.py"), *to.glob("python/lib/*.py")):
            if path.is_file():
                text = _SLURM_AND_A_NUMBER.sub(rb"\1slurm-wlm ", path.read_bytes())
                path.write_bytes(text.replace(b'.replace("slurm ", "")', b'.replace("slurm-wlm ", "")'))


def _version() -> tuple[str, str]:
    """How Slurm's daemons call themselves, and their release."""
    program = shutil.which("slurmctld", path=SYSTEM_PATH) or "slurmctld"
    name, _, release = subprocess.run([program, "-V"], capture_output=True, text=True, timeout=30).stdout.partition(" ")
    return name, release.strip()


def config_h() -> str:
    """What tests look for in the header that Slurm's configure writes."""
    return f'#define VERSION "{_version()[1]}"\n'


def globals_local(settings: Mapping[str, object]) -> str:
    """The file by which expect tests learn where things are."""
    return "".join(f'set {name} "{value}"\n' for name, value in settings.items())


def testsuite_conf(home: Path, slurm_conf: Path) -> str:
    """The same for the Python tests."""
    return f"SlurmSourceDir={home}\nSlurmBuildDir={home}\nSlurmInstallDir=/usr\nSlurmConfigDir={slurm_conf.parent}\n"
