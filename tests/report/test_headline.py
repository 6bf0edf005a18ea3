"""The verdict in one sentence, the headline figures, and the sections that the page leaves out."""

from __future__ import annotations

from dataclasses import replace

import nights
import pytest

from slurmwrap.model.decision import BlockedInput
from slurmwrap.report.headline import build_page, make_night_verdict
from slurmwrap.report.night_report import Blocked, Headline, IncidentRow, NightReport, Saving
from slurmwrap.report.report_page import Figure, NightVerdict, TableRow

_OPEN = IncidentRow(
    incident_id="i", category="storage_unavailable", scope="/scratch", began=nights.UNTIL - 60, over_at=None, jobs=3,
    users=2, gpu_hours=1.0,
)  # fmt: skip


def make_quiet_report(**changes: object) -> NightReport:
    """Make a report in which runs ended and nothing is wrong."""
    report = replace(nights.empty(), headline=Headline(jobs=3, attempts=4, users=2, gpu_hours=100.0))
    return replace(report, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("report", "verdict"),
    [
        (nights.empty(), NightVerdict(word="quiet", sentence="Nothing ended in this time.")),
        (make_quiet_report(), NightVerdict(word="quiet", sentence="4 runs ended, none failed. Nothing to do.")),
        (
            make_quiet_report(headline=Headline(attempts=9, gpu_hours=100.0, failed_attempts=2, failed_gpu_hours=5.0)),
            NightVerdict(word="quiet", sentence="5.0 % of 100.0 GPU-hours went into failed runs. Nothing to do."),
        ),
        (
            make_quiet_report(incidents=(_OPEN, _OPEN)),
            NightVerdict(word="watch", sentence="4 runs ended, none failed. 2 incidents still open."),
        ),
        (
            nights.full(),
            NightVerdict(
                word="act",
                sentence="15.1 % of 11,840 GPU-hours went into failed runs, up from 9.8 %, the largest part by "
                "GPU hardware fault. 2 things to do.",
            ),
        ),
    ],
)
def test_the_verdict_is_a_word_and_one_sentence(report: NightReport, verdict: NightVerdict) -> None:
    assert make_night_verdict(report) == verdict


def test_a_larger_failed_share_than_before_gives_watch_and_a_smaller_one_quiet() -> None:
    worse = Headline(attempts=9, gpu_hours=100.0, failed_attempts=2, failed_gpu_hours=5.0)
    better = replace(worse, failed_gpu_hours=2.0)
    assert make_night_verdict(make_quiet_report(headline=worse, before=better)) == NightVerdict(
        word="watch", sentence="5.0 % of 100.0 GPU-hours went into failed runs, up from 2.0 %."
    )
    assert make_night_verdict(make_quiet_report(headline=better, before=worse)).word == "quiet"
    assert "as in the period before" in make_night_verdict(make_quiet_report(headline=worse, before=worse)).sentence


def test_the_verdict_contains_no_text_from_users() -> None:
    assert make_night_verdict(nights.hostile()) == make_night_verdict(nights.full())


def test_the_figures_of_a_full_night() -> None:
    assert build_page(nights.full()).figures == (
        Figure(key="jobs", label="jobs ended", value="1,498", detail="1,602 runs of 74 users; 1,120 calls of gsub",
               change="+9 % from 1,377", number=1498, before=1377),
        Figure(key="gpu-hours", label="GPU-hours held", value="11,840", change="+9 % from 10,911",
               number=11_840.5, before=10_911.0),
        Figure(key="failed-gpu-hours", label="GPU-hours in failed runs", value="1,788", detail="15.1 % of all",
               change="from 9.8 %", tone="bad", number=1788.2, before=1070.2),
        Figure(key="failed-runs", label="runs failed", value="205", detail="88 cancelled; 3 not judged yet",
               change="+8 % from 189", number=205, before=189),
        Figure(key="saved", label="GPU-hours saved", value="+237.1", tone="good", number=204.1 + 33.0,
               detail="95 %: +151.4 to +352.9; 2 of 3 means estimated"),
        Figure(key="retried", label="GPU-hours done by retries", value="+61.7", number=61.7,
               detail="95 %: −8.00 to +120.4; completed less failed; spent, without their users"),
        Figure(key="wrong", label="wrong decisions", value="28", detail="of 513", number=28),
        Figure(key="limits", label="of time limits used", value="18.3 %", number=0.183,
               detail="median of 812 completed runs; 48,120 GPU-hours asked for beyond the need"),
        Figure(key="ettr", label="ETTR", value="87.1 %", detail="of 212 jobs that counted steps",
               number=0.871),
    )  # fmt: skip


def test_a_saving_that_was_not_estimated_is_not_a_number() -> None:
    unknown = Saving(what="prerun", formula="prerun-1", gpu_hours=None, n=3, needed=20)
    (saved,) = [one for one in build_page(make_quiet_report(savings=(unknown,))).figures if one.key == "saved"]
    assert (saved.value, saved.detail, saved.tone) == ("not estimated", "0 of 1 means estimated", "")


def test_pre_runs_that_cost_more_than_they_saved_are_marked_as_bad() -> None:
    cost = Saving(what="prerun", formula="prerun-1", gpu_hours=-136.4, low=-140.5, high=-129.2, n=846, needed=20)
    (saved,) = [one for one in build_page(make_quiet_report(savings=(cost,))).figures if one.key == "saved"]
    assert (saved.value, saved.tone) == ("−136.4", "bad")
    assert saved.detail == "they cost more, by the formulas; 95 %: −140.5 to −129.2; 1 of 1 means estimated"


def test_empty_sections_are_left_out_except_failures_and_nodes() -> None:
    sections = build_page(make_quiet_report()).sections
    assert [(one.key, one.empty) for one in sections] == [
        ("failed", "No run failed."),
        ("nodes", "No node is under suspicion, and none is drained by slurmwrap."),
    ]
    assert not any(one.has_something for one in sections)


def test_a_full_night_has_every_section() -> None:
    page = build_page(nights.full())
    assert [(one.key, [table.key for table in one.tables]) for one in page.sections] == [
        ("failed", ["categories", "incidents", "repeated_jobs", "repeated_users", "repeated_inputs"]),
        ("saved", ["savings", "retried", "caught"]),
        ("wrong", ["wrong", "agreement", "rules"]),
        ("nodes", ["suspects", "lemons", "drains"]),
        ("inputs", ["inputs"]),
        ("gpu_use", ["gpu_use"]),
        ("idle", ["idle"]),
        ("requests", ["requests"]),
        ("limits", ["time_limits", "time_limits_accounts", "run_time_predictions"]),
        ("queueing", ["waits", "longest_waits", "locality"]),
        ("large", ["large_jobs"]),
        ("users", ["users"]),
        ("accounts", ["accounts"]),
    ]


def test_the_report_of_one_user_has_the_users_name_in_its_title() -> None:
    page = build_page(replace(make_quiet_report(), user="ada"))
    assert (page.title, page.whose) == ("Report for ada", "cluster aurora")


def test_a_users_own_report_has_the_users_sections_and_no_user_columns() -> None:
    page = build_page(nights.own())
    assert [(one.key, [table.key for table in one.tables]) for one in page.sections] == [
        ("failed", ["categories", "incidents", "repeated_jobs", "repeated_inputs"]),
        ("usage", ["usage"]),
        ("inputs", ["inputs"]),
        ("queueing", ["waits", "longest_waits"]),
        ("large", ["large_jobs"]),
        ("saved", ["savings", "retried", "caught"]),
        ("wrong", ["wrong"]),
    ]
    columns = {column.key for one in page.sections for table in one.tables for column in table.columns}
    assert columns & {"user", "users"} == set()
    assert all(len(row.values) == len(table.columns) for one in page.sections for table in one.tables
               for row in table.rows)  # fmt: skip
    assert page.figures[0].detail == "1,602 runs; 1,120 calls of gsub"
    assert page.verdict.word == "act"
    kept = tuple(one for one in nights.own().to_do if one.advice)
    # only advice to request less: nothing is wrong
    assert build_page(replace(nights.own(), to_do=kept)).verdict.word == "watch"


def test_a_site_report_for_one_user_has_the_site_sections_without_users() -> None:
    keys = {
        one.key: [table.key for table in one.tables] for one in build_page(replace(nights.full(), user="ada")).sections
    }
    assert "users" not in keys and keys["nodes"] == ["suspects", "lemons", "drains"]


def test_inputs_blocked_for_one_reason_share_a_row_but_not_in_csv() -> None:
    blocked = tuple(
        Blocked(
            input=BlockedInput(digest=str(i), path=f"/d/{i}", uid=7, reason=f"/d/{i}: it does not exist", at=float(i)),
            user="ada",
            new=i > 2,
        )
        for i in range(5)
    )
    (section,) = [one for one in build_page(make_quiet_report(blocked=blocked)).sections if one.key == "inputs"]
    (table,) = section.tables
    assert table.rows == (
        TableRow(("/d/4", 2, "ada", 4.0, "new", None), more="it does not exist"),
        TableRow(("/d/2", 3, "ada", 2.0, "known", None), more="it does not exist"),
    )
    assert [row.values[0] for row in table.unfolded] == ["/d/4", "/d/3", "/d/2", "/d/1", "/d/0"]
