"""Nodes in the report: struck in the period, suspect or lemon by 28 days of faults, drained by slurmwrap. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from collections.abc import Set as AbstractSet

from slurmwrap.config.load_config import Nodes
from slurmwrap.model.decision import DRAIN_PREFIX
from slurmwrap.model.job_run import StrikeRecord
from slurmwrap.policy.node_history import NodeHistory, Removal
from slurmwrap.policy.node_score import LEMON, OK, NodeScore, compute_node_scores
from slurmwrap.report.action_counts import format_update_node_command, make_repair_command
from slurmwrap.report.failure_counts import group_by
from slurmwrap.report.night_report import LemonRow, OwnDrain, SuspectNodes, ToDo
from slurmwrap.report.text_format import in_order


def list_suspects(strikes: Sequence[StrikeRecord]) -> tuple[SuspectNodes, ...]:
    """Return suspect nodes. Nodes with the same strikes share a row, so that one bad switch does not fill the page."""
    rows = [_make_suspect(node, found) for node, found in group_by(strikes, lambda strike: strike.node).items()]
    alike = group_by(rows, lambda row: (row.strikes, row.conclusive, row.causes, row.jobs, row.users, row.text))
    merged = [_merge_suspects(group) for group in alike.values()]
    return tuple(sorted(merged, key=lambda row: (not row.conclusive, -row.strikes, row.nodes)))


def _make_suspect(node: str, strikes: Sequence[StrikeRecord]) -> SuspectNodes:
    newest = max(strikes, key=lambda strike: strike.at)
    return SuspectNodes(
        nodes=(node,),
        strikes=len(strikes),
        conclusive=any(strike.conclusive for strike in strikes),
        causes=tuple(sorted({strike.cause for strike in strikes})),
        jobs=len({strike.job_id for strike in strikes}),
        users=len({strike.uid for strike in strikes}),
        last_at=newest.at,
        text=newest.text,
    )


def _merge_suspects(rows: Sequence[SuspectNodes]) -> SuspectNodes:
    first = rows[0]
    return SuspectNodes(
        nodes=in_order(node for row in rows for node in row.nodes),
        strikes=first.strikes,
        conclusive=first.conclusive,
        causes=first.causes,
        jobs=first.jobs,
        users=first.users,
        last_at=max(row.last_at for row in rows),
        text=first.text,
    )


def list_lemons(
    history: NodeHistory | None, node_settings: Nodes, out: Collection[str], *, now: float
) -> tuple[LemonRow, ...]:
    """Return suspect and lemon nodes, worst first. `out`: nodes out of service, for which nothing needs to be done."""
    judged = compute_node_scores(history, node_settings, now=now) if history is not None else ()
    found = [score for score in judged if score.status != OK]
    alike = group_by(found, lambda s: (s.status, round(s.ratio, 1), s.jobs, s.users, s.why, s.node in out))
    return tuple(_make_lemon_row(group, group[0].node in out) for group in alike.values())


def _make_lemon_row(group: Sequence[NodeScore], out: bool) -> LemonRow:
    first = group[0]
    nodes = in_order(score.node for score in group)
    return LemonRow(
        nodes=nodes,
        status=first.status,
        ratio=first.ratio,
        jobs=first.jobs,
        users=first.users,
        why=first.why,
        command="" if out else _suggest_command(nodes, first),
    )


def _suggest_command(nodes: tuple[str, ...], score: NodeScore) -> str:
    if score.status == LEMON:
        reason = f"{DRAIN_PREFIX} lemon, {score.ratio:.1f} times the rate of the fleet, {score.jobs} jobs"
        return format_update_node_command(nodes, "DRAIN", reason)
    return f"slurmwrap nodes show {shlex.quote(nodes[0])}"


def list_nodes_to_drain(rows: Sequence[LemonRow], known: AbstractSet[str]) -> tuple[ToDo, ...]:
    """Suggest to drain lemons that are in service. `known`: nodes for which a drain is suggested or done already."""
    return tuple(
        ToDo(why=f"lemon: {row.ratio:.1f} times the fleet's rate; {row.why}", command=row.command)
        for row in rows
        if row.status == LEMON and row.command and not known >= set(row.nodes)
    )


def list_own_drains(removals: Sequence[Removal]) -> tuple[OwnDrain, ...]:
    """Return slurmwrap's drains in force, oldest first; nodes with the same reason share a row."""
    groups = group_by((one for one in removals if one.ours and one.ended is None), lambda one: one.reason)
    rows = [_make_drain_row(reason, found) for reason, found in groups.items()]
    return tuple(sorted(rows, key=lambda row: (row.since, row.nodes)))


def _make_drain_row(reason: str, found: Sequence[Removal]) -> OwnDrain:
    nodes = in_order(one.node for one in found)
    return OwnDrain(
        nodes=nodes, since=min(one.began for one in found), reason=reason, command=make_repair_command(nodes)
    )
