"""Slurm through its commands (adapter): implements `protocols.Slurm` for Slurm 22.05, 24.11 and 26.05.

Reads are text with time stamps in Unix seconds (SLURM_TIME_FORMAT=%s), without the caller's SQUEUE_* preferences.
The commands that one question needs run in parallel. A job is submitted once, whatever the result.
The parsers are imported where they are used, because gsub starts the commands before it loads the parsers.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Callable, Mapping, Sequence

from slurmwrap.errors import NoSlurmConf, SlurmError, SlurmUnreachable
from slurmwrap.fast_dataclasses import dataclass, replace
from slurmwrap.host.run_command import CommandResult, run, start_command, start_in_background
from slurmwrap.host.system_clock import SystemClock
from slurmwrap.model.decision import DRAIN_PREFIX, GATE_PREFIX, SlurmAction, Verb
from slurmwrap.slurm.find_sbatch import find_sbatch, make_wrapper_environment
from slurmwrap.slurm.snapshot import QueryUser, make_assoc_mgr_request, make_scontrol_requests

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from slurmwrap.model.cluster import Node, Preemption, Snapshot
    from slurmwrap.model.job_record import JobRecord
    from slurmwrap.model.limits import Quotas
    from slurmwrap.model.queue_priority import PriorityScheme
    from slurmwrap.protocols import Clock, PartitionTest, SbatchCall, SbatchResult
    from slurmwrap.slurm.response_cache import ResponseCache
    from slurmwrap.slurm.site_topology import Network
    from slurmwrap.slurm.squeue_parser import WatchedJob


# Where Slurm's own builds and common packages look for slurm.conf without SLURM_CONF. The last one is for configless.
CONF_PLACES = (
    "/etc/slurm/slurm.conf",
    "/etc/slurm-llnl/slurm.conf",
    "/usr/local/etc/slurm.conf",
    "/opt/slurm/etc/slurm.conf",
    "/run/slurm/conf/slurm.conf",
)
_NO_CONF = r"cannot stat file (\S+): .*retrying in|Could not establish a configuration source"
UNREACHABLE = r"Unable to contact slurm controller|Connection refused|Socket timed out|connect failure"
# After these errors it is unknown whether slurmctld received the request and created a job. A failed connect is clear.
AMBIGUOUS = r"Socket timed out on send/recv|Zero Bytes were transmitted|Transport endpoint|Unexpected message"
_SUBMITTED = re.compile(r"^Submitted batch job (\d+)", re.MULTILINE)
_PARSABLE = r"(?m)^(\d+)(?:;\S+)?$"
# sbatch --test-only, 22.05 to 26.05.
_WOULD_START = re.compile(r"Job \d+ to start at (\d+) using")
_FAR_FUTURE = 0xFFFFFFFF
_TEST_REFUSED = re.compile(r"(?m)^(?:sbatch: error: )?(?:allocation failure|Batch job submission failed): (.+)$")
_INVALID_JOB_ID = "Invalid job id specified"
_HARMLESS_VARIABLES = frozenset(("PATH", "LD_LIBRARY_PATH", "SLURM_CONF", "LC_ALL", "TERM", "INPUTRC"))
_LIMITED_KEYS = frozenset(
    ("NumNodes", "MinMemoryNode", "MinMemoryCPU", "CPUsPerTask", "MinCPUsNode", "NumCPUs", "NumTasks", "TimeLimit")
)
_OWNER_TIMEOUT_S = 3.0  # scontrol takes 6 ms
# Limits, partitions, topology and configuration change only when an administrator changes them, so their cached
# answers are valid this many times as long as those about nodes.
_REST_LIFETIME_FACTOR = 6.0
SBATCH_TIMEOUT_S = 120.0  # sbatch itself retries for 20 s and more when the controller is busy


@dataclass(frozen=True, slots=True, kw_only=True)
class _SnapshotOutput:
    """Output of the two commands of a snapshot ("" if nodes were not requested), and whether each is from the cache."""

    nodes: str
    rest: str
    nodes_kept: bool
    rest_kept: bool


class SlurmCommands:
    """Slurm as `environ` selects it (SLURM_CONF, PATH). Raises SlurmUnreachable and SlurmError as protocols.Slurm does.

    `network`: builds a snapshot's topology from the one that Slurm shows (see SiteRacks). `kept`: a cache of answers to
    earlier calls for the first snapshot; a plan that is made from it must not rely on any node being free. `cluster`:
    read from this other cluster, which only slurmdbd can find (SLURM_CLUSTERS, as -M).
    """

    def __init__(
        self,
        environ: Mapping[str, str] = os.environ,
        *,
        timeout_s: float = 10.0,
        clock: Clock | None = None,
        network: Network = lambda slurm_topology, nodes: slurm_topology,
        kept: ResponseCache | None = None,
        cluster: str = "",
    ) -> None:
        self.cluster = cluster
        self._timeout_s = timeout_s
        self._clock = clock or SystemClock()
        self._network = network
        self._kept = kept
        self._begun: Callable[[], _SnapshotOutput] | None = None
        self._given = environ
        self._environ = _make_read_environment(environ) | ({"SLURM_CLUSTERS": cluster} if cluster else {})
        self._asker = QueryUser(user=_find_user_name(os.geteuid()), uid=os.geteuid())
        self._config: Mapping[str, str] | None = None
        self._conf_seen = False

    def config(self) -> Mapping[str, str]:
        """Return `scontrol show config`, read once: "SlurmUser" → "slurm(64030)", "MinJobAge" → "300 sec"."""
        if self._config is None:
            from slurmwrap.slurm.scontrol_parser import parse_config

            self._config = parse_config(self._read(["scontrol", "show", "config"])[0])
        return self._config

    def cluster_name(self) -> str:
        """Return ClusterName of slurm.conf."""
        return self.config().get("ClusterName", "")

    def clusters(self) -> tuple[str, ...]:
        """Return the clusters that slurmdbd knows. SlurmError without a slurmdbd."""
        output = self._read(["sacctmgr", "--noheader", "--parsable2", "show", "clusters", "format=Cluster"])[0]
        return tuple(line for line in output.splitlines() if line)

    def snapshot(self, known: Sequence[Node] | None = None) -> Snapshot:
        """Return nodes, topology, partitions, reservations, this user's limits and the configuration, by two commands.

        The configuration is read only once. With `known`, the nodes that were read already, one command is enough.
        """
        from slurmwrap.slurm.snapshot import build_snapshot

        wait_for_output, self._begun = self._begun, None
        output = (
            wait_for_output() if wait_for_output and known is None else self._start_snapshot_commands(known is None)()
        )
        snapshot, self._config = build_snapshot(
            output.nodes if known is None else known, output.rest, self._config, self._asker, self._network,
            self._clock.now(),
        )  # fmt: skip
        return replace(snapshot, kept=output.nodes_kept, quotas_kept=output.rest_kept)

    def quotas(self) -> Quotas:
        """Return what QOS and associations still allow this user, by one request."""
        from slurmwrap.slurm.snapshot import parse_quotas

        request = f"{make_assoc_mgr_request(self._asker.user)}\n".encode()
        output = self._read_rest(self._start_side_by_side(["scontrol", "-o"], stdin=request)()[0])
        return parse_quotas(output, self._asker)

    def begin_snapshot(self) -> None:
        """Start the commands of the next `snapshot`, which run while the caller does something else."""
        self._begun = self._start_snapshot_commands()

    def _start_snapshot_commands(self, ask_nodes: bool = True) -> Callable[[], _SnapshotOutput]:
        """Start the commands whose answers are not cached. Return a function that waits for their output."""
        # A second snapshot is taken to see changes, so it does not use the cache.
        kept = self._kept if self._config is None else None
        old_nodes = kept.read("nodes") if kept and ask_nodes else None
        old_rest = kept.read("rest", _REST_LIFETIME_FACTOR) if kept else None
        nodes_argv = [["scontrol", "show", "node", "-d", "-o"]] if ask_nodes and old_nodes is None else []
        rest_argv = [["scontrol", "-o"]] if old_rest is None else []
        stdin = make_scontrol_requests(self._config, self._asker) if rest_argv else None
        wait_for_commands = (
            self._start_side_by_side(*nodes_argv, *rest_argv, stdin=stdin) if nodes_argv or rest_argv else list
        )

        def wait_for_output() -> _SnapshotOutput:
            results = wait_for_commands()
            nodes = get_output(results[0], self._timeout_s) if nodes_argv else _decode(old_nodes or b"")
            rest = self._read_rest(results[-1]) if rest_argv else _decode(old_rest or b"")
            if kept and nodes_argv:
                kept.leave("nodes", results[0].stdout)
            if kept and rest_argv:
                kept.leave("rest", results[-1].stdout)
            return _SnapshotOutput(
                nodes=nodes, rest=rest, nodes_kept=old_nodes is not None, rest_kept=old_rest is not None
            )

        return wait_for_output

    def _read_rest(self, result: CommandResult) -> str:
        """Return the output of the second command. One refused request is accepted, an unreachable Slurm is not."""
        output = _decode(result.stdout)
        unreachable = "PartitionName=" not in output and re.search(UNREACHABLE, _decode(result.stderr))
        if result.timed_out or result.missing or unreachable:
            get_output(replace(result, exit_code=result.exit_code or 1), self._timeout_s)
        return output

    def node_addresses(self) -> Mapping[str, str]:
        """Return NodeName → NodeAddr, a host name or an address."""
        return {node.name: node.address for node in self._read_nodes()}

    def boot_times(self) -> Mapping[str, float]:
        """Return NodeName → when the node was booted, in Unix seconds, as its slurmd reported it."""
        from slurmwrap.slurm.scontrol_parser import parse_boot_times

        return parse_boot_times(self._read(["scontrol", "show", "node", "-o"])[0])

    def sbatch(self, call: SbatchCall) -> SbatchResult:
        """Submit once, in the caller's own environment. Output and exit code of sbatch are returned unchanged.

        sbatch stays in the session of this process and keeps its name: AllocNode:Sid= is then the user's session, and
        Ctrl-C reaches both.
        """
        from slurmwrap.protocols import SbatchResult

        self._require_slurm_conf()
        script = [] if call.script_path is None else [call.script_path]
        environ = call.environ or self._given
        program = find_sbatch(environ)
        early = _EarlyOutput(call.accepted)
        result = run(
            ["sbatch", *call.options, *script, *call.args],
            program=program,
            timeout_s=SBATCH_TIMEOUT_S if call.timeout_s is None else call.timeout_s,
            stdin=call.stdin,
            environ=make_wrapper_environment(program, environ),
            cwd=call.cwd,
            session=False,
            heard=None if call.accepted is None else early.heard,
            meanwhile=call.meanwhile,
        )
        if result.missing:
            raise _make_unreachable_error(result)
        job_id, stderr = _parse_job_id(_decode(result.stdout)), _decode(result.stderr)
        # Without a job id, a killed or timed-out sbatch, or one that lost the answer of slurmctld, leaves it unknown
        # whether a job was created.
        killed = result.exit_code is not None and result.exit_code < 0
        return SbatchResult(
            exit_code=1 if result.exit_code is None else result.exit_code,
            stdout=_decode(result.stdout[early.accepted_lengths[0] :]),
            stderr=_decode(result.stderr[early.accepted_lengths[1] :]),
            job_id=job_id,
            timed_out=job_id is None and (result.timed_out or killed or bool(re.search(AMBIGUOUS, stderr))),
        )

    def test_partitions(self, call: SbatchCall, names: Sequence[str]) -> Mapping[str, PartitionTest]:
        """Return Slurm's answer to `sbatch --test-only` of this call in each partition. The calls run in parallel.

        With EnforcePartLimits=NO, Slurm accepts a job beyond the time limit of a partition. Each call uses up a job id
        (measured, 22.05.8). A partition of which Slurm says nothing is left out.
        """
        self._require_slurm_conf()
        given = call.environ or self._given
        path = find_sbatch(given)
        environ = {**make_wrapper_environment(path, given), "SLURM_TIME_FORMAT": "%s", "LC_ALL": "C"}
        script = [] if call.script_path is None else [call.script_path]
        waiting = {}
        for name in names:
            argv = [path, *call.options, f"--partition={name}", "--test-only", *script, *call.args]
            waiting[name] = start_command(argv, timeout_s=self._timeout_s, stdin=call.stdin, environ=environ)
        results = {name: wait() for name, wait in waiting.items()}
        answers = {name: parse_partition_test(_decode(result.stderr)) for name, result in results.items()}
        return {name: answer for name, answer in answers.items() if answer is not None}

    def job(self, address: str) -> JobRecord | None:
        """Return one job by raw id or array address ("77_2"); for the id of an array its master record."""

        if not JOB_ADDRESS.fullmatch(address):
            raise SlurmError(f"'{address}' is not a job id or array task address")
        found = self._read_jobs("-j", address)
        return next((job for job in found if str(job.job_id) == address), found[0] if found else None)

    def watched(self, *addresses: str) -> tuple[WatchedJob, ...]:
        """Return the rows of these jobs by one call of squeue, with the scheduler's forecast for pending jobs.

        An array has one row for each started task and one for all others. () when Slurm has forgotten the jobs.
        """
        if not addresses or not all(JOB_ADDRESS.fullmatch(address) for address in addresses):
            raise SlurmError(f"{' '.join(addresses)!r} is not a job id or array task address")
        return self._read_watched("--states=all", "-j", ",".join(addresses))

    def jobs_of(self, user: str) -> tuple[WatchedJob, ...]:
        """Return all jobs of a user that Slurm still knows by one call of squeue; rows as in `watched`."""
        shown = self._read_watched("--states=all", *_select_user(user))
        return shown if _select_user(user) else tuple(one for one in shown if one.record.user == user)

    def queue(self) -> tuple[WatchedJob, ...]:
        """Return the jobs of all users that run or wait, as far as this user may see them; rows as in `watched`."""
        return self._read_watched()

    def _read_watched(self, *selection: str) -> tuple[WatchedJob, ...]:
        from slurmwrap.slurm.squeue_parser import make_watched_format, parse_watched

        separator = f"\x1f{os.urandom(8).hex()}\x1f"
        argv = ["squeue", "--noheader", "--all", *selection]
        formats = {"SQUEUE_FORMAT2": make_watched_format(separator)}
        return _parse_known_jobs(lambda: parse_watched(self._read(argv, environs=(formats,))[0], separator))

    def jobs(self, user: str | None = None) -> tuple[JobRecord, ...]:
        """Return all jobs that Slurm still knows, including ended ones, of one user or of all."""
        shown = self._read_jobs(*_select_user(user))
        return shown if user is None or _select_user(user) else tuple(job for job in shown if job.user == user)

    def priority_scheme(self) -> PriorityScheme:
        """Return how Slurm orders its queue, read anew: weights change without a restart of this service."""
        from slurmwrap.slurm.priority_parser import parse_priority_scheme
        from slurmwrap.slurm.scontrol_parser import parse_config

        return parse_priority_scheme(parse_config(self._read(["scontrol", "show", "config"])[0]))

    def priority_terms(self, key: str, user: str | None = None) -> Mapping[int, int]:
        """Return Nice (from squeue) or SiteFactor (from sprio, which alone shows it) of pending jobs by raw job id."""
        from slurmwrap.slurm.priority_parser import parse_priority_terms

        selection = _select_user(user)
        if key == "Nice":
            argv = ["squeue", "--noheader", "--all", "--states=PENDING", "--Format=JobID:20,Nice:20", *selection]
        else:
            argv = ["sprio", "--noheader", "--format=%i %S", *selection]
        return parse_priority_terms(self._read(argv)[0])

    def apply(self, action: SlurmAction, owner: int | None = None, also: Sequence[SlurmAction] = ()) -> None:
        """Carry out one action. SlurmError when Slurm refuses, or when the node's state was not set by slurmwrap.

        `owner`: as root, call Slurm as this uid. Then the job gets nothing that its owner may not have, and keeps its
        limits: values that root sets are exempt from association and QOS limits (slurmctld's ADMIN_SET_LIMIT).
        `also`: further updates of the same job in the same call; a job that starts meanwhile gets all of them or none.
        """
        argv = self.checked(action, owner, also)
        if owner is None or os.geteuid() != 0:
            self._read(argv)
            return
        self._require_slurm_conf()
        # The process belongs to the owner, who may inspect and stop it, so it gets only harmless variables.
        environ = {name: value for name, value in self._environ.items() if name in _HARMLESS_VARIABLES}
        timeout_s = min(_OWNER_TIMEOUT_S, self._timeout_s)
        get_output(run(argv, timeout_s=timeout_s, environ=environ, cwd="/", uid=owner), timeout_s)

    def checked(self, action: SlurmAction, owner: int | None = None, also: Sequence[SlurmAction] = ()) -> list[str]:
        """Return the command line of `apply`. SlurmError for an action that must never be requested from Slurm."""
        from slurmwrap.model.decision import Verb

        if action.verb in (Verb.DRAIN, Verb.RESUME):
            self._guard(action)
        argv = [*make_action_argv(action), *(make_action_argv(one)[-1] for one in also)]
        if any(one.verb is not Verb.UPDATE_JOB or one.target != action.target for one in (action, *also) if also):
            raise SlurmError(f"only updates of one job go together, not {' and '.join(map(str, (action, *also)))}")
        if owner is not None and os.geteuid() not in (0, owner):
            for one in (action, *also):
                self._keep_limits(one)
        return argv

    def may_resize(self) -> bool:
        """Return whether `apply` may change nodes, CPUs and memory of other users' jobs.

        As root it acts as the owner. Otherwise it may only if no limits are enforced that an administrator's change
        would bypass.
        """
        enforced = self.config().get("AccountingStorageEnforce", "none").split(",")
        return os.geteuid() == 0 or {"limits", "qos", "safe", "all"}.isdisjoint(enforced)

    def preemption(self) -> Preemption:
        """Return how Slurm preempts jobs. Which QOS may be preempted only slurmdbd shows (22.05 to 26.05)."""
        from slurmwrap.model.cluster import Preemption

        by = self.config().get("PreemptType", "").rpartition("/")[2].replace("none", "").replace("(null)", "")
        if by != "qos":
            return Preemption(by=by)
        try:
            rows = self._read(["sacctmgr", "-n", "-P", "show", "qos", "format=Preempt"])[0]
        except SlurmError:
            return Preemption(by=by)
        return Preemption(by=by, preempted_qos=frozenset(filter(None, rows.replace("\n", ",").split(","))))

    def may_extend(self) -> bool:
        """Return whether `apply` may raise the time limit of other users' running jobs: as root or SlurmUser."""
        match = re.search(r"\((\d+)\)", self.config().get("SlurmUser", ""))
        return os.geteuid() in (0, int(match[1]) if match else 0)

    def _keep_limits(self, action: SlurmAction) -> None:
        """Refuse changes that would bypass limits: SlurmUser is an administrator and not the job's owner."""
        if action.key in _LIMITED_KEYS and not self.may_resize():
            raise SlurmError(
                f"{action.key} of job {action.target}: association and QOS limits would no longer apply to it",
                hint="Run the reconciler as root; it then makes the request as the job's owner.",
            )

    def _guard(self, action: SlurmAction) -> None:
        """Raise SlurmError if a person or another tool set the node's current state."""

        node = next((node for node in self._read_nodes(action.target) if node.name == action.target), None)
        if node is None:
            raise SlurmError(f"there is no node '{action.target}'")
        reject_foreign_drain(action, node)

    def _read_nodes(self, *names: str) -> tuple[Node, ...]:
        from slurmwrap.slurm.scontrol_parser import parse_nodes

        return parse_nodes(self._read(["scontrol", "show", "node", *names, "-d", "-o"])[0])

    def _read_jobs(self, *selection: str) -> tuple[JobRecord, ...]:
        # Imported here because gsub rarely reads jobs.
        from slurmwrap.slurm.squeue_parser import (
            make_exclude_format,
            make_job_format,
            parse_jobs,
        )

        # The formats go through the environment because every user can read argv, and the separator must stay secret.
        separator = f"\x1f{os.urandom(8).hex()}\x1f"
        argv = ["squeue", "--noheader", "--all", "--states=all", *selection]
        formats = ({"SQUEUE_FORMAT2": make_job_format(separator)}, {"SQUEUE_FORMAT": make_exclude_format(separator)})

        def read() -> tuple[JobRecord, ...]:
            rows, excluded = map(_remove_cluster_line, self._read(argv, argv, environs=formats))
            return parse_jobs(rows, excluded, separator)

        return _parse_known_jobs(read)

    def _read(self, *commands: Sequence[str], environs: Sequence[Mapping[str, str]] = ()) -> list[str]:
        """Return the outputs of commands that run in parallel. The first failure raises."""
        return [
            get_output(result, self._timeout_s) for result in self._start_side_by_side(*commands, environs=environs)()
        ]

    def _start_side_by_side(
        self, *commands: Sequence[str], stdin: bytes | None = None, environs: Sequence[Mapping[str, str]] = ()
    ) -> Callable[[], list[CommandResult]]:
        """Start all commands at once; `stdin` goes to the last. The returned function waits until all have ended."""
        self._require_slurm_conf()
        waiting = []
        for at, argv in enumerate(commands):
            environ = {**self._environ, **environs[at]} if environs else self._environ
            input_of_last = stdin if at == len(commands) - 1 else None
            waiting.append(start_command(argv, timeout_s=self._timeout_s, stdin=input_of_last, environ=environ))

        def wait_for_all() -> list[CommandResult]:
            others = [start_in_background(one) for one in waiting[1:]]
            first = waiting[0]()
            return [first, *(other() for other in others)]

        return wait_for_all

    def _require_slurm_conf(self) -> None:
        """Raise NoSlurmConf early: without slurm.conf every command retries for 60 s. Configless sites must pass."""
        if self._conf_seen:
            return
        configured = self._environ.get("SLURM_CONF")
        if configured and not os.access(configured, os.R_OK):
            raise NoSlurmConf(f"SLURM_CONF={configured}: cannot be read", hint="Correct or unset SLURM_CONF.")
        if not configured and not any(os.path.exists(path) for path in CONF_PLACES):
            probe = run(["scontrol", "ping"], timeout_s=2.0, environ=self._environ)
            if probe.missing or re.search(_NO_CONF, _decode(probe.stderr)):
                get_output(replace(probe, exit_code=1), 2.0)
        self._conf_seen = True


def _remove_cluster_line(output: str) -> str:
    """Return squeue's output without the line "CLUSTER: name", which it prints first with -M (squeue.c, 22.05)."""
    return output.partition("\n")[2] if output.startswith("CLUSTER: ") else output


def _parse_known_jobs(read: Callable[[], tuple[Any, ...]]) -> tuple[Any, ...]:
    """Return what squeue showed; () when Slurm has forgotten the job. SlurmError also for unreadable output."""
    try:
        return read()
    except ValueError as error:
        raise SlurmError(f"squeue: {error}") from error
    except SlurmError as error:
        if _INVALID_JOB_ID in str(error):
            return ()
        raise


def _make_read_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for reads: no user preferences (SQUEUE_*, SLURM_TIME_FORMAT) and no SLURM_CLUSTERS."""
    inherited = {
        k: v for k, v in environ.items() if not k.startswith(("SQUEUE_", "SCONTROL_")) and k != "SLURM_CLUSTERS"
    }
    # TERM and INPUTRC: scontrol reads its requests with readline.
    # SCONTROL_ALL: a job may be submitted to a hidden partition.
    inherited["SCONTROL_ALL"] = "1"
    # List all tasks of an array, without truncation.
    inherited["SLURM_BITSTR_LEN"] = "0"
    return {**inherited, "LC_ALL": "C", "SLURM_TIME_FORMAT": "%s", "TERM": "dumb", "INPUTRC": "/dev/null"}


class _EarlyOutput:
    """Calls `accepted` once with the output of sbatch up to the job id; `accepted_lengths`: how much that was."""

    def __init__(self, accepted: Callable[[SbatchResult], None] | None) -> None:
        self._accepted = accepted
        self.accepted_lengths = (0, 0)

    def heard(self, stdout: bytes, stderr: bytes) -> None:
        job_id = _parse_job_id(_decode(stdout)) if stdout.endswith(b"\n") else None
        if job_id is not None and self._accepted is not None and self.accepted_lengths == (0, 0):
            from slurmwrap.protocols import SbatchResult

            self.accepted_lengths = (len(stdout), len(stderr))
            self._accepted(SbatchResult(exit_code=0, stdout=_decode(stdout), stderr=_decode(stderr), job_id=job_id))


def _parse_job_id(stdout: str) -> int | None:
    found = _SUBMITTED.findall(stdout) or re.findall(_PARSABLE, stdout)
    return int(found[-1]) if found else None


def parse_partition_test(stderr: str) -> PartitionTest | None:
    """Parse what `sbatch --test-only` prints with SLURM_TIME_FORMAT=%s; None for anything but a clear answer."""
    from slurmwrap.protocols import PartitionTest

    if found := _WOULD_START.search(stderr):
        # Slurm says the year 2537 for a held job (22.05.8).
        return PartitionTest(start=int(found[1]) if int(found[1]) < _FAR_FUTURE else None)
    refusals = _TEST_REFUSED.findall(stderr)
    return PartitionTest(refusal=refusals[-1].strip()) if refusals else None


def _select_user(user: str | None) -> list[str]:
    """Return the option of squeue and sprio that selects a user's jobs; [] for all users, and for a uid without a name.

    Slurm (22.05) ends with "Invalid user" for such a uid. Its jobs are selected from those of all users.
    """
    return [] if user is None or user.isdecimal() else [f"--user={user}"]


def _find_user_name(uid: int) -> str:
    """Return the name from the password database; "" if the uid is unknown there."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return ""


def get_output(result: CommandResult, timeout_s: float) -> str:
    """Return a command's standard output, or raise the error that it stands for, with Slurm's own message."""
    if result.missing:
        raise _make_unreachable_error(result)
    # What a command printed before its deadline is jobs of all users, and no message.
    stream = result.stderr or (b"" if result.ok or result.timed_out else result.stdout)
    message = "; ".join(line.strip() for line in _decode(stream).splitlines() if line.strip())
    if no_conf := re.search(_NO_CONF, message):
        raise NoSlurmConf(
            f"{result.argv[0]}: no slurm.conf{f' at {no_conf[1]}' if no_conf[1] else ''}",
            hint="Set SLURM_CONF to the cluster's slurm.conf.",
        )
    if result.timed_out:
        raise SlurmUnreachable(f"{result.argv[0]}: no answer within {timeout_s:g} s{f': {message}' if message else ''}")
    if result.ok:
        return _decode(result.stdout)
    kind = SlurmUnreachable if re.search(UNREACHABLE, message) else SlurmError
    code = result.exit_code if result.exit_code and result.exit_code > 0 else 1
    raise kind(message or f"{result.argv[0]} ended with exit code {result.exit_code}", exit_code=code)


def _make_unreachable_error(result: CommandResult) -> SlurmUnreachable:
    return SlurmUnreachable(_decode(result.stderr), hint="Are Slurm's commands on PATH? (module load slurm)")


def _decode(text: bytes) -> str:
    # Not surrogateescape: what a user writes into a job name must survive JSON and SQLite.
    return text.decode("utf-8", "replace")


# Command lines of actions, and which actions are never carried out. Pure.
JOB_ADDRESS = re.compile(r"\d+(_\d+|_\[[\d,:-]+\])?(\+\d+)?", re.ASCII)
_NODE_NAME = re.compile(r"(?!all$)[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII | re.IGNORECASE)
_KEY = re.compile(r"[A-Za-z]+", re.ASCII)
_SIGNAL = re.compile(r"[A-Z]{3,6}[0-9]?|[0-9]{1,2}", re.ASCII)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
# Value that is sent for Switches=0. 24.11.5 and 26.05.5 accept Switches=0 and clear the field, but a job that already
# waits for a switch keeps waiting. With this value it starts within one pass of the scheduler, in 22.05.8 too.
_NO_SWITCH_WAIT = "1@0"


def make_action_argv(action: SlurmAction) -> list[str]:
    """Return the command line of one action. SlurmError for a target, key or value that could be misread by Slurm."""
    node = action.verb in (Verb.DRAIN, Verb.RESUME)
    if not (_NODE_NAME if node else JOB_ADDRESS).fullmatch(action.target):
        raise SlurmError(f"'{action.target}' is not a {'node name' if node else 'job id or array task address'}")
    if action.verb is Verb.CANCEL:
        return ["scancel", action.target]
    if action.verb is Verb.SIGNAL:
        if not _SIGNAL.fullmatch(action.key):
            raise SlurmError(f"'{action.key}' is no signal")
        # Without --batch, scancel signals all steps but not the batch shell, as sbatch's --signal does.
        return ["scancel", f"--signal={action.key}", *(["--batch"] if action.value == "batch" else []), action.target]
    if action.verb is Verb.UPDATE_JOB:
        if not _KEY.fullmatch(action.key):
            raise SlurmError(f"'{action.key}' is not a key of scontrol update")
        value = _NO_SWITCH_WAIT if (action.key, action.value) == ("Switches", "0") else action.value
        return ["scontrol", "update", f"JobId={action.target}", f"{action.key}={_CONTROL.sub(' ', value)}"]
    if action.verb is Verb.DRAIN:
        if not action.value.startswith(DRAIN_PREFIX):
            raise SlurmError(f"a drain's Reason must start with '{DRAIN_PREFIX}', not '{action.value}'")
        reason = _CONTROL.sub(" ", action.value)
        return ["scontrol", "update", f"NodeName={action.target}", "State=DRAIN", f"Reason={reason}"]
    if action.verb is Verb.RESUME:
        return ["scontrol", "update", f"NodeName={action.target}", "State=RESUME"]
    return ["scontrol", action.verb.value, action.target]


def reject_foreign_drain(action: SlurmAction, node: Node) -> None:
    """Raise SlurmError if a node was drained by a person or another tool: slurmwrap changes only its own drains."""
    drained_by_slurmwrap, out_of_service = node.reason.startswith(DRAIN_PREFIX), bool(node.flags & {"DRAIN", "FAIL"})
    if action.value.startswith(GATE_PREFIX) and node.prolog_failed:
        return
    if (
        action.verb is Verb.DRAIN
        and node.reason
        and not drained_by_slurmwrap
        and (out_of_service or node.state == "DOWN")
    ):
        raise SlurmError(
            f"node {node.name} is already out of service: {node.reason}", hint="slurmwrap changes only its own drains."
        )
    if action.verb is Verb.RESUME and not (drained_by_slurmwrap and out_of_service):
        raise SlurmError(
            f"node {node.name} was not drained by slurmwrap: {node.state}, reason '{node.reason}'",
            hint="slurmwrap changes only its own drains.",
        )
