"""Runs the tutorial. It has its own file so that another worker can run the other pages at the same time."""

from __future__ import annotations

import pytest
from doc_run import TUTORIAL, list_page_failures
from doc_session import Session
from waiting import allow

pytestmark = [pytest.mark.lab, pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(allow(420))]


def test_the_commands_of_the_tutorial_do_what_it_says(session: Session) -> None:
    if wrong := list_page_failures(TUTORIAL, session):
        pytest.fail("\n\n".join(wrong), pytrace=False)
