"""Edge: the output of a job whose paths Slurm has resolved, read as the job's user (design: "The user's files").

The reader is node_hooks/user_files.py in a forked child; here it gets its deadline. Any caller that is neither root nor
the user reads nothing.
"""

from __future__ import annotations

import os
import pwd
import time

from slurmwrap.model.evidence import LogTail
from slurmwrap.model.run import JobRun
from slurmwrap.node_hooks import log_tails
from slurmwrap.node_hooks.user_files import may_become

DEADLINE_S = 3.0


class UserLogs:
    """The `Logs` edge: stdout and stderr of an attempt, read with the rights of its user and of no one else."""

    def __init__(self, deadline_s: float = DEADLINE_S) -> None:
        self._deadline_s = deadline_s

    def tails(self, record: JobRun) -> tuple[LogTail, ...]:
        """The last 64 KiB of what this run wrote to each; empty when they cannot be read, or not in time."""
        if not may_become(record.uid):  # type: ignore[no-untyped-call]
            return ()
        try:
            user = pwd.getpwuid(record.uid)
        except KeyError:
            return ()
        paths = tuple(dict.fromkeys(os.fsencode(path) for path in (record.std_out, record.std_err) if path))
        begins = {name: list(begin) for name, begin in record.output_begins.items()}
        deadline = time.monotonic() + self._deadline_s
        answer = log_tails.read(paths, user.pw_name, record.uid, user.pw_gid, deadline, begins)
        return tuple(LogTail(**log) for log in answer["logs"])
