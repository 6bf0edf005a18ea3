"""Fixtures for tests of the hooks: one node with its controller, and a stand-in for NVML built from tests/data/nvml."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from gate_site import Gate, enable_gate
from hook_site import Site, make_site

SOURCE = Path(__file__).parents[1] / "data" / "nvml" / "fake_nvml.c"


@pytest.fixture
def site(open_dir: Path, munge_socket: str) -> Iterator[Site]:
    if os.geteuid() != 0:
        pytest.skip("hooks run as root")
    made = make_site(open_dir, munge_socket, str(Path(sys.executable).resolve()))
    yield made
    made.end()


@pytest.fixture(scope="session")
def libnvml(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Builds libnvidia-ml.so.1 with the given compiler flags; returns the directory that holds it."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler (Debian: apt-get install gcc)")

    def build(*flags: str) -> str:
        directory: Path = tmp_path_factory.getbasetemp() / ("nvml" + "".join(flags))
        directory.mkdir(exist_ok=True)
        argv = [compiler, "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1", *flags]
        library = directory / "libnvidia-ml.so.1"
        if not library.exists():
            subprocess.run([*argv, "-o", str(library), str(SOURCE)], check=True)
        return str(directory)

    return build


@pytest.fixture
def gate(site: Site, libnvml: Callable[..., str]) -> Gate:
    """The node with its Prolog gate on."""
    return enable_gate(site, libnvml())
