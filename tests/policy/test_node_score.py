"""The node score: which evidence counts, with which weight, and when a node is a suspect or a lemon."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from fakes import START

from slurmwrap.config.load_config import Nodes
from slurmwrap.model.job_run import StrikeRecord
from slurmwrap.model.observation import Context, Observation
from slurmwrap.policy.node_history import (
    CLEARED,
    Exposure,
    GpuFault,
    NodeFailure,
    NodeHistory,
    Removal,
    Repair,
    find_changed_removals,
    list_gpu_faults,
    list_lifted_drains,
)
from slurmwrap.policy.node_score import LEMON, OK, SUSPECT, NodeScore, compute_node_scores, share_of

DAY, HOUR = 86400, 3600
RULES = Nodes()


def strike(job_id: int, at: float = START - DAY, uid: int = 0, **changes: Any) -> StrikeRecord:
    base = StrikeRecord(
        node="n1", cause="gpu_hardware", conclusive=False, text="", at=at, job_id=job_id, uid=uid or 1000 + job_id
    )
    return replace(base, **changes)


def xid(code: int, job_id: int, at: float = START - DAY, uid: int = 0, gpu: str = "0000:05:00") -> GpuFault:
    text = f"NVRM: Xid (PCI:{gpu}): {code}, pid=77, name=python"
    return GpuFault(node="n1", at=at, job_id=job_id, uid=uid or 1000 + job_id, text=text)


def failure(job_id: int, *nodes: str, named: str = "", uid: int = 0) -> NodeFailure:
    return NodeFailure(nodes=nodes, at=START - DAY, job_id=job_id, uid=uid or 1000 + job_id, named=named)


def fleet_exposure(hours: float = 300.0, runs: int = 100, nodes: int = 20) -> tuple[Exposure, ...]:
    return tuple(Exposure(node=f"n{i}", runs=runs, hours=hours) for i in range(1, nodes + 1))


def score_of(history: NodeHistory, node: str = "n1", rules: Nodes = RULES) -> NodeScore:
    if not history.exposure:
        history = replace(history, exposure=fleet_exposure())
    return next(score for score in compute_node_scores(history, rules, now=START) if score.node == node)


FAULTS = {
    "one strike of one job": (NodeHistory(strikes=(strike(1),)), 1.0, OK),
    "one job three times": (NodeHistory(strikes=(strike(1), strike(1), strike(1))), 1.0, OK),
    "two jobs": (NodeHistory(strikes=(strike(1), strike(2))), 2.0, SUSPECT),
    "five jobs of five users": (NodeHistory(strikes=tuple(map(strike, range(1, 6)))), 5.0, LEMON),
    "five jobs of one user": (NodeHistory(strikes=tuple(strike(j, uid=7) for j in range(1, 6))), 5.0, SUSPECT),
    "one conclusive Xid": (NodeHistory(gpu_faults=(xid(79, 1),)), 3.0, SUSPECT),
    "conclusive Xids of two jobs of one user": (
        NodeHistory(gpu_faults=(xid(79, 1, uid=7), xid(48, 2, uid=7))),
        6,
        LEMON,
    ),
    "an Xid and the strike of its job": (NodeHistory(gpu_faults=(xid(79, 1),), strikes=(strike(1),)), 3.0, SUSPECT),
    "Xids that reset a GPU": (NodeHistory(gpu_faults=(xid(46, 1), xid(109, 2))), 2.0, SUSPECT),
    "rows remapped": (NodeHistory(gpu_faults=(xid(63, 1), xid(63, 2))), 0.5, OK),
    "an unknown Xid": (NodeHistory(strikes=(strike(9),), gpu_faults=(xid(999, 1),)), 1.0, OK),
    "a program's Xid": (NodeHistory(gpu_faults=(xid(31, 1), xid(13, 2))), 0.0, OK),
    "forty Xid 31 of one user": (NodeHistory(gpu_faults=tuple(xid(31, j, uid=7) for j in range(40))), 0.0, OK),
    "failures of single-node jobs": (NodeHistory(failures=(failure(1, "n1"), failure(2, "n1"))), 2.0, SUSPECT),
    "a failure that Slurm pins on n1": (NodeHistory(failures=(failure(1, "n1", "n2", named="n1"),)), 1.0, OK),
    "a failure of four nodes": (NodeHistory(failures=(failure(1, "n1", "n2", "n3", "n4"),)), 0.25, OK),
    "out of service": (NodeHistory(removals=tuple(Removal(node="n1", began=START - i) for i in range(9))), 4.5, OK),
}


@pytest.mark.parametrize("name", FAULTS)
def test_each_kind_of_evidence_has_its_weight_and_status(name: str) -> None:
    history, weight, status = FAULTS[name]
    found = score_of(history)
    assert (found.weight, found.status) == (pytest.approx(weight), status), found.why


def test_an_application_xid_counts_only_with_three_users_on_one_gpu_in_a_day() -> None:
    together = tuple(xid(31, job, START - DAY + job * HOUR) for job in (1, 2, 3))
    assert score_of(NodeHistory(gpu_faults=together)).weight == 1.5
    spread = tuple(xid(31, job, START - job * DAY) for job in (1, 2, 3))
    assert score_of(NodeHistory(gpu_faults=spread)).weight == 0.0
    gpus = tuple(xid(31, job, gpu=f"0000:0{job}:00") for job in (1, 2, 3))
    assert score_of(NodeHistory(gpu_faults=gpus)).weight == 0.0
    two = (*together[:2], xid(31, 3, together[2].at, uid=together[0].uid))
    assert score_of(NodeHistory(gpu_faults=two)).weight == 0.0


def test_shares_of_multi_node_failures_add_up_on_the_common_node() -> None:
    failures = tuple(failure(job, "n1", f"n{job + 1}") for job in range(1, 13))
    found = {
        score.node: score.status
        for score in compute_node_scores(NodeHistory(failures=failures, exposure=fleet_exposure()), RULES, now=START)
    }
    assert found.pop("n1") == LEMON
    assert set(found.values()) == {OK}


def test_shares_of_one_users_multi_node_failures_make_no_lemon() -> None:
    failures = tuple(failure(job, "n1", f"n{job + 1}", uid=7) for job in range(1, 13))
    assert score_of(NodeHistory(failures=failures)).status == OK


def test_a_failure_on_more_than_64_nodes_counts_against_no_node() -> None:
    assert [share_of(n) for n in (1, 4, 64, 65, 0)] == [1.0, 0.25, 1 / 64, 0.0, 0.0]


def test_a_failure_that_names_a_foreign_node_is_shared_by_the_jobs_nodes() -> None:
    found = compute_node_scores(NodeHistory(failures=(failure(1, "n1", "n2", named="n9"),)), RULES, now=START)
    assert [(s.node, s.weight) for s in found] == [("n1", 0.5), ("n2", 0.5)]


def test_more_strikes_in_proportion_to_more_runs_make_no_lemon() -> None:
    """All nodes have the same fault rate. n1 has ten times the runs and ten times the strikes."""
    others = tuple(strike(job, node=f"n{job}") for job in range(2, 21))
    busy = tuple(strike(100 + job) for job in range(10))
    exposure = (Exposure(node="n1", runs=1000, hours=3000.0), *fleet_exposure()[1:])
    found = score_of(NodeHistory(strikes=(*others, *busy), exposure=exposure))
    assert (found.status, found.weight, round(found.expected, 3)) == (OK, 10.0, 10.0)
    idle = score_of(NodeHistory(strikes=(*others, *busy), exposure=fleet_exposure()))
    assert idle.status == LEMON


def test_a_fleet_where_all_nodes_fail_alike_has_no_lemons() -> None:
    strikes = tuple(strike(10 * n + k, node=f"n{n}") for n in range(1, 21) for k in range(5))
    assert {
        score.status
        for score in compute_node_scores(NodeHistory(strikes=strikes, exposure=fleet_exposure()), RULES, now=START)
    } == {OK}


def test_without_exposure_the_evidence_alone_decides() -> None:
    found = compute_node_scores(NodeHistory(strikes=tuple(map(strike, range(1, 6)))), RULES, now=START)[0]
    assert (found.expected, found.ratio, found.runs, found.status) == (0.0, 6.0, 0, LEMON)


def test_evidence_older_than_the_window_does_not_count() -> None:
    assert compute_node_scores(NodeHistory(strikes=(strike(1, START - 29 * DAY),)), RULES, now=START) == ()
    assert (
        compute_node_scores(NodeHistory(strikes=(strike(1, START - 9 * DAY),)), Nodes(window_days=7), now=START) == ()
    )


def test_evidence_of_an_incident_counts_only_if_conclusive() -> None:
    history = NodeHistory(
        strikes=(strike(1, incident="i1"), strike(2, incident="i1")),
        gpu_faults=(replace(xid(46, 3), incident="i1"), replace(xid(79, 4), incident="i1")),
        failures=(replace(failure(5, "n1"), incident="i1"),),
    )
    found = score_of(history)
    assert (found.weight, found.jobs) == (3.0, 1)
    assert sorted(t.why_not for t in found.terms if not t.weight) == ["part of incident i1"] * 4


def test_faults_before_a_repair_weigh_less_and_a_relapse_weighs_more() -> None:
    faults = tuple(strike(job, START - 5 * DAY) for job in range(1, 6))
    repaired = NodeHistory(strikes=faults, repairs=(Repair(node="n1", at=START - 4 * DAY, who="root"),))
    found = score_of(repaired)
    assert (found.status, found.weight, found.why) == (OK, 1.25, "no fault since it was repaired")
    relapsed = score_of(replace(repaired, strikes=(*faults, strike(9))))
    assert (relapsed.status, relapsed.weight) == (LEMON, 2.75)
    assert [term.note for term in relapsed.terms] == ["before the repair"] * 5 + ["again after the repair"]


def test_cleared_evidence_has_no_weight_and_is_still_listed() -> None:
    mark = Repair(node="n1", at=START - DAY / 2, who="root", kind=CLEARED)
    found = score_of(NodeHistory(strikes=(strike(1), strike(2)), gpu_faults=(xid(79, 3),), repairs=(mark,)))
    assert (found.status, found.weight, found.why) == (OK, 0.0, "nothing counts against it")
    assert {term.why_not for term in found.terms} == {"cleared by root"}
    again = score_of(NodeHistory(strikes=(strike(1), strike(2, START)), repairs=(mark,)))
    assert again.weight == 1.0
    alone = score_of(NodeHistory(strikes=(strike(1, cleared_at=START, cleared_by="eve"), strike(2))))
    assert [term.why_not for term in alone.terms] == ["", "cleared by eve"]


def test_one_lemon_does_not_hide_other_bad_nodes_in_a_small_fleet() -> None:
    strikes = [*(strike(job) for job in range(1, 9)), *(strike(job, node="n2") for job in (21, 22))]
    found = compute_node_scores(NodeHistory(strikes=tuple(strikes), exposure=fleet_exposure(nodes=4)), RULES, now=START)
    assert [(s.node, s.status, s.expected) for s in found] == [
        ("n1", LEMON, pytest.approx(2 / 3)),
        ("n2", SUSPECT, 0.0),
    ]


def test_a_fleet_of_similar_nodes_has_a_stronger_prior() -> None:
    alike = tuple(strike(100 * n, node=f"n{n}") for n in range(1, 21))
    assert score_of(NodeHistory(strikes=alike)).prior == 4.0
    assert score_of(NodeHistory(strikes=alike[:9])).prior == 1.0


def test_the_worst_nodes_come_first() -> None:
    strikes = [strike(job, node="bad") for job in range(1, 7)] + [strike(job, node="so-so") for job in (7, 8)]
    found = compute_node_scores(
        NodeHistory(strikes=(*strikes, strike(9, node="fine")), exposure=fleet_exposure()), RULES, now=START
    )
    assert [(s.node, s.status) for s in found] == [("bad", LEMON), ("so-so", SUSPECT), ("fine", OK)]


def simulated(seed: int, lemons: set[str]) -> tuple[NodeScore, ...]:
    """1000 nodes at the rate of Kokolis et al. 2024 (6.5 failures per 1000 node-days), lemons at 25 times that rate."""
    rnd = random.Random(seed)
    hours = {f"n{i}": rnd.uniform(100, 672) for i in range(1000)}
    strikes = []
    for node, ran_for in hours.items():
        mean = 6.5 / 1000 * ran_for / 24 * (25 if node in lemons else 1)
        count = sum(rnd.random() < mean / 100 for _ in range(100))
        strikes += [strike(rnd.randrange(10**6), node=node, uid=rnd.randrange(1, 60)) for _ in range(count)]
    exposure = tuple(Exposure(node=node, runs=int(h / 3), hours=h) for node, h in hours.items())
    return compute_node_scores(NodeHistory(strikes=tuple(strikes), exposure=exposure), RULES, now=START)


def test_lemons_of_a_simulated_fleet_are_found_with_few_false_alarms() -> None:
    lemons = {f"n{i}" for i in range(20)}
    found = [score for seed in range(5) for score in simulated(seed, lemons)]
    lemon_verdicts = [score.node in lemons for score in found if score.status == LEMON]
    suspected = [score.node in lemons for score in found if score.status != OK]
    assert sum(lemon_verdicts) >= 40 and sum(lemon_verdicts) >= 0.95 * len(
        lemon_verdicts
    )  # of 100 lemons in five fleets
    assert sum(suspected) >= 60 and len(suspected) - sum(suspected) <= 40  # of 4900 sound nodes


def test_drains_are_recorded_when_they_begin_and_when_they_end() -> None:
    out = {"n1": ("bad fan", False), "n2": ("slurmwrap: gpu", True)}
    began = find_changed_removals((), out, (), now=START)
    assert [(r.node, r.began, r.reason, r.ours, r.ended) for r in began] == [
        ("n1", START, "bad fan", False, None),
        ("n2", START, "slurmwrap: gpu", True, None),
    ]
    assert find_changed_removals(began, out, (), now=START + 5) == ()
    ended = find_changed_removals(began, {}, (), now=START + 9)
    assert [(r.node, r.began, r.ended) for r in ended] == [("n1", START, START + 9), ("n2", START, START + 9)]
    assert [r.node for r in find_changed_removals(began, {}, {"n2"}, now=START + 9)] == ["n1"]  # n2 is being checked
    known = {"n1", "n2"}
    assert [(r.node, r.at, r.kind) for r in list_lifted_drains(ended, {}, known)] == [("n2", START + 9, "lifted")]
    assert [r.node for r in list_lifted_drains(ended, {"n2": START - 5}, known)] == ["n2"]  # an earlier drain
    assert list_lifted_drains(ended, {"n2": START + 8}, known) == ()


def test_the_drain_of_a_node_that_was_renamed_ends_and_no_person_lifted_it() -> None:
    began = find_changed_removals((), {"n2": ("slurmwrap: gpu", True)}, (), now=START)
    ended = find_changed_removals(began, {}, (), now=START + 9)
    assert [(r.node, r.ended) for r in ended] == [("n2", START + 9)]
    assert list_lifted_drains(ended, {}, {"n1", "m2"}) == ()


def epilog(*texts: str, **changes: Any) -> Observation:
    facts = {"uid": 1001, "kernel": [{"text": text, "at": START} for text in texts]}
    base = Observation(
        nonce="a", cluster="lab", job_id=81, context=Context.EPILOG, at=START, node="n1", uid=0, facts=facts
    )
    return replace(base, **changes)


def test_kernel_lines_about_gpus_from_an_epilog_are_kept() -> None:
    line = "NVRM: Xid (PCI:0000:05:00): 79, pid=7, GPU has fallen off the bus."
    fallen = (
        "NVRM: The NVIDIA GPU 0000:b3:00.0",
        "NVRM: (PCI ID: 10de:20b0) installed in this system has",
        "fallen off the bus",
    )
    (fault,) = list_gpu_faults(epilog(line, line, "usb 1-1: new device"))
    assert fault == GpuFault(node="n1", at=START, job_id=81, uid=1001, text=line)
    assert score_of(NodeHistory(gpu_faults=list_gpu_faults(epilog(*fallen)))).weight == 3.0
    assert len(list_gpu_faults(epilog(*(f"Xid {n}" for n in range(500))))) == 64


def test_kernel_lines_from_other_sources_than_an_epilog_do_not_count() -> None:
    line = "NVRM: Xid (PCI:0000:05:00): 79, pid=7"
    assert list_gpu_faults(epilog(line, context=Context.SUBMIT)) == ()
    assert list_gpu_faults(epilog(line, node="")) == ()
    assert list_gpu_faults(epilog(facts={"kernel": "NVRM: Xid (PCI:0000:05:00): 79"})) == ()
    assert list_gpu_faults(epilog(facts={"logs": [{"text": line}], "kernel": ["x", 7]})) == ()


def lost_link(job_id: int, downs: int = 7, uid: int = 0, text: str = "went down 1 time while the job ran") -> GpuFault:
    line = f"network on n1: InfiniBand port mlx5_0/1 {text}" + (f" (link_downed {downs})" if downs else "")
    return GpuFault(node="n1", at=START - DAY + job_id, job_id=job_id, uid=uid or 1000 + job_id, text=line)


NOISE = "has too many errors: symbol_error 900 in 2.0 h"


@pytest.mark.parametrize(
    ("faults", "weight", "status"),
    [
        ((lost_link(1),), 1.0, OK),
        ((lost_link(1), lost_link(2)), 1.0, OK),  # two jobs on the node saw one event
        ((lost_link(1), lost_link(2, 8)), 2.0, SUSPECT),
        ((lost_link(1, 1), lost_link(2, 2), lost_link(3, 3)), 3.0, LEMON),
        ((lost_link(1, 0, text=NOISE), lost_link(2, 0, text=NOISE)), 0.5, OK),
        ((lost_link(1, 0, text="has errors: symbol_error 9 in 2.0 h"),), None, OK),
        ((replace(lost_link(1), node="n2"),), None, OK),  # a line about another node
        ((replace(lost_link(1), incident="i1"), lost_link(2, 8)), 1.0, OK),  # the switch
    ],
)
def test_broken_links_count(faults: tuple[GpuFault, ...], weight: float | None, status: str) -> None:
    scores = compute_node_scores(NodeHistory(gpu_faults=faults, exposure=fleet_exposure()), RULES, now=START)
    assert [(one.weight, one.status) for one in scores] == ([] if weight is None else [(weight, status)])
    assert all(not one.conclusive for one in scores)


def test_broken_links_are_stored_with_the_kernels_lines() -> None:
    port = {"port": "mlx5_0/1", "link": "infiniband", "new": {"link_downed": 1, "symbol_error": 9}, "downs": 7}
    facts = {"uid": 7, "network": {"ports": 1, "s": 3600, "changed": [port]}}
    found = Observation(nonce="", cluster="c", job_id=1, context=Context.EPILOG, at=START, node="n1", facts=facts)
    assert [fault.text for fault in list_gpu_faults(found)] == [lost_link(1).text]
    assert list_gpu_faults(replace(found, context=Context.SUBMIT)) == ()


def test_clocks_that_were_held_down_for_long_are_noted() -> None:
    def epilog(job_id: int, slowed: int) -> Observation:
        clocks = {"0": {"busy": 100, "slowed": slowed, "hw_thermal": slowed, "sm": 0.71, "thermal_s": 812.3}}
        facts = {"uid": job_id, "clocks": clocks}
        return Observation(
            nonce="", cluster="c", job_id=job_id, context=Context.EPILOG, at=START - DAY, node="n1", facts=facts
        )

    (fault,) = list_gpu_faults(epilog(1, 70))
    assert fault.text == (
        "NVML on n1: GPU 0 was slowed down in 70 of 100 minutes of use (hw_thermal 70), "
        "its SM clock was at 71 % of its maximum, 812 s by heat"
    )
    assert list_gpu_faults(epilog(1, 59)) == ()
    history = NodeHistory(gpu_faults=tuple(list_gpu_faults(epilog(job, 90))[0] for job in range(1, 6)))
    found = score_of(history)
    assert (found.weight, {term.kind for term in found.terms}, found.status) == (1.25, {"clocks"}, SUSPECT)


@pytest.mark.parametrize(
    ("text", "grade"),
    [
        ("GPU reset(1) failed", "conclusive"),
        ("GPU reset begin!", "suspect"),
        ("2 new uncorrectable hardware errors detected in umc block", "suspect"),
        ("2 uncorrectable hardware errors detected in umc block", "noted"),
        ("SMU: I'm not done with your previous command: SMN_C2PMSG_66:0x00000012", "noted"),
    ],
)
def test_kernel_lines_of_amds_driver_count_as_xids_do(text: str, grade: str) -> None:
    fault = replace(xid(79, 1), text=f"amdgpu 0000:c1:00.0: amdgpu: {text}")
    (term,) = score_of(NodeHistory(gpu_faults=(fault,))).terms
    assert (term.kind, term.grade, term.gpu) == ("amdgpu", grade, "0000:c1:00")


def test_page_faults_of_one_user_on_amds_gpus_do_not_count() -> None:
    line = "amdgpu 0000:c1:00.0: amdgpu: [gfxhub0] no-retry page fault (src_id:0 ring:24 vmid:8 pasid:1)"
    faults = tuple(replace(xid(31, job, uid=7), text=line) for job in range(1, 9))
    assert score_of(NodeHistory(gpu_faults=faults)).weight == 0


def test_a_counter_of_amds_driver_that_is_printed_again_counts_once() -> None:
    line = "amdgpu 0000:c1:00.0: amdgpu: {} uncorrectable hardware errors detected in umc block"
    faults = tuple(replace(xid(79, job), text=line.format(count)) for job, count in ((1, 2), (2, 2), (3, 2), (4, 3)))
    assert score_of(NodeHistory(gpu_faults=faults)).weight == 0.5
