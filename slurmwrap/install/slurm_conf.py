"""Parse slurm.conf, and make edits in it that can be reverted even after others changed the file. Pure.

Slurm's grammar (slurm.conf(5)): `Key=Value` pairs, several to a line, keys in any case. `#` begins a comment unless a
backslash precedes it. A backslash at the end of a line continues it. `Include FILE` has a line of its own. Texts are
decoded as latin-1, so that every byte is preserved.
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
# An odd number of backslashes at the end of the line, with or without blanks after them.
_GOES_ON = re.compile(r"(?<!\\)(?:\\\\)*(\\)\s*\Z")
_DEPTH = 8

Read = Callable[[str], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmConfSetting:
    """One `key=value` with its position. `line` counts from 1; `text`: the line as it is in the file.

    `alone`: the line sets no other key and is not continued.
    """

    # As written in the file or in slurm.conf(5); compare case-insensitively.
    key: str
    value: str
    file: str
    line: int
    text: str
    alone: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """The edit of one file. `swaps`: [(old line, new line)], without their line ends."""

    file: str
    swaps: tuple[tuple[str, str], ...] = ()
    block: tuple[str, ...] = ()  # lines between BEGIN and END; (): no block
    before: str = ""  # the line before which the block is inserted; "": at the end of the file
    top: bool = False  # the block is inserted at the start of the file


def settings_of(main: str, read: Read) -> tuple[SlurmConfSetting, ...]:
    """Return all settings in the order in which Slurm reads them. `read(path)` returns the text of a file.

    Raise SlurmwrapError when files include each other. Pairs on a NodeName= line are returned too; select by key.
    """
    return tuple(_walk(main, read, 0, []))


def named(settings: Iterable[SlurmConfSetting], key: str) -> tuple[SlurmConfSetting, ...]:
    """Return the settings of one key, compared case-insensitively as in Slurm."""
    return tuple(one for one in settings if one.key.lower() == key.lower())


def _walk(file: str, read: Read, depth: int, clusters: list[str]) -> Iterator[SlurmConfSetting]:
    """Yield the settings of a file and its includes. `clusters`: values of ClusterName so far, for %c of an Include."""
    if depth > _DEPTH:
        raise SlurmwrapError(f"{file}: more than {_DEPTH} files include each other", hint="Look for a circle.")
    for number, text, line, whole in _logical_lines(read(file)):
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
    """Return the path of an included file; like Slurm, relative to the directory of the including file."""
    return name if name.startswith("/") else str(PurePosixPath(file).parent / name)


def _logical_lines(text: str) -> Iterator[tuple[int, str, str, bool]]:
    """Yield logical lines: (number of its first line, joined text, first line, whether it is the only line).

    A backslash at the end of a line continues it.
    """
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
    """Return `text` with the edit. Raise SlurmwrapError when a line that it names is missing or occurs twice."""
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
    """Return `text` without the edit; other changes made since are kept.

    `newline_at_end`: the file ended with a newline before the edit. Raise SlurmwrapError when slurmwrap's lines were
    changed: then the original text cannot be determined.
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
            hint=f"Remove the lines from '{BEGIN[:17]}' to '{END}', and run the command again.",
        )
    at = text.index(block)
    rest, head = text[at + len(block) :], text[:at]
    if not rest and not newline_at_end and head.endswith("\n") and not edit.before and not edit.top:
        head = head[:-1]
    return head + rest


def stripped(text: str) -> str:
    """Return the text without any block of slurmwrap, with the site's lines restored that it keeps as comments."""
    kept, inside = list[str](), False
    for line in text.splitlines(keepends=True):
        inside = inside or line.rstrip() == BEGIN
        if not inside:
            kept.append(line.removeprefix(KEPT))
        inside = inside and line.rstrip() != END
    return "".join(kept)


def holds(text: str, edit: Edit) -> bool:
    """Return whether `text` contains the edit unchanged."""
    try:
        reverted(text, edit)
    except SlurmwrapError:
        return False
    return True


def _swapped(text: str, old: str, new: str, file: str) -> str:
    at = _line_at(text, old, file)
    return text[:at] + new + text[at + len(old) :]


def _line_at(text: str, line: str, file: str) -> int:
    """Return the offset of the only line that is equal to `line`. Raise SlurmwrapError unless it occurs once."""
    ends = "\r?(?=\n|\\Z)"
    found = [match.start() for match in re.finditer(f"^{re.escape(line)}{ends}", text, re.MULTILINE)]
    if len(found) != 1:
        raise SlurmwrapError(
            f"{file}: the line '{line}' is there {len(found)} times, not once",
            hint="Leave one such line, and run the command again.",
        )
    return found[0]


# The following functions determine which hosts run slurmctld, and what a backup controller needs, on which slurmwrap
# writes nothing but which may take over at any time.
def list_controller_hosts(settings: Collection[SlurmConfSetting]) -> tuple[str, ...]:
    """Return the names of the controllers, the primary first.

    They are in `SlurmctldHost=ctl0(10.0.0.1)`, one line each, or in the keys that Slurm had before 18.08.
    """
    found = [one.value for one in named(settings, "SlurmctldHost")]
    if not found:
        older = (*named(settings, "ControlMachine"), *named(settings, "BackupController"))
        found = [name for one in older for name in one.value.split(",")]
    return tuple(dict.fromkeys(name.partition("(")[0].strip() for name in found))


def list_other_controllers(hosts: Sequence[str], here: str) -> tuple[str, ...]:
    """Return the controllers other than this machine.

    `here`: its name; "" for an image, which counts as the primary.
    """
    mine = {_shorten_host(here), "localhost"} if here else {_shorten_host(name) for name in hosts[:1]}
    return tuple(name for name in hosts if _shorten_host(name) not in mine)


def _shorten_host(name: str) -> str:
    return name.partition(".")[0].lower()


def needs(names: Collection[str], directory: str) -> tuple[str, ...]:
    """Return what an administrator has to do for the controllers `names`, one paragraph each."""
    if not names:
        return ()
    who = ", ".join(names)
    return (
        f"{who}: nothing is written there. Before a backup takes over it must have the same slurm.conf (shared, or "
        "copied by you), as Slurm itself requires.",
        f"It needs the hooks ({directory}), the configuration and SlurmUser's directory for EpilogSlurmctld: run "
        "`slurmwrap hooks bundle --controller FILE.tar.gz` here and `tar -C / -xzf FILE.tar.gz` there; `tar -C / -dzf "
        "FILE.tar.gz` compares. Without them jobs run as usual, but nothing is recorded by EpilogSlurmctld.",
        "Start no service there: reconciler, report and watchdog run on this machine alone, whichever controller is "
        "active; two reconcilers would each read half of the observations and both decide. While this machine is down, "
        "observations wait in the spool.",
    )


def explain_no_controller(hosts: Sequence[str], here: str) -> str:
    """Return a remark when this machine is not one of the controllers; "" when it is."""
    if not hosts or not here or len(list_other_controllers(hosts, here)) < len(hosts):
        return ""
    return (
        f"This machine ({here}) is none of slurm.conf's controllers ({', '.join(hosts)}): EpilogSlurmctld runs on "
        "those and writes its records to their disk, where the reconciler of this machine does not see them."
    )
