"""Every command of the documentation, run as its reader would: page by page, in order, on a real Slurm.

doc_pages.py describes the instructions for blocks, doc_session.py how they are run. Blocks that are not run are
still checked (test_pages.py) and are listed by the last test. `make docs-test` runs all pages; the tutorial has its
own file.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from doc_pages import NOT_RUN, PAGES, ROOT, RUN, parse_blocks
from doc_run import TUTORIAL, WITH_COMMANDS, list_page_failures, list_runnable_blocks
from doc_session import Session

pytestmark = [pytest.mark.lab, pytest.mark.torch]


# Pages run by `make test`. The others also train, and each takes up to two minutes.
EVERY_RUN = (ROOT / "README.md",)


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(path, id=str(path.relative_to(ROOT)), marks=[] if path in EVERY_RUN else pytest.mark.slow)
        for path in WITH_COMMANDS
        if path != TUTORIAL
    ],
)
def test_the_commands_of_a_page_do_what_the_page_says(page: Path, session: Session) -> None:
    if wrong := list_page_failures(page, session):
        pytest.fail("\n\n".join(wrong), pytrace=False)


def test_every_block_of_commands_is_run_or_has_a_reason() -> None:
    """Every block of commands is either run or has a reason for not being run."""
    every = {block.where for path in PAGES for block in parse_blocks(path) if block.language in RUN}
    run = {block.where for path in WITH_COMMANDS for block in list_runnable_blocks(path)}
    named = {block.where for path in PAGES for block in parse_blocks(path) if block.language in RUN and block.not_run}
    assert every == run | named
    assert run & named == set()


def test_blocks_that_are_not_run_are_listed() -> None:
    left = [
        block
        for path in PAGES
        for block in parse_blocks(path)
        if block.language in RUN and block.not_run.startswith(NOT_RUN)
    ]
    if left:
        pytest.skip(f"{len(left)} blocks: {', '.join(f'{block.where} ({block.not_run})' for block in left)}")
