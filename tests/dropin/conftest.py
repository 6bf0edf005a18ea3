"""What the tests of this folder share."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import warm
from dropin_compare import ALICE, WarmLab
from realslurm import Lab


@pytest.fixture(scope="session")
def server(lab_scratch: Path) -> Iterator[str]:
    """Where gsub is answered without loading it anew."""
    address = lab_scratch / "warm-dropin"
    with warm.start(address):
        yield str(address)


@pytest.fixture(scope="session")
def lab(lab: Lab, server: str) -> Lab:
    """The lab of all tests; what its `run` starts of ours is warm. One that is started by itself is still a process."""
    return WarmLab.of(lab, server)


@pytest.fixture
def home(lab_scratch: Path) -> Path:
    """A fresh directory that alice may write and all may pass."""
    path = Path(tempfile.mkdtemp(prefix="dropin-", dir=lab_scratch))
    path.chmod(0o755)
    shutil.chown(path, ALICE)
    return path
