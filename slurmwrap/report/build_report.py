"""Turns the figures of a period into a NightReport, section by section. Pure."""

from __future__ import annotations

from slurmwrap.config import Nodes
from slurmwrap.report import categories, idle_resources, lemon_nodes, repeated_failures, usage_totals
from slurmwrap.report.action_counts import rule_rows, to_do
from slurmwrap.report.agreement import agreement
from slurmwrap.report.ettr import counted, large
from slurmwrap.report.false_decisions import retries, wrong
from slurmwrap.report.holdout_figures import holdout
from slurmwrap.report.night_report import Blocked, Estimate, NightReport, Preruns, Saving
from slurmwrap.report.queue_wait import queueing
from slurmwrap.report.report_inputs import Figures
from slurmwrap.report.run_locality import locality
from slurmwrap.report.savings import savings


def build(figures: Figures, nodes: Nodes | None = None) -> NightReport:
    """What ended, was decided or was struck in the period; blocked inputs, drains and nodes as they stand."""
    since, until = figures.since, figures.until
    blaming = [strike for strike in figures.strikes if not strike.incident]
    saved = savings(figures)
    out = {one.node for one in figures.removals}
    judged = lemon_nodes.lemons(figures.history, nodes or Nodes(), out, now=until)
    drained = {action.target for action in figures.drains if action.mode in ("advise", "act")}
    return NightReport(
        since=since,
        until=until,
        clusters=figures.clusters,
        user=figures.user,
        headline=usage_totals.headline(figures),
        before=usage_totals.before(figures),
        preruns=_preruns(figures, saved[0]),
        savings=saved,
        wrong=wrong(figures),
        holdout=holdout(figures),
        caught=categories.caught(figures.caught),
        categories=categories.categories(figures),
        incidents=categories.incident_rows(figures),
        runtimes=usage_totals.runtimes(figures.cells),
        held=tuple(figures.moments),
        repeated=repeated_failures.by_job(figures),
        repeated_users=repeated_failures.by_user(figures),
        repeated_inputs=repeated_failures.by_input(figures),
        rules=rule_rows(figures.steps),
        retries=retries(figures.again),
        agreement=agreement(
            *(figures.judged, figures.spoken, blaming, figures.submitted),
            out_of_service={one.node for one in figures.removals if not one.ours},
        ),
        suspects=lemon_nodes.suspects([strike for strike in blaming if since <= strike.at < until]),
        lemons=judged,
        drains=lemon_nodes.own_drains(figures.removals),
        blocked=tuple(
            Blocked(input=one, user=figures.names.get(one.uid, ""), new=since <= one.at < until)
            for one in figures.blocked
        ),
        to_do=(*lemon_nodes.to_drain(judged, drained), *to_do(figures.drains)),
        counted=counted(figures.counting, since=since, until=until),
        large=large(figures.large),
        queueing=queueing(figures.delays, since=since, until=until),
        idle=idle_resources.idle(figures),
        requests=idle_resources.requests(figures.asked),
        locality=locality(figures.spread, figures.switch_of),
        users=usage_totals.users(figures),
        accounts=usage_totals.accounts(figures),
        notes=tuple(figures.notes),
    )


def _preruns(figures: Figures, saved: Saving) -> Preruns:
    stopped = [one for one in figures.caught if one.job_id is not None]
    return Preruns(
        passed=figures.outcomes.get("pass", 0),
        failed=figures.outcomes.get("fail", 0),
        inconclusive=figures.outcomes.get("inconclusive", 0),
        stopped_jobs=len(stopped),
        gpus_never_started=sum(one.gpus for one in stopped),
        gpu_hours=figures.prerun_gpu_s / 3600,
        delayed_jobs=figures.delayed.started,
        delay_s=figures.delayed.wait_s / figures.delayed.started if figures.delayed.started else 0.0,
        delay_gpu_hours=figures.delayed.gpu_s / 3600,
        saved=Estimate(gpu_hours=saved.gpu_hours, n=saved.n, needed=saved.needed, formula=saved.formula),
    )
