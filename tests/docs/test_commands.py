"""Every command of the documentation, run as its reader would: page by page, in order, on a real Slurm.

What a page says of running its blocks stands in doc_pages.py, how it is done in doc_session.py. What is not run here
is read all the same (test_pages.py) and listed by the last test. `make docs-test` runs all pages; the tutorial has a
file of its own.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from doc_pages import NOT_RUN, PAGES, ROOT, RUN, blocks
from doc_run import TUTORIAL, WITH_COMMANDS, runnable, wrong_on
from doc_session import Session

pytestmark = [pytest.mark.lab, pytest.mark.torch]


# Run by `make test`: what a newcomer reads first. The others train, too, and each takes up to two minutes.
EVERY_RUN = (ROOT / "README.md",)


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(path, id=str(path.relative_to(ROOT)), marks=[] if path in EVERY_RUN else pytest.mark.slow)
        for path in WITH_COMMANDS
        if path != TUTORIAL
    ],
)
def test_the_commands_of_a_page_do_what_it_says(page: Path, session: Session) -> None:
    if wrong := wrong_on(page, session):
        pytest.fail("\n\n".join(wrong), pytrace=False)


def test_a_page_has_blocks_or_none_of_its_lines_is_a_command() -> None:
    """Every block of commands is run or says why not: there is no third kind."""
    every = {block.where for path in PAGES for block in blocks(path) if block.language in RUN}
    run = {block.where for path in WITH_COMMANDS for block in runnable(path)}
    named = {block.where for path in PAGES for block in blocks(path) if block.language in RUN and block.not_run}
    assert every == run | named
    assert run & named == set()


def test_what_is_not_run_here_is_listed() -> None:
    left = [
        block for path in PAGES for block in blocks(path) if block.language in RUN and block.not_run.startswith(NOT_RUN)
    ]
    if left:
        pytest.skip(f"{len(left)} blocks: {', '.join(f'{block.where} ({block.not_run})' for block in left)}")
