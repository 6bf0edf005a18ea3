"""slurmwrap watch without a job: the list on the screen, its order, the keys, and the page of a log."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC

import pytest
from test_reconcile_pass import submission

from slurmwrap.cli.terminal import paint
from slurmwrap.cli.watch.job_list import (
    JobList,
    ListedJob,
    arrange_jobs,
    find_job,
    fold_jobs,
    make_entry,
    make_list_key,
)
from slurmwrap.cli.watch.job_list_keys import (
    CANCEL,
    JOB,
    LIST,
    LOG,
    QUIT,
    REFRESH,
    ListView,
    find_selected,
    handle_key,
    scroll_to_selected,
)
from slurmwrap.cli.watch.job_list_screen import (
    LogPage,
    count_table_rows,
    format_list,
    format_log_page,
    format_table,
    wrap_log,
)
from slurmwrap.cli.watch.job_status import JobStatus, Output
from slurmwrap.cli.watch.watch_output import ScreenStyle, status_to_json_dict
from slurmwrap.diagnosis.log_progress import ShownProgress
from slurmwrap.model.evidence import RunKey
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.pack_member import PackMember
from slurmwrap.model.running_job import STUCK, EarlyFinding
from slurmwrap.model.submission import PackedArray, Submission
from slurmwrap.placement.expected_start import ExpectedStart
from slurmwrap.policy.requeue import RETRY_JOB_COMMENT
from slurmwrap.profiling.progress_estimate import EndForecast
from slurmwrap.report.text_format import width
from slurmwrap.slurm.squeue_parser import WatchedJob

NOW = 1_795_280_000.0  # 2026-11-21 16:53:20 UTC
STYLE = ScreenStyle(zone=UTC)
RUNNING = JobRecord(
    job_id=81, name="train", user="ada", uid=1000, partition="gpu", state="RUNNING", num_nodes=2, gpus=16,
    submit_time=int(NOW) - 7000, eligible_time=int(NOW) - 7000, start_time=int(NOW) - 3600, time_limit_s=8 * 3600,
    nodes=("n0", "n1"),
)  # fmt: skip
PENDING = replace(
    RUNNING, job_id=90, name="eval", state="PENDING", reason="Priority", start_time=None, nodes=(), gpus=4, num_nodes=1
)
COMPLETED = replace(RUNNING, job_id=70, name="prepare", state="COMPLETED", end_time=int(NOW) - 60, gpus=0)
FAILED = replace(COMPLETED, job_id=71, name="broken", state="FAILED", exit_code=3)
TASK = replace(RUNNING, name="sweep", array_job_id=77, gpus=1, num_nodes=1, nodes=("n2",))


def make_array(
    running: int = 3, pending: str = "4-15", failed: int = 1, tasks: tuple[JobRecord, ...] = ()
) -> tuple[JobRecord, ...]:
    """An array as squeue shows it: one record for its pending tasks, and one for each other task."""
    waits = replace(TASK, job_id=77, state="PENDING", reason="JobArrayTaskLimit", array_tasks=pending, nodes=())
    return (
        *((replace(waits, start_time=None),) if pending else ()),
        *(replace(TASK, job_id=100 + at, array_task_id=at) for at in range(running)),
        *(
            replace(TASK, job_id=200 + at, array_task_id=running + at, state="FAILED", exit_code=1, end_time=int(NOW))
            for at in range(failed)
        ),
        *tasks,
    )


def fold(*records: JobRecord, submissions: dict[int, Submission] | None = None) -> tuple[JobStatus, ...]:
    return fold_jobs([WatchedJob(record=one) for one in records], NOW, submissions)


def make_list(*records: JobRecord, **changes: JobStatus) -> JobList:
    jobs = tuple(make_entry(changes.get(f"j{one.address}", one)) for one in fold(*records))
    return JobList(at=NOW, user="ada", jobs=jobs)


def show(jobs: JobList, view: ListView | None = None, style: ScreenStyle = STYLE, height: int = 24) -> list[str]:
    view = view or ListView()
    lines = arrange_jobs(jobs.jobs, view.sort, view.search, view.unfolded)
    return format_list(jobs, lines, scroll_to_selected(view, lines, count_table_rows(height)), style, height)


def addresses(lines: list[ListedJob]) -> list[str]:
    return [one.address for one in lines]


ALL = (COMPLETED, PENDING, *make_array(), FAILED, RUNNING)


def test_the_members_of_a_packed_array_are_counted_with_those_of_its_pending_tasks() -> None:
    def member(index: int, state: str) -> PackMember:
        return PackMember(index=index, state=state, task=f"77_{index - index % 4}")

    records = (
        replace(TASK, job_id=77, state="PENDING", reason="Resources", array_tasks="8,12", start_time=None),
        replace(TASK, job_id=100, array_task_id=0),
        replace(TASK, job_id=101, array_task_id=4, state="TIMEOUT", end_time=int(NOW)),
    )
    states = ["running", "failed", "completed", "running", "completed", "stopped", "cancelled", "running"]
    (status,) = fold(*records)
    status = replace(
        status,
        pack=PackedArray(directory="/absent", members=4, array="0-13"),
        members=tuple(member(index, state) for index, state in enumerate(states)),
    )
    jobs = JobList(at=NOW, user="ada", jobs=(make_entry(status),))
    words = {"PENDING": 6, "RUNNING": 2, "FAILED": 1, "COMPLETED": 2, "TIMEOUT": 2, "CANCELLED": 1}
    assert jobs.jobs[0].counts == words
    assert status_to_json_dict(status)["members"] == words
    wide = replace(STYLE, columns=160)
    lines = [line.split("  ")[-1] for line in show(jobs, ListView(unfolded=frozenset(("77",))), wide)[2:6]]
    assert lines == [
        "2 running, 6 pending, 1 cancelled, 1 failed, 2 time limit reached, 2 completed members (77_1), Resources",
        "2 running, 1 failed, 1 completed members (77_1)",
        "6 pending members, Resources",
        "1 cancelled, 2 time limit reached, 1 completed members",
    ]


def test_all_jobs_are_listed_with_arrays_folded_and_the_selected_job_below() -> None:
    (status,) = fold(RUNNING)
    end = EndForecast(
        at=NOW + 2100, by=NOW + 2400, source="progress", progress=ShownProgress(done=1240, total=4000), needs_s=5700.0
    )
    (waits,) = fold(PENDING)
    start = ExpectedStart(at=NOW + 1500, by=NOW + 7000, jobs=9, predicted=8)
    order = "in class 2 of 6: usually runs 20 min on 4 GPUs"
    jobs = make_list(*ALL, j81=replace(status, end=end), j90=replace(waits, start=start, queue_order=order))
    assert show(jobs) == [
        "5 jobs of ada: 4 running, 13 pending, 2 failed, 1 completed; 19 GPUs    16:53:20",
        "  JOB  NAME     GPUS     TIME  STATE",
        "> 77   sweep       3  1:00:00  3 running, 12 pending, 1 failed",
        "  81   train      16  1:00:00  running, 31 %, ends 17:28",
        "  90   eval        4  1:56:40  pending, starts 17:18, in class 2 of 6",
        "  70   prepare        0:59:00  completed",
        "  71   broken         0:59:00  failed, exit code 3",
        *[""] * 8,
        "─" * 80,
        "job 77 (sweep): 12 pending, 3 running, 1 failed",
        "task     77_3 did not complete; slurmwrap why 77_3",
        "reason   as many tasks of its array run as it allows (--array=…%N)",
        "         (JobArrayTaskLimit)",
        *[""] * 3,
        "Enter opens, l log, Space tasks, / search, s sort (state), x cancel, q quit",
    ]


def test_without_a_job_the_list_says_what_to_do() -> None:
    shown = show(JobList(at=NOW, user="ada"))
    assert shown[0].startswith("no jobs of ada")
    assert shown[2] == "Slurm knows no job of yours now. gsub submits one; slurmwrap history lists earl…"
    assert len(shown) == 24
    assert show(make_list(RUNNING), ListView(search="nothing\x1b"))[2] == "no job matches 'nothing\\x1b'"


@pytest.mark.parametrize(("columns", "height"), [(80, 24), (40, 12), (20, 5), (132, 50), (10, 3), (1, 1)])
@pytest.mark.parametrize("unicode", [True, False])
def test_the_screen_has_its_size_on_each_terminal(columns: int, height: int, unicode: bool) -> None:
    style = ScreenStyle(columns=columns, zone=UTC, unicode=unicode)
    evil = replace(RUNNING, job_id=91, name="a\x1b]0;x\x07\n\u202e" * 30 + "データ" * 90)
    shown = show(make_list(*ALL, evil), ListView(unfolded=frozenset(("77",)), selected="91"), style, height)
    assert len(shown) == height
    table = shown[: 2 + count_table_rows(height)]
    assert max(width(line) for line in shown) <= columns
    assert "".join(shown).isprintable()
    if columns >= 40:
        # What is most important, the state, is left on a narrow terminal.
        assert any("running" in line for line in table[2:])


def test_without_colour_no_escape_sequence_is_written_and_with_it_only_styles() -> None:
    jobs = make_list(*ALL)
    plain = show(jobs)
    coloured = show(jobs, style=replace(STYLE, paint=paint))
    assert [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in coloured] == plain
    assert next(line for line in coloured if "broken" in line).startswith("\x1b[31m")


def test_a_job_with_a_finding_comes_first_and_says_what_was_found() -> None:
    found = EarlyFinding(
        attempt=RunKey(cluster="c", job_id=82, submit_time=1), kind=STUCK, at=NOW - 60, n=840,
        evidence="no step for 14 min", uid=1000, address="82", mode="advise",
    )  # fmt: skip
    (status,) = fold(replace(RUNNING, job_id=82))
    jobs = make_list(*ALL, replace(RUNNING, job_id=82), j82=replace(status, findings=(found,)))
    assert show(jobs)[2] == "> 82   train      16  1:00:00  stuck: no step for 14 min, running"
    of_task = replace(found, attempt=RunKey(cluster="c", job_id=101, submit_time=1), address="77_1")
    (array,) = fold(*make_array())
    jobs = make_list(*ALL, j77=replace(array, findings=(of_task,)))
    assert show(jobs)[2] == "> 77   sweep       3  1:00:00  1 stuck, 3 running, 12 pending, 1 failed"
    tasks = format_table(arrange_jobs(jobs.jobs[2:3], unfolded=frozenset(("77",))), STYLE)
    assert [line for line in tasks if "stuck:" in line] == [
        "    77_1                 1  1:00:00  stuck: no step for 14 min, running"
    ]


def test_a_silent_job_and_one_that_its_limit_ends_are_warnings() -> None:
    (status,) = fold(RUNNING)
    silent = Output(at=NOW - 2400, last_line="step 7", mean_gap_s=1.0)
    late = EndForecast(at=NOW + 90_000, by=NOW + 95_000, source="runs", n=4, needs_s=93_600.0, share_at_limit=0.3)
    style = replace(STYLE, paint=lambda text, kind: f"<{kind}>{text}")
    for change, expected in (
        ({"output": silent}, "running, no output for 40 min"),
        ({"end": late}, "running, its time limit comes first"),
    ):
        (line,) = format_table([make_entry(replace(status, **change))], style)[1:]
        assert line.startswith("<yellow>")
        assert line.endswith(expected)


def test_pre_runs_and_retry_jobs_are_not_listed() -> None:
    prerun = replace(PENDING, job_id=91, name="eval.prerun")
    retry = replace(PENDING, job_id=92, comment=RETRY_JOB_COMMENT)
    submitted = {90: submission(90, prerun_job_id=91)}
    assert [one.address for one in fold(PENDING, prerun, retry, submissions=submitted)] == ["90"]
    # Without gsub's record it cannot be told whose pre-run it is.
    assert [one.address for one in fold(PENDING, prerun)] == ["90", "91"]
    assert [one.address for one in fold(prerun, submissions=submitted)] == ["91"]


def test_the_components_of_a_heterogeneous_job_are_one_line() -> None:
    parts = (replace(RUNNING, het_job_id=81), replace(RUNNING, job_id=82, het_job_id=81, gpus=4))
    (status,) = fold(*parts)
    assert (status.address, make_entry(status).gpus) == ("81", 20)


def test_the_list_is_sorted_in_each_order() -> None:
    jobs = make_list(*ALL, replace(RUNNING, job_id=95, name="Alpha", gpus=64, submit_time=int(NOW))).jobs
    assert addresses(arrange_jobs(jobs)) == ["77", "81", "95", "90", "70", "71"]
    assert addresses(arrange_jobs(jobs, "newest"))[0] == "95"
    assert addresses(arrange_jobs(jobs, "name"))[:2] == ["95", "71"]
    assert addresses(arrange_jobs(jobs, "GPUs"))[:2] == ["95", "81"]
    assert addresses(arrange_jobs(jobs, "next"))[-2:] == ["70", "71"]


@pytest.mark.parametrize(
    ("search", "expected"),
    [
        ("TRAIN", ["81"]),
        ("7", ["77", "70", "71"]),
        ("failed", ["77", "71"]),
        ("sweep failed", ["77"]),
        ("n1", ["81", "70", "71"]),
        ("priority", ["90"]),
        ("nothing", []),
        ("  ", ["77", "81", "90", "70", "71"]),
    ],
)
def test_a_search_finds_ids_names_states_reasons_and_nodes(search: str, expected: list[str]) -> None:
    assert addresses(arrange_jobs(make_list(*ALL).jobs, search=search)) == expected


def test_an_unfolded_array_shows_each_task_and_those_that_are_pending() -> None:
    lines = arrange_jobs(make_list(*make_array()).jobs, unfolded=frozenset(("77",)))
    assert [one.label for one in lines] == ["77", "77_0", "77_1", "77_2", "77_[4-15]", "77_3"]
    assert addresses(lines) == ["77", "77_0", "77_1", "77_2", "77", "77_3"]


def test_a_job_an_array_and_a_task_are_found_by_their_address() -> None:
    jobs = make_list(*ALL).jobs
    found = [find_job(jobs, address) for address in ("81", "77", "77_1", "77_9", "99", "99_1")]
    assert [one and one.label for one in found] == ["81", "77", "77_1", None, None, None]


def test_only_a_change_of_a_job_is_a_change_of_the_list() -> None:
    first = make_list(*ALL)
    assert make_list_key(first) == make_list_key(replace(first, at=NOW + 60))
    assert make_list_key(first) != make_list_key(make_list(*ALL[:-1]))
    assert make_list_key(first) != make_list_key(replace(first, silent="no answer"))


def test_the_list_has_ended_and_is_complete_when_each_job_is() -> None:
    assert (make_list(*ALL).ended, make_list(COMPLETED).completed, make_list(FAILED).completed) == (False, True, False)
    assert make_list(COMPLETED, FAILED).ended
    assert not replace(make_list(COMPLETED), forgotten=1).completed


# --- keys -------------------------------------------------------------------------------------------------------------


def press(*keys: str, view: ListView | None = None, jobs: JobList | None = None) -> tuple[ListView, str]:
    """Press keys one after the other, on a list of 5 lines; the last command."""
    view, command = view or ListView(), ""
    for key in keys:
        lines = arrange_jobs((jobs or make_list(*ALL)).jobs, view.sort, view.search, view.unfolded)
        view, command = handle_key(view, key, lines, 5)
    return view, command


def test_arrows_move_the_cursor_and_stop_at_both_ends() -> None:
    assert press("down")[0].selected == "81"
    assert press("j", "down", "k")[0].selected == "81"
    assert press("up")[0].selected == "77"
    assert press("end")[0].selected == press("pagedown", "pagedown")[0].selected == "71"
    assert press("end", "home")[0].selected == "77"


def test_the_cursor_stays_on_its_job_when_the_list_changes() -> None:
    view, _ = press("down", "down")
    lines = arrange_jobs(make_list(PENDING, *make_array()).jobs)
    assert lines[find_selected(view, lines)].address == "90"
    gone = arrange_jobs(make_list(RUNNING).jobs)
    assert find_selected(view, gone) == 0


def test_the_selected_line_is_always_on_the_screen() -> None:
    lines = arrange_jobs(make_list(*(replace(RUNNING, job_id=100 + at) for at in range(500))).jobs)
    view = scroll_to_selected(ListView(selected="400"), lines, 12)
    assert view.top == 289
    assert scroll_to_selected(replace(view, selected="395"), lines, 12).top == 289
    assert scroll_to_selected(replace(view, selected="100"), lines, 12).top == 0
    assert scroll_to_selected(replace(view, selected="400"), lines[:5], 12).top == 0


def test_enter_opens_a_job_and_escape_or_q_returns() -> None:
    view, _ = press("down", "enter")
    assert (view.page, view.opened) == (JOB, "81")
    assert [press(key, view=view)[0].page for key in ("escape", "q", "left")] == [LIST] * 3
    log, _ = press("l", view=view)
    assert (log.page, press("escape", view=log)[0].page) == (LOG, JOB)
    assert press("escape", view=press("l")[0])[0].page == LIST


def test_q_in_the_list_ends_it_and_r_reads_again() -> None:
    assert press("q")[1] == QUIT
    assert press("r")[1] == press("enter", "r")[1] == REFRESH
    empty = JobList(at=NOW, user="ada")
    assert [press(key, jobs=empty)[1] for key in ("down", "enter", "l", "x", " ", "q")] == ["", "", "", "", "", QUIT]


def test_a_search_is_typed_and_left() -> None:
    view, _ = press("/", "s", "w", "q", "backspace")
    assert (view.typing, view.search) == (True, "sw")
    kept, _ = press("enter", view=view)
    assert (kept.typing, kept.search) == (False, "sw")
    assert press("escape", view=view)[0].search == press("escape", view=kept)[0].search == ""


def test_s_goes_through_the_orders() -> None:
    found = [press(*"s" * times)[0].sort for times in range(6)]
    assert (found[0], found[1], found[5]) == ("state", "newest", "state")


def test_space_unfolds_an_array_and_folds_it_again() -> None:
    view, _ = press(" ")
    assert view.unfolded == {"77"}
    folded, _ = press("down", " ", view=view)
    assert (folded.unfolded, folded.selected) == (frozenset(), "77")
    assert press("down", " ")[0].message == "job 81 is no array"


def test_a_job_is_cancelled_only_after_the_answer_yes() -> None:
    view, command = press("down", "x")
    assert (view.asks_cancel, command) == ("81", "")
    assert "cancel job 81?" in show(make_list(*ALL), view)[-1]
    assert press("y", view=view)[1] == CANCEL
    for key in ("n", "enter", "escape", "q", " "):
        refused, command = press(key, view=view)
        assert (refused.asks_cancel, command) == ("", "")
    # The pending tasks of an array, without those that run.
    assert press(" ", "down", "down", "down", "down", "x")[0].asks_cancel == "77_[4-15]"


def test_the_log_scrolls_and_follows_again_at_its_end() -> None:
    log = LogPage(path="/home/ada/out", text="\n".join(f"line {n}" for n in range(100)) + "\n", written_at=NOW - 3)
    view = ListView(page=LOG, opened="81")
    jobs = make_list(RUNNING)
    shown, most = format_log_page(jobs, log, view, STYLE, 24, NOW)
    assert (len(shown), shown[0], shown[-2], most) == (
        24,
        "log of job 81: /home/ada/out, written 3 s ago",
        "line 99",
        78,
    )
    above = press("pageup", "up", view=view)[0]
    assert format_log_page(jobs, log, above, STYLE, 24, NOW)[0][-2] == "line 93"
    assert press("end", view=above)[0].scroll == 0
    first = press("home", view=view)[0]
    assert format_log_page(jobs, log, first, STYLE, 24, NOW)[0][1] == "line 0"
    note = format_log_page(jobs, LogPage(note="there is no output"), view, STYLE, 24, NOW)[0]
    assert note[1] == "there is no output"
    assert press("tab", "tab", view=view)[0].file == 1


def test_a_log_is_shown_without_control_sequences() -> None:
    text = "\x1b[31mred\x1b[0m\ttab\r\n 1%|\r 2%|\r\nt\x1b]0;title\x07\x1b]2;\n" + "x" * 25 + "\nデータデータ\n\n\n"
    assert wrap_log(text, 10) == [
        *("red     ta", "b", " 2%|", "t\\x1b]2;", "x" * 10, "x" * 10, "x" * 5, "データデー", "タ"),
    ]
    # As progress bars of rich and of Keras write them.
    assert wrap_log("\x1b[?25l\x1b[2Kepoch 20%\n\x1b[1A\x1b[2Kloss 0.5\n1/63\b\b\b\b\r2/63", 80) == [
        *("epoch 20%", "loss 0.5", "2/63"),
    ]
