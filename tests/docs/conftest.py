"""Fixtures of the tests of documented commands."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from doc_session import Session


@pytest.fixture
def session(lab_users: tuple[str, str], lab_scratch: Path, request: pytest.FixtureRequest) -> Iterator[Session]:
    """Home directory, shells and lab directory of a reader."""
    page_session = Session(lab_scratch / f"page-{abs(hash(request.node.name))}", lab_users[0])
    try:
        yield page_session
    finally:
        page_session.end()
