"""Notify the user that a pre-run cancelled their job: in the job's output file, at the next gsub call, and by mail.

Runs in the pre-run's job, as the user. Nothing here changes a verdict: a notice that cannot be written is reported in
the pre-run's own output and skipped.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from slurmwrap.errors import SlurmError
from slurmwrap.escape import marked, visible
from slurmwrap.host.output_file import append_lines
from slurmwrap.host.run_command import run
from slurmwrap.model.decision import Verb
from slurmwrap.model.job_record import JobRecord
from slurmwrap.sbatch.array_indices import parse_indices
from slurmwrap.slurm.squeue_parser import resolve_output
from slurmwrap.store.job_notices import News, leave_notice

if TYPE_CHECKING:
    from slurmwrap.gsub.apply_verdict import HeldJob
    from slurmwrap.model.job_run import PrerunRecord
    from slurmwrap.sbatch.job_request import JobRequest

_MAIL_S = 10.0
# Values of --mail-type for which Slurm itself mails that a pending job was cancelled (22.05, measured).
_MAILED_BY_SLURM = frozenset({"END", "ALL"})


def was_cancelled(record: PrerunRecord) -> bool:
    """Return whether Slurm accepted the cancellation that the verdict required."""
    return any(done["verb"] == Verb.CANCEL.value and not done["error"] for done in record.changes)


def notify_of_cancelled_job(
    waiting: HeldJob,
    record: PrerunRecord,
    *,
    user: str,
    node: str,
    place: str,
    config: Callable[[], Mapping[str, str]],
    say: Callable[[str], None],
) -> None:
    """Notify the user in all three ways; a failure of one does not stop the others.

    `node`: the short name of this host. `place`: the user's state directory. `config`: reads `scontrol show config`.
    """
    if waiting.job_id is None:
        return
    text = format_cancelled_notice(waiting, record)
    path = resolve_output_path(waiting.request, waiting.job_id, user=user, node=node)
    try:
        append_lines(path, text)
    except OSError as error:
        say(f"not written into the job's output file: {error}")
    reason = record.verdict.reason
    try:
        leave_notice(place, News(job_id=waiting.job_id, name=waiting.request.job_name, reason=reason, at=record.at))
    except OSError as error:
        say(f"gsub will not report it: {error}")
    if should_mail_failure(waiting.request):
        try:
            _mail(waiting, text, user, config().get("MailProg", ""), say)
        except SlurmError as error:
            say(f"not mailed: {error}")


def format_cancelled_notice(waiting: HeldJob, record: PrerunRecord) -> str:
    """Return the notice for the job's output file: what happened, why, and what to do."""
    script = waiting.request.script.path
    again = f"gsub --prerun=off {shlex.quote(script)}" if script else "repeat the gsub call with --prerun=off"
    subject = "all tasks of job" if waiting.request.value("array") else "job"
    verb = "were" if waiting.request.value("array") else "was"
    when = "while it ran, because it would meet this error later" if record.released else "before the start"
    lines = (
        f"{subject} {waiting.job_id} {verb} cancelled by the pre-run (job {waiting.prerun_job_id}) {when}: "
        f"{record.verdict.reason}",
        f"More: slurmwrap why {waiting.job_id}",
        f"Submit it without a pre-run: {again}",
    )
    return "".join(f"slurmwrap: {visible(line)}\n" for line in lines)


def resolve_output_path(request: JobRequest, job_id: int, *, user: str, node: str) -> str:
    """Return the path of the job's output file by Slurm's rules for --output; for an array that of its first task.

    `node` is used where the pattern contains the name of the node, because the job never got one.
    """
    array = request.value("array")
    indices = parse_indices(array) if array else None
    task = indices.first if indices is not None else None
    pattern = request.value("output") or ("slurm-%A_%a.out" if array else "slurm-%j.out")
    record = JobRecord(
        job_id=job_id,
        array_job_id=job_id if array else None,
        array_task_id=task,
        name=request.job_name,
        user=user,
        nodes=(node,),
        work_dir=request.chdir,
    )
    return resolve_output(pattern, record)


def should_mail_failure(request: JobRequest) -> bool:
    """Return whether --mail-type asks for failures and Slurm itself does not mail the cancellation."""
    kinds = {kind.strip().upper() for kind in (request.value("mail-type") or "").split(",")}
    return "FAIL" in kinds and not kinds & _MAILED_BY_SLURM


def _mail(waiting: HeldJob, text: str, user: str, program: str, say: Callable[[str], None]) -> None:
    """Mail `text` as Slurm would: by MailProg, if it is on this node, with Slurm's arguments and the text on stdin."""
    to = waiting.request.value("mail-user") or user
    if not program.startswith("/") or not os.access(program, os.X_OK) or to.startswith("-"):
        say("not mailed: Slurm's MailProg cannot be run here")
        return
    name = marked(waiting.request.job_name, "?", 100)
    subject = f"Slurm Job_id={waiting.job_id} Name={name} Failed, cancelled by its pre-run"
    done = run([program, "-s", subject, to], timeout_s=_MAIL_S, stdin=text.encode("utf-8", "backslashreplace"))
    if not done.ok:
        say(f"not mailed: {program} ended with {done.exit_code}")
