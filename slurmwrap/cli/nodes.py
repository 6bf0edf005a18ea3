"""`slurmwrap nodes`: show which nodes are suspect or lemons and how their score is made up, and let people correct it.

Root and SlurmUser see the whole history in the site's database; other users see what the site publishes.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import tzinfo
from typing import Annotated, Any

import typer

from slurmwrap.cli import list_options, terminal
from slurmwrap.cli.record_access import RecordSource, find_record_source
from slurmwrap.config.load_config import Config, Nodes, load
from slurmwrap.errors import RefusedError, SlurmError, SlurmwrapError, UsageError
from slurmwrap.fast_dataclasses import asdict, dataclass, field
from slurmwrap.host.system_clock import SystemClock
from slurmwrap.model.cluster import Node, NodeHealth
from slurmwrap.model.decision import PlannedAction, SlurmAction, Verb
from slurmwrap.model.hostlist import fold
from slurmwrap.policy.node_history import CLEARED, REPAIRED, NodeCheck, NodeHistory, Repair
from slurmwrap.policy.node_return import format_advice, get_newest_checks, list_rebooted_drains, list_reboots_due
from slurmwrap.policy.node_score import NodeScore, ScoreTerm, compute_node_scores
from slurmwrap.policy.strikes import NodeStatus, is_drained_by_slurmwrap, standings
from slurmwrap.report import text_format
from slurmwrap.report.fold_rows import fold_jobs, group_alike
from slurmwrap.slurm.commands import SlurmCommands
from slurmwrap.store.database import Database
from slurmwrap.store.published_files import FAULTS, PERMIT, read_published, read_trusted


# `slurmwrap nodes gate`: show the files that the reconciler writes for the nodes' Prolog gate. Read-only.
def describe_gate(
    place: str, trusted: Collection[int], zone: tzinfo | None, now: float
) -> tuple[list[dict[str, Any]], str]:
    """Return a row for each standing fault, and a text with the permit and a table; no rows without a permit."""
    permit, faults = _read_published(place, PERMIT, trusted), _read_published(place, FAULTS, trusted)
    if not permit:
        return [], "Nothing is published for the gate: the rule 'gate' is in observe mode, or no site is configured."
    until, allowed = float(permit.get("until", 0)), bool(permit.get("allowed"))
    standing_faults = [f for f in faults.get("faults", []) if isinstance(f, dict)]
    rows = [{**fault, "allowed": allowed, "until": until} for fault in standing_faults]
    return rows, "\n".join([_describe_permit(allowed, until, zone, now), *_format_table(standing_faults, zone)])


def _describe_permit(allowed: bool, until: float, zone: tzinfo | None, now: float) -> str:
    if until < now:
        ended = text_format.moment(until, zone)
        return f"The permit ended {ended}: the gate refuses nothing (is the reconciler running?)."
    what = "may refuse" if allowed else "may not refuse (rule 'gate' is not in act mode, or the cap is used up)"
    return f"Until {text_format.moment(until, zone)} the gate {what}."


def _format_table(standing_faults: list[dict[str, Any]], zone: tzinfo | None) -> list[str]:
    from slurmwrap.model.hostlist import fold

    if not standing_faults:
        return ["No fault stands."]
    rows = [
        [fold(text_format.in_order(str(f["node"]) for f in group)), str(group[0]["cause"]), _format_since(group, zone)]
        for group in group_alike(standing_faults, lambda fault: fault.get("cause"))
    ]
    return [text_format.table(("~node", "cause", "since"), rows, indent=0)]


def _format_since(group: Collection[dict[str, Any]], zone: tzinfo | None) -> str:
    return text_format.moment(min(float(fault["since"]) for fault in group), zone)[5:]


def _read_published(place: str, name: str, trusted: Collection[int]) -> dict[str, Any]:
    content = read_trusted(place, name, trusted) if place else None
    try:
        plain = json.loads(content) if content is not None else {}
    except ValueError:
        return {}
    return plain if isinstance(plain, dict) else {}


# `slurmwrap nodes show`: the score of one node, fault by fault. Similar faults share a line.
# Grades that are not shown by their own name.
_GRADE_NAMES = {"share": "perhaps"}
# Largest width in characters of the jobs that one line names.
_JOBS_WIDTH = 60


def sum_lines(score: NodeScore, nodes: Nodes, verbose: bool) -> Iterator[str]:
    """Yield what the node ran, each fault with its weight, the quotient, what does not count, and people's marks."""
    zone = terminal.get_local_zone()
    yield f"  ran      {text_format.count(score.runs, 'run')}, {score.hours:,.1f} h in {nodes.window_days:g} days"
    yield "  sum"
    yield from _format_terms([term for term in score.terms if term.weight], verbose)
    yield f"    {score.weight:6.2f}  against {score.expected:.2f} that the rest of the fleet would have shown"
    yield (
        f"    ({score.prior:.1f} + {score.weight:.2f}) / ({score.prior:.1f} + {score.expected:.2f})"
        f" = {score.ratio:.1f} times the fleet's rate"
    )
    yield f"    suspect from {nodes.suspect_ratio:g}, lemon from {nodes.lemon_ratio:g}; {score.why}"
    void = [term for term in score.terms if not term.weight]
    if void:
        yield "  does not count"
        yield from _format_terms(void, verbose)
    if score.repairs:
        yield "  marks"
    for mark in score.repairs:
        note = f": {text_format.visible(mark.note)}" if mark.note else ""
        yield f"    {text_format.moment(mark.at, zone)}  {mark.kind} by {text_format.visible(mark.who)}{note}"


def _format_terms(terms: Iterable[ScoreTerm], verbose: bool) -> Iterator[str]:
    groups = [(term,) for term in terms] if verbose else group_alike(terms, _make_fold_key)
    for group in groups:
        yield _format_line(group)


def _make_fold_key(term: ScoreTerm) -> tuple[object, ...]:
    return (term.kind, term.grade, term.weight, term.text, term.gpu, term.note, term.why_not)


def _format_line(group: Sequence[ScoreTerm]) -> str:
    """Format one fault, or several similar ones: the sum of weights, the number, the newest date and all jobs."""
    term = max(group, key=lambda one: one.at)
    total = sum(one.weight for one in group)
    weight = f"{total:+6.2f}" if term.weight else "     -"
    kind = ", ".join(dict.fromkeys((term.kind.replace("_", " "), _GRADE_NAMES.get(term.grade, term.grade))))
    times = f"{len(group)} x " if len(group) > 1 else ""
    why = "; ".join(part for part in (term.note, term.why_not) if part)
    parts = [
        text_format.moment(term.at, terminal.get_local_zone()),
        f"{times}{kind}",
        _format_jobs(group),
        f"({text_format.visible(why)})" if why else "",
    ]
    text = f"\n            {text_format.fit(term.text, terminal.columns() - 12)}" if term.text else ""
    return f"    {weight}  {'  '.join(part for part in parts if part)}{text}"


def _format_jobs(group: Sequence[ScoreTerm]) -> str:
    ids = list(dict.fromkeys(term.job_id for term in group if term.job_id))
    if not ids:
        return ""
    users = list(dict.fromkeys(_format_user(term.uid) for term in group if term.job_id))
    of = users[0] if len(users) == 1 else f"{len(users)} users"
    named = text_format.fit(fold_jobs(map(str, ids)), _JOBS_WIDTH)
    return f"{'job' if len(ids) == 1 else 'jobs'} {named} of {of}"


def _format_user(uid: int) -> str:
    return list_options.user_name(uid) if uid >= 0 else "an unknown user"


# Largest number of nodes in one call.
_MAX_NODES = 1000
_NOTHING = "nothing is known against it"
STATUSES = ("suspect", "lemon", "drained", "ok")

app = typer.Typer(
    no_args_is_help=True,
    help="""Nodes that are suspect, lemons, or drained by slurmwrap, and how their scores are made up.

    \b
    Examples:
      slurmwrap nodes list
      slurmwrap nodes list --status lemon,drained --cause xid
      slurmwrap nodes list --all --json          every node with a fault in the window
      slurmwrap nodes show n17                   each fault with its job, date and weight
      slurmwrap nodes check n17                  GPUs, file systems, disk, network and clock, in a job of its own
      slurmwrap nodes repaired n17 --note "GPU 3 replaced" --resume
      slurmwrap nodes clear 'n[01-04]' --note "bad driver, rolled back"
    """,
)

Name = Annotated[str, typer.Argument(metavar="NODE", help="A node, or a host list: 'n[01-04]'.")]
Resume = Annotated[bool, typer.Option("--resume", help="Also end slurmwrap's drain; other drains stay.")]
CHECK_FAILED_CODE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """What the calling user may see. `scores` is empty if only published records may be read."""

    standings: tuple[NodeStatus, ...] = ()
    scores: tuple[NodeScore, ...] = ()
    nodes: tuple[Node, ...] = ()
    checks: Mapping[str, NodeCheck] = field(default_factory=dict)  # the newest check of each node
    rebooted: tuple[str, ...] = ()  # nodes that were rebooted since slurmwrap drained them
    reboots_due: tuple[str, ...] = ()  # nodes of which NVML says that they must be rebooted

    def format_advice(self, names: Collection[str] | None = None) -> tuple[str, ...]:
        """Return the commands that bring nodes back, of all nodes or of some."""
        rebooted, due = (
            [node for node in nodes if names is None or node in names] for nodes in (self.rebooted, self.reboots_due)
        )
        return format_advice(rebooted, due)


@app.command("list")
def list_nodes(
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="Also nodes that are ok and of which anything was recorded; every line.")
    ] = False,
    status: Annotated[
        str, typer.Option("--status", "-t", metavar="STATUS", help="Only suspect, lemon, drained or ok.")
    ] = "",
    cause: Annotated[str, typer.Option("--cause", help="Only nodes with this in a reason: xid, node_failure.")] = "",
    node: list_options.Node = "",
    since: Annotated[str, typer.Option("--since", "-S", help="Only with this status since: 24h, 7d, or a date.")] = "",
    limit: list_options.Limit = list_options.LIMIT,
    as_json: list_options.AsJson = False,
) -> None:
    """List suspect, lemon and drained nodes, worst first; similar nodes share a line."""
    wanted = list_options.make_run_filter(node=node, since=since)
    kinds = list_options.check_known_names(list_options.split_list(status), STATUSES, "--status")
    view = _make_view(_get_record_source(), load(os.environ))
    listed = [(_make_row(one.health.status, one), one.score) for one in view.standings]
    doubted = {one.health.node for one in view.standings}
    if everything or "ok" in kinds:
        listed += [(_make_row("ok", None, score), score) for score in view.scores if score.node not in doubted]
    rows = [
        row
        for row, score in listed
        if (not kinds or row["status"] in kinds)
        and (not wanted.nodes or row["node"] in wanted.nodes)
        and (wanted.since is None or row["since"] >= wanted.since)
        and _has_cause(row, score, cause)
    ]
    text, more = format_nodes(rows, None if everything else limit, columns=terminal.columns())
    text = "\n".join((text, *view.format_advice()))
    list_options.print_list("nodes", rows, text, as_json=as_json, more=0 if as_json else more)


def _has_cause(row: Mapping[str, Any], score: NodeScore | None, cause: str) -> bool:
    """Whether `cause` occurs in the reason for the node's status, or in a fault that counts."""
    terms = score.terms if score is not None else ()
    texts = [row["reason"], *(f"{term.kind} {term.text}" for term in terms if term.weight)]
    return any(cause.lower() in text.lower() for text in texts)


@app.command(short_help="Show how the score of a node is made up.")
def show(
    name: Name,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="A line for each fault: nothing is folded.")] = False,
    as_json: list_options.AsJson = False,
) -> None:
    """Show how the score of a node is made up: weights, jobs, dates and the cited lines.

    Faults that are alike share a line, and so do nodes with the same text.
    """
    config = load(os.environ)
    view = _make_view(_get_record_source(), config)
    names = _expand_names(name)
    _check_names(names, view, _get_record_source(), config)
    listed = [(node, *_describe_node(node, view, config, verbose)) for node in names]
    if as_json:
        list_options.print_list("node", [row for _, row, _ in listed], "", as_json=True)
        return
    pages = group_alike(listed, lambda one: (_format_head(one[1]), *one[2]))
    typer.echo("\n\n".join(_format_page([node for node, _, _ in same], same[0][1], same[0][2]) for same in pages))
    if advice := view.format_advice(names):
        typer.echo("\n".join(("", *advice)))


@app.command(short_help="Check a node in a job of its own: GPUs, file systems, disk, network, clock.")
def check(name: Name, as_json: list_options.AsJson = False) -> None:
    """Check a node in a job that has it alone: GPUs, file systems, disk, network and clock. Its state stays as it is.

    The node must be free of jobs. A reservation keeps others away, and a drain of slurmwrap's is lifted within it. The
    result is stored; `show` prints it. Exit code 3: a part failed. For root and SlurmUser.
    """
    place, config = _get_record_source(), load(os.environ)
    _require_site(place, "check")
    names = _expand_names(name)
    with Database.open(place.database) as database:
        checks = [_check_node(node, database, config, resume=False) for node in names]
    if as_json:
        list_options.print_list("node_checks", [asdict(one) for one in checks], "", as_json=True)
    else:
        typer.echo("\n\n".join("\n".join(format_check(one)) for one in checks))
    if not all(one.passed for one in checks):
        raise typer.Exit(CHECK_FAILED_CODE)


def _format_page(names: Sequence[str], row: Mapping[str, Any], lines: Sequence[str]) -> str:
    return "\n".join((f"{text_format.visible(fold(text_format.in_order(names)))}: {_format_head(row)}", *lines))


def _format_head(row: Mapping[str, Any]) -> str:
    return _NOTHING if row["reason"] == _NOTHING else str(row["shown"])


@app.command()
def gate(as_json: list_options.AsJson = False) -> None:
    """Show the files of the nodes' Prolog gate: until when it may refuse jobs, and the faults for which it does.

    Only where site.published is configured. After `clear` and `repaired` the next pass removes the node's fault.
    """

    place = load(os.environ).site.published
    rows, text = describe_gate(place, _get_record_source().trusted, terminal.get_local_zone(), time.time())
    list_options.print_list("gate", rows, text, as_json=as_json)


@app.command()
def clear(name: Name, note: list_options.Note = "", resume: Resume = False) -> None:
    """Clear the faults of a node: they no longer count. Nothing is deleted; who cleared them is stored.

    For root and SlurmUser.
    """
    _store_mark(name, CLEARED, note, resume)


@app.command(short_help="Record a repair: earlier faults weigh less, new ones more.")
def repaired(
    name: Name,
    note: list_options.Note = "",
    resume: Resume = False,
    no_check: Annotated[
        bool, typer.Option("--no-check", help="With --resume: without the check that `check` makes.")
    ] = False,
) -> None:
    """Record that a node was repaired: earlier faults weigh less, new ones more.

    With --resume the node is checked first, as by `check`. If a part fails, it stays drained, nothing is marked, and
    the exit code is 3. For root and SlurmUser.
    """
    _store_mark(name, REPAIRED, note, resume, checked=not no_check)


# --- what people say about nodes -----------------------------------------------------------------------------------


def _require_site(place: RecordSource, what: str) -> None:
    if not place.site:
        raise RefusedError(
            f"only root and SlurmUser may {what} nodes, and only where site.state_dir is configured",
            hint="ask your administrator; 'slurmwrap nodes list' shows what is published",
        )


def _store_mark(name: str, kind: str, note: str, resume: bool, *, checked: bool = False) -> None:
    place, config = _get_record_source(), load(os.environ)
    _require_site(place, "judge")
    names, failed = _expand_names(name), False
    with Database.open(place.database) as database:
        history = _read_history(database, config)
        nodes = _read_nodes(config)
        _check_marked_names(names, history, nodes, kind)
        for node in names:
            if resume and checked:
                done = _check_node(node, database, config, resume=True)
                typer.echo("\n".join(format_check(done)))
                if not done.passed:
                    failed = True
                    continue
            elif resume:
                _resume_node(node, database, config)
            now = time.time()
            count = database.clear_strikes(node, list_options.get_user_name_of_caller(), now) if kind == CLEARED else 0
            database.add_repair(
                Repair(node=node, at=now, who=list_options.get_user_name_of_caller(), kind=kind, note=note)
            )
            strikes = f", {text_format.count(count, 'strike')} void" if kind == CLEARED else ""
            typer.echo(f"{node}: {kind}{strikes}{', resumed' if resume else ''}")
    if failed:
        typer.echo("not resumed and not marked; 'slurmwrap nodes show' has the result", err=True)
        raise typer.Exit(CHECK_FAILED_CODE)
    typer.echo("gsub sees it after the next pass of 'slurmwrap reconcile'", err=True)


def _resume_node(node: str, database: Database, config: Config) -> None:
    """End the drain through SlurmCommands, which reads the node first and changes only drains of slurmwrap's."""
    action, number = _intend_resume(node, database)
    try:
        SlurmCommands(os.environ, timeout_s=config.slurm_timeout_s).apply(action)
    except SlurmError as error:
        database.done(number, time.time(), str(error))
        raise
    database.done(number, time.time())


def _intend_resume(node: str, database: Database) -> tuple[SlurmAction, int]:
    reason = f"slurmwrap nodes, by {list_options.get_user_name_of_caller()}"
    action = SlurmAction(verb=Verb.RESUME, target=node, reason=reason)
    return action, database.intend(None, PlannedAction(rule="drain", action=action), "act", time.time())


def _check_node(name: str, database: Database, config: Config, *, resume: bool) -> NodeCheck:
    """Check a node and store the result. With `resume` its drain, which must be slurmwrap's, ends if it passes."""
    from slurmwrap.cli.doctor.slurm_checks import find_directory_of_hook
    from slurmwrap.slurm.run_node_check import CheckProgram, check_node, read_hook_python

    slurm = SlurmCommands(os.environ, timeout_s=config.slurm_timeout_s)
    snapshot = slurm.snapshot()
    node = next((one for one in snapshot.nodes if one.name == name), None)
    if node is None:
        raise UsageError(f"there is no node '{name}'", hint="slurmwrap nodes list --all", exit_code=1)
    directory = find_directory_of_hook(slurm.config().get("EpilogSlurmctld", ""))
    if directory is None:
        raise SlurmwrapError(
            "slurm.conf names no hooks of slurmwrap", hint="The check is a part of them: `slurmwrap hooks install`."
        )
    settings = config.nodes
    program = CheckProgram(
        python=read_hook_python(directory), directory=directory, mounts=settings.check_mounts,
        skip=settings.check_skip, seconds=settings.check_s,
    )  # fmt: skip
    number = _intend_resume(name, database)[1] if resume else None
    try:
        found = check_node(node, program, slurm, SystemClock(), reservations=snapshot.reservations, resume=resume)
    except BaseException as error:
        if number is not None:
            database.done(number, time.time(), str(error) or type(error).__name__)
        raise
    if number is not None:
        database.done(number, time.time(), found.note)
    database.add_node_check(found)
    return found


def format_check(check: NodeCheck) -> Iterator[str]:
    """Yield the result of a check: a line with the outcome, and one for each part."""
    outcome = "passed" if check.passed else "FAILED"
    moment = text_format.moment(check.at, terminal.get_local_zone())
    yield f"{text_format.visible(check.node)}: the check {outcome}, {moment}, by {text_format.visible(check.who)}"
    for part in check.parts:
        yield f"  {part.state:8}{part.name:12}{text_format.visible(part.text)}"


def _check_marked_names(names: Sequence[str], history: NodeHistory, nodes: Sequence[Node], kind: str) -> None:
    known = {node.name for node in nodes}
    seen = {s.node for s in history.strikes} | {f.node for f in history.gpu_faults} | {r.node for r in history.removals}
    seen |= {node for failure in history.failures for node in failure.nodes}
    seen |= {one.node for one in history.exposure}
    unknown = [name for name in names if name not in known | seen]
    if unknown:
        raise UsageError(f"there is no node '{unknown[0]}'", hint="slurmwrap nodes list --all", exit_code=1)


# --- what is known -------------------------------------------------------------------------------------------------


def _get_record_source() -> RecordSource:
    return find_record_source(load(os.environ), os.environ, os.geteuid())


def _make_view(source: RecordSource, config: Config) -> NodeView:
    if not source.site and not source.alone:
        published = read_published(source.published, source.trusted) if source.published else None
        found = published.health if published else ()
        return NodeView(standings=tuple(NodeStatus(health=one, published=True) for one in found))
    if not source.database.exists():
        return NodeView()
    with Database.open(source.database, readonly=True) as database:
        history, removals = _read_history(database, config), database.removals()
        checks = get_newest_checks(database.node_checks(since=time.time() - config.nodes.window_days * 86400))
    now, nodes = time.time(), _read_nodes(config)
    drained = any(map(is_drained_by_slurmwrap, nodes))
    boot_times = _read_boot_times(config) if drained or list_reboots_due(history, checks, {}) else {}
    return NodeView(
        standings=standings(history, nodes, config, now=now),
        scores=compute_node_scores(history, config.nodes, now=now),
        nodes=nodes,
        checks=checks,
        rebooted=list_rebooted_drains(nodes, removals, boot_times, checks),
        reboots_due=list_reboots_due(history, checks, boot_times),
    )


def _read_history(database: Database, config: Config) -> NodeHistory:
    return database.node_history(time.time() - config.nodes.window_days * 86400)


def _read_nodes(config: Config) -> tuple[Node, ...]:
    try:
        return SlurmCommands(os.environ, timeout_s=config.slurm_timeout_s).snapshot().nodes
    except SlurmError as error:
        typer.echo(f"slurmwrap: drains and the cap are not known: {error}", err=True)
        return ()


def _read_boot_times(config: Config) -> Mapping[str, float]:
    try:
        return SlurmCommands(os.environ, timeout_s=config.slurm_timeout_s).boot_times()
    except SlurmError:
        return {}


def _expand_names(hostlist: str) -> tuple[str, ...]:
    return list_options.expand_hosts(hostlist, _MAX_NODES)


# --- shown ---------------------------------------------------------------------------------------------------------


def format_nodes(
    rows: Sequence[dict[str, Any]], limit: int | None = None, *, columns: int = text_format.WIDTH
) -> tuple[str, int]:
    """Format one line per group of similar nodes, at most `limit`; also return how many nodes are left out."""
    if not rows:
        return "No node is suspect.", 0
    groups = group_alike(rows, _list_cells)
    head = ("~node", "status", "since", ">times", ">jobs", ">users", "~why")
    lines = [
        [fold(text_format.in_order(row["node"] for row in group)), *_list_cells(group[0])] for group in groups[:limit]
    ]
    return text_format.table(head, lines, indent=0, columns=columns), sum(len(group) for group in groups[len(lines) :])


def _list_cells(row: dict[str, Any]) -> tuple[str, ...]:
    since = text_format.moment(row["since"], terminal.get_local_zone())[5:11] if row["since"] else ""
    counted = ("", "", "") if row["ratio"] is None else (f"{row['ratio']:.1f}", str(row["jobs"]), str(row["users"]))
    return (row["shown"], since, *counted, row["reason"])


def _make_row(status: str, standing: NodeStatus | None, score: NodeScore | None = None) -> dict[str, Any]:
    """Return one node as JSON fields. `shown` is the status that gsub acts on."""
    score = score or (standing.score if standing else None)
    published = standing is not None and standing.published
    doubted = standing is not None
    withheld = f"would be {status}: cap used up (placement.exclude_cap)" if doubted and not published else ""
    health = standing.health if standing else None
    return {
        "node": health.node if health else score.node if score else "",
        "status": status,
        "shown": status if published or not doubted else "ok",
        "published": published,
        "since": health.since if health else score.since if score else 0.0,
        "ratio": round(score.ratio, 3) if score else None,
        "weight": round(score.weight, 3) if score else None,
        "expected": round(score.expected, 3) if score else None,
        "jobs": score.jobs if score else None,
        "users": score.users if score else None,
        "reason": withheld or (_get_reason(health, score)),
    }


def _get_reason(health: NodeHealth | None, score: NodeScore | None) -> str:
    if health is not None and (health.status == "drained" or score is None):
        return health.reason
    return score.why if score is not None else ""


def _check_names(names: Sequence[str], view: NodeView, source: RecordSource, config: Config) -> None:
    """Raise UsageError for a name that neither Slurm nor the history knows; accept all if Slurm does not answer."""
    known = {one.health.node for one in view.standings} | {one.node for one in view.scores}
    unrecorded = [name for name in names if name not in known]
    slurm = view.nodes or (_read_nodes(config) if unrecorded and not source.site else ())
    unknown = [name for name in unrecorded if name not in {node.name for node in slurm}]
    if slurm and unknown:
        raise UsageError(f"there is no node '{unknown[0]}'", hint="slurmwrap nodes list --all", exit_code=1)


def _describe_node(node: str, view: NodeView, config: Config, verbose: bool) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the JSON fields of a node, and the lines of text below the node's name."""
    standing = next((one for one in view.standings if one.health.node == node), None)
    score = next((one for one in view.scores if one.node == node), None)
    slurm = next((one for one in view.nodes if one.name == node), None)
    check = view.checks.get(node)
    checked = tuple(f"  {line}" for line in format_check(check)) if check is not None else ()
    extra = {"check": None if check is None else asdict(check)}
    if standing is None and score is None:
        row = {**_make_row("ok", None), "node": node, "reason": _NOTHING, "terms": [], "repairs": [], **extra}
        return row, checked
    row = _make_row(standing.health.status if standing else "ok", standing, score)
    terms = [asdict(term) for term in score.terms] if score else []
    row |= {"terms": terms, "repairs": [asdict(repair) for repair in score.repairs] if score else [], **extra}
    lines = [f"  why      {text_format.visible(row['reason'])}"]
    if slurm is not None and slurm.reason:
        state = "+".join((slurm.state, *sorted(slurm.flags)))
        lines.append(f"  Slurm    {state}: {text_format.visible(slurm.reason)}")
    return row, (*lines, *(sum_lines(score, config.nodes, verbose) if score else []), *checked)
