"""slurm.conf as text: which lines set what, and an edit that can be taken back after others changed the file. Pure.

Slurm's grammar (slurm.conf(5)): `Key=Value` pairs, several to a line, keys in any case, `#` begins a comment unless a
backslash is before it, a backslash at the end of a line continues it, `Include FILE` stands on a line of its own.
Texts are latin-1: every byte comes back as it was.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import PurePosixPath

from slurmwrap.errors import SlurmwrapError
from slurmwrap.fast_dataclasses import dataclass

BEGIN = "# BEGIN slurmwrap: `slurmwrap hooks uninstall` takes this block out"
END = "# END slurmwrap"
KEPT = "# slurmwrap keeps: "
_PAIR = re.compile(r'([A-Za-z][A-Za-z0-9_]*)\s*\+?=\s*("[^"]*"|\S+)')
_INCLUDE = re.compile(r"\s*include\s+(\S+)", re.IGNORECASE)
_COMMENT = re.compile(r"(?<!\\)#.*")
# An odd backslash at the end, whatever blanks follow.
_GOES_ON = re.compile(r"(?<!\\)(?:\\\\)*(\\)\s*\Z")
_DEPTH = 8

Read = Callable[[str], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmConfSetting:
    """One `key=value` where it stands. `line` counts from 1; `text`: that line as it is in the file.

    `alone`: nothing else is set on that line, and it is not continued.
    """

    # As slurm.conf(5) spells it or as it is written there; compare without case.
    key: str
    value: str
    file: str
    line: int
    text: str
    alone: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """What is done to one file. `swaps`: whole lines (without their line end) and what stands for them."""

    file: str
    swaps: tuple[tuple[str, str], ...] = ()
    block: tuple[str, ...] = ()  # lines between BEGIN and END; () no block
    before: str = ""  # the line that the block goes before; "": at the end of the file
    top: bool = False  # the block goes before everything


def settings_of(main: str, read: Read) -> tuple[SlurmConfSetting, ...]:
    """Everything that is set, in the order in which Slurm reads it. `read(path)` gives a file's text.

    SlurmwrapError where an Include goes in circles. A value of a NodeName= line counts too; ask by key.
    """
    return tuple(_walk(main, read, 0, []))


def named(settings: Iterable[SlurmConfSetting], key: str) -> tuple[SlurmConfSetting, ...]:
    """Those of one key, as Slurm compares keys."""
    return tuple(one for one in settings if one.key.lower() == key.lower())


def _walk(file: str, read: Read, depth: int, clusters: list[str]) -> Iterator[SlurmConfSetting]:
    """`clusters`: ClusterName as far as it was read, for the %c of an Include."""
    if depth > _DEPTH:
        raise SlurmwrapError(f"{file}: more than {_DEPTH} files include each other", hint="Look for a circle.")
    for number, text, line, whole in _logical(read(file)):
        include = _INCLUDE.match(text)
        if include:
            name = include[1].replace("%c", clusters[-1]) if clusters else include[1]
            yield from _walk(_included(name, file), read, depth + 1, clusters)
            continue
        pairs = _PAIR.findall(text)
        for key, value in pairs:
            alone = len(pairs) == 1 and whole
            if key.lower() == "clustername":
                clusters.append(value.strip('"'))
            yield SlurmConfSetting(key=key, value=value.strip('"'), file=file, line=number, text=line, alone=alone)


def _included(name: str, file: str) -> str:
    """Relative to the file's own directory, as Slurm looks."""
    return name if name.startswith("/") else str(PurePosixPath(file).parent / name)


def _logical(text: str) -> Iterator[tuple[int, str, str, bool]]:
    """(number of its first line, the line without comment, its first line as it is, whether that is all of it)."""
    kept, began, first, parts = "", 0, "", 0
    for number, line in enumerate([*text.split("\n"), ""], 1):
        line = line.removesuffix("\r")
        bare = _COMMENT.sub("", line)
        if not parts:
            began, first = number, line
        parts += 1
        goes_on = _GOES_ON.search(bare)
        kept += bare[: goes_on.start(1)] if goes_on else bare
        if goes_on:
            continue
        if kept.strip():
            yield began, kept, first, parts == 1
        kept, parts = "", 0


def applied(text: str, edit: Edit) -> str:
    """`text` with the edit. SlurmwrapError when a line that it names is not there, or there twice."""
    for old, new in edit.swaps:
        text = _swapped(text, old, new, edit.file)
    if not edit.block:
        return text
    block = "\n".join((BEGIN, *edit.block, END)) + "\n"
    if edit.top:
        return block + text
    if edit.before:
        at = _line_at(text, edit.before, edit.file)
        return text[:at] + block + text[at:]
    return text + ("" if text.endswith("\n") or not text else "\n") + block


def reverted(text: str, edit: Edit, *, newline_at_end: bool = True) -> str:
    """`applied` taken back, whatever else was changed meanwhile. `newline_at_end`: the file ended in one before.

    SlurmwrapError when our lines are not there as we wrote them: then no one can say what the file should be.
    """
    if edit.block:
        text = _without_block(text, edit, newline_at_end)
    for old, new in reversed(edit.swaps):
        text = _swapped(text, new, old, edit.file)
    return text


def _without_block(text: str, edit: Edit, newline_at_end: bool) -> str:
    block = "\n".join((BEGIN, *edit.block, END)) + "\n"
    if text.count(block) != 1 or text.count(BEGIN) != 1:
        raise SlurmwrapError(
            f"{edit.file}: slurmwrap's lines are not as they were written",
            hint=f"Take out by hand what stands from '{BEGIN[:17]}' to '{END}', and do this again.",
        )
    at = text.index(block)
    rest, head = text[at + len(block) :], text[:at]
    if not rest and not newline_at_end and head.endswith("\n") and not edit.before and not edit.top:
        head = head[:-1]
    return head + rest


def stripped(text: str) -> str:
    """Without a block of slurmwrap's, and with the site's lines that it keeps as comments, whichever edit that was."""
    kept, inside = list[str](), False
    for line in text.splitlines(keepends=True):
        inside = inside or line.rstrip() == BEGIN
        if not inside:
            kept.append(line.removeprefix(KEPT))
        inside = inside and line.rstrip() != END
    return "".join(kept)


def holds(text: str, edit: Edit) -> bool:
    """Whether the edit is in `text` as it was made."""
    try:
        reverted(text, edit)
    except SlurmwrapError:
        return False
    return True


def _swapped(text: str, old: str, new: str, file: str) -> str:
    at = _line_at(text, old, file)
    return text[:at] + new + text[at + len(old) :]


def _line_at(text: str, line: str, file: str) -> int:
    """Where the one line that reads `line` begins."""
    ends = "\r?(?=\n|\\Z)"
    found = [match.start() for match in re.finditer(f"^{re.escape(line)}{ends}", text, re.MULTILINE)]
    if len(found) != 1:
        raise SlurmwrapError(
            f"{file}: the line '{line}' is there {len(found)} times, not once",
            hint="Make it one line, and do this again.",
        )
    return found[0]


# Which hosts run slurmctld, and what those need on which nothing is written: a backup takes over at any time.
def list_controller_hosts(settings: Collection[SlurmConfSetting]) -> tuple[str, ...]:
    """By name, the primary first: `SlurmctldHost=ctl0(10.0.0.1)` on lines of its own, or the keys of before 18.08."""
    found = [one.value for one in named(settings, "SlurmctldHost")]
    if not found:
        older = (*named(settings, "ControlMachine"), *named(settings, "BackupController"))
        found = [name for one in older for name in one.value.split(",")]
    return tuple(dict.fromkeys(name.partition("(")[0].strip() for name in found))


def list_other_controllers(hosts: Sequence[str], here: str) -> tuple[str, ...]:
    """The controllers that this machine is not. `here`: its name; "" for an image, which is taken for the primary's."""
    mine = {_shorten_host(here), "localhost"} if here else {_shorten_host(name) for name in hosts[:1]}
    return tuple(name for name in hosts if _shorten_host(name) not in mine)


def _shorten_host(name: str) -> str:
    return name.partition(".")[0].lower()


def needs(names: Collection[str], directory: str) -> tuple[str, ...]:
    """What an administrator has to do for them, a sentence each."""
    if not names:
        return ()
    who = ", ".join(names)
    return (
        f"{who}: nothing is written there. Before a backup takes over it has to have the same slurm.conf (shared, or "
        "brought by you), as Slurm itself demands.",
        f"The hooks ({directory}), the configuration and SlurmUser's directory for EpilogSlurmctld go there by "
        "`slurmwrap hooks bundle --controller FILE.tar.gz`, there `tar -C / -xzf FILE.tar.gz`; `tar -C / -dzf "
        "FILE.tar.gz` compares. Without them jobs run as well, and EpilogSlurmctld is not heard.",
        "No service there: reconciler, report and watchdog run on this machine alone, whichever controller is active; "
        "two reconcilers would each hear half and both decide. While this machine is down, what the hooks found waits "
        "in the spool.",
    )


def explain_no_controller(hosts: Sequence[str], here: str) -> str:
    """What is said where this machine is none of them; "" where it is."""
    if not hosts or not here or len(list_other_controllers(hosts, here)) < len(hosts):
        return ""
    return (
        f"This machine ({here}) is none of slurm.conf's controllers ({', '.join(hosts)}): EpilogSlurmctld runs on "
        "those, and leaves its word on their disk, where the reconciler of this machine does not see it."
    )
