"""The command `slurmwrap watch`: show all jobs of the user, or one job, live. Ctrl-C ends the view, not the job."""

from __future__ import annotations

import math
import os
import re
import select
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, NoReturn, TextIO

import typer

from slurmwrap.cli import terminal
from slurmwrap.cli.list_options import user_name
from slurmwrap.cli.record_access import RecordSource
from slurmwrap.cli.watch.background_poll import compute_pause
from slurmwrap.cli.watch.full_screen import FullScreen
from slurmwrap.cli.watch.gpu_watcher import NODES, GpuWatcher, may_measure
from slurmwrap.cli.watch.job_list_reader import JobListReader
from slurmwrap.cli.watch.job_list_view import JobListView, print_changes, print_list_once
from slurmwrap.cli.watch.job_status import JobStatus, JobStatusReader, find_newest_job, list_record_sources
from slurmwrap.cli.watch.log_follower import LogFollower
from slurmwrap.cli.watch.watch_output import (
    ScreenStyle,
    format_log_line,
    format_screen,
    make_change_key,
    status_to_json_dict,
)
from slurmwrap.config.load_config import Config, load
from slurmwrap.console import Console
from slurmwrap.errors import SlurmUnreachable, SlurmwrapError, UsageError
from slurmwrap.fast_dataclasses import dataclass, field, replace
from slurmwrap.json_output import format_json_line
from slurmwrap.report.text_format import flat, plain, row
from slurmwrap.slurm.commands import SlurmCommands

REDRAW_S = 1.0  # the screen is redrawn this often without asking Slurm
LOG_PERIOD_S = 600.0  # without a terminal, a line about a running job's steps is written this often
JSON_PERIOD_S = 60.0  # with --json and --gpus, the GPU utilization is written this often
_WIDEST_TABLE = 160  # columns of the table with --once
_ADDRESS = re.compile(r"[0-9]{1,10}(_[0-9]{1,10})?", re.ASCII)
_STYLED = re.compile(r"\033\[[0-9;]*m")
EX_OTHER, EX_SIGPIPE, EX_SIGINT = 1, 141, 130


def watch(
    job: Annotated[str, typer.Argument(metavar="JOBID", help="81, 77 for a whole array, or 77_2.")] = "",
    newest: Annotated[bool, typer.Option("--newest", help="Watch your newest job.")] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print its output as it grows, and its end.")] = False,
    every: Annotated[float, typer.Option(min=1.0, max=3600.0, help="Seconds between two calls of squeue.")] = 5.0,
    gpus: Annotated[bool, typer.Option("--gpus", help="Measure its GPUs with a small step in the job.")] = False,
    gpu_nodes: Annotated[
        int, typer.Option(min=1, max=256, metavar="N", help="With --gpus: measure the job's first N nodes.")
    ] = NODES,
    once: Annotated[bool, typer.Option("--once", help="Show the status once, and end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per change.")] = False,
) -> None:
    """Watch all your jobs, or one until it has ended: why it waits, when it may start, how fast it runs.

    Without JOBID all your jobs are listed; with --newest, --follow or --gpus it is your newest job. If the output is
    not a terminal, each change is one line.

    Keys of the list: arrows select, Enter opens a job, l shows its log, Space the tasks of an array, / searches, s
    sorts, x cancels after a question, q quits.

    --gpus starts one step inside the job (srun --overlap), which ends with the view. It works for your own jobs only.

    Exits with 0 if all of the job completed, 1 if it ended otherwise, 130 after Ctrl-C, which ends only the view.

    \b
    Examples:
      slurmwrap watch
      slurmwrap watch --once
      slurmwrap watch --newest && sbatch next.sbatch
      slurmwrap watch 77 --follow
      slurmwrap watch 81 --gpus
      slurmwrap watch 77 --every 30 >> sweep.log
      slurmwrap watch --json | jq .job,.state
      slurmwrap watch 81 --gpus --once --json | jq .gpu_percent
    """
    _check_options(job, newest=newest, follow=follow, gpus=gpus, once=once, as_json=as_json)
    config = load(os.environ)
    slurm = SlurmCommands(timeout_s=config.slurm_timeout_s)
    sources = list_record_sources(config, os.environ, os.geteuid())
    all_jobs = not (job or newest or follow or gpus)
    address = "" if all_jobs else _find_address(job, slurm)
    code = EX_OTHER
    try:
        if all_jobs:
            reader = JobListReader(user_name(os.geteuid()), slurm, sources, config, os.environ)
            code = _watch_all(reader, slurm, sources, config, every=every, once=once, as_json=as_json)
        else:
            one = JobStatusReader(address, slurm, sources, config, os.environ)
            code = _watch_one(one, _make_output(follow, as_json), every, gpus, gpu_nodes, once)
    except KeyboardInterrupt:
        who = f"job {address} continues" if address else "your jobs continue"
        Console.of_terminal("slurmwrap").say(f"watching ends; {who}")
        code = EX_SIGINT
    except BrokenPipeError:
        # As with `| head`. stdout is redirected to /dev/null, so that Python's flush at exit does not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = EX_SIGPIPE
    raise typer.Exit(code)


def _check_options(job: str, *, newest: bool, follow: bool, gpus: bool, once: bool, as_json: bool) -> None:
    """Raise UsageError for options that exclude each other."""
    if job and newest:
        raise UsageError("--newest and a job id exclude each other", hint="leave one of them out")
    other = next((name for name, given in (("--gpus", gpus), ("--once", once), ("--json", as_json)) if given), "")
    if follow and other:
        raise UsageError(f"--follow prints the output, so it goes not with {other}", hint="leave one of them out")


def _watch_one(
    reader: JobStatusReader, screen: _Screen | LogFollower, every: float, gpus: bool, gpu_nodes: int, once: bool
) -> int:
    try:
        with _open_gpu_watcher(gpus, gpu_nodes) as gpu_watcher:
            if isinstance(screen, LogFollower):
                _check_own_job(reader)
            elif once:
                return _show_once(reader, screen, gpu_watcher)
            return _until_the_end(reader, screen, every, gpu_watcher)
    except KeyboardInterrupt:
        screen.done()
        raise


def _check_own_job(reader: JobStatusReader) -> None:
    """Raise SlurmwrapError for another user's job: its output could be a link to a file of the one who reads it."""
    status = _read_first_status(reader)
    if status.record.uid != os.geteuid():
        user = status.record.user
        raise SlurmwrapError(
            f"job {status.address} is {user}'s: --follow reads the output of your own jobs only",
            hint=f"as root: runuser -u {user} -- slurmwrap watch {status.address} --follow",
        )


def _watch_all(
    reader: JobListReader,
    slurm: SlurmCommands,
    sources: Sequence[RecordSource],
    config: Config,
    *,
    every: float,
    once: bool,
    as_json: bool,
) -> int:
    """Show all jobs of this user, and return the exit code."""
    if once:
        print_list_once(reader.look(), _make_style(terminal.columns(most=_WIDEST_TABLE)), as_json=as_json)
        return 0
    if as_json or not _is_live(sys.stdin) or not _is_live(sys.stdout):
        completed = print_changes(reader, every, _make_style(80), _wait_for_reader, as_json=as_json)
        return 0 if completed else EX_OTHER
    with FullScreen(unicode=_is_unicode()) as screen:
        view = JobListView(
            screen,
            reader,
            slurm,
            lambda address: JobStatusReader(address, slurm, sources, config, os.environ),
            _make_style,
            every,
        )
        try:
            view.run()
        except EOFError:
            # The terminal is gone.
            return EX_OTHER
    return 0


def _wait_for_reader(seconds: float) -> None:
    """Wait. Raise BrokenPipeError if no process reads stdout."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(left, REDRAW_S))
        if reader_is_gone(1):
            raise BrokenPipeError


def _make_output(follow: bool, as_json: bool) -> _Screen | LogFollower:
    if not follow:
        return _Screen(as_json=as_json)
    colour = terminal.choose_painter() is not plain
    return LogFollower(_make_style(_get_columns()), terminal=sys.stdout.isatty(), colour=colour)


def _find_address(job: str, slurm: SlurmCommands) -> str:
    if job and not _ADDRESS.fullmatch(job):
        raise UsageError(f"'{job}' is no job id", hint="write 81, 77 for a whole array, or 77_2 for a task of it")
    address = job or find_newest_job(slurm, user_name(os.geteuid()))
    if not address:
        raise SlurmwrapError("Slurm knows no job of yours now", hint="slurmwrap history lists earlier ones")
    return address


@contextmanager
def _open_gpu_watcher(wanted: bool, nodes: int) -> Iterator[GpuWatcher | None]:
    """Yield the GPU watcher; None if it is not wanted. However this process ends, its step ends, too.

    SIGTERM and a closed terminal (SIGHUP) raise SystemExit, so that no step is left in the job.
    """
    if not wanted:
        yield None
        return
    for number in (signal.SIGTERM, signal.SIGHUP):
        # A signal that is ignored, as SIGHUP under nohup, stays ignored.
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _exit_on_signal)
    with GpuWatcher(os.environ, nodes) as gpu_watcher:
        yield gpu_watcher


def _exit_on_signal(number: int, frame: object) -> NoReturn:
    raise SystemExit(128 + number)


def _with_gpus(status: JobStatus, gpu_watcher: GpuWatcher | None) -> JobStatus:
    """Return the status with the GPU utilization; start or end the step as the job runs or not.

    Raise SlurmwrapError if this user may not create a step in the job.
    """
    mine = may_measure(status.record)
    if gpu_watcher is None:
        return replace(status, gpus=False if mine else None)
    if not mine:
        raise SlurmwrapError(
            f"job {status.address} is {status.record.user}'s: only its user, or root, can start a step in it",
            hint=f"slurmwrap watch {status.address} without --gpus shows the rest",
        )
    if not status.array:
        gpu_watcher.follow(status.record)
    return replace(status, gpus=True, gpu_use=gpu_watcher.look())


def _show_once(reader: JobStatusReader, screen: _Screen, gpu_watcher: GpuWatcher | None = None) -> int:
    status = _with_gpus(_read_first_status(reader), gpu_watcher)
    while gpu_watcher is not None and not gpu_watcher.settled:
        time.sleep(0.1)
        status = replace(status, gpu_use=gpu_watcher.look())
    screen.show(status)
    screen.done()
    return EX_OTHER if status.ended and not status.completed else 0


def _read_first_status(reader: JobStatusReader) -> JobStatus:
    status = reader.look(time.time())
    if not status.rows:
        raise SlurmwrapError(
            f"Slurm does not know job {status.address}: it ended a while ago, or it never existed",
            hint=f"slurmwrap why {status.address} shows its records; slurmwrap history lists your jobs",
        )
    return status


def _until_the_end(
    reader: JobStatusReader, screen: _Screen | LogFollower, every: float, gpu_watcher: GpuWatcher | None = None
) -> int:
    """Show the job until it has ended, and return the exit code.

    Slurm is asked every `every` seconds, and less often while nothing changes. In between only the clock is redrawn.
    """
    status, pause = _with_gpus(_read_first_status(reader), gpu_watcher), every
    while True:
        screen.show(status)
        if status.ended and (status := _read_after_retry(status, reader, screen)).ended:
            break
        status = _wait_for_next_read(status, screen, pause, gpu_watcher)
        before, status = status, _with_gpus(_read_next_status(reader, status), gpu_watcher)
        active = status.trial is not None and status.trial.seen is not None
        calm = make_change_key(before) == make_change_key(status) and not active
        pause = compute_pause(pause, every, calm)
    screen.done()
    screen.show_end(status, reader)
    return 0 if status.completed else EX_OTHER


def _read_after_retry(status: JobStatus, reader: JobStatusReader, screen: _Screen | LogFollower) -> JobStatus:
    """Return the status after the user's own reconciler judged the end; print the cause if the job runs again."""
    if status.completed or not reader.judge_end(status):
        return status
    again = replace(_read_next_status(reader, status), gpus=status.gpus)
    if not again.ended:
        screen.done()
        screen.show_causes(reader)
    return again


def _wait_for_next_read(
    status: JobStatus, screen: _Screen | LogFollower, seconds: float, gpu_watcher: GpuWatcher | None
) -> JobStatus:
    """Wait, and meanwhile update the clock and the GPU utilization.

    Return early if the GPU step ended, since the job may have ended. Raise BrokenPipeError if no process reads stdout.
    """
    until, lost = time.monotonic() + seconds, gpu_watcher is not None and gpu_watcher.lost
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(left, REDRAW_S))
        if reader_is_gone(1):
            raise BrokenPipeError
        if gpu_watcher is not None:
            status = replace(status, gpu_use=gpu_watcher.look())
            if gpu_watcher.lost and not lost:
                break
        if screen.live or gpu_watcher is not None:
            screen.show(replace(status, at=time.time()))
    return status


def reader_is_gone(pipe: int) -> bool:
    """Return whether no process reads this pipe any more. While nothing is written, no SIGPIPE reports that."""
    poll = select.poll()
    poll.register(pipe, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _read_next_status(reader: JobStatusReader, before: JobStatus) -> JobStatus:
    """Return the next status. If Slurm does not answer, the last status is kept and marked.

    If Slurm has forgotten the job, its final state is taken from the records. Raise SlurmwrapError if there is none.
    """
    now = time.time()
    try:
        status = reader.look(now)
    except SlurmUnreachable as error:
        return replace(before, at=now, silent=str(error))
    if status.rows:
        return status
    # The job ended and Slurm forgot it (MinJobAge) since the last call.
    state = reader.ending()
    if not state:
        raise _make_forgotten_error(before.address)
    return replace(before, at=now, rows=tuple(replace(w, record=replace(w.record, state=state)) for w in before.rows))


def _make_forgotten_error(address: str) -> SlurmwrapError:
    return SlurmwrapError(
        f"Slurm does not know job {address} any more", hint=f"slurmwrap why {address} shows how it ended"
    )


@dataclass(slots=True)
class _Screen:
    """The output: redrawn in place on a terminal, otherwise one line per change."""

    as_json: bool = False
    live: bool = field(init=False)
    _key: object = None
    _said_at: float = -math.inf
    _drawn: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.live = not self.as_json and _is_live(sys.stdout)

    def show(self, status: JobStatus) -> None:
        """Show a status; without a terminal only if it changed, or if a period without a line is over."""
        if self.live:
            self._redraw(status)
            return
        key = make_change_key(status)
        measured = status.gpu_use is not None and bool(status.gpu_use.gpus)
        pause = JSON_PERIOD_S if measured and self.as_json else LOG_PERIOD_S
        news = (status.steps is not None or measured) and status.at - self._said_at >= pause
        if key != self._key or news:
            self._key, self._said_at = key, status.at
            print(
                format_json_line("watch", status_to_json_dict(status))
                if self.as_json
                else format_log_line(status, _make_style(80)),
                flush=True,
            )

    def done(self) -> None:
        """Leave the last screen as it is; the cursor is already below it."""
        self._drawn = []

    def show_end(self, status: JobStatus, reader: JobStatusReader) -> None:
        """Print the cause of the end, if it is known, and the command that shows more."""
        self.show_causes(reader, status)
        if self.as_json:
            return
        if loss := reader.describe_loss(status):
            print("\n".join(row("loss", loss, _get_columns())), flush=True)
        if not status.completed:
            print(f"slurmwrap why {status.address} shows more", flush=True)

    def show_causes(self, reader: JobStatusReader, ended: JobStatus | None = None) -> None:
        """Print why the last run failed and what follows, if it is known. `ended`: see JobStatusReader.why."""
        if self.as_json:
            return
        for label, text in reader.why(ended):
            # A row without a label is a command. It is not wrapped, so that it can be copied.
            print("\n".join(row(label, flat(text), _get_columns()) if label else row(label, flat(text), 10_000)))

    def _redraw(self, status: JobStatus) -> None:
        columns, height = shutil.get_terminal_size()
        look = _make_style(_get_columns())
        hint = [] if status.ended else [look.paint("Ctrl-C ends the view, not the job", "dim")]
        shown = [*format_screen(status, look), *hint][: max(1, height - 1)]
        rows = sum(max(1, math.ceil(len(_STYLED.sub("", line)) / columns)) for line in self._drawn)
        up = f"\033[{min(rows, height - 1)}A" if rows else ""
        sys.stdout.write(f"{up}\r\033[J" + "".join(f"{line}\n" for line in shown))
        sys.stdout.flush()
        self._drawn = shown


def _get_columns() -> int:
    """Return the terminal's width minus one, so that a full line does not wrap; 80 without a terminal."""
    return max(20, shutil.get_terminal_size().columns - 1) if sys.stdout.isatty() else 80


def _make_style(columns: int) -> ScreenStyle:
    return ScreenStyle(
        columns=columns, paint=terminal.choose_painter(), unicode=_is_unicode(), zone=terminal.get_local_zone()
    )


def _is_live(stream: TextIO) -> bool:
    """Return whether a stream is a terminal on which the cursor can be moved."""
    return stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def _is_unicode() -> bool:
    return (sys.stdout.encoding or "").lower().replace("-", "").startswith("utf")
