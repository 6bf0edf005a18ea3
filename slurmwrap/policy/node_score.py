"""The history score of nodes: how often a node shows faults compared with the fleet, and what follows. Pure.

The signals are those of Kokolis et al. 2024 ("Revisiting Reliability in Large-Scale Machine Learning Research
Clusters", lemon nodes), without the users' exclude lists, which did not agree with failures. docs/nodes.md describes
the rule in words.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from slurmwrap.config.load_config import Nodes
from slurmwrap.diagnosis.amdgpu import AmdgpuEvent, parse_amdgpu
from slurmwrap.diagnosis.network_facts import DOWN, NOISY, parse_port_event
from slurmwrap.diagnosis.node_facts import is_slowed_for_long
from slurmwrap.diagnosis.xid import XIDS, XidEvent, get_action, get_category, is_conclusive, parse_xids
from slurmwrap.fast_dataclasses import dataclass, replace
from slurmwrap.model.job_run import StrikeRecord
from slurmwrap.policy.node_history import CLEARED, Exposure, GpuFault, NodeFailure, NodeHistory, Repair

OK, SUSPECT, LEMON = "ok", "suspect", "lemon"
_STATUS_ORDER = (LEMON, SUSPECT, OK)
# Weight of one piece of evidence, by how certain it is. docs/nodes.md gives the reasons.
WEIGHTS: Mapping[str, float] = {
    "conclusive": 3.0,  # drains by itself (Xid table, NVML): three times what a doubt weighs
    "suspect": 1.0,  # hardware, or Slurm names this node, but a restart may cure it
    "application": 0.5,  # the program's fault, unless several users meet it on one GPU
    "removal": 0.5,  # taken out of service: people may have planned it
    "noted": 0.25,  # the driver repaired it by itself (row remapped, contained error)
}
# A lost link may be the fault of the cable or the switch as well, so it never drains a node.
_PORT_GRADES = {DOWN: "suspect", NOISY: "noted"}
_CERTAIN_GRADES = ("conclusive", "suspect")
# A program's fault counts if this many users met it on one GPU within a day (facts of the Xid table).
_APPLICATION_USERS, _APPLICATION_S = 3, 86400.0
_START_HOURS = 0.25  # hours added for each run, because faults also show when jobs start
_FLEET_FAULTY = 10  # number of nodes with evidence from which the fleet's own spread is estimated
_MOST_ALIKE = 4.0  # times the configured prior: the largest prior, used if all nodes are alike
# A failure of a larger job that names no node says nothing about any of its nodes.
_MAX_SHARES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreTerm:
    """One term of a node's sum. `weight` 0: it does not count, for the reason in `why_not`."""

    kind: str  # "xid", "amdgpu", "port", "clocks", "strike", "node_failure", "multi_node_failure" or "removal".
    # A key of WEIGHTS, or "share": one of several nodes that may be at fault.
    grade: str
    weight: float
    at: float
    job_id: int = 0
    uid: int = -1
    text: str = ""
    # PCI address, for an Xid
    gpu: str = ""
    why_not: str = ""
    note: str = ""  # why its weight was changed


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeScore:
    """The score of one node. `ratio` = (prior + weight) / (prior + expected), a multiple of the fleet's rate."""

    node: str
    status: str  # OK, SUSPECT or LEMON
    ratio: float
    weight: float
    # Weight that an average node of the fleet would have after the same exposure.
    expected: float
    prior: float
    jobs: int  # number of distinct jobs in the terms that count
    users: int
    # Number of distinct jobs with a conclusive fault.
    conclusive: int
    runs: int
    hours: float
    since: float  # time of the first term that counts; 0 if none does
    terms: tuple[ScoreTerm, ...] = ()
    repairs: tuple[Repair, ...] = ()
    # Why the status is not worse, or what made it so.
    why: str = ""


def compute_node_scores(history: NodeHistory, node_settings: Nodes, *, now: float) -> tuple[NodeScore, ...]:
    """Return the scores of all nodes with evidence in the window, worst first. Linear in evidence and nodes."""
    since = now - node_settings.window_days * 86400
    repairs = _group_by_node(history.repairs)
    terms = {
        node: _weigh_terms(found, repairs.get(node, ()), node_settings)
        for node, found in _collect_terms(history, since).items()
    }
    ran = {one.node: one for one in history.exposure}
    weights = {node: sum(term.weight for term in found) for node, found in terms.items()}
    found: list[NodeScore] = []
    # Computed twice, the second time without the lemons found first: in a small fleet one lemon would hide others.
    for _ in range(2):
        expected = _compute_expected_weights(
            weights, ran, frozenset(score.node for score in found if score.status == LEMON)
        )
        prior = _compute_prior_shape(weights, expected, node_settings.prior)
        found = [
            _make_node_score(node, own, expected[node], prior, ran.get(node), repairs.get(node, ()), node_settings)
            for node, own in terms.items()
        ]
    return tuple(sorted(found, key=lambda score: (_STATUS_ORDER.index(score.status), -score.ratio, score.node)))


def share_of(nodes: int) -> float:
    """Return the weight of a failure for each of `nodes` nodes of the job, if no node is named."""
    return WEIGHTS["suspect"] / nodes if 0 < nodes <= _MAX_SHARES else 0.0


# ------------------------------------------------------------------------------------------- the addends


def _collect_terms(history: NodeHistory, since: float) -> dict[str, list[ScoreTerm]]:
    found: dict[str, list[ScoreTerm]] = defaultdict(list)
    for strike in history.strikes:
        found[strike.node].append(_make_strike_term(strike))
    for node, term in _make_gpu_fault_terms(history.gpu_faults):
        found[node].append(term)
    for node, term in (*_make_port_terms(history.gpu_faults), *_make_clock_terms(history.gpu_faults)):
        found[node].append(term)
    for failure in history.failures:
        for node, term in _make_failure_terms(failure):
            found[node].append(term)
    for removal in history.removals:
        who = "drained by slurmwrap" if removal.ours else f"out of service: {removal.reason or 'no reason given'}"
        term = ScoreTerm(kind="removal", grade="removal", weight=WEIGHTS["removal"], at=removal.began, text=who)
        found[removal.node].append(term)
    recent = {node: [term for term in terms if term.at >= since] for node, terms in found.items()}
    return {node: terms for node, terms in recent.items() if terms}


def _make_strike_term(strike: StrikeRecord) -> ScoreTerm:
    grade = "conclusive" if strike.conclusive else "suspect"
    text = f"{strike.cause}: {strike.text}" if strike.text else strike.cause
    term = ScoreTerm(
        kind="strike",
        grade=grade,
        weight=WEIGHTS[grade],
        at=strike.at,
        job_id=strike.job_id,
        uid=strike.uid,
        text=text,
    )
    if strike.cleared_at is not None:
        return _make_void_term(term, f"cleared by {strike.cleared_by}")
    return _make_void_term(term, f"part of incident {strike.incident}") if strike.incident else term


def _make_gpu_fault_terms(faults: Iterable[GpuFault]) -> Iterable[tuple[str, ScoreTerm]]:
    """Yield one term for each code, GPU and job. Program faults count only if several users met them on one GPU."""
    events: list[tuple[GpuFault, XidEvent | AmdgpuEvent]] = []
    for fault in faults:
        events += ((fault, event) for event in parse_xids([fault.text]))
        events += ((fault, event) for event in parse_amdgpu([fault.text]))
    first = {_get_key(fault, event): (fault, event) for fault, event in reversed(events)}
    program_faults: dict[tuple[str, str], list[GpuFault]] = defaultdict(list)
    for fault, event in first.values():
        if _grade_event(event) == "application":
            program_faults[fault.node, event.bus_id].append(fault)
    shared = {gpu: _select_shared_faults(found) for gpu, found in program_faults.items()}
    for fault, event in first.values():
        grade = _grade_event(event)
        if not grade:
            continue
        term = ScoreTerm(
            kind="amdgpu" if isinstance(event, AmdgpuEvent) else "xid",
            grade=grade,
            weight=WEIGHTS[grade],
            at=fault.at,
            job_id=fault.job_id,
            uid=fault.uid,
            text=event.text,
            gpu=event.bus_id,
        )
        if grade == "application" and fault not in shared[fault.node, event.bus_id]:
            term = _make_void_term(
                term, f"the program's, unless {_APPLICATION_USERS} users meet it on this GPU within a day"
            )
        elif fault.incident and grade != "conclusive":
            term = _make_void_term(term, f"part of incident {fault.incident}")
        yield fault.node, term


def _make_port_terms(faults: Iterable[GpuFault]) -> Iterable[tuple[str, ScoreTerm]]:
    """Yield one term for each broken link and job. Jobs that shared the node while one link went down count once."""
    seen: set[tuple[str, ...]] = set()
    for fault in sorted(faults, key=lambda one: one.at):
        event = parse_port_event(fault.text)
        grade = _PORT_GRADES.get(event.kind, "") if event is not None else ""
        if event is None or event.node != fault.node or not grade:
            continue
        term = ScoreTerm(
            kind="port",
            grade=grade,
            weight=WEIGHTS[grade],
            at=fault.at,
            job_id=fault.job_id,
            uid=fault.uid,
            text=event.text,
        )
        same = (fault.node, event.port, event.kind, event.downs or str(fault.job_id))
        if same in seen:
            term = _make_void_term(term, "another job on the node saw the same event")
        elif fault.incident:
            term = _make_void_term(term, f"part of incident {fault.incident}")
        seen.add(same)
        yield fault.node, term


def _make_clock_terms(faults: Iterable[GpuFault]) -> Iterable[tuple[str, ScoreTerm]]:
    """Yield one term for each job that was slowed down for long: heat or power of the node, which drains nothing."""
    for fault in {(fault.node, fault.job_id): fault for fault in faults if is_slowed_for_long(fault.text)}.values():
        yield (
            fault.node,
            ScoreTerm(
                kind="clocks",
                grade="noted",
                weight=WEIGHTS["noted"],
                at=fault.at,
                job_id=fault.job_id,
                uid=fault.uid,
                text=fault.text,
            ),
        )


def _get_key(fault: GpuFault, event: XidEvent | AmdgpuEvent) -> tuple[str, ...]:
    """Return what is equal for lines that count once: one code of a GPU in one job."""
    code = event.kind if isinstance(event, AmdgpuEvent) else str(event.code)
    # This line is repeated in later jobs, whenever the counter is read, until another error changes it.
    return (fault.node, event.bus_id, code, event.text if code == "uncorrectable" else str(fault.job_id))


def _grade_event(event: XidEvent | AmdgpuEvent) -> str:
    """Return the key of WEIGHTS by the tables of Xids and of amdgpu; "" if another line decides, or it is unknown."""
    if isinstance(event, AmdgpuEvent):
        if event.conclusive:
            return "conclusive"
        return {"RESET": "suspect", "APP": "application", "LOG": "noted"}.get(event.action, "")
    if is_conclusive(event):
        return "conclusive"
    action = get_action(event)
    if action in ("RESET", "REBOOT", "DRAIN"):
        return "suspect"
    if action == "APP":
        return "application"
    return "noted" if action == "LOG" and get_category(event) and (event.code < 0 or event.code in XIDS) else ""


def _select_shared_faults(faults: Sequence[GpuFault]) -> set[GpuFault]:
    """Return the faults that lie within a day with faults of enough other users' jobs on the same GPU."""
    found: set[GpuFault] = set()
    ordered = sorted(faults, key=lambda fault: fault.at)
    start = 0
    for end, fault in enumerate(ordered):
        while ordered[start].at < fault.at - _APPLICATION_S:
            start += 1
        within_day = ordered[start : end + 1]
        if len({one.uid for one in within_day}) >= _APPLICATION_USERS:
            found.update(within_day)
    return found


def _make_failure_terms(failure: NodeFailure) -> Iterable[tuple[str, ScoreTerm]]:
    """Yield the full weight for the named node or the only one, else a share for each node."""
    many = len(failure.nodes) > 1
    kind = "multi_node_failure" if many else "node_failure"
    blamed = (failure.named,) if failure.named in failure.nodes else failure.nodes
    single = len(blamed) == 1
    weight = WEIGHTS["suspect"] if single else share_of(len(blamed))
    if not weight:
        return
    term = ScoreTerm(
        kind=kind,
        grade="suspect" if single else "share",
        weight=weight,
        at=failure.at,
        job_id=failure.job_id,
        uid=failure.uid,
        text=failure.text,
        note="" if single else f"one of {len(blamed)} nodes",
    )
    if failure.incident:
        term = _make_void_term(term, f"part of incident {failure.incident}")
    for node in blamed:
        yield node, term


def _weigh_terms(terms: Iterable[ScoreTerm], repairs: Sequence[Repair], node_settings: Nodes) -> tuple[ScoreTerm, ...]:
    """Return the terms with their final weights, oldest first.

    A cleared term is void, one from before a repair weighs less, one from after it weighs more. Of the terms of one
    job, before and after a repair, only the heaviest counts.
    """
    cleared = max((r.at for r in repairs if r.kind == CLEARED), default=0.0)
    repaired = max((r.at for r in repairs if r.kind != CLEARED), default=0.0)
    by = {r.at: r for r in repairs}
    found, heaviest = [], dict[tuple[int, bool], ScoreTerm]()
    for term in sorted(terms, key=lambda t: (-t.weight, t.at)):
        key = (term.job_id, term.at > repaired)
        if term.weight and term.at <= cleared:
            term = _make_void_term(term, f"cleared by {by[cleared].who}")
        elif term.weight and term.job_id and key in heaviest:
            term = _make_void_term(term, f"job {term.job_id} counts once, with its {heaviest[key].kind}")
        elif term.weight:
            heaviest[key] = term
            term = _weaken_term(term, repaired, node_settings) if repaired else term
        found.append(term)
    return tuple(sorted(found, key=lambda t: (t.at, -t.weight)))


def _weaken_term(term: ScoreTerm, repaired: float, node_settings: Nodes) -> ScoreTerm:
    if term.at <= repaired:
        return replace(term, weight=term.weight * node_settings.repair_discount, note="before the repair")
    if term.kind == "removal":
        return term
    return replace(term, weight=term.weight * node_settings.relapse_factor, note="again after the repair")


def _make_void_term(term: ScoreTerm, why: str) -> ScoreTerm:
    return replace(term, weight=0.0, why_not=why)


# ------------------------------------------------------------------------------------------- the sum


def _compute_expected_weights(
    weights: Mapping[str, float], ran: Mapping[str, Exposure], lemons: frozenset[str] = frozenset()
) -> dict[str, float]:
    """Return the weight each node would have at the rate of all other nodes except lemons.

    A node's own weight is left out, so that it does not raise the rate it is compared with.
    """
    total = sum(weight for node, weight in weights.items() if node not in lemons)
    hours = sum(_compute_exposure(one) for node, one in ran.items() if node not in lemons)
    expected = {}
    for node in {**weights, **ran}:
        own = _compute_exposure(ran[node]) if node in ran else 0.0
        counted = node not in lemons
        others, weight = hours - counted * own, total - counted * weights.get(node, 0.0)
        expected[node] = max(0.0, weight) / others * own if others > 0 else 0.0
    return expected


def _compute_exposure(ran: Exposure) -> float:
    return ran.hours + ran.runs * _START_HOURS


def _compute_prior_shape(weights: Mapping[str, float], expected: Mapping[str, float], usual: float) -> float:
    """Return the shape of the Gamma prior, estimated by moments: Var = E + E²/shape.

    It lies between the configured shape and four times it. Nodes that are alike give a high shape, so their scores are
    shrunk more. With few faulty nodes the configured shape is used.
    """
    squares = sum(one * one for one in expected.values())
    if sum(weight > 0 for weight in weights.values()) < _FLEET_FAULTY or squares <= 0:
        return usual
    spread = sum((weights.get(node, 0.0) - one) ** 2 - one for node, one in expected.items()) / squares
    return min(max(1 / spread, usual), usual * _MOST_ALIKE) if spread > 0 else usual * _MOST_ALIKE


def _make_node_score(
    node: str,
    terms: tuple[ScoreTerm, ...],
    expected: float,
    prior: float,
    ran: Exposure | None,
    repairs: Sequence[Repair],
    node_settings: Nodes,
) -> NodeScore:
    counted = [term for term in terms if term.weight > 0]
    job_terms = [term for term in counted if term.job_id]
    weight = sum(term.weight for term in counted)
    score = NodeScore(
        node=node,
        status=OK,
        ratio=(prior + weight) / (prior + expected),
        weight=weight,
        expected=expected,
        prior=prior,
        jobs=len({term.job_id for term in job_terms}),
        users=len({term.uid for term in job_terms if term.uid >= 0}),
        conclusive=len({(t.job_id, t.at if not t.job_id else 0.0) for t in counted if t.grade == "conclusive"}),
        runs=ran.runs if ran else 0,
        hours=ran.hours if ran else 0.0,
        since=min((term.at for term in counted), default=0.0),
        terms=terms,
        repairs=tuple(repairs),
    )
    status, why = _judge_status(score, counted, node_settings)
    return replace(score, status=status, why=why)


def _find_missing_evidence(score: NodeScore, node_settings: Nodes) -> str:
    """Return which part of the evidence that a lemon needs is missing."""
    jobs = f"{score.jobs} of {node_settings.lemon_jobs} jobs" if score.jobs < node_settings.lemon_jobs else ""
    users = f"{score.users} of {node_settings.lemon_users} users" if score.users < node_settings.lemon_users else ""
    return f"{' and '.join(part for part in (jobs, users) if part)} that must have met faults on it"


def _judge_status(score: NodeScore, counted: Sequence[ScoreTerm], node_settings: Nodes) -> tuple[str, str]:
    """Return the status of a node with its reason.

    The ratio alone is not enough: enough distinct jobs must show faults, and at least one since the last repair.
    """
    if not counted:
        return OK, "nothing counts against it"
    repaired = max((r.at for r in score.repairs), default=0.0)
    if not any(term.at > repaired and term.kind != "removal" for term in counted):
        return OK, "no fault since it was repaired" if repaired else "no job was struck"
    if score.ratio < node_settings.suspect_ratio:
        return OK, f"{score.ratio:.1f} times the fleet's rate is less than {node_settings.suspect_ratio:g}"
    sure = len({term.job_id for term in counted if term.grade in _CERTAIN_GRADES and term.job_id})
    if (
        not score.conclusive
        and sure < node_settings.suspect_jobs
        and min(score.jobs, score.users) < node_settings.suspect_jobs
    ):
        return OK, f"fewer than {node_settings.suspect_jobs} jobs were struck, and none by a conclusive fault"
    if score.ratio < node_settings.lemon_ratio:
        return (
            SUSPECT,
            f"not a lemon yet: {score.ratio:.1f} times the fleet's rate, {node_settings.lemon_ratio:g} is needed",
        )
    if score.conclusive >= 2:
        return LEMON, f"{score.conclusive} jobs met a conclusive fault"
    if score.jobs < node_settings.lemon_jobs or score.users < node_settings.lemon_users:
        return SUSPECT, f"not a lemon yet: {_find_missing_evidence(score, node_settings)}"
    return LEMON, f"{score.jobs} jobs of {score.users} users were struck"


def _group_by_node(repairs: Iterable[Repair]) -> dict[str, tuple[Repair, ...]]:
    found: dict[str, list[Repair]] = defaultdict(list)
    for repair in sorted(repairs, key=lambda one: one.at):
        found[repair.node].append(repair)
    return {node: tuple(own) for node, own in found.items()}
