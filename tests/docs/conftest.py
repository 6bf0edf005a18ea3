"""What the tests of documented commands share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from doc_session import Session


@pytest.fixture
def session(lab_users: tuple[str, str], lab_scratch: Path, request: pytest.FixtureRequest) -> Iterator[Session]:
    """A reader's home, shells, and a place for his lab."""
    one = Session(lab_scratch / f"page-{abs(hash(request.node.name))}", lab_users[0])
    try:
        yield one
    finally:
        one.end()
