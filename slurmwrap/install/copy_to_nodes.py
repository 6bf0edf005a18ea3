"""Edge: lays the hooks' files on the nodes' own disks, by Slurm itself: one short job of root's per node.

The files travel inside the batch script, so nothing has to be shared and no login is needed. The job writes, reads back
and compares; its exit code says what went wrong. A node on which all of them lie already ends at once.
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
# Jobs: each carries some hundred KiB in slurmctld's state directory.
AT_ONCE = 64
_LIMIT = 4 << 20  # SchedulerParameters=max_script_size, by default
_OVER = frozenset(("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE",
                   "OUT_OF_MEMORY"))  # fmt: skip
_WORDS: Mapping[int, str] = {
    unpack_hooks.NOT_ROOT: "its job did not run as root (is there a job_submit plugin, or DisableRootJobs?)",
    unpack_hooks.OPEN_TO_OTHERS: "a directory on the way can be written by others than root",
    unpack_hooks.NOT_OURS: "a file of the same name is there and is not slurmwrap's",
    unpack_hooks.NOT_WRITTEN: "its files could not be written (disk full, read-only?)",
    unpack_hooks.DIFFERS: "its files differ after the copy",
    unpack_hooks.NOT_NAMED: "its slurmd reads a slurm.conf of its own, which has not the new lines",
    unpack_hooks.STALE: "its slurmd is configless and has not fetched the new lines yet (restart slurmd there)",
    unpack_hooks.NO_CONF: "the slurm.conf that its slurmd reads was not found",
    unpack_hooks.STILL_NAMED: "its slurmd reads a slurm.conf of its own, which still names the hooks",
}
STILL_NAMED = _WORDS[unpack_hooks.STILL_NAMED]
# No hook of slurmwrap's runs there.
NOT_SEEN = frozenset(_WORDS[code] for code in (unpack_hooks.NOT_NAMED, unpack_hooks.STALE))


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePayload:
    """What goes to the nodes. `files`: (path, mode, content); `named`: what their slurm.conf shall set of them."""

    files: tuple[tuple[Path, int, bytes], ...]
    python: str
    named: tuple[str, ...] = ()
    # (path, mode, owner by name): of a controller alone
    folders: tuple[tuple[Path, int, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeResult:
    """What became of one node. `reason` "": all lies there as it should."""

    node: str
    reason: str = ""


@dataclass(slots=True)
class _Job:
    node: str
    job_id: int


def make_bundle(shipment: NodePayload) -> bytes:
    """A tar.gz of the files by their full paths, the same bytes every time: `tar -C / -xzf` lays them."""
    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", mtime=0, compresslevel=9) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.USTAR_FORMAT) as archive,
    ):
        for path, mode, owner in shipment.folders:
            entry = tarfile.TarInfo(str(path).lstrip("/"))
            entry.type, entry.mode, entry.uname = tarfile.DIRTYPE, mode, owner
            archive.addfile(entry)
        for path, mode, content in shipment.files:
            entry = tarfile.TarInfo(str(path).lstrip("/"))
            entry.size, entry.mode, entry.uname, entry.gname = len(content), mode, "root", "root"
            archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def make_node_script(shipment: NodePayload, action: str) -> bytes:
    """The batch script of one node: `action` of unpack_hooks.py. ValueError: larger than Slurm would take."""
    source = Path(unpack_hooks.__file__).read_text(encoding="utf-8")
    contents = shipment if action == "lay" else _drop_contents(shipment)
    packed = base64.b64encode(make_bundle(contents)).decode("ascii")
    text = f"#!{shipment.python} -IS\n{source}\nsys.exit(run({action!r}, {packed!r}, {shipment.named!r}))\n".encode()
    if len(text) > _LIMIT:
        raise ValueError(f"{len(text)} bytes are more than a batch script may have")
    return text


def _drop_contents(shipment: NodePayload) -> NodePayload:
    return replace(shipment, files=tuple((path, mode, b"") for path, mode, _ in shipment.files))


def send(
    nodes: Sequence[str],
    known: Iterable[Node],
    shipment: NodePayload,
    slurm: Slurm,
    clock: Clock,
    *,
    action: str = "lay",
    patience_s: float = 300.0,
    done: Callable[[NodeResult], None] = lambda sent: None,
) -> tuple[NodeResult, ...]:
    """One result per node, in the order given; `done` hears of each as it ends. Jobs that do not start in `patience_s`
    are cancelled: the node is busy or down, and nothing was changed there."""
    text, by_name = make_node_script(shipment, action), {node.name: node for node in known}
    found: dict[str, NodeResult] = {}

    def ended(sent: NodeResult) -> None:
        found[sent.node] = sent
        done(sent)

    # Jobs on full nodes wait, and only so many are in Slurm at once: those that can start at once come first.
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
    told = slurm.sbatch(SbatchCall(options=options, script_path=None, stdin=text, environ=dict(os.environ)))
    if told.job_id is None:
        return None, f"sbatch: {told.stderr.strip().splitlines()[-1] if told.stderr.strip() else 'refused'}"
    return _Job(name, told.job_id), ""


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
            ended(NodeResult(node=job.node, reason=f"Slurm forgot job {job.job_id}"))
        else:
            ended(NodeResult(node=job.node, reason=_describe_reason(record.state, record.exit_code)))
    return left


def _describe_reason(state: str, code: int) -> str:
    if state == "COMPLETED" and code == 0:
        return ""
    return _WORDS.get(code, f"its job ended as {state}, exit code {code} (is there the Python of --python?)")


def _cancel(job_id: int, slurm: Slurm) -> None:
    with suppress(SlurmError):
        slurm.apply(SlurmAction(verb=Verb.CANCEL, target=str(job_id)))


def group_by_reason(sent: Collection[NodeResult]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """(reason, nodes) of those that failed: the same reason once."""
    reasons: dict[str, list[str]] = {}
    for one in sent:
        if one.reason:
            reasons.setdefault(one.reason, []).append(one.node)
    return tuple((reason, tuple(names)) for reason, names in reasons.items())
