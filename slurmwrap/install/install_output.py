"""Format the output of `slurmwrap hooks`: plan, test results, check and uninstallation, as text and as JSON."""

from __future__ import annotations

import difflib
import re
import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from slurmwrap.console import Console
from slurmwrap.errors import SlurmwrapError
from slurmwrap.escape import harmless
from slurmwrap.fast_dataclasses import asdict
from slurmwrap.install.check_installation import InstallationCheck
from slurmwrap.install.plan_installation import CONFLICT, NEW, SAME, UPGRADE, FileChange, InstallationPlan
from slurmwrap.install.slurm_conf import needs
from slurmwrap.install.uninstall import UninstallResult
from slurmwrap.report.job_report.job_report_text import Paint

if TYPE_CHECKING:
    from slurmwrap.install.hook_test_job import HookTestResult


_COLOUR = re.compile(r"(\x1b\[[0-9;]*m)")


def make_lines_harmless(text: str) -> str:
    """Escape control characters, which slurm.conf may contain, but keep slurmwrap's own colours."""
    return "".join(part if _COLOUR.fullmatch(part) else harmless(part) for part in _COLOUR.split(text))


def print_test_results(tried: Sequence[HookTestResult], console: Console, restart: str) -> None:
    """Print one line per job, with what is missing.

    `restart`: what has to be done before EpilogSlurmctld can run, or "". Raise SlurmwrapError when the observation of a
    hook is missing that should have arrived.
    """
    for one in tried:
        for line in _format_lines(one, restart):
            console.say(line)
    if not tried:
        console.say("no test job: no node is usable now")
    if restart and any(one.only_controller for one in tried):
        console.say(f"still to do: {restart}")
    if not all(one.well or (restart and one.only_controller) for one in tried):
        raise SlurmwrapError(
            "the hooks are installed, but not all of them were heard from",
            hint="The cluster works as before. Fix the cause and run `slurmwrap hooks install` again, or remove the "
            "hooks: slurmwrap hooks uninstall",
        )


def _format_lines(one: HookTestResult, restart: str) -> list[str]:
    where = f"test job {one.job_id or ''} on {one.node}".replace("  ", " ")
    if one.error:
        return [f"{where}: {one.error}"]
    if one.well:
        return [f"{where}: observations of Prolog, Epilog and EpilogSlurmctld were accepted"]
    if restart and one.only_controller:
        return [f"{where}: observations of Prolog and Epilog were accepted, of EpilogSlurmctld not yet"]
    return [f"{where}: nothing of {hook}. Look at {look}" for hook, look in one.missing]


# One sign and colour for each state of a file or directory in the plan.
_SIGNS = {NEW: "+", UPGRADE: "~", SAME: "=", CONFLICT: "!"}
_STYLES = {NEW: "green", UPGRADE: "yellow", SAME: "dim", CONFLICT: "red"}


def diff(changes: Iterable[FileChange]) -> str:
    """Return the changes as a unified diff for `patch`; bytes above ASCII are decoded as latin-1."""
    parts = []
    for one in changes:
        lines = difflib.unified_diff(
            _split_lines(one.before), _split_lines(one.after), str(one.path), str(one.path), n=2
        )
        for line in lines:
            parts.append(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
    return "".join(parts)


def _split_lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def plan_text(plan: InstallationPlan, steps: Sequence[str], paint: Paint) -> str:
    """Return the text of `hooks plan`: everything that the installation would do."""
    wanted = plan.wanted
    head = f"Cluster {wanted.cluster}, Slurm {plan.release[0]}.{plan.release[1]:02}, SlurmUser {wanted.slurm_user}"
    blocks = [paint(head, "bold")]
    changed = diff(plan.changes)
    blocks.append(_paint_lines(changed, paint) if changed else "slurm.conf: no change")
    blocks.append(_add_title("Directories (owner, mode)", [_place(one, paint) for one in plan.places], paint))
    blocks.append(
        _add_title("Files of root (* on every node too)", [_format_item(one, paint) for one in plan.items], paint)
    )
    blocks.append(_add_title("No longer needed, removed", [f"  - {path}" for path in plan.stale], paint))
    numbered = [_wrap_text(f"  {number}. ", step) for number, step in enumerate(steps, 1)]
    blocks.append(
        _add_title("Users: none is made; all runs as root or SlurmUser. Then, in this order", numbered, paint)
    )
    blocks.append(_add_title("To know", [_wrap_text("  - ", text) for text in plan.remarks], paint))
    elsewhere = [_wrap_text("  - ", text) for text in needs(plan.controllers, wanted.directory)]
    blocks.append(_add_title("Other controllers: for you to do", elsewhere, paint))
    in_the_way = [paint(_wrap_text("  ! ", text), "red") for text in plan.conflicts]
    blocks.append(_add_title("In the way: nothing can be installed", in_the_way, paint))
    if plan.nothing_to_do and not plan.conflicts:
        blocks.append("All of it is in place already.")
    return "\n\n".join(block for block in blocks if block)


def _wrap_text(mark: str, text: str) -> str:
    """Wrap the text at 80 columns without breaking a path."""
    indent = " " * len(mark)
    return textwrap.fill(
        text, 80, initial_indent=mark, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _add_title(title: str, lines: Sequence[str], paint: Paint) -> str:
    return "\n".join([paint(title, "bold"), *lines]) if lines else ""


def _paint_lines(text: str, paint: Paint) -> str:
    styles = {"+": "green", "-": "red", "@": "dim"}
    return "\n".join(paint(line, styles[line[0]]) if line[:1] in styles else line for line in text.splitlines())


def _place(one: Any, paint: Paint) -> str:
    text = f"  {_SIGNS[one.state]} {one.mode:04o} {one.owner:8} {one.path}"
    return paint(f"{text}  {one.why}".rstrip() if one.why and one.state == NEW else text, _STYLES[one.state])


def _format_item(one: Any, paint: Paint) -> str:
    star = "*" if one.on_nodes else " "
    return paint(
        f"  {_SIGNS[one.state]} {one.mode:04o} {star} {one.path}  ({len(one.content):,} bytes)", _STYLES[one.state]
    )


def plan_json(plan: InstallationPlan, steps: Sequence[str]) -> dict[str, Any]:
    """Return the plan as a JSON object."""
    return {
        "settings": plan.wanted.to_plain(),
        "slurm": f"{plan.release[0]}.{plan.release[1]:02}",
        "diff": diff(plan.changes),
        "directories": [
            {"path": str(one.path), "owner": one.owner, "mode": f"{one.mode:04o}", "state": one.state}
            for one in plan.places
        ],
        "files": [
            {"path": str(one.path), "kind": one.kind, "mode": f"{one.mode:04o}", "bytes": len(one.content),
             "state": one.state, "on_nodes": one.on_nodes}
            for one in plan.items
        ],
        "units": list(plan.enable),
        "removed": list(plan.stale),
        "users": [],
        "steps": list(steps),
        "remarks": list(plan.remarks),
        "conflicts": list(plan.conflicts),
        "other_controllers": list(plan.controllers),
        "nothing_to_do": plan.nothing_to_do,
    }  # fmt: skip


def check_text(held: Sequence[InstallationCheck], paint: Paint) -> str:
    """Return the text of `hooks check`: one line per check, and below it how to fix it."""
    styles, wide = {"ok": "green", "warn": "yellow", "fail": "red"}, max(len(one.what) for one in held)
    lines = []
    for one in held:
        lines.append(f"{paint(f'{one.state:4}', styles[one.state])}  {one.what:{wide}}  {one.text}")
        lines += [f"{'':{wide + 8}}{one.hint}"] if one.hint else []
    return "\n".join(lines)


def check_json(held: Sequence[InstallationCheck], state: str) -> dict[str, Any]:
    """Return the checks as a JSON object."""
    return {"state": state, "checks": [asdict(one) for one in held]}


def format_uninstall_plan(taking: UninstallResult, purge: bool, paint: Paint) -> str:
    """Return the text of `hooks uninstall --dry-run`."""
    kept = () if purge else taking.data
    blocks = [_paint_lines(diff(taking.changes), paint) or "slurm.conf: no change"]
    blocks.append(
        _add_title(
            "Removed", [f"  - {path}" for path in (*taking.files, *taking.directories) if path not in kept], paint
        )
    )
    blocks.append(
        _add_title("Kept: changed since they were written", [f"  ! {path}" for path in taking.changed], paint)
    )
    blocks.append(
        _add_title("Kept if something is in them (--purge removes them)", [f"  = {path}" for path in kept], paint)
    )
    return "\n\n".join(block for block in blocks if block)
