"""Runs the commands of a page in order and reports differences from the page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from doc_output import find_missing_lines
from doc_pages import PAGES, ROOT, RUN, Block, parse_blocks, parse_commands
from doc_session import Session


def list_runnable_blocks(path: Path) -> list[Block]:
    """Blocks of commands that are not marked as `not run`."""
    return [block for block in parse_blocks(path) if block.language in RUN and not block.not_run]


TUTORIAL = ROOT / "docs" / "tutorial.md"
WITH_COMMANDS = [path for path in PAGES if list_runnable_blocks(path)]


def list_page_failures(page: Path, session: Session) -> list[str]:
    """Run a page; return each command that differs from the page. Starts a lab unless the page itself does."""
    shown = list_runnable_blocks(page)
    lines = [line for block in shown for line in block.lines]
    if not any("slurmwrap lab up" in line.replace('"$(which slurmwrap)"', "slurmwrap") for line in lines):
        session.start_lab()
    return [said for block in shown for said in run_block(block, session)]


def run_block(block: Block, session: Session) -> Iterator[str]:
    """Run a block; yield each difference from the page with the printed output."""
    yield from _run_preparation(block, session)
    found = parse_commands(block)
    for command in found:
        expected = block.exit_code if command is found[-1] else 0
        done = session.run(_with_stand_ins(command.text, block), as_root=block.as_root)
        where = f"{block.page}:{command.line}: {command.text}"
        if done.code != expected:
            yield f"{where}: ended with {done.code}, not {expected}\n{done.output}"
        elif "another output" not in block.marks and (
            lost := find_missing_lines(command.output, done.output, session.user)
        ):
            yield f"{where}: does not print\n" + "\n".join(lost) + f"\nbut\n{done.output}"


def _run_preparation(block: Block, session: Session) -> Iterator[str]:
    """Execute the instructions before a block, in order."""
    for mark in block.marks:
        if mark == "settled":
            session.settle()
        elif mark.startswith("first: "):
            hidden = mark.removeprefix("first: ")
            done = session.run(session.with_files(hidden), as_root=block.as_root)
            if done.code != 0:
                yield f"{block.where}: first: {hidden}: ended with {done.code}\n{done.output}"


def _with_stand_ins(command: str, block: Block) -> str:
    for word, there in block.stand_ins.items():
        command = re.sub(rf"(?<![\w.-]){re.escape(word)}(?!\w)", there, command)
    return command
