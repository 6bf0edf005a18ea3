"""Compare each finding about a running job (rule `early`) with how the run ended. Pure.

    diverged, partly dead, stuck   right if the run did not complete and the evidence never went away; wrong if it
                                   completed, or the evidence went away. A run that completed with a loss of NaN
                                   diverged.
    idle GPUs                      right if they stayed idle, or for a while longer; wrong if they were soon used
    will not finish                right if the time limit ended the run; wrong if it completed

A finding is open while the run lasts, and if slurmwrap itself ended it: what would have happened is not known.
"""

from __future__ import annotations

from collections.abc import Sequence

from slurmwrap.diagnosis.taxonomy import COMPLETED_WITH_ERROR
from slurmwrap.model.running_job import DIVERGED, FINDING_KINDS, FINDING_TITLES, IDLE, WILL_NOT_FINISH
from slurmwrap.report.night_report import Agreement, EarlyCase, EarlyRow
from slurmwrap.report.report_inputs import FoundRun

RIGHT, WRONG, OPEN = "right", "wrong", "open"
# GPUs that are used within this time after the finding were not idle for long.
_SOON_S = 900.0


def judge_found_run(one: FoundRun) -> str:
    """Return RIGHT, WRONG or OPEN."""
    if one.action:
        return OPEN
    if one.kind == IDLE and one.gone_at is not None:
        return WRONG if one.gone_at - one.at < _SOON_S else RIGHT
    if not one.state or one.end_time is None:
        return OPEN
    if one.kind == IDLE:
        return RIGHT
    if one.kind == WILL_NOT_FINISH:
        return {"TIMEOUT": RIGHT, "COMPLETED": WRONG}.get(one.state, OPEN)
    if one.gone_at is not None:
        return WRONG
    if one.kind == DIVERGED and one.category == COMPLETED_WITH_ERROR:
        return RIGHT
    return WRONG if one.state == "COMPLETED" else RIGHT


def count_early_rows(found: Sequence[FoundRun]) -> tuple[EarlyRow, ...]:
    """Return one row for each kind of finding."""
    rows = []
    for kind in FINDING_KINDS:
        some = [one for one in found if one.kind == kind]
        results = [judge_found_run(one) for one in some]
        right, wrong = results.count(RIGHT), results.count(WRONG)
        if some:
            rows.append(
                EarlyRow(
                    kind=FINDING_TITLES[kind],
                    findings=len(some),
                    right=right,
                    wrong=wrong,
                    open=results.count(OPEN),
                    precision=right / (right + wrong) if right + wrong else None,
                    acted=sum(bool(one.action) for one in some),
                    gpu_hours_after=sum(
                        one.gpus * max(0.0, (one.end_time or one.at) - one.at) / 3600
                        for one, result in zip(some, results, strict=True)
                        if result == RIGHT
                    ),
                )
            )
    return tuple(rows)


def list_early_cases(found: Sequence[FoundRun]) -> tuple[EarlyCase, ...]:
    """Return the findings, the newest first."""
    return tuple(
        EarlyCase(
            address=one.address,
            user=one.user,
            name=one.name,
            kind=FINDING_TITLES.get(one.kind, one.kind),
            at=one.at,
            evidence=one.evidence,
            action=one.action,
            ended=one.state,
            result=judge_found_run(one),
        )
        for one in sorted(found, key=lambda one: -one.at)
    )


def make_early_agreement(rows: Sequence[EarlyRow]) -> tuple[Agreement, ...]:
    """Return the row of the rule `early` among those of all rules; () if nothing was found."""
    if not rows:
        return ()
    return (
        Agreement(
            rule="early",
            agree=sum(row.right for row in rows),
            disagree=sum(row.wrong for row in rows),
            open=sum(row.open for row in rows),
        ),
    )
