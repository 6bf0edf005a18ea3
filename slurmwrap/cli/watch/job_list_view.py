"""The live list of all jobs for `slurmwrap watch`: on a terminal with keys, otherwise one line per change and job."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable

from slurmwrap.cli.watch.background_poll import BackgroundPoll, compute_pause
from slurmwrap.cli.watch.full_screen import FullScreen
from slurmwrap.cli.watch.job_list import JobList, ListedJob, arrange_jobs, find_job, make_list_key
from slurmwrap.cli.watch.job_list_keys import (
    CANCEL,
    JOB,
    LIST,
    LOG,
    QUIT,
    REFRESH,
    ListView,
    handle_key,
    scroll_to_selected,
)
from slurmwrap.cli.watch.job_list_reader import JobListReader, read_log_page
from slurmwrap.cli.watch.job_list_screen import (
    NO_JOBS,
    LogPage,
    count_table_rows,
    format_job_page,
    format_list,
    format_log_page,
    format_table,
    format_title,
)
from slurmwrap.cli.watch.job_status import JobStatus, JobStatusReader
from slurmwrap.cli.watch.watch_output import (
    ScreenStyle,
    format_log_line,
    format_screen,
    make_change_key,
    status_to_json_dict,
)
from slurmwrap.errors import SlurmError, SlurmUnreachable, SlurmwrapError
from slurmwrap.fast_dataclasses import replace
from slurmwrap.json_output import format_json_line
from slurmwrap.model.decision import SlurmAction, Verb
from slurmwrap.report.text_format import flat, row, visible
from slurmwrap.slurm.commands import SlurmCommands

# The clock is redrawn, and the log on the screen is read, this often.
_REDRAW_S = 1.0

MakeReader = Callable[[str], JobStatusReader]
# The status of the opened job, and the cause of its end as rows of label and text.
_OpenedJob = tuple[JobStatus, tuple[tuple[str, str], ...]]


class JobListView:
    """The list on a terminal. Whatever reads Slurm or files does so in a thread, so that keys are never held up."""

    def __init__(
        self,
        screen: FullScreen,
        reader: JobListReader,
        slurm: SlurmCommands,
        make_reader: MakeReader,
        make_style: Callable[[int], ScreenStyle],
        every: float,
    ) -> None:
        """`make_reader`: returns the reader of one job; `make_style`: the style for a number of columns."""
        self._screen, self._reader, self._slurm, self._make_reader = screen, reader, slurm, make_reader
        self._make_style, self._every = make_style, every
        self._view = ListView()
        self._jobs: JobList | None = None
        self._lines: list[ListedJob] = []
        self._arranged: tuple[JobList | None, object] = (None, None)  # what `_lines` was made of
        self._visible: tuple[str, ...] = ()
        self._list_poll = BackgroundPoll(
            lambda: self._reader.look(self._visible),
            every,
            is_calm=lambda before, now: make_list_key(before) == make_list_key(now),
            wake=screen.wake,
        )
        self._job_poll: BackgroundPoll[_OpenedJob] | None = None
        self._log_poll: BackgroundPoll[LogPage] | None = None
        self._messages: list[str] = []  # from other threads
        self._polled = ("", "", "")  # page, address and file that the two polls read

    def run(self) -> None:
        """Show the list until the user leaves it. Raise SlurmError if Slurm does not answer the first time."""
        while True:
            self._update()
            self._screen.draw(self._format())
            for key in self._screen.read_keys(_REDRAW_S):
                _, height = self._screen.get_size()
                rows = count_table_rows(height) if self._view.page == LIST else height - 2
                self._arrange()
                self._view, command = handle_key(self._view, key, self._lines, rows)
                if command == QUIT:
                    return
                self._carry_out(command)

    def _carry_out(self, command: str) -> None:
        if command == REFRESH:
            self._list_poll.hurry()
            if self._job_poll is not None:
                self._job_poll.hurry()
        elif command == CANCEL:
            address = self._view.asks_cancel
            self._view = replace(self._view, asks_cancel="", message=f"scancel {address} ...")
            threading.Thread(target=self._cancel, args=(address,), daemon=True).start()

    def _cancel(self, address: str) -> None:
        try:
            self._slurm.apply(SlurmAction(verb=Verb.CANCEL, target=address))
            message = f"job {address} was cancelled"
        except SlurmError as error:
            message = f"job {address} was not cancelled: {error}"
        self._messages.append(message)
        self._list_poll.hurry()
        self._screen.wake()

    # --- reading ------------------------------------------------------------------------------------------------------

    def _update(self) -> None:
        try:
            if self._list_poll.poll():
                self._jobs = self._list_poll.value
        except SlurmUnreachable as error:
            if self._jobs is None:
                raise
            self._jobs = replace(self._jobs, silent=str(error))
        if self._messages:
            self._view = replace(self._view, message=self._messages.pop())
        self._update_page()

    def _update_page(self) -> None:
        view = self._view
        polled = (view.page, view.opened, str(view.file)) if view.page != LIST else ("", "", "")
        if polled != self._polled:
            self._polled = polled
            self._job_poll = self._begin_job(view.opened) if view.page == JOB else None
            self._log_poll = self._begin_log(view.opened, view.file) if view.page == LOG else None
        if self._log_poll is not None:
            self._log_poll.poll()
        if self._job_poll is not None:
            try:
                self._job_poll.poll()
            except SlurmwrapError as error:
                self._view = replace(view, message=str(error))

    def _begin_job(self, address: str) -> BackgroundPoll[_OpenedJob]:
        reader = self._make_reader(address)

        def read() -> _OpenedJob:
            status = reader.look(time.time())
            return status, reader.why(status) if status.rows and status.ended else ()

        return BackgroundPoll(
            read,
            self._every,
            is_calm=lambda before, now: make_change_key(before[0]) == make_change_key(now[0]) if now[0].rows else True,
            wake=self._screen.wake,
        )

    def _begin_log(self, address: str, file: int | None) -> BackgroundPoll[LogPage]:
        def read() -> LogPage:
            entry = self._find(address)
            if entry is None:
                return LogPage(note=f"job {address} is not in the list any more")
            return read_log_page(entry.record, self._reader.get_named_logs(entry.record), file)

        return BackgroundPoll(read, _REDRAW_S, wake=self._screen.wake)

    def _find(self, address: str) -> ListedJob | None:
        """Return the job or task with this address in the last list."""
        return find_job(self._jobs.jobs if self._jobs is not None else (), address)

    # --- drawing ------------------------------------------------------------------------------------------------------

    def _arrange(self) -> None:
        jobs, view = self._jobs, self._view
        key = (view.sort, view.search, view.unfolded)
        if jobs is not self._arranged[0] or key != self._arranged[1]:
            self._arranged = (jobs, key)
            self._lines = arrange_jobs(jobs.jobs if jobs else (), view.sort, view.search, view.unfolded)

    def _format(self) -> list[str]:
        columns, height = self._screen.get_size()
        style, jobs = self._make_style(columns), self._jobs
        if jobs is None:
            return ["Slurm's queue is being read ..."]
        jobs = replace(jobs, at=time.time(), silent=jobs.silent or self._describe_delay())
        if self._view.page == JOB:
            return format_job_page(jobs, self._format_opened(style), self._view, style, height)
        if self._view.page == LOG:
            log = self._log_poll.value if self._log_poll is not None else None
            log = log or LogPage(note="the output is being read ...")
            shown, most = format_log_page(jobs, log, self._view, style, height, time.time())
            self._view = replace(self._view, scroll=min(self._view.scroll, most))
            return shown
        self._arrange()
        rows = count_table_rows(height)
        self._view = scroll_to_selected(self._view, self._lines, rows)
        visible = tuple(one.address for one in self._lines[self._view.top : self._view.top + rows])
        if not set(visible) <= set(self._visible):
            # The files of the jobs that came into view are read at the next update.
            self._list_poll.hasten()
        self._visible = visible
        return format_list(jobs, self._lines, self._view, style, height)

    def _describe_delay(self) -> str:
        busy_s = self._list_poll.busy_s
        return f"for {busy_s:.0f} s" if busy_s >= 5 else ""

    def _format_opened(self, style: ScreenStyle) -> list[str]:
        value = self._job_poll.value if self._job_poll is not None else None
        entry = self._find(self._view.opened)
        if value is not None and value[0].rows:
            status, causes = value
        elif entry is not None:
            status, causes = entry.status, ()
        else:
            return [f"Slurm does not know job {self._view.opened} any more; slurmwrap why {self._view.opened}"]
        lines = format_screen(replace(status, at=time.time()), style)
        for label, text in causes:
            lines += row(label, flat(text), style.columns)
        return lines


# --- without a terminal -----------------------------------------------------------------------------------------------


def print_list_once(jobs: JobList, style: ScreenStyle, *, as_json: bool) -> None:
    """Print the table, or one JSON object per job."""
    lines = arrange_jobs(jobs.jobs)
    if as_json:
        for one in lines:
            print(format_json_line("watch", status_to_json_dict(one.status)))
    elif lines:
        print(format_title(jobs, style))
        print("\n".join(format_table(lines, style)))
    else:
        print(NO_JOBS)
    sys.stdout.flush()


def print_changes(
    reader: JobListReader, every: float, style: ScreenStyle, wait: Callable[[float], None], *, as_json: bool
) -> bool:
    """Print a line, or a JSON object, per change of a job until all have ended.

    Return whether all completed that had not ended at first. `wait`: waits so many seconds, and raises BrokenPipeError
    if no process reads stdout any more. Raise SlurmError.
    """
    jobs, pause, keys = reader.look(), every, dict[str, tuple[object, ...]]()
    earlier = {one.address for one in jobs.jobs if one.status.ended}
    while True:
        for one in arrange_jobs(jobs.jobs):
            key = make_change_key(one.status)
            if keys.get(one.address) != key:
                keys[one.address] = key
                print(_format_change(one.status, style, as_json))
        sys.stdout.flush()
        if jobs.ended:
            return replace(jobs, jobs=tuple(one for one in jobs.jobs if one.address not in earlier)).completed
        wait(pause)
        before, jobs = jobs, _read_next_list(reader, jobs)
        pause = compute_pause(pause, every, make_list_key(before) == make_list_key(jobs))


def _format_change(status: JobStatus, style: ScreenStyle, as_json: bool) -> str:
    return format_json_line("watch", status_to_json_dict(status)) if as_json else format_log_line(status, style)


def _read_next_list(reader: JobListReader, before: JobList) -> JobList:
    try:
        return reader.look()
    except SlurmUnreachable as error:
        if not before.silent:
            print(f"Slurm does not answer ({visible(str(error))})", file=sys.stderr, flush=True)
        return replace(before, at=time.time(), silent=str(error))
