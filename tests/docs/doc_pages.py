"""Parses the documentation for the tests: every code block of every page, with the instructions for running it.

Comments directly before a block are instructions for the test; the site omits them (.ci/docs_hooks.py):

    <!-- test: exit 3 -->             its last command must end with 3; by default every command ends with 0
    <!-- test: as root -->            run as root, on temporary copies of /etc, /usr and other directories
    <!-- test: first: COMMANDS -->    hidden commands to run before the block; may have several lines
    <!-- test: settled -->            wait until the jobs of the page ended and the reconciler has seen them
    <!-- test: reads: 81=1 -->       replace 81 on the page by 1 in the command
    <!-- test: another output -->     the output shown is only an example
    <!-- test: not run: REASON -->    only check that its options exist; NOT_RUN lists the reasons
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    (ROOT / "README.md", ROOT / "examples" / "README.md", *(ROOT / "docs").rglob("*.md")),
    key=lambda path: str(path.relative_to(ROOT)),
)
RUN = ("sh", "console")
# Languages of blocks without commands. `text` is for program output and for diagrams in ASCII.
OTHERS = (
    *("apacheconf", "csv", "diff", "html", "ini", "json", "jinja", "lua", "python", "slurm", "sql", "text", "toml"),
    *("xml", "yaml"),
)
# Reasons for not running a block of commands. After "by " follows the test that runs it.
NOT_RUN = (
    "installs packages",
    "needs systemd",
    "needs slurmdbd",
    "needs a GPU",
    "needs another system",
    "names what is yours",
    "takes minutes",
    "builds packages",
    "changes the machine",
    "by ",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command of a block, with the lines that the page shows as its output."""

    line: int
    text: str
    output: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced block; `line` is the line of its opening fence."""

    page: str
    line: int
    language: str
    lines: tuple[str, ...]
    marks: tuple[str, ...]

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def not_run(self) -> str:
        """Why the block is not run; "" if it is run."""
        return next((mark.removeprefix("not run: ") for mark in self.marks if mark.startswith("not run: ")), "")

    @property
    def as_root(self) -> bool:
        return "as root" in self.marks

    @property
    def exit_code(self) -> int:
        return next((int(mark.split()[1]) for mark in self.marks if mark.startswith("exit ")), 0)

    @property
    def stand_ins(self) -> dict[str, str]:
        """Words of the page and their replacements in the commands."""
        pairs = " ".join(mark.removeprefix("reads: ") for mark in self.marks if mark.startswith("reads: ")).split()
        return dict(pair.split("=", 1) for pair in pairs)


_FENCE = re.compile(r"^( *)(```+)(.*)$")
_MARK = re.compile(r"<!-- test: (.*?) ?-->", re.DOTALL)


def parse_blocks(path: Path) -> Iterator[Block]:
    """All fenced blocks of a page, in order. Raises ValueError for a fence that does not end."""
    lines = path.read_text(encoding="utf-8").splitlines()
    at, since = 0, 0
    while at < len(lines):
        found = _FENCE.match(lines[at])
        if not found:
            at += 1
            continue
        end = next((n for n in range(at + 1, len(lines)) if lines[n].strip() == found[2]), None)
        if end is None:
            raise ValueError(f"{path}:{at + 1}: this block does not end")
        body = tuple(line[len(found[1]) :] for line in lines[at + 1 : end])
        page = str(path.relative_to(ROOT))
        marks = _marks("\n".join(lines[since:at]))
        yield Block(page=page, line=at + 1, language=found[3].split(" ")[0], lines=body, marks=marks)
        at = since = end + 1


def _marks(text: str) -> tuple[str, ...]:
    """The test instructions directly before a block."""
    tail = re.search(r"(?:\s*<!-- test: (?:(?!-->).)*-->)*\s*\Z", text, re.DOTALL)
    return tuple(_MARK.findall(tail[0])) if tail else ()


def list_all_marks(path: Path) -> list[str]:
    """All test instructions on a page, also those that are not before a block."""
    return _MARK.findall(path.read_text(encoding="utf-8"))


def parse_commands(block: Block) -> tuple[Command, ...]:
    """The commands of a block: all lines of `sh`, lines after `$ ` or `# ` of `console`; no pure comments."""
    found = _of_console(block) if block.language == "console" else _of_shell(block)
    return tuple(command for command in found if command.text.strip() and not _only_comments(command.text))


def _only_comments(text: str) -> bool:
    return all(line.strip().startswith("#") or not line.strip() for line in text.splitlines())


def _of_shell(block: Block) -> Iterator[Command]:
    held: list[str] = []
    for number, line in enumerate(block.lines, block.line + 1):
        held.append(line)
        if not _goes_on(held):
            yield Command(line=number - len(held) + 1, text="\n".join(held))
            held = []
    if held:
        yield Command(line=block.line + len(block.lines), text="\n".join(held))


def _of_console(block: Block) -> Iterator[Command]:
    held: list[str] = []
    output: list[str] = []
    start = 0
    for number, line in enumerate(block.lines, block.line + 1):
        if line.startswith(("$ ", "# ")):
            if held:
                yield Command(line=start, text="\n".join(held), output=tuple(output))
            held, output, start = [line[2:]], [], number
        elif held and not output and _goes_on(held):
            held.append(line.removeprefix("> "))
        else:
            output.append(line)
    if held:
        yield Command(line=start, text="\n".join(held), output=tuple(output))


def _goes_on(lines: list[str]) -> bool:
    """Whether a shell would wait for another line: after a backslash, inside a here-document, in a loop."""
    text = "\n".join(lines)
    if lines[-1].endswith("\\"):
        return True
    if document := re.search(r"<<-?\s*['\"]?(\w+)['\"]?", text):
        return not any(line.strip() == document[1] for line in lines[1:])
    opened = len(re.findall(r"^\s*(?:for|while|until)\b", text, re.MULTILINE))
    return opened > len(re.findall(r"^\s*done\b|; done\b", text, re.MULTILINE))


def find_indented_blocks(path: Path) -> list[int]:
    """Lines at which an indented block without fence begins; the tests would not run it."""
    found, fence, in_list, blank = [], False, False, True
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if _FENCE.match(line):
            fence, blank = not fence, False
        elif fence:
            continue
        elif not line.strip():
            blank = True
        elif line.startswith("    ") and blank and not in_list:
            found.append(number)
            blank = False
        else:
            if not line.startswith(" "):
                in_list = bool(re.match(r"(?:[-*+]|\d+\.) ", line))
            blank = False
    return found


def find_misindented_list_lines(path: Path) -> list[int]:
    """Lines of a list that the site would show outside it: content of an item must be indented by multiples of 4."""
    found, fence, blank = [], "", False
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        opens = _FENCE.match(line)
        depth = len(line) - len(line.lstrip(" "))
        begins = bool(re.match(r" *(?:[-*+] |\d+\. |```|\|)", line))
        if not fence and line.strip() and depth % 4 and (blank or begins):
            found.append(number)
        if opens:
            fence = "" if fence else opens[2]
        blank = not line.strip()
    return found
