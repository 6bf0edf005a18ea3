"""A page's commands, run in order: what went otherwise than the page says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from doc_output import lost_lines
from doc_pages import PAGES, ROOT, RUN, Block, blocks, commands
from doc_session import Session


def runnable(path: Path) -> list[Block]:
    """Blocks of commands that the page does not say are run elsewhere or cannot be."""
    return [block for block in blocks(path) if block.language in RUN and not block.not_run]


TUTORIAL = ROOT / "docs" / "tutorial.md"
WITH_COMMANDS = [path for path in PAGES if runnable(path)]


def wrong_on(page: Path, session: Session) -> list[str]:
    """Each command that did not do what the page says, with what it printed. Where it makes no lab, one is there."""
    shown = runnable(page)
    lines = [line for block in shown for line in block.lines]
    if not any("slurmwrap lab up" in line.replace('"$(which slurmwrap)"', "slurmwrap") for line in lines):
        session.start_lab()
    return [said for block in shown for said in failures(block, session)]


def failures(block: Block, session: Session) -> Iterator[str]:
    """What went otherwise than the page says, with what was printed."""
    yield from _prepared(block, session)
    found = commands(block)
    for command in found:
        expected = block.exit_code if command is found[-1] else 0
        done = session.run(_with_stand_ins(command.text, block), as_root=block.as_root)
        where = f"{block.page}:{command.line}: {command.text}"
        if done.code != expected:
            yield f"{where}: ended with {done.code}, not {expected}\n{done.output}"
        elif "another output" not in block.marks and (lost := lost_lines(command.output, done.output, session.user)):
            yield f"{where}: does not print\n" + "\n".join(lost) + f"\nbut\n{done.output}"


def _prepared(block: Block, session: Session) -> Iterator[str]:
    """What the comments before a block ask for, in their order."""
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
