"""The status of a job at one moment, for `slurmwrap watch`, and the reader that finds it (adapter: squeue, files).

Each read calls squeue once. What only the job's user may read (its submission, pre-run, steps and output) is left out
for any other user.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from math import isnan, nan
from stat import S_ISREG
from typing import Any, BinaryIO

from slurmwrap.cli.queue_class import describe_queue_class
from slurmwrap.cli.reconcile_user_jobs import reconcile_own_jobs_first
from slurmwrap.cli.record_access import RecordSource, find_record_source, read_job_records
from slurmwrap.cli.slurm_lookup import find_unrecorded_runs
from slurmwrap.cli.watch.gpu_utilization import JobGpuUse
from slurmwrap.cli.watch.job_forecaster import JobForecaster
from slurmwrap.cli.watch.loss_outlook import LossOutlook, find_loss_outlook
from slurmwrap.cli.watch.share_advice import find_share_advice
from slurmwrap.config.load_config import Config, find_user_state_dir
from slurmwrap.diagnosis.log_progress import ShownProgress, find_last_progress, find_shown_progress
from slurmwrap.diagnosis.log_rows import LogRows, read_log, remove_ansi
from slurmwrap.diagnosis.loss_rows import read_loss_rows
from slurmwrap.errors import SlurmwrapError, StoreError
from slurmwrap.fast_dataclasses import dataclass, field, replace
from slurmwrap.gsub.follow_prerun import (
    PrerunSnapshot,
    read_progress,
    read_verdict,
    read_wanted_steps,
    take_prerun_snapshot,
)
from slurmwrap.host.read_loss_curve import SHORTEST_S, LossCurveFiles
from slurmwrap.host.read_user_file import make_counted_losses
from slurmwrap.model.evidence import LogTail, RunKey
from slurmwrap.model.job_record import FINAL_STATES, JobRecord
from slurmwrap.model.pack_member import PackMember
from slurmwrap.model.placement_plan import PlacementPlan
from slurmwrap.model.run_time import RunTimeEstimate
from slurmwrap.model.running_job import FINDING_TITLES, EarlyFinding
from slurmwrap.model.submission import PackedArray, Submission
from slurmwrap.model.verdict import Verdict
from slurmwrap.node_hooks import log_tails, step_counts
from slurmwrap.placement.expected_start import ExpectedStart
from slurmwrap.placement.relaxation import check_levels
from slurmwrap.policy.requeue import COMMENT_PREFIX, RETRY_JOB_COMMENT
from slurmwrap.policy.run_from_slurm import record_of
from slurmwrap.profiling.loss_fit import Dominated, find_dominated
from slurmwrap.profiling.progress_estimate import EndForecast, RunProgress, forecast_end
from slurmwrap.profiling.run_time import compute_steps_per_process
from slurmwrap.report.convergence_text import draw_loss, format_convergence
from slurmwrap.report.job_report.next_step import find_last_run, find_next_step
from slurmwrap.report.job_report.timeline import JobTimeline, build_timeline, failed, is_stopped_by_prerun
from slurmwrap.report.loss_text import describe_stops
from slurmwrap.report.shared_run_text import describe_shared_run
from slurmwrap.slurm.commands import SlurmCommands
from slurmwrap.slurm.squeue_parser import WatchedJob
from slurmwrap.store.database import Database
from slurmwrap.store.deserialize import record_from_json
from slurmwrap.store.pack_results import read_folded_array, read_members
from slurmwrap.store.prerun_registry import PrerunRegistry, read_inflight_prerun
from slurmwrap.store.shared_runs import read_shared_run
from slurmwrap.store.user_state_files import UserState

# A job counts as silent if its last output is older than SILENT_S and older than SILENT_TIMES the usual gap between its
# lines. The usual gap is the mean over this run or the longest gap that was seen while watching, whichever is longer.
# The output is read as the user who runs `slurmwrap watch`.
SILENT_S = 600.0
SILENT_TIMES = 5
# How often and in which intervals the user's own reconciler is tried at the end of a job, if another one runs.
_JUDGE_TRIES, _JUDGE_PAUSE_S = 5, 2.0
# The losses of an array's running tasks are read this often, and of at most so many tasks.
_SWEEP_EVERY_S, _SWEEP_TASKS = 60.0, 32
# The results of a packed array's members, a small file each, are read this often.
MEMBERS_EVERY_S = 10.0
# Number of bytes that are read from the end of the output, and from its start, where a program says that it resumes.
_TAIL_BYTES, _HEAD_BYTES = 64 * 1024, 8 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """The output of a run. `at`: when it was last written, but not before the start of the run; Unix seconds."""

    at: float
    last_line: str = ""
    mean_gap_s: float = 0.0  # between lines of this run, estimated from the size of its last ones; 0: too few
    longest_gap_s: float = 0.0  # seen while watching
    empty: bool = False  # nothing was written in this run
    shown: ShownProgress | None = None  # its progress, by this output; None: it shows none
    losses: tuple[float, ...] = ()  # losses of training that the end of the output shows, also NaN and infinite ones

    @property
    def usual_gap_s(self) -> float:
        """The usual number of seconds between two lines; 0: not known."""
        return max(self.mean_gap_s, self.longest_gap_s)

    def silent_s(self, now: float) -> float | None:
        """Return for how many seconds nothing was written, if that is longer than usual; else None."""
        age = now - self.at
        return age if age > max(SILENT_S, SILENT_TIMES * self.usual_gap_s) else None


def read_output(record: JobRecord, before: Output | None = None, named: Sequence[str] = ()) -> Output | None:
    """Return the newest of the output, the error file and the logs of a running job; None if none can be read.

    `named`: its programs' logs, as in Submission.logs. `before`: the result of the previous call. It serves to find the
    longest gap between two writes.
    """
    start = float(record.start_time or 0)
    paths = list_output_files(record, named)
    found = [_read_output_file(path, start, resumed=record.restarts > 0) for path in paths]
    newest = max((one for one in found if one is not None), key=lambda one: (not one.empty, one.at), default=None)
    if newest is None or before is None or before.at < start:
        return newest
    gap = 0.0 if before.empty else newest.at - before.at
    return replace(newest, longest_gap_s=max(before.longest_gap_s, gap))


def open_output(path: str) -> BinaryIO | None:
    """Open a job's output for reading; None if there is none that may be read.

    Only regular files are read, and no symbolic links: the job's user chose the path.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    if not S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        return None
    return os.fdopen(descriptor, "rb")


def list_output_files(record: JobRecord, named: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the paths of the job's output, error file and logs (`named`, as in Submission.logs), each once."""
    start = float(record.start_time or 0)
    logs = [path for one in named for path in log_tails.list_logs_of(os.fsencode(one), record.uid, start)]
    return tuple(path for path in dict.fromkeys((record.std_out, record.std_err, *map(os.fsdecode, logs))) if path)


def _read_output_file(path: str, start: float, *, resumed: bool) -> Output | None:
    file = open_output(path)
    if file is None:
        return None
    with file:
        status = os.fstat(file.fileno())
        head = file.read(_HEAD_BYTES).decode("utf-8", "replace")
        file.seek(max(0, status.st_size - _TAIL_BYTES))
        text = file.read(_TAIL_BYTES).decode("utf-8", "replace")
    # A carriage return counts as the end of a line, since a progress bar rewrites its own line.
    lines = [line.strip() for line in remove_ansi(text).replace("\r", "\n").split("\n")]
    filled = [line for line in lines if line]
    count = status.st_size * len(filled) / len(text.encode()) if text else 0.0
    written = max(status.st_mtime, start)
    resumed = resumed or find_last_progress([read_log(LogTail(name=path, text=head))]).resumed
    tail = read_log(LogTail(name=path, text=text))
    return Output(
        at=written,
        shown=find_shown_progress([tail], written - start if start else None, resumed=resumed),
        losses=_read_losses(tail),
        last_line=filled[-1] if filled else "",
        mean_gap_s=(written - start) / count if start and count > 1 else 0.0,
        empty=not filled or status.st_mtime < start,
    )


def _read_losses(tail: LogRows) -> tuple[float, ...]:
    found = read_loss_rows([(float(at), row) for at, row in enumerate(tail.rows)])
    # Always the same NaN object, so that equal outputs compare as equal.
    return tuple(nan if isnan(row.loss) else row.loss for row in found.rows if row.loss is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedPrerun:
    """The job's pre-run.

    `row`: its present record in Slurm; None if Slurm has forgotten it. `seen`: its progress while it runs, from its own
    files. `verdict`: None until it has one.
    """

    job_id: int
    row: WatchedJob | None = None
    seen: PrerunSnapshot | None = None
    verdict: Verdict | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedSteps:
    """The step counter's result: steps of the busiest process, the time of the last one, steps/s over the whole run."""

    count: int
    at: float
    per_s: float | None


def find_counted_progress(trial: WatchedPrerun | None, gpus: int, steps: CountedSteps) -> RunProgress | None:
    """Return the progress by counted steps, if the pre-run found how many there are; None if it did not."""
    measurement = trial.verdict.measurement if trial is not None and trial.verdict is not None else None
    total = compute_steps_per_process(measurement, gpus) if measurement is not None else None
    if total is None or not steps.per_s or steps.count > total:
        return None
    shown = ShownProgress(done=steps.count, total=round(total), left_s=(total - steps.count) / steps.per_s)
    return RunProgress(at=steps.at, shown=shown)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """The status of a job at one moment. `rows`: of an array each task that has started, and one row for the others."""

    at: float
    address: str
    rows: tuple[WatchedJob, ...] = ()
    # The last state of each task that Slurm has forgotten meanwhile.
    gone: Mapping[str, str] | None = None
    plan: PlacementPlan = field(default_factory=PlacementPlan)
    # The site's reconciler relaxes the locality of waiting jobs.
    relaxes: bool = False
    queue_order: str = ""  # "in class 2 of 6: usually runs 20 min on 4 GPUs"; "" if it is not known or does not wait
    counts_steps: bool = False
    stops: str = ""  # when it is stopped as its user asked, see report.loss_text.describe_stops; "": never
    trial: WatchedPrerun | None = None
    steps: CountedSteps | None = None
    rates: tuple[float, ...] = ()  # steps per second between two reads, the newest last
    output: Output | None = None  # of the running job; None: not known
    start: ExpectedStart | None = (
        None  # when the pending job is expected to start; None: only Slurm's forecast is known
    )
    earlier: tuple[str, float] | None = None  # a partition in which it would start earlier, and when (Unix seconds)
    end: EndForecast | None = None  # when the running job is expected to end; None: not known
    findings: tuple[EarlyFinding, ...] = ()  # of the rule `early`, about the present run
    loss: LossOutlook | None = None  # of a running job that counts its steps; None: no loss was recorded
    dominated: tuple[Dominated, ...] = ()  # running tasks of an array that will hardly become its best
    pack: PackedArray | None = None  # gsub --pack: each of its tasks runs several members; None: it is not packed
    members: tuple[PackMember, ...] = ()  # of a packed array, that were started
    shared: str = ""  # how it ran on the GPU of another job of its user (gsub --share); "": it did not
    share_advice: str = ""  # with which job it could share a GPU if it were submitted with --share; "": with none
    silent: str = ""  # why Slurm did not answer this time; then everything else is older
    gpus: bool | None = None  # --gpus was given; None: this user may not measure the job's GPUs
    gpu_use: JobGpuUse | None = None

    @property
    def record(self) -> JobRecord:
        """The row that represents the job: a running one, else a waiting one, else the last."""
        return max((w.record for w in self.rows), key=lambda r: (r.state == "RUNNING", not r.ended, r.submit_time))

    @property
    def waiting(self) -> WatchedJob | None:
        """The first pending row; None if there is none."""
        return next((w for w in self.rows if w.record.pending), None)

    @property
    def array(self) -> bool:
        """Whether a whole array is watched."""
        return "_" not in self.address and any(w.record.array_job_id is not None for w in self.rows)

    @property
    def ended(self) -> bool:
        """Whether no part of the job is pending or running."""
        return all(w.record.ended for w in self.rows)

    @property
    def completed(self) -> bool:
        """Whether all parts of the job ended as COMPLETED."""
        states = {w.record.state for w in self.rows} | set((self.gone or {}).values())
        return states == {"COMPLETED"}


class OwnerFacts:
    """Reads what only a job's user may read: its output, counted steps and pre-run, and with them its expected end.

    One object serves one job, since rates are measured between two reads.
    """

    def __init__(
        self, environ: Mapping[str, str], find_run_time: Callable[[JobRecord], RunTimeEstimate | None]
    ) -> None:
        """`find_run_time`: returns the run time that is expected by earlier runs."""
        self._environ, self._find_run_time = environ, find_run_time
        self._rates: list[float] = []
        self._before: CountedSteps | None = None
        self._output: Output | None = None
        # The first look at the output of a run: its start, when it was written, and what it showed.
        self._first_shown: tuple[float, float, ShownProgress] | None = None

    def add(self, status: JobStatus, submission: Submission | None, trial_row: WatchedJob | None) -> JobStatus:
        """Return the status with these facts. `trial_row`: Slurm's record of its pre-run; None if there is none."""
        record = status.record
        if record.state == "RUNNING" and not status.array:
            named = tuple(submission.logs) if submission is not None else ()
            self._output = read_output(record, self._output, named)
            status = replace(status, output=self._output)
        if submission is None:
            return replace(status, end=self._forecast_end(status))
        status = replace(
            status,
            steps=self._read_steps(record, submission) if not status.array else None,
            plan=_read_plan(submission),
            counts_steps=bool(submission.step_dir),
            stops=describe_stops(submission.stop_at, submission.stop_when),
            trial=self._read_prerun(submission, trial_row, status),
            rates=tuple(self._rates),
        )
        return replace(status, end=self._forecast_end(status))

    def _forecast_end(self, status: JobStatus) -> EndForecast | None:
        record, output, steps = status.record, status.output, status.steps
        if record.state != "RUNNING" or status.array or not record.start_time:
            return None
        progress = None
        if output is not None and output.shown is not None:
            progress = RunProgress(
                at=output.at,
                shown=output.shown,
                seen_per_s=self._measure_rate(float(record.start_time), output),
            )
            if steps is not None:
                progress = replace(progress, count=steps.count, count_at=steps.at, count_per_s=steps.per_s)
        elif steps is not None and not record.restarts:
            progress = find_counted_progress(status.trial, record.gpus, steps)
        return forecast_end(
            now=status.at,
            start=float(record.start_time),
            limit_s=record.time_limit_s,
            progress=progress,
            # A run after a requeue may resume, and then needs less than a whole run.
            history=self._find_run_time(record) if not record.restarts else None,
        )

    def _measure_rate(self, start: float, output: Output) -> float | None:
        """Return the steps or epochs per second since the first look at this run's output; None if there were none."""
        shown, first = output.shown, self._first_shown
        if shown is None or not shown.total:
            return None
        if first is None or first[0] != start or (first[2].unit, first[2].total) != (shown.unit, shown.total):
            self._first_shown = (start, output.at, shown)
            return None
        done, seconds = shown.done - first[2].done, output.at - first[1]
        return done / seconds if done > 0 and seconds > 0 else None

    def _read_prerun(self, submission: Submission, row: WatchedJob | None, status: JobStatus) -> WatchedPrerun | None:
        job_id = submission.prerun_job_id
        if job_id is None:
            return None
        folders = (
            read_inflight_prerun(folder) for folder in PrerunRegistry(find_user_state_dir(self._environ)).trials()
        )
        folder = next((one.directory for one in folders if one and one.job_id == job_id), None)
        verdict = read_verdict(folder) if folder is not None else None
        if verdict is not None or folder is None or row is None or row.record.ended:
            return WatchedPrerun(job_id=job_id, row=row, verdict=verdict)
        record = row.record
        waited = status.at - (record.start_time or record.submit_time)
        now = take_prerun_snapshot(
            record.state, record.reason, waited, read_progress(folder), read_wanted_steps(folder)
        )
        return WatchedPrerun(job_id=job_id, row=row, seen=now)

    def _read_steps(self, record: JobRecord, submission: Submission) -> CountedSteps | None:
        folder = submission.step_dir
        if not folder or record.start_time is None:
            return None
        plain: dict[str, Any] = step_counts.counted(  # type: ignore[no-untyped-call]
            os.fsencode(folder), record.job_id, record.uid, float(record.start_time), record.restarts
        )
        if not plain:
            return None
        now = CountedSteps(count=int(plain["count"]), at=float(plain["last_at"]), per_s=plain["per_s"])
        before, self._before = self._before, now
        if before is not None and now.at > before.at and now.count > before.count:
            self._rates = [*self._rates[-59:], (now.count - before.count) / (now.at - before.at)]
        return now


def _find_loss(status: JobStatus, submission: Submission | None) -> LossOutlook | None:
    """Return the losses of a running job and their prediction; None if none were recorded."""
    record, folder = status.record, submission.step_dir if submission is not None else ""
    if not folder or record.state != "RUNNING" or record.start_time is None:
        return None
    found: dict[str, Any] = step_counts.losses(  # type: ignore[no-untyped-call]
        os.fsencode(folder), record.job_id, record.uid, float(record.start_time), record.restarts
    )
    if not found:
        return None
    losses = make_counted_losses(found, float(record.start_time))
    return find_loss_outlook(losses, status.end, float(record.start_time))


class JobStatusReader:
    """Reads the status of one job repeatedly."""

    def __init__(
        self,
        address: str,
        slurm: SlurmCommands,
        places: Sequence[RecordSource],
        config: Config,
        environ: Mapping[str, str],
    ) -> None:
        self._address, self._slurm, self._places = address, slurm, places
        self._config, self._environ, self._relaxes = config, environ, config.mode_of("relax") == "act"
        self._submission: Submission | None = None
        self._states: dict[str, str] = {}
        self._forecaster = JobForecaster(slurm, places[0], config)
        self._owner_facts = OwnerFacts(environ, self._forecaster.find_run_time)
        self._dominated: tuple[Dominated, ...] = ()
        self._sweep_at = -_SWEEP_EVERY_S
        self._other_parts: tuple[str, ...] = ()  # of a split array
        self._members: tuple[PackMember, ...] = ()
        self._members_at = -MEMBERS_EVERY_S
        self._share_advice = ""
        self._share_at = -_SWEEP_EVERY_S

    def look(self, now: float) -> JobStatus:
        """Return the present status; it has no rows if Slurm has forgotten the job. Raise SlurmError."""
        known_id = self._get_prerun_id()
        rows = self._slurm.watched(self._address, *([str(known_id)] if known_id else []), *self._other_parts)
        own = tuple(w for w in rows if w.record.job_id != known_id)
        if not own:
            return JobStatus(at=now, address=self._address)
        facts = JobStatus(
            at=now, address=self._address, rows=own, relaxes=self._relaxes, gone=self._list_forgotten_tasks(own)
        )
        if facts.waiting is not None:
            start = self._forecaster.find_start(facts.waiting, now)
            facts = replace(facts, start=start, earlier=self._forecaster.find_earlier_partition(facts.waiting))
        if facts.record.uid != os.geteuid():
            return facts
        if self._submission is None:
            self._submission = self._find_submission(facts.record)
            self._other_parts = self._list_other_parts()
            if self._other_parts:
                return self.look(now)
        trial_id = self._get_prerun_id()
        # In the first call the pre-run's id was not known yet when squeue was called.
        if trial_id and trial_id != known_id and facts.waiting is not None:
            rows = self._slurm.watched(str(trial_id))
        trial_row = next((w for w in rows if w.record.job_id == trial_id), None)
        facts = replace(facts, findings=self._read_findings(facts))
        if self._submission is not None and facts.waiting is not None:
            order = describe_queue_class(facts.waiting.record, self._submission, self._config, now)
            facts = replace(facts, queue_order=order)
        facts = self._owner_facts.add(facts, self._submission, trial_row)
        pack = self._submission.pack if self._submission is not None else None
        pack = None if pack is None else read_folded_array(pack)
        facts = replace(facts, pack=pack, members=self._read_members(facts))
        if self._submission is not None and self._submission.share:
            facts = replace(facts, shared=describe_shared_run(read_shared_run(self._submission.share), now))
        elif self._submission is not None and facts.waiting is not None and not facts.array:
            facts = replace(facts, share_advice=self._find_share_advice(facts.waiting.record, self._submission, now))
        if facts.array:
            return replace(facts, dominated=self._find_dominated(facts))
        return replace(facts, loss=_find_loss(facts, self._submission))

    def _find_share_advice(self, job: JobRecord, submission: Submission, now: float) -> str:
        """Return with which job it could share a GPU, found once a minute."""
        if now - self._share_at >= _SWEEP_EVERY_S:
            self._share_at = now
            self._share_advice = find_share_advice(job, submission, UserState(find_user_state_dir(self._environ)))
        return self._share_advice

    def _find_dominated(self, status: JobStatus) -> tuple[Dominated, ...]:
        """Return the running tasks of the array that will hardly become its best, found once a minute."""
        if self._submission is None or not self._submission.step_dir or status.at - self._sweep_at < _SWEEP_EVERY_S:
            return self._dominated
        self._sweep_at = status.at
        fits = {}
        for watched in [w for w in status.rows if w.record.state == "RUNNING"][:_SWEEP_TASKS]:
            # A rate by several looks would be that of one task.
            reader = OwnerFacts(self._environ, self._forecaster.find_run_time)
            task = JobStatus(at=status.at, address=watched.record.address, rows=(watched,))
            loss = _find_loss(reader.add(task, self._submission, None), self._submission)
            fits[watched.record.address] = loss.fit if loss is not None else None
        self._dominated = find_dominated(fits)
        return self._dominated

    def _list_other_parts(self) -> tuple[str, ...]:
        """Return the ids of the other parts, if this is the first part of a split array and is watched as a whole."""
        asked = self._submission
        if asked is None or asked.pack is None or self._address != str(asked.job_id):
            return ()
        jobs = [str(part.job_id) for part in read_folded_array(asked.pack).parts]
        return tuple(jobs[1:]) if jobs[:1] == [self._address] else ()

    def _read_members(self, status: JobStatus) -> tuple[PackMember, ...]:
        """Return the members of the packed array, or those of the one task that is watched."""
        asked = self._submission
        if asked is None or asked.pack is None:
            return ()
        if status.ended or status.at - self._members_at >= MEMBERS_EVERY_S:
            self._members, self._members_at = read_members(asked.pack), status.at
        return tuple(one for one in self._members if status.array or one.task == status.address)

    def _read_findings(self, status: JobStatus) -> tuple[EarlyFinding, ...]:
        found: Mapping[tuple[int, int], tuple[EarlyFinding, ...]] = {}
        with suppress(SlurmwrapError, OSError):
            found = read_findings(self._places, self._slurm.cluster_name(), list_running_since(status.rows))
        return select_findings(status.rows, found)

    def _get_prerun_id(self) -> int | None:
        return self._submission.prerun_job_id if self._submission else None

    def ending(self) -> str:
        """Return the final state of a job that squeue has forgotten, from the records or slurmdbd; "" if unknown."""
        return find_final_state(self._address, self._places, self._config, self._environ)

    def judge_end(self, status: JobStatus) -> bool:
        """Run the user's own reconciler for a job of --retry that failed; return whether the job may run again now.

        False where a site's reconciler works, and for jobs without consent. The retry job, which Slurm starts at the
        same moment, does the same work, so this waits for it.
        """
        asked = self._submission
        if asked is None or not asked.agreed or not self._places[0].alone or status.record.uid != os.geteuid():
            return False
        for _ in range(_JUDGE_TRIES):
            if not reconcile_own_jobs_first(self._places[0], self._config):
                break
            time.sleep(_JUDGE_PAUSE_S)
        return True

    def why(self, ended: JobStatus | None = None) -> tuple[tuple[str, str], ...]:
        """Return label and text of a few rows about the cause of the end and the next step; () if none is known.

        `ended`: the last status. Then a failure of an earlier run, after which the job ran again, is not its cause.
        """
        timeline = self._build_timeline()
        last = None if timeline is None else find_last_run(timeline)
        if ended is not None and not ended.array and last and last.attempt.submit_time < ended.record.submit_time:
            return ()
        if timeline is None or not (is_stopped_by_prerun(timeline) or (last and last.diagnosis and failed(last))):
            return ()
        found = []
        if last is not None and last.diagnosis is not None and not is_stopped_by_prerun(timeline):
            cited = last.diagnosis.evidence[:1]
            found.append(("why", ": ".join((last.diagnosis.category, *(one.text for one in cited)))))
        after = find_next_step(timeline)
        return (*found, ("next", after.sentence), *(("", command) for command in after.commands[:1]))

    def describe_loss(self, status: JobStatus) -> str:
        """Return when the loss of a job that ended stopped to improve; "" if its output does not show it."""
        run = record_of(status.record, "") if not status.array else None
        if run is None or run.uid != os.geteuid() or run.run_s < SHORTEST_S:
            return ""
        curve = LossCurveFiles()(run)
        sentence = format_convergence(run, curve) if curve is not None else ""
        return f"{sentence}  {draw_loss(curve)}" if curve is not None and sentence else ""

    def _build_timeline(self) -> JobTimeline | None:
        for place in self._places:
            with suppress(StoreError, OSError):
                k = read_job_records(place, self._address)
                timeline = build_timeline(self._address, k.submissions, k.preruns, k.attempts, k.actions, k.delays)
                if not timeline.empty:
                    return timeline
        return None

    def _list_forgotten_tasks(self, rows: tuple[WatchedJob, ...]) -> dict[str, str]:
        """Return the last states of tasks that Slurm has forgotten, as it does MinJobAge seconds after their end."""
        now = {w.record.address: w.record.state for w in rows}
        self._states |= {address: state for address, state in now.items() if state in FINAL_STATES}
        return {address: state for address, state in self._states.items() if address not in now}

    def _find_submission(self, record: JobRecord) -> Submission | None:
        ids = {record.job_id, record.array_job_id}
        found: list[Submission] = []
        for place in self._places:
            with suppress(StoreError, OSError):
                found += read_job_records(place, str(record.array_job_id or record.job_id)).submissions
        mine = [one for one in found if one.job_id in ids and one.uid == record.uid]
        return max(mine, key=lambda one: one.at, default=None)


def _read_plan(submission: Submission) -> PlacementPlan:
    """Return the plan of a submission. The user wrote it, so invalid plans and levels are dropped."""
    try:
        plan = record_from_json(PlacementPlan, submission.plan)
    except ValueError:
        return PlacementPlan()
    return replace(plan, levels=check_levels(plan.levels) if plan.levels else ())


def find_final_state(address: str, places: Sequence[RecordSource], config: Config, environ: Mapping[str, str]) -> str:
    """Return the final state of a job that squeue has forgotten, from the records or slurmdbd; "" if unknown."""
    uid = None if os.geteuid() == 0 else os.geteuid()
    with suppress(SlurmwrapError, OSError):
        known = [run for place in places for run in read_job_records(place, address).attempts]
        runs = known or find_unrecorded_runs(address, config, environ, uid)
        bad = [run.state for run in runs if run.state != "COMPLETED"]
        return bad[-1] if bad else runs[-1].state if runs else ""
    return ""


def list_running_since(rows: Iterable[WatchedJob]) -> float | None:
    """Return when the first of the jobs that run now started, in Unix seconds; None if none runs."""
    return min((float(w.record.start_time) for w in rows if w.record.start_time and not w.record.ended), default=None)


def read_findings(
    places: Sequence[RecordSource], cluster: str, since: float | None
) -> dict[tuple[int, int], tuple[EarlyFinding, ...]]:
    """Return the findings of the rule `early` since then that still hold, by raw job id and submit time of the run.

    None: nothing is read. Raise StoreError.
    """
    found: dict[tuple[int, int], tuple[EarlyFinding, ...]] = {}
    for place in places if since is not None else ():
        if not place.database.exists():
            continue
        with Database.open(place.database, readonly=True) as database:
            findings = database.early_findings(since=since)
        for one in findings:
            if one.gone_at is None and one.attempt.cluster == cluster:
                run = (one.attempt.job_id, one.attempt.submit_time)
                found[run] = (*found.get(run, ()), one)
    return found


def select_findings(
    rows: Iterable[WatchedJob], findings: Mapping[tuple[int, int], tuple[EarlyFinding, ...]]
) -> tuple[EarlyFinding, ...]:
    """Return the findings about the present runs of these jobs; of a job without one what its Comment says."""
    return tuple(
        one
        for row in rows
        for one in findings.get((row.record.job_id, row.record.submit_time), ()) or find_commented(row.record)
    )


def find_commented(record: JobRecord) -> tuple[EarlyFinding, ...]:
    """Return what a running job's Comment says was found: "slurmwrap: stuck: no step for 14 min (slurmwrap why 81)".

    A site's database is not readable for users. The Comment may be the user's own text, about the user's own job.
    """
    if record.state != "RUNNING" or not record.comment.startswith(COMMENT_PREFIX):
        return ()
    text = record.comment.removeprefix(COMMENT_PREFIX).partition(" (slurmwrap why")[0]
    kind = next((kind for kind, title in FINDING_TITLES.items() if text.startswith(title)), None)
    if kind is None:
        return ()
    return (
        EarlyFinding(
            attempt=RunKey(cluster="", job_id=record.job_id, submit_time=record.submit_time),
            kind=kind,
            at=0.0,
            n=0,
            evidence=text.partition(": ")[2] or text,
            uid=record.uid,
            address=record.address,
            mode="",
        ),
    )


def list_record_sources(config: Config, environ: Mapping[str, str], uid: int) -> tuple[RecordSource, ...]:
    """Return the sources of this user's records; for root and SlurmUser the site's and their own."""
    first = find_record_source(config, environ, uid)
    if not first.site:
        return (first,)
    return (
        first,
        find_record_source(replace(config, site=replace(config.site, state_dir="", published="")), environ, uid),
    )


def find_newest_job(slurm: SlurmCommands, user: str) -> str:
    """Return the address of this user's newest job that is no pre-run and no retry job; "" if Slurm knows none."""
    mine = [job for job in slurm.jobs(user) if not job.name.endswith(".prerun") and job.comment != RETRY_JOB_COMMENT]
    last = max(mine, key=lambda job: (not job.ended, job.submit_time, job.job_id), default=None)
    return "" if last is None else str(last.array_job_id or last.job_id)
