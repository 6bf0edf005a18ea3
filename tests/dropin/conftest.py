"""Fixtures of the drop-in tests."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from dropin_compare import ALICE


@pytest.fixture
def home(lab_scratch: Path) -> Path:
    """A new directory that alice may write and every user may enter."""
    path = Path(tempfile.mkdtemp(prefix="dropin-", dir=lab_scratch))
    path.chmod(0o755)
    shutil.chown(path, ALICE)
    return path
