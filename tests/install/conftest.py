"""The fixture with a directory tree to install into."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from images import make_image


@pytest.fixture
def image(tmp_path: Path) -> Path:
    if os.geteuid() != 0:
        pytest.skip("files of other owners need root")
    return make_image(tmp_path / "image")
