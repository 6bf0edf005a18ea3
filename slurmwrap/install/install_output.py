"""What `slurmwrap hooks` shows, in words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from slurmwrap.console import Console
from slurmwrap.errors import SlurmwrapError
from slurmwrap.escape import harmless

if TYPE_CHECKING:
    from slurmwrap.install.hook_test_job import HookTestResult


_COLOUR = re.compile(r"(\x1b\[[0-9;]*m)")


def make_lines_harmless(text: str) -> str:
    """Bytes of slurm.conf must not speak to the terminal; our own colours may."""
    return "".join(part if _COLOUR.fullmatch(part) else harmless(part) for part in _COLOUR.split(text))


def print_test_results(tried: Sequence[HookTestResult], voice: Console, restart: str) -> None:
    """One line per job and what is missing. `restart`: what is to be done before EpilogSlurmctld can be heard, or "".

    SlurmwrapError where a hook should have been heard and was not.
    """
    for one in tried:
        for line in _format_lines(one, restart):
            voice.say(line)
    if not tried:
        voice.say("no test job: no node is usable now")
    if restart and any(one.only_controller for one in tried):
        voice.say(f"still to do: {restart}")
    if not all(one.well or (restart and one.only_controller) for one in tried):
        raise SlurmwrapError(
            "the hooks are installed, and not all of them were heard",
            hint="The cluster goes on as before. Mend it and run `slurmwrap hooks install` again, or take it back: "
            "slurmwrap hooks uninstall",
        )


def _format_lines(one: HookTestResult, restart: str) -> list[str]:
    where = f"test job {one.job_id or ''} on {one.node}".replace("  ", " ")
    if one.error:
        return [f"{where}: {one.error}"]
    if one.well:
        return [f"{where}: Prolog, Epilog and EpilogSlurmctld were heard and believed"]
    if restart and one.only_controller:
        return [f"{where}: Prolog and Epilog were heard and believed, EpilogSlurmctld not yet"]
    return [f"{where}: nothing of {hook}. Look at {look}" for hook, look in one.missing]
