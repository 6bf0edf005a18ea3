"""`slurmwrap watch`: one job, live, until it has ended. Ctrl-C ends the view and leaves the job alone."""

from __future__ import annotations

import math
import os
import pwd
import re
import select
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, NoReturn

import typer

from slurmwrap.cli import terminal
from slurmwrap.cli.watch.gpu_watcher import NODES, Gpus, may_measure
from slurmwrap.cli.watch.job_status import JobStatus, JobStatusReader, newest, places_of
from slurmwrap.cli.watch.watch_output import ScreenStyle, as_plain, change_key, lines, one_line
from slurmwrap.config.load_config import load
from slurmwrap.console import Console
from slurmwrap.errors import SlurmUnreachable, SlurmwrapError, UsageError
from slurmwrap.fast_dataclasses import dataclass, field, replace
from slurmwrap.json_output import format_json_line
from slurmwrap.report.text_format import flat, row
from slurmwrap.slurm.commands import SlurmCommands

REDRAW_S = 1.0  # the clock on the screen; Slurm is not asked for it
SLOWEST_S = 60.0  # between two questions where nothing happens
NEWS_S = 600.0  # a running job says how far it is so often where there is no screen
NUMBERS_S = 60.0  # and to a program how busy its GPUs are
_SLOWER = 1.25  # the interval grows so while nothing changes
_ADDRESS = re.compile(r"[0-9]{1,10}(_[0-9]{1,10})?", re.ASCII)
_STYLED = re.compile(r"\033\[[0-9;]*m")
EX_OTHER, EX_SIGPIPE, EX_SIGINT = 1, 141, 130


def watch(
    job: Annotated[str, typer.Argument(metavar="JOBID", help="81, 77 for a whole array, or 77_2.")] = "",
    every: Annotated[float, typer.Option(min=1.0, max=3600.0, help="Seconds between two questions to Slurm.")] = 5.0,
    gpus: Annotated[bool, typer.Option("--gpus", help="How busy its GPUs are, by a small step in the job.")] = False,
    gpu_nodes: Annotated[
        int, typer.Option(min=1, max=256, metavar="N", help="With --gpus: the job's first N nodes are asked.")
    ] = NODES,
    once: Annotated[bool, typer.Option("--once", help="Show it once, and end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For programs: one object per change.")] = False,
) -> None:
    """Watch a job until it has ended: why it waits, when it may start, how fast it goes.

    Without JOBID it is your newest job. Where the output is no terminal, each change is one line.

    --gpus starts one step inside the job (srun --overlap), which ends with the view; your own running job only.

    Ends with 0 when all of the job completed, 1 when it ended otherwise, 130 after Ctrl-C, which ends the view alone.

    \b
    Examples:
      slurmwrap watch
      slurmwrap watch 81 && sbatch next.sbatch
      slurmwrap watch 81 --gpus
      slurmwrap watch 77 --every 30 >> sweep.log
      slurmwrap watch 81 --json | jq .reason_words
      slurmwrap watch 81 --gpus --once --json | jq .gpu_percent
    """
    config = load(os.environ)
    slurm = SlurmCommands(timeout_s=config.slurm_timeout_s)
    address = _address(job, slurm)
    looker = JobStatusReader(address, slurm, places_of(config, os.environ, os.geteuid()), config, os.environ)
    screen = _Screen(as_json=as_json)
    code = EX_OTHER
    try:
        with _measuring(gpus, gpu_nodes) as measure:
            code = _once(looker, screen, measure) if once else _until_the_end(looker, screen, every, measure)
    except KeyboardInterrupt:
        screen.done()
        Console.of_terminal("slurmwrap").say(f"watching ends; job {address} goes on")
        code = EX_SIGINT
    except BrokenPipeError:
        # `| head`: no reader is left
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = EX_SIGPIPE
    raise typer.Exit(code)


def _address(job: str, slurm: SlurmCommands) -> str:
    if job and not _ADDRESS.fullmatch(job):
        raise UsageError(f"'{job}' is no job id", hint="write 81, 77 for a whole array, or 77_2 for a task of it")
    address = job or newest(slurm, pwd.getpwuid(os.geteuid()).pw_name)
    if not address:
        raise SlurmwrapError("Slurm knows no job of yours now", hint="slurmwrap history lists earlier ones")
    return address


@contextmanager
def _measuring(wanted: bool, nodes: int) -> Iterator[Gpus | None]:
    """What measures GPUs, ended however we end: SIGTERM and a closed terminal must leave no step in the job."""
    if not wanted:
        yield None
        return
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:  # nohup ignores SIGHUP
            signal.signal(number, _stopped)
    with Gpus(os.environ, nodes) as measure:
        yield measure


def _stopped(number: int, frame: object) -> NoReturn:
    raise SystemExit(128 + number)


def _with_gpus(status: JobStatus, measure: Gpus | None) -> JobStatus:
    """The step follows what Slurm says of the job. SlurmwrapError where it is not the watcher's."""
    mine = may_measure(status.record)
    if measure is None:
        return replace(status, gpus=False if mine else None)
    if not mine:
        raise SlurmwrapError(
            f"job {status.address} is {status.record.user}'s: only its user, or root, can start a step in it",
            hint=f"slurmwrap watch {status.address} without --gpus shows the rest",
        )
    if not status.array:
        measure.follow(status.record)
    return replace(status, gpus=True, gpu_use=measure.look())


def _once(looker: JobStatusReader, screen: _Screen, measure: Gpus | None = None) -> int:
    facts = _with_gpus(_first(looker), measure)
    while measure is not None and not measure.settled:
        time.sleep(0.1)
        facts = replace(facts, gpu_use=measure.look())
    screen.show(facts)
    screen.done()
    return EX_OTHER if facts.ended and not facts.completed else 0


def _first(looker: JobStatusReader) -> JobStatus:
    facts = looker.look(time.time())
    if not facts.rows:
        raise SlurmwrapError(
            f"Slurm does not know job {facts.address}: it ended a while ago, or there never was one",
            hint=f"slurmwrap why {facts.address} shows what is kept of it; slurmwrap history lists your jobs",
        )
    return facts


def _until_the_end(looker: JobStatusReader, screen: _Screen, every: float, measure: Gpus | None = None) -> int:
    """Asks Slurm every so often, less often while nothing changes; between two answers only the clock goes on."""
    facts, pause = _with_gpus(_first(looker), measure), every
    while True:
        screen.show(facts)
        if facts.ended:
            break
        facts = _wait(facts, screen, pause, measure)
        before, facts = facts, _with_gpus(_next(looker, facts), measure)
        active = facts.trial is not None and facts.trial.seen is not None
        calm = change_key(before) == change_key(facts) and not active
        pause = min(pause * _SLOWER, max(SLOWEST_S, every)) if calm else every
    screen.done()
    screen.tell_end(facts, looker)
    return 0 if facts.completed else EX_OTHER


def _wait(status: JobStatus, screen: _Screen, seconds: float, measure: Gpus | None) -> JobStatus:
    """The clock goes on, and what the GPUs do. Ends early when their step ended: the job may have."""
    until, lost = time.monotonic() + seconds, measure is not None and measure.lost
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(left, REDRAW_S))
        if reader_is_gone(1):
            raise BrokenPipeError
        if measure is not None:
            status = replace(status, gpu_use=measure.look())
            if measure.lost and not lost:
                break
        if screen.live or measure is not None:
            screen.show(replace(status, at=time.time()))
    return status


def reader_is_gone(pipe: int) -> bool:
    """Whether no one reads this pipe any more: while nothing changes nothing is written, so no SIGPIPE would say so."""
    poll = select.poll()
    poll.register(pipe, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _next(looker: JobStatusReader, before: JobStatus) -> JobStatus:
    """The next look. A Slurm that does not answer is waited for: what it said last stays."""
    now = time.time()
    try:
        facts = looker.look(now)
    except SlurmUnreachable as error:
        return replace(before, at=now, silent=str(error))
    if facts.rows:
        return facts
    # It ended and was forgotten (MinJobAge) since the last look.
    state = looker.ending()
    if not state:
        raise _forgotten(before.address)
    return replace(before, at=now, rows=tuple(replace(w, record=replace(w.record, state=state)) for w in before.rows))


def _forgotten(address: str) -> SlurmwrapError:
    return SlurmwrapError(
        f"Slurm does not know job {address} any more", hint=f"slurmwrap why {address} shows what became of it"
    )


@dataclass(slots=True)
class _Screen:
    """Where it is shown: redrawn in place on a terminal, one line per change elsewhere."""

    as_json: bool = False
    live: bool = field(init=False)
    _key: object = None
    _said_at: float = -math.inf
    _drawn: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.live = not self.as_json and sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"

    def show(self, status: JobStatus) -> None:
        """One look."""
        if self.live:
            self._redraw(status)
            return
        key = change_key(status)
        measured = status.gpu_use is not None and bool(status.gpu_use.gpus)
        pause = NUMBERS_S if measured and self.as_json else NEWS_S
        news = (status.steps is not None or measured) and status.at - self._said_at >= pause
        if key != self._key or news:
            self._key, self._said_at = key, status.at
            print(
                format_json_line("watch", as_plain(status)) if self.as_json else one_line(status, _look(80)), flush=True
            )

    def done(self) -> None:
        """What was drawn stays; the cursor is below it already."""
        self._drawn = []

    def tell_end(self, status: JobStatus, looker: JobStatusReader) -> None:
        """What is known of the ending, and where more is."""
        if self.as_json:
            return
        for label, text in looker.why():
            # a command stays in one line, so that it can be pasted
            print("\n".join(row(label, flat(text), _columns()) if label else row(label, flat(text), 10_000)))
        if not status.completed:
            print(f"slurmwrap why {status.address} shows more", flush=True)

    def _redraw(self, status: JobStatus) -> None:
        columns, height = shutil.get_terminal_size()
        look = _look(_columns())
        hint = [] if status.ended else [look.paint("Ctrl-C ends the view, not the job", "dim")]
        shown = [*lines(status, look), *hint][: max(1, height - 1)]
        rows = sum(max(1, math.ceil(len(_STYLED.sub("", line)) / columns)) for line in self._drawn)
        up = f"\033[{min(rows, height - 1)}A" if rows else ""
        sys.stdout.write(f"{up}\r\033[J" + "".join(f"{line}\n" for line in shown))
        sys.stdout.flush()
        self._drawn = shown


def _columns() -> int:
    """The terminal's, less one so that a full line does not wrap; 80 where there is none."""
    return max(20, shutil.get_terminal_size().columns - 1) if sys.stdout.isatty() else 80


def _look(columns: int) -> ScreenStyle:
    unicode = (sys.stdout.encoding or "").lower().replace("-", "").startswith("utf")
    return ScreenStyle(columns=columns, paint=terminal.painter(), unicode=unicode, zone=terminal.local_zone())
