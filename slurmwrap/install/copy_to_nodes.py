"""Copy the hooks' files to the nodes' local disks by one short Slurm job of root per node (adapter).

The batch script contains the files, so that neither a shared directory nor a login is needed. The job writes the files,
reads them back and compares; its exit code states what went wrong. On a node that has all files it ends at once.
"""

from __future__ import annotations

import base64
import gzip
import io
import os
import tarfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from slurmwrap.errors import SlurmError
from slurmwrap.fast_dataclasses import dataclass, replace
from slurmwrap.model.cluster import Node
from slurmwrap.model.decision import SlurmAction, Verb
from slurmwrap.node_hooks import unpack_hooks
from slurmwrap.protocols import Clock, SbatchCall, Slurm

JOB_NAME = "slurmwrap-hooks"
# Most jobs at the same time; the script of each takes some hundred KiB in slurmctld's state directory.
AT_ONCE = 64
_LIMIT = 4 << 20  # bytes; default of SchedulerParameters=max_script_size
_OVER = frozenset(("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE",
                   "OUT_OF_MEMORY"))  # fmt: skip
_REASONS: Mapping[int, str] = {
    unpack_hooks.NOT_ROOT: "its job did not run as root (is there a job_submit plugin, or DisableRootJobs?)",
    unpack_hooks.OPEN_TO_OTHERS: "a directory of the path can be written by users other than root",
    unpack_hooks.NOT_OURS: "a file of the same name is there and is not slurmwrap's",
    unpack_hooks.NOT_WRITTEN: "its files could not be written (disk full, read-only?)",
    unpack_hooks.DIFFERS: "its files differ after the copy",
    unpack_hooks.NOT_NAMED: "its slurmd reads a slurm.conf of its own, which does not have the new lines",
    unpack_hooks.STALE: "its slurmd is configless and has not fetched the new lines yet (restart slurmd there)",
    unpack_hooks.NO_CONF: "the slurm.conf that its slurmd reads was not found",
    unpack_hooks.STILL_NAMED: "its slurmd reads a slurm.conf of its own, which still names the hooks",
}
STILL_NAMED = _REASONS[unpack_hooks.STILL_NAMED]
# With these reasons, no hook of slurmwrap runs on the node.
NOT_SEEN = frozenset(_REASONS[code] for code in (unpack_hooks.NOT_NAMED, unpack_hooks.STALE))


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePayload:
    """What is sent to a node. `files`: (path, mode, content). `named`: settings that its slurm.conf must contain."""

    files: tuple[tuple[Path, int, bytes], ...]
    python: str
    named: tuple[str, ...] = ()
    # (path, mode, name of the owner); only for a controller
    folders: tuple[tuple[Path, int, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeResult:
    """The result for one node. `reason`: what went wrong, "" if nothing did."""

    node: str
    reason: str = ""


@dataclass(slots=True)
class _Job:
    node: str
    job_id: int


def make_bundle(payload: NodePayload) -> bytes:
    """Return a tar.gz of the files with their full paths, for `tar -C / -xzf`. Equal files give equal bytes."""
    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", mtime=0, compresslevel=9) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.USTAR_FORMAT) as archive,
    ):
        for path, mode, owner in payload.folders:
            entry = tarfile.TarInfo(str(path).lstrip("/"))
            entry.type, entry.mode, entry.uname = tarfile.DIRTYPE, mode, owner
            archive.addfile(entry)
        for path, mode, content in payload.files:
            entry = tarfile.TarInfo(str(path).lstrip("/"))
            entry.size, entry.mode, entry.uname, entry.gname = len(content), mode, "root", "root"
            archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def make_node_script(payload: NodePayload, action: str) -> bytes:
    """Return the batch script that runs `action` of unpack_hooks.py.

    Raise ValueError when it is too large for Slurm.
    """
    source = Path(unpack_hooks.__file__).read_text(encoding="utf-8")
    contents = payload if action == "lay" else _drop_contents(payload)
    packed = base64.b64encode(make_bundle(contents)).decode("ascii")
    text = f"#!{payload.python} -IS\n{source}\nsys.exit(run({action!r}, {packed!r}, {payload.named!r}))\n".encode()
    if len(text) > _LIMIT:
        raise ValueError(f"{len(text)} bytes are more than a batch script may have")
    return text


def _drop_contents(payload: NodePayload) -> NodePayload:
    return replace(payload, files=tuple((path, mode, b"") for path, mode, _ in payload.files))


def send(
    nodes: Sequence[str],
    known: Iterable[Node],
    payload: NodePayload,
    slurm: Slurm,
    clock: Clock,
    *,
    action: str = "lay",
    patience_s: float = 300.0,
    done: Callable[[NodeResult], None] = lambda sent: None,
) -> tuple[NodeResult, ...]:
    """Run `action` on each node and return one result per node, in the order given.

    `done` is called with each result as soon as it is known. Jobs that do not end within `patience_s` seconds are
    cancelled. A job that did not start because its node was busy or down has changed nothing there.
    """
    text, by_name = make_node_script(payload, action), {node.name: node for node in known}
    found: dict[str, NodeResult] = {}

    def ended(sent: NodeResult) -> None:
        found[sent.node] = sent
        done(sent)

    # At most AT_ONCE jobs are in Slurm at a time. Jobs on full nodes wait, so nodes with free CPUs come first.
    waiting = sorted(nodes, key=lambda name: name in by_name and not by_name[name].cpus_free)
    running, deadline = list[_Job](), clock.now() + patience_s
    while waiting or running:
        while waiting and len(running) < AT_ONCE:
            name = waiting.pop(0)
            job, reason = _submit_job(name, by_name.get(name), text, slurm)
            if job is None:
                ended(NodeResult(node=name, reason=reason))
            else:
                running.append(job)
        running = _list_running(running, slurm, ended)
        if running and clock.now() > deadline:
            for job in running:
                _cancel(job.job_id, slurm)
                ended(NodeResult(node=job.node, reason=f"its job did not end within {patience_s:.0f} s: it is busy"))
            for name in waiting:
                ended(NodeResult(node=name, reason="there was no time left for it"))
            break
        if running:
            clock.sleep(0.3)
    return tuple(found[name] for name in nodes)


def _submit_job(name: str, node: Node | None, text: bytes, slurm: Slurm) -> tuple[_Job | None, str]:
    if node is None:
        return None, "Slurm knows no such node"
    if node.state == "DOWN" or "NOT_RESPONDING" in node.flags:
        return None, "it is down"
    if node.flags & {"POWERED_DOWN", "POWERING_DOWN"}:
        return None, "it is powered down: its image needs the files (`slurmwrap hooks bundle`)"
    if not node.usable and "DRAIN" not in node.flags:
        return None, f"it is {'+'.join((node.state, *sorted(node.flags)))}: no job can start there"
    if not node.usable or not node.partitions:
        return None, "it is drained or in no partition: no job can start there"
    options = (
        f"--job-name={JOB_NAME}", "--nodes=1", "--ntasks=1", "--cpus-per-task=1", "--mem=64", "--time=5",
        f"--nodelist={name}", f"--partition={','.join(node.partitions)}", "--output=/dev/null", "--error=/dev/null",
        "--chdir=/", "--no-requeue", "--nice=-10000", "--export=NONE",
    )  # fmt: skip
    result = slurm.sbatch(SbatchCall(options=options, script_path=None, stdin=text, environ=dict(os.environ)))
    if result.job_id is None:
        return None, f"sbatch: {result.stderr.strip().splitlines()[-1] if result.stderr.strip() else 'refused'}"
    return _Job(name, result.job_id), ""


def _list_running(jobs: list[_Job], slurm: Slurm, ended: Callable[[NodeResult], None]) -> list[_Job]:
    if not jobs:
        return []
    shown = {record.job_id: record for record in slurm.jobs("root")}
    left = []
    for job in jobs:
        record = shown.get(job.job_id)
        if record is not None and record.state not in _OVER:
            left.append(job)
            continue
        if record is None:
            ended(NodeResult(node=job.node, reason=f"Slurm has no record of job {job.job_id} any more"))
        else:
            ended(NodeResult(node=job.node, reason=_describe_reason(record.state, record.exit_code)))
    return left


def _describe_reason(state: str, code: int) -> str:
    if state == "COMPLETED" and code == 0:
        return ""
    return _REASONS.get(code, f"its job ended as {state}, exit code {code} (is there the Python of --python?)")


def _cancel(job_id: int, slurm: Slurm) -> None:
    with suppress(SlurmError):
        slurm.apply(SlurmAction(verb=Verb.CANCEL, target=str(job_id)))


def group_by_reason(sent: Collection[NodeResult]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return (reason, nodes) of the nodes that failed, each reason once."""
    reasons: dict[str, list[str]] = {}
    for one in sent:
        if one.reason:
            reasons.setdefault(one.reason, []).append(one.node)
    return tuple((reason, tuple(names)) for reason, names in reasons.items())
