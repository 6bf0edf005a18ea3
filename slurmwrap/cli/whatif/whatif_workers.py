"""Runs the three parts of a what-if study: of a large dump side by side, each in a process of its own."""

from __future__ import annotations

import os
from concurrent.futures import Future, ProcessPoolExecutor, wait
from multiprocessing import get_context
from typing import Any

from slurmwrap.sim.whatif.make_study import (
    Progress,
    Replay,
    Submissions,
    play_failures,
    play_ours,
    play_plain,
    study_from,
)
from slurmwrap.sim.whatif.whatif_study import Study

LARGE = 5_000  # jobs: below, starting Python twice costs more than it saves
_LOOK_S = 0.5


def studied(said: Submissions, progress: Progress, *, large: int = LARGE) -> Study:
    """The same study either way. ValueError as of `study_from`."""
    if len(said.jobs) < large or (os.cpu_count() or 1) < 2:
        return study_from(
            said,
            Replay(
                plain=play_plain(said, progress),
                ours=play_ours(said, progress),
                failures=play_failures(said, progress),
            ),
        )
    # spawn: a fork of a process with threads (numpy has some) may hang
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        plain, failures = pool.submit(play_plain, said), pool.submit(play_failures, said)
        ours = play_ours(said, progress)
        _await([plain, failures], progress)
        return study_from(said, Replay(plain=plain.result(), ours=ours, failures=failures.result()))


def _await(parts: list[Future[Any]], progress: Progress) -> None:
    while True:
        done = wait(parts, timeout=_LOOK_S).done
        if len(done) == len(parts):
            return
        progress("slurmwrap is played; parts beside it", len(done), len(parts))
