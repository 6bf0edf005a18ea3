"""`slurmwrap why`: what happened to one job, on what evidence, and what to do. Flags in, one Story told."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import replace
from typing import Annotated

import typer

from slurmwrap.cli import terminal
from slurmwrap.cli.known import Known, Place, about_job, of_period, place_of
from slurmwrap.cli.unrecorded import unrecorded
from slurmwrap.config import load
from slurmwrap.errors import SlurmwrapError, UsageError
from slurmwrap.report.story import Story, last_failure, next_step, story_of
from slurmwrap.report.tell import tell
from slurmwrap.store.plain import to_plain

LOOK_BACK_S = 30 * 86400.0


def why(
    job: Annotated[str, typer.Argument(metavar="JOBID", help="81, or 77_2 for an array task.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Tell why a job failed, and what to do now.

    Without JOBID it is your last failed job.

    \b
    Examples:
      slurmwrap why
      slurmwrap why 81
      slurmwrap why 77_2 --json | jq .next
    """
    config = load(os.environ)
    place = place_of(config, os.environ, os.geteuid())
    address = _checked(job) if job else _last(place)
    if not address:
        _say(f"no job{'' if place.site else ' of yours'} failed in the last 30 days, as far as is known here")
        return
    known = about_job(place, address)
    story = story_of(address, known.submissions, known.preruns, known.attempts, known.actions, known.delays)
    note(known)
    if story.empty:
        story = replace(
            story, attempts=unrecorded(address, config, os.environ, None if place.site or place.uid == 0 else place.uid)
        )
        if story.attempts:
            _say("nothing was recorded of it here: this is Slurm's own word")
    if story.empty:
        raise SlurmwrapError(
            f"nothing is known of job {address}",
            hint="'slurmwrap history' lists what is known; Slurm's own word: scontrol show job " + address,
        )
    if place.alone and not any(run.diagnosis for run in story.attempts):
        _say("no site reconciler here: 'slurmwrap reconcile' finds out how your runs ended")
    typer.echo(_json(story) if as_json else tell(story, terminal.local_zone(), terminal.painter()), nl=as_json)


def _checked(job: str) -> str:
    head, _, task = job.partition("_")
    if not head.isdecimal() or not head.isascii() or (task and not task.isdecimal()) or len(job) > 30:
        raise UsageError(f"'{job}' is no job id", hint="write 81, or 77_2 for a task of array 77")
    return job


def _last(place: Place) -> str | None:
    known = of_period(place, time.time() - LOOK_BACK_S)
    return last_failure(known.attempts, known.preruns)


def _json(story: Story) -> str:
    return json.dumps({**to_plain(story), "next": to_plain(next_step(story))}, indent=2)


def note(known: Known) -> None:
    """What could not be read, on stderr."""
    for one in known.notes:
        _say(one)


def _say(text: str) -> None:
    print(f"slurmwrap: {text}", file=sys.stderr)
