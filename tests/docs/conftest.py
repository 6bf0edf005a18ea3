"""What the tests of documented commands share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import warm
from doc_session import Session


@pytest.fixture(scope="session")
def server(lab_scratch: Path) -> Iterator[str]:
    """Where `slurmwrap` is answered without loading it anew."""
    address = lab_scratch / "warm"
    with warm.start(address):
        yield str(address)


@pytest.fixture
def session(
    lab_users: tuple[str, str], lab_scratch: Path, server: str, request: pytest.FixtureRequest
) -> Iterator[Session]:
    """A reader's home, shells, and a place for his lab."""
    one = Session(lab_scratch / f"page-{abs(hash(request.node.name))}", lab_users[0], server)
    try:
        yield one
    finally:
        one.end()
