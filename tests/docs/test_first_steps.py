"""What a newcomer reads first does what it says: the README, the tutorial, the examples."""

from __future__ import annotations

from pathlib import Path

import pytest
from doc_pages import ROOT
from doc_run import FIRST, WITH_COMMANDS, wrong_on
from doc_session import Session

pytestmark = [pytest.mark.lab, pytest.mark.torch, pytest.mark.timeout(420)]  # the tutorial trains and retries


@pytest.mark.parametrize("page", FIRST, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_commands_of_a_page_do_what_it_says(page: Path, session: Session) -> None:
    if wrong := wrong_on(page, session):
        pytest.fail("\n\n".join(wrong), pytrace=False)


def test_the_first_pages_have_commands() -> None:
    assert set(FIRST) <= set(WITH_COMMANDS)
