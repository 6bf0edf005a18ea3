"""The tutorial does what it says. In a file of its own: it trains and retries while a worker runs the other pages."""

from __future__ import annotations

import pytest
from doc_run import TUTORIAL, wrong_on
from doc_session import Session
from waiting import allow

pytestmark = [pytest.mark.lab, pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(allow(420))]


def test_the_commands_of_the_tutorial_do_what_it_says(session: Session) -> None:
    if wrong := wrong_on(TUTORIAL, session):
        pytest.fail("\n\n".join(wrong), pytrace=False)
