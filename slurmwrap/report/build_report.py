"""Build a NightReport, section by section, from the figures of a period. Pure."""

from __future__ import annotations

from slurmwrap.config.load_config import Nodes
from slurmwrap.fast_dataclasses import replace
from slurmwrap.report import failure_counts, lemon_nodes, usage_totals
from slurmwrap.report.action_counts import count_moves, count_rule_rows, list_advised_actions
from slurmwrap.report.agreement import compare_rules_with_outcomes
from slurmwrap.report.convergence_totals import sum_convergence
from slurmwrap.report.early_results import count_early_rows, list_early_cases, make_early_agreement
from slurmwrap.report.fairness_totals import sum_fairness
from slurmwrap.report.gpu_use_totals import sum_gpu_use
from slurmwrap.report.move_results import compare_moves
from slurmwrap.report.night_report import Blocked, Estimate, NightReport, Preruns, Saving
from slurmwrap.report.queue_wait import compute_queueing
from slurmwrap.report.report_inputs import Figures
from slurmwrap.report.savings import compute_holdout, list_savings, make_locality_rows
from slurmwrap.report.time_limits import compare_predictions, compute_time_limits
from slurmwrap.report.usage_totals import compute_ettr, count_false_decisions, count_retries, list_large_jobs


def build(figures: Figures, nodes: Nodes | None = None) -> NightReport:
    """Build the report: what ended, was decided or struck in the period; blocked inputs, drains and nodes as of now."""
    since, until = figures.since, figures.until
    blaming = [strike for strike in figures.strikes if not strike.incident]
    saved = list_savings(figures)
    out = {one.node for one in figures.removals}
    judged = lemon_nodes.list_lemons(figures.history, nodes or Nodes(), out, now=until)
    early = count_early_rows(figures.found_early)
    drained = {action.target for action in figures.drains if action.mode in ("advise", "act")}
    return NightReport(
        since=since,
        until=until,
        clusters=figures.clusters,
        user=figures.user,
        headline=usage_totals.headline(figures),
        before=usage_totals.before(figures),
        preruns=_count_preruns(figures, saved[0]),
        savings=saved,
        wrong=count_false_decisions(figures),
        holdout=compute_holdout(figures),
        caught=failure_counts.make_caught_rows(figures.caught),
        categories=failure_counts.make_category_rows(figures),
        incidents=failure_counts.make_incident_rows(figures),
        runtimes=usage_totals.runtimes(figures.cells),
        held=tuple(figures.moments),
        repeated=failure_counts.list_by_job(figures),
        repeated_users=failure_counts.list_by_user(figures),
        repeated_inputs=failure_counts.list_by_input(figures),
        rules=count_rule_rows(figures.steps),
        retries=count_retries(figures.again),
        agreement=(
            *compare_rules_with_outcomes(
                *(figures.judged, figures.spoken, blaming, figures.submitted),
                out_of_service={one.node for one in figures.removals if not one.ours},
            ),
            *make_early_agreement(early),
            *compare_moves(figures.spoken, figures.judged),
        ),
        early=early,
        early_jobs=list_early_cases(figures.found_early),
        moves=count_moves(figures.moves),
        suspects=lemon_nodes.list_suspects([strike for strike in blaming if since <= strike.at < until]),
        lemons=judged,
        drains=lemon_nodes.list_own_drains(figures.removals),
        blocked=tuple(
            Blocked(input=one, user=figures.names.get(one.uid, ""), new=since <= one.at < until)
            for one in figures.blocked
        ),
        to_do=(*lemon_nodes.list_nodes_to_drain(judged, drained), *list_advised_actions(figures.drains)),
        counted=compute_ettr(figures.counting, since=since, until=until),
        large=list_large_jobs(figures.large),
        queueing=replace(
            compute_queueing(figures.delays, since=since, until=until),
            passing=figures.overtaken[0],
            passed=figures.overtaken[1],
        ),
        fairness=sum_fairness(
            figures.staying,
            since=figures.staying_since,
            until=until,
            gpus=figures.total_gpus,
            details=figures.details,
        ),
        idle=usage_totals.list_idle_rows(figures),
        requests=usage_totals.list_over_requests(figures.asked),
        limits=compute_time_limits(figures.limits),
        predictions=compare_predictions(figures.predicted),
        convergence=sum_convergence(figures.trained),
        locality=make_locality_rows(figures.spread, figures.switch_of),
        gpu_use=sum_gpu_use(figures.gpu_runs),
        users=usage_totals.users(figures),
        accounts=usage_totals.accounts(figures),
        notes=tuple(figures.notes),
    )


def _count_preruns(figures: Figures, saved: Saving) -> Preruns:
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
