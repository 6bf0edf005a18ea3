"""Run a job again: Slurm actions in their order, and the release of jobs that could not be launched. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePosixPath

from slurmwrap.config.load_config import Config
from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.model.decision import GATE_PREFIX, PlannedAction, RetryDecision, SlurmAction, Verb
from slurmwrap.model.evidence import Diagnosis
from slurmwrap.model.hostlist import expand, fold
from slurmwrap.model.job_record import JobRecord
from slurmwrap.model.job_run import JobRun
from slurmwrap.policy import decision_context
from slurmwrap.policy.decision_context import DecisionContext

# The Comment of the jobs that gsub submits to retry other jobs (gsub/retry_submission.py).
RETRY_JOB_COMMENT = "slurmwrap: retries another job"
# slurmd refuses a credential that was created in the second in which the last run was killed ("Job 81 already killed,
# do not launch batch job"; seen with 22.05). That run fails with exit code 1 before its first line. Clocks of nodes
# differ a little, hence several seconds.
SETTLE_S = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RequeueSpec:
    """What shall be different in the next run. "" and None: unchanged."""

    rule: str
    reason: str = ""
    avoid: tuple[str, ...] = ()
    switches: str = ""  # N@time, as --switches
    memory: tuple[str, int] | None = None  # (scontrol's key, MiB)
    time_min: int | None = None
    why_time: str = "because it resumes from its checkpoint"
    std_out: str = ""
    delay_s: int = 0
    comment: str = ""


def make_requeue_actions(again: RequeueSpec, job: JobRecord) -> tuple[PlannedAction, ...]:
    """Return all actions for one job or array task; never for a bare array id, which would address every task."""
    updates = (
        *_list_placement_updates(again.avoid, job),
        *((("Switches", again.switches, "so that its nodes are below one switch"),) if again.switches else ()),
        *_list_memory_updates(again.memory),
        *_list_time_updates(again.time_min),
        *_list_output_updates(again.std_out),
        *_list_comment_updates(again.comment, job),
    )
    start = f"now+{max(again.delay_s, SETTLE_S)}"
    steps = (
        (Verb.REQUEUEHOLD, "", "", again.reason),
        *((Verb.UPDATE_JOB, key, value, reason) for key, value, reason in updates),
        (Verb.RELEASE, "", "", "it was held while it was changed"),
        (Verb.UPDATE_JOB, "StartTime", start, "Slurm delays a requeued job by two minutes"),
    )
    return tuple(
        PlannedAction(
            rule=again.rule, action=SlurmAction(verb=verb, target=job.address, key=key, value=value, reason=reason)
        )
        for verb, key, value, reason in steps
    )


COMMENT_PREFIX = "slurmwrap: "
SIZES = ("MinMemoryNode", "MinMemoryCPU", "TimeLimit")  # keys that a resize sets


def undo(key: str, run: JobRun) -> str:
    """Return the value with which `run` ran, for a key of SIZES that Slurm refused; "" if it is unknown.

    Slurm 22.05 keeps what it refused: with a request beyond MaxMemPerNode the job showed the larger memory afterwards
    (measured).
    """
    minutes = -(-run.time_limit_s // 60) if run.time_limit_s else None
    values = {"MinMemoryNode": run.mem_mib_per_node, "MinMemoryCPU": run.mem_mib_per_cpu, "TimeLimit": minutes}
    return str(values.get(key) or "")


def list_suspect_nodes(diagnosis: Diagnosis, run: JobRun, blamed: str) -> tuple[str, ...]:
    """Return the nodes that the next run should avoid: the blamed one, the one that the log names, else the only one.

    A log may decide about the user's own job: the node is avoided by this job alone, and nothing counts against it.
    """
    if diagnosis.decision not in ("retry_elsewhere", "blacklist_input"):
        return ()
    named = blamed or (diagnosis.node if diagnosis.node in run.nodes else "")
    return (named,) if named else run.nodes if len(run.nodes) == 1 else ()


def retry_output(path: str, restarts: int) -> str:
    """Return the next run's own output file: `slurm-81.out` -> `slurm-81.retry1.out`; "" if none is needed."""
    name = PurePosixPath(path)
    if not path or name.parts[:2] == ("/", "dev"):
        return ""
    stem = name.stem
    head, dot, tail = stem.rpartition(".retry")
    if dot and tail.isdecimal():
        stem = head
    return str(name.with_name(f"{stem}.retry{restarts + 1}{name.suffix}"))


def _list_placement_updates(avoid: tuple[str, ...], job: JobRecord) -> Iterable[tuple[str, str, str]]:
    excluded, pinned = _expand_or_split(job.exc_nodes), _expand_or_split(job.req_nodes)
    added = tuple(node for node in avoid if node not in excluded)
    if added:
        yield "ExcNodeList", fold((*excluded, *added)), f"away from {', '.join(added)}"
    if set(avoid) & set(pinned):
        yield "ReqNodeList", "", f"it was pinned to {job.req_nodes}, which must be left"


def _list_memory_updates(memory: tuple[str, int] | None) -> Iterable[tuple[str, str, str]]:
    if memory:
        yield memory[0], str(memory[1]), "it ran out of host memory"


def _list_time_updates(minutes: int | None) -> Iterable[tuple[str, str, str]]:
    if minutes is not None:
        yield "TimeLimit", str(minutes), "it ran into its time limit, and it resumes from its checkpoint"


def _list_output_updates(std_out: str) -> Iterable[tuple[str, str, str]]:
    if std_out:
        yield "StdOut", std_out, "a requeued job truncates its output file"


def _list_comment_updates(text: str, job: JobRecord) -> Iterable[tuple[str, str, str]]:
    """Yield the Comment, unless the user has set one. All users see it: it holds no paths and no text of a log."""
    if text and (not job.comment or job.comment.startswith(COMMENT_PREFIX)):
        yield "Comment", COMMENT_PREFIX + text, "squeue shows why it waits"


def _expand_or_split(hostlist: str) -> tuple[str, ...]:
    try:
        return expand(hostlist)
    except ValueError:
        return tuple(hostlist.split(","))


# Pending reason of a job whose launch failed. squeue prints it with blanks.
HELD_LAUNCH = "launch_failed_requeued_held"


def is_held_launch(job: JobRecord) -> bool:
    """Return True if Slurm holds the job because a Prolog failed."""
    return job.pending and job.restarts > 0 and job.reason.replace(" ", "_") == HELD_LAUNCH


def has_failed_to_launch(context: DecisionContext) -> bool:
    """Return True if this run could not be launched, and Slurm holds the next one."""
    job = context.job
    return job is not None and is_held_launch(job) and job.restarts == context.record.restarts + 1


def decide_launch(context: DecisionContext, config: Config) -> RetryDecision:
    """Decide about the held job. Refusals by slurmwrap's own gate cost no budget and need no consent."""
    if context.gate:
        return _decide_after_gate(context)
    where = f" on {', '.join(context.record.nodes)}" if context.record.nodes else ""
    held = f"it could not be launched{where}, and Slurm holds it"
    if refusal := decision_context.find_owner_refusal(context):
        way = f"'scontrol release {context.record.address}' lets it start again"
        return RetryDecision(decision="stop", reason=f"{held}; not released: {refusal} ({way})")
    spent = context.ledger.spent(context.diagnosis.category)
    if reason := decision_context.find_exhausted_budget(context, spent, config.retry.confirmations, config):
        return RetryDecision(decision="stop", reason=f"{held}; {reason}")
    return _decide_release(
        context, "retry_elsewhere", f"{held}; released once, to start elsewhere", context.record.nodes
    )


def make_launch_comment(context: DecisionContext) -> str:
    """Return the job's Comment while it waits for its next run."""
    cause = decision_context.find_agreed_ending(context) or context.diagnosis.category
    return f"{cause} (slurmwrap why {context.record.address or context.record.attempt.job_id})"


def _decide_after_gate(context: DecisionContext) -> RetryDecision:
    # If the nodes are unknown, one node is relabelled: a single refusal is enough to fail the launch.
    nodes = context.gate_nodes or context.record.nodes[:1]
    reason = f"the Prolog gate refused {', '.join(nodes)}: {context.gate}"
    relabel = tuple(
        PlannedAction(
            rule="gate",
            action=SlurmAction(
                verb=Verb.DRAIN,
                target=node,
                value=f"{GATE_PREFIX}{context.gate}, before job {context.record.attempt.job_id}",
                reason="Slurm drained it for the Prolog's exit code",
            ),
        )
        for node in nodes
    )
    found = _decide_release(context, "gate", reason, nodes)
    return RetryDecision(decision="retry_elsewhere", reason=found.reason, actions=(*relabel, *found.actions))


def _decide_release(context: DecisionContext, rule: str, reason: str, avoid: tuple[str, ...]) -> RetryDecision:
    assert context.job is not None
    again = RequeueSpec(
        rule=rule, reason=reason, avoid=avoid if len(avoid) == 1 else (), comment=make_launch_comment(context)
    )
    # The first action, requeuehold, is left out: Slurm has requeued and held the job already.
    actions = make_requeue_actions(again, context.job)[1:]
    return RetryDecision(decision="retry_elsewhere", reason=reason, actions=actions)
