"""Consents of a user to retries of many jobs, sealed by one Python: its start is most of the cost."""

from __future__ import annotations

import json
import pwd
import sys
import time
import uuid
from collections.abc import Sequence

from realslurm import Lab
from test_reconcile_lab import site

from slurmwrap.diagnosis.observation import Context, Observation
from slurmwrap.retry.submission import Submission
from slurmwrap.store.plain import to_plain

_SEAL = """
import json, sys
from pathlib import Path
from slurmwrap.diagnosis.observation import Observation
from slurmwrap.store.from_plain import from_plain
from slurmwrap.store.leave import write_sealed
for note in json.load(sys.stdin):
    write_sealed(Path(sys.argv[1]), from_plain(Observation, note), socket=sys.argv[2])
"""


def consent_to_retries(lab: Lab, jobs: Sequence[str], user: str) -> None:
    """What gsub --retry reports of each of these jobs, sealed by the user."""
    notes = [to_plain(_note(lab.cluster, int(job), user)) for job in jobs]
    argv = [sys.executable, "-c", _SEAL, site(lab)["spool"], site(lab)["munge_socket"]]
    done = lab.run(argv, user, stdin=json.dumps(notes))
    assert done.returncode == 0, done.stderr


def _note(cluster: str, job: int, user: str) -> Observation:
    now, uid = time.time(), pwd.getpwnam(user).pw_uid
    record = Submission(cluster=cluster, job_id=job, uid=uid, user=user, at=now, retry=True, output_appends=True)
    told = {"submission": to_plain(record)}
    return Observation(nonce=uuid.uuid4().hex, cluster=cluster, job_id=job, context=Context.SUBMIT, at=now, facts=told)
