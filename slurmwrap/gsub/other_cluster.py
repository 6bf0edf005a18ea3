"""Pass a job for another cluster (--clusters) to sbatch unchanged, and record it under the cluster that took it.

slurmwrap sees neither the nodes nor the queue of the other cluster, so the job gets no pre-run and no plan. Without a
record, `slurmwrap why` would look for its id among the jobs of this cluster.
"""

from __future__ import annotations

import os
import pwd
import re
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from slurmwrap.config.load_config import find_state_dir, load
from slurmwrap.console import Console
from slurmwrap.digest import sha256_hex
from slurmwrap.gsub import process_env
from slurmwrap.gsub.prefetch import make_slurm_commands
from slurmwrap.gsub.sbatch_call import make_submitted_call
from slurmwrap.gsub.submission_records import leave_submission
from slurmwrap.model.submission import Submission
from slurmwrap.protocols import SbatchCall
from slurmwrap.sbatch.job_request import JobRequest
from slurmwrap.store.user_state_files import UserState

# "Submitted batch job 81 on cluster west", with --parsable "81;west" (sbatch.c, 22.05 to 26.05).
_TAKEN_BY = re.compile(r"(?m)^(?:Submitted batch job \d+ on cluster |\d+;)(\S+)$")


def submit_to_other_cluster(
    words: Sequence[str], request: JobRequest, environ: Mapping[str, str], console: Console, remark: str
) -> int:
    """Call sbatch with `words`, print its output, record the job, and return the exit code of sbatch.

    `remark`: is printed if a cluster took the job, so that a refused call has the output of sbatch alone.
    """
    slurm = make_slurm_commands(load(environ), environ, console)
    stdin = request.script.content if request.script.from_stdin else None
    result = slurm.sbatch(SbatchCall(options=tuple(words), script_path=None, stdin=stdin, environ=environ))
    sys.stderr.write(result.stderr)
    sys.stderr.flush()
    process_env.write_stdout(result.stdout)
    if result.timed_out:
        console.say("sbatch gave no clear answer: it is not known whether the job was submitted")
        return result.exit_code or 1
    if remark and result.job_id is not None:
        console.say(remark)
    taken_by = _TAKEN_BY.search(result.stdout)
    if result.job_id is not None and taken_by is not None:
        try:
            record = _make_record(request, environ, taken_by[1], result.job_id)
            leave_submission(record, os.getuid(), str(UserState(find_state_dir(environ)).spool), None)
        except Exception as error:
            console.say(f"this is not remembered for `slurmwrap why`: {error}")
    return result.exit_code


def _make_record(request: JobRequest, environ: Mapping[str, str], cluster: str, job_id: int) -> Submission:
    user = str(os.getuid())
    with suppress(KeyError):
        user = pwd.getpwuid(os.getuid()).pw_name
    return Submission(
        cluster=cluster,
        job_id=job_id,
        uid=os.getuid(),
        user=user,
        at=time.time(),
        name=request.job_name,
        script_path=request.script.path or "",
        script_sha256=sha256_hex(request.script.content),
        work_dir=request.chdir,
        gpus=request.shape.gpus,
        nodes=request.shape.nodes or 0,
        shape=request.shape,
        call=make_submitted_call(request, environ),
    )
