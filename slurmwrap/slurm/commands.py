"""Edge: Slurm by its commands, as `edges.Slurm`. Works alike on 22.05, 24.11 and 26.05.

Reads are text with time stamps in Unix seconds (SLURM_TIME_FORMAT=%s) and without the caller's SQUEUE_* preferences.
Several commands of one question run side by side. A submission is made once, whatever comes of it.
What reads the answers is imported where they are read: gsub asks before it loads that.
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

    from slurmwrap.model.cluster import Node, Snapshot
    from slurmwrap.model.decision import SlurmAction
    from slurmwrap.model.job_record import JobRecord
    from slurmwrap.model.limits import Quotas
    from slurmwrap.protocols import Clock, SbatchCall, SbatchResult
    from slurmwrap.slurm.response_cache import ResponseCache
    from slurmwrap.slurm.site_topology import Network
    from slurmwrap.slurm.squeue_parser import Watched


# Where Slurm's own builds and the common packagings look when SLURM_CONF is not set. The last one: configless.
CONF_PLACES = (
    "/etc/slurm/slurm.conf",
    "/etc/slurm-llnl/slurm.conf",
    "/usr/local/etc/slurm.conf",
    "/opt/slurm/etc/slurm.conf",
    "/run/slurm/conf/slurm.conf",
)
_NO_CONF = r"cannot stat file (\S+): .*retrying in|Could not establish a configuration source"
UNREACHABLE = r"Unable to contact slurm controller|Connection refused|Socket timed out|connect failure"
# The request may have arrived: no one knows whether a job was made. A failed connect is not among them.
AMBIGUOUS = r"Socket timed out on send/recv|Zero Bytes were transmitted|Transport endpoint|Unexpected message"
_SUBMITTED = re.compile(r"^Submitted batch job (\d+)", re.MULTILINE)
_PARSABLE = r"(?m)^(\d+)(?:;\S+)?$"
_FORGOTTEN = "Invalid job id specified"
_HARMLESS = frozenset(("PATH", "LD_LIBRARY_PATH", "SLURM_CONF", "LC_ALL", "TERM", "INPUTRC"))
_LIMITED = frozenset(
    ("NumNodes", "MinMemoryNode", "MinMemoryCPU", "CPUsPerTask", "MinCPUsNode", "NumCPUs", "NumTasks", "TimeLimit")
)
_OWNER_TIMEOUT_S = 3.0  # scontrol takes 6 ms
_REST_LASTS = 6.0  # times as long as nodes: partitions, limits, topology and configuration change by the hand of people
SBATCH_TIMEOUT_S = 120.0  # sbatch itself retries for 20 s and more when the controller is busy


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
    """What the two commands of a snapshot said ("" where no one asks for nodes), and what of it is some seconds old."""

    nodes: str
    rest: str
    nodes_kept: bool
    rest_kept: bool


class SlurmCommands:
    """Slurm as `environ` sees it (SLURM_CONF, PATH). Raises SlurmUnreachable and SlurmError as edges.Slurm says.

    `network`: what a snapshot's topology is made of, next to what Slurm shows (SiteRacks). `kept`: where answers to
    earlier calls may serve for the first snapshot; a plan that is made of them counts on no node being free.
    """

    def __init__(
        self,
        environ: Mapping[str, str] = os.environ,
        *,
        timeout_s: float = 10.0,
        clock: Clock | None = None,
        network: Network = lambda told, nodes: told,
        kept: ResponseCache | None = None,
    ) -> None:
        self._timeout_s = timeout_s
        self._clock = clock or SystemClock()
        self._network = network
        self._kept = kept
        self._begun: Callable[[], _Told] | None = None
        self._given = environ
        self._environ = _make_read_environment(environ)
        self._asker = QueryUser(user=_find_user_name(os.geteuid()), uid=os.geteuid())
        self._config: Mapping[str, str] | None = None
        self._conf_seen = False

    def config(self) -> Mapping[str, str]:
        """`scontrol show config`, read once: "SlurmUser" → "slurm(64030)", "MinJobAge" → "300 sec"."""
        if self._config is None:
            from slurmwrap.slurm.scontrol_parser import parse_config

            self._config = parse_config(self._read(["scontrol", "show", "config"])[0])
        return self._config

    def cluster_name(self) -> str:
        """ClusterName of slurm.conf."""
        return self.config().get("ClusterName", "")

    def snapshot(self, known: Sequence[Node] | None = None) -> Snapshot:
        """Nodes, topology, partitions, reservations, our limits and (once) the configuration, by two commands.

        `known`: the nodes, where someone else asked after them already; then by one command.
        """
        from slurmwrap.slurm.snapshot import build_snapshot

        begun, self._begun = self._begun, None
        told = begun() if begun and known is None else self._start_snapshot_commands(known is None)()
        snapshot, self._config = build_snapshot(
            told.nodes if known is None else known, told.rest, self._config, self._asker, self._network,
            self._clock.now(),
        )  # fmt: skip
        return replace(snapshot, kept=told.nodes_kept, quotas_kept=told.rest_kept)

    def quotas(self) -> Quotas:
        """What QOS and associations leave us now, by one request."""
        from slurmwrap.slurm.snapshot import parse_quotas

        wanted = f"{make_assoc_mgr_request(self._asker.user)}\n".encode()
        told = self._read_rest(self._start_side_by_side(["scontrol", "-o"], stdin=wanted)()[0])
        return parse_quotas(told, self._asker)

    def begin_snapshot(self) -> None:
        """Starts the reads of the next `snapshot`: they go on while the caller has something else to do."""
        self._begun = self._start_snapshot_commands()

    def _start_snapshot_commands(self, ask_nodes: bool = True) -> Callable[[], _Told]:
        """Starts both commands, as far as nothing is kept of an earlier call; what comes back waits for their words."""
        # Who looks twice wants to see what has changed.
        kept = self._kept if self._config is None else None
        old_nodes = kept.read("nodes") if kept and ask_nodes else None
        old_rest = kept.read("rest", _REST_LASTS) if kept else None
        nodes_argv = [["scontrol", "show", "node", "-d", "-o"]] if ask_nodes and old_nodes is None else []
        rest_argv = [["scontrol", "-o"]] if old_rest is None else []
        stdin = make_scontrol_requests(self._config, self._asker) if rest_argv else None
        begun = self._start_side_by_side(*nodes_argv, *rest_argv, stdin=stdin) if nodes_argv or rest_argv else list

        def told() -> _Told:
            results = begun()
            nodes = get_output(results[0], self._timeout_s) if nodes_argv else _decode(old_nodes or b"")
            rest = self._read_rest(results[-1]) if rest_argv else _decode(old_rest or b"")
            if kept and nodes_argv:
                kept.leave("nodes", results[0].stdout)
            if kept and rest_argv:
                kept.leave("rest", results[-1].stdout)
            return _Told(nodes=nodes, rest=rest, nodes_kept=old_nodes is not None, rest_kept=old_rest is not None)

        return told

    def _read_rest(self, result: CommandResult) -> str:
        """A request that this Slurm refuses costs only its own part; a Slurm that cannot be reached is an error."""
        told = _decode(result.stdout)
        gone = "PartitionName=" not in told and re.search(UNREACHABLE, _decode(result.stderr))
        if result.timed_out or result.missing or gone:
            get_output(replace(result, exit_code=result.exit_code or 1), self._timeout_s)
        return told

    def node_addresses(self) -> Mapping[str, str]:
        """NodeName → NodeAddr, a host name or an address."""
        return {node.name: node.address for node in self._read_nodes()}

    def sbatch(self, call: SbatchCall) -> SbatchResult:
        """Submits once, in the caller's own environment. sbatch's words and exit code come back as they are.

        It stays in our session (AllocNode:Sid= is then the user's own, and Ctrl-C is for both), under its own name.
        """
        from slurmwrap.protocols import SbatchResult

        self._require_slurm_conf()
        script = [] if call.script_path is None else [call.script_path]
        environ = call.environ or self._given
        program = find_sbatch(environ)
        early = _Early(call.accepted)
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
        killed = result.exit_code is not None and result.exit_code < 0
        return SbatchResult(
            exit_code=1 if result.exit_code is None else result.exit_code,
            stdout=_decode(result.stdout[early.told[0] :]),
            stderr=_decode(result.stderr[early.told[1] :]),
            job_id=job_id,
            timed_out=job_id is None and (result.timed_out or killed or bool(re.search(AMBIGUOUS, stderr))),
        )

    def job(self, address: str) -> JobRecord | None:
        """One job by raw id or array address ("77_2"); of a bare array id the master's record."""

        if not JOB_ADDRESS.fullmatch(address):
            raise SlurmError(f"'{address}' is not a job id or array task address")
        found = self._read_jobs("-j", address)
        return next((job for job in found if str(job.job_id) == address), found[0] if found else None)

    def watched(self, *addresses: str) -> tuple[Watched, ...]:
        """The rows of these jobs by one call of squeue, with what the scheduler expects of those that wait: of an array
        one row for each task that has started and one for the others. () when Slurm has forgotten them."""
        from slurmwrap.slurm.squeue_parser import make_watched_format, parse_watched

        if not addresses or not all(JOB_ADDRESS.fullmatch(address) for address in addresses):
            raise SlurmError(f"{' '.join(addresses)!r} is not a job id or array task address")
        separator = f"\x1f{os.urandom(8).hex()}\x1f"
        argv = ["squeue", "--noheader", "--all", "--states=all", "-j", ",".join(addresses)]
        asked = {"SQUEUE_FORMAT2": make_watched_format(separator)}
        return _parse_known_jobs(lambda: parse_watched(self._read(argv, environs=(asked,))[0], separator))

    def jobs(self, user: str | None = None) -> tuple[JobRecord, ...]:
        """All jobs that Slurm still knows, ended ones too, of one user or all."""
        return self._read_jobs(*([] if user is None else [f"--user={user}"]))

    def apply(self, action: SlurmAction, owner: int | None = None, also: Sequence[SlurmAction] = ()) -> None:
        """Carries out one action. SlurmError when Slurm refuses, or when a node is not ours to touch.

        `owner`: where we are root Slurm is asked in the name of this uid, so that they get nothing that they may not
        have, and keeps their limits: what root sets is exempt from those of association and QOS (slurmctld's
        ADMIN_SET_LIMIT). `also`: further updates of the same job in the same call, all or none of which a job that
        starts meanwhile has.
        """
        argv = self.checked(action, owner, also)
        if owner is None or os.geteuid() != 0:
            self._read(argv)
            return
        self._require_slurm_conf()
        # the process is theirs: they may look into it, and stop it
        environ = {name: value for name, value in self._environ.items() if name in _HARMLESS}
        timeout_s = min(_OWNER_TIMEOUT_S, self._timeout_s)
        get_output(run(argv, timeout_s=timeout_s, environ=environ, cwd="/", uid=owner), timeout_s)

    def checked(self, action: SlurmAction, owner: int | None = None, also: Sequence[SlurmAction] = ()) -> list[str]:
        """The command of `apply`. SlurmError for what must not even be asked of Slurm by anyone."""
        from slurmwrap.model.decision import Verb

        if action.verb in (Verb.DRAIN, Verb.RESUME):
            self._guard(action)
        argv = [*argv_of(action), *(argv_of(one)[-1] for one in also)]
        if any(one.verb is not Verb.UPDATE_JOB or one.target != action.target for one in (action, *also) if also):
            raise SlurmError(f"only updates of one job go together, not {' and '.join(map(str, (action, *also)))}")
        if owner is not None and os.geteuid() not in (0, owner):
            for one in (action, *also):
                self._keep_limits(one)
        return argv

    def may_resize(self) -> bool:
        """Whether `apply` changes nodes, CPUs and memory of other users' jobs: as root in their names, else only where
        no one has limits that an administrator would free them of."""
        enforced = self.config().get("AccountingStorageEnforce", "none").split(",")
        return os.geteuid() == 0 or {"limits", "qos", "safe", "all"}.isdisjoint(enforced)

    def _keep_limits(self, action: SlurmAction) -> None:
        """As SlurmUser we are an administrator, not the job's owner: no one is to be freed of their limits by that."""
        if action.key in _LIMITED and not self.may_resize():
            raise SlurmError(
                f"{action.key} of job {action.target}: association and QOS would limit it no more",
                hint="Let the reconciler run as root: it asks in the name of the job's owner then.",
            )

    def _guard(self, action: SlurmAction) -> None:
        """A drain has an owner: what a person or another tool set stays as it is."""

        node = next((node for node in self._read_nodes(action.target) if node.name == action.target), None)
        if node is None:
            raise SlurmError(f"there is no node '{action.target}'")
        keep_hands_off(action, node)

    def _read_nodes(self, *names: str) -> tuple[Node, ...]:
        from slurmwrap.slurm.scontrol_parser import parse_nodes

        return parse_nodes(self._read(["scontrol", "show", "node", *names, "-d", "-o"])[0])

    def _read_jobs(self, *selection: str) -> tuple[JobRecord, ...]:
        # gsub seldom asks for jobs
        from slurmwrap.slurm.squeue_parser import (
            exclude_format,
            make_job_format,
            parse_jobs,
        )

        # In the environment: argv can be read by everyone.
        separator = f"\x1f{os.urandom(8).hex()}\x1f"
        argv = ["squeue", "--noheader", "--all", "--states=all", *selection]
        asked = ({"SQUEUE_FORMAT2": make_job_format(separator)}, {"SQUEUE_FORMAT": exclude_format(separator)})

        def read() -> tuple[JobRecord, ...]:
            rows, excluded = self._read(argv, argv, environs=asked)
            return parse_jobs(rows, excluded, separator)

        return _parse_known_jobs(read)

    def _read(self, *commands: Sequence[str], environs: Sequence[Mapping[str, str]] = ()) -> list[str]:
        """The outputs of commands run side by side. The first failure raises."""
        return [
            get_output(result, self._timeout_s) for result in self._start_side_by_side(*commands, environs=environs)()
        ]

    def _start_side_by_side(
        self, *commands: Sequence[str], stdin: bytes | None = None, environs: Sequence[Mapping[str, str]] = ()
    ) -> Callable[[], list[CommandResult]]:
        """Starts them all at once; `stdin` goes to the last. What comes back waits for their ends."""
        self._require_slurm_conf()
        begun = []
        for at, argv in enumerate(commands):
            environ = {**self._environ, **environs[at]} if environs else self._environ
            given = stdin if at == len(commands) - 1 else None
            begun.append(start_command(argv, timeout_s=self._timeout_s, stdin=given, environ=environ))

        def ended() -> list[CommandResult]:
            others = [start_in_background(one) for one in begun[1:]]
            first = begun[0]()
            return [first, *(other() for other in others)]

        return ended

    def _require_slurm_conf(self) -> None:
        """Without slurm.conf every command retries for 60 s: ask before. Configless sites must not be refused."""
        if self._conf_seen:
            return
        named = self._environ.get("SLURM_CONF")
        if named and not os.access(named, os.R_OK):
            raise NoSlurmConf(f"SLURM_CONF={named}: cannot be read", hint="Correct or unset SLURM_CONF.")
        if not named and not any(os.path.exists(place) for place in CONF_PLACES):
            probe = run(["scontrol", "ping"], timeout_s=2.0, environ=self._environ)
            if probe.missing or re.search(_NO_CONF, _decode(probe.stderr)):
                get_output(replace(probe, exit_code=1), 2.0)
        self._conf_seen = True


def _parse_known_jobs(read: Callable[[], tuple[Any, ...]]) -> tuple[Any, ...]:
    """What squeue showed; () where Slurm has forgotten the job. SlurmError, also for an answer that cannot be read."""
    try:
        return read()
    except ValueError as error:
        raise SlurmError(f"squeue: {error}") from error
    except SlurmError as error:
        if _FORGOTTEN in str(error):
            return ()
        raise


def _make_read_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """For reads: the user's tastes (SQUEUE_*, SLURM_TIME_FORMAT) and another cluster must not shine in."""
    kept = {k: v for k, v in environ.items() if not k.startswith(("SQUEUE_", "SCONTROL_")) and k != "SLURM_CLUSTERS"}
    # TERM and INPUTRC: scontrol reads its requests by readline
    # SCONTROL_ALL: a partition that is only hidden may well be the one that a job names
    kept["SCONTROL_ALL"] = "1"
    # The tasks of an array, uncut.
    kept["SLURM_BITSTR_LEN"] = "0"
    return {**kept, "LC_ALL": "C", "SLURM_TIME_FORMAT": "%s", "TERM": "dumb", "INPUTRC": "/dev/null"}


class _Early:
    """Gives `accepted` what sbatch said up to the line with the job's id, once; `told`: how much that was."""

    def __init__(self, accepted: Callable[[SbatchResult], None] | None) -> None:
        self._accepted = accepted
        self.told = (0, 0)

    def heard(self, stdout: bytes, stderr: bytes) -> None:
        job_id = _parse_job_id(_decode(stdout)) if stdout.endswith(b"\n") else None
        if job_id is not None and self._accepted is not None and self.told == (0, 0):
            from slurmwrap.protocols import SbatchResult

            self.told = (len(stdout), len(stderr))
            self._accepted(SbatchResult(exit_code=0, stdout=_decode(stdout), stderr=_decode(stderr), job_id=job_id))


def _parse_job_id(stdout: str) -> int | None:
    found = _SUBMITTED.findall(stdout) or re.findall(_PARSABLE, stdout)
    return int(found[-1]) if found else None


def _find_user_name(uid: int) -> str:
    """Of the password database; "" for an account that it does not know."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return ""


def get_output(result: CommandResult, timeout_s: float) -> str:
    """A command's standard output, or the error it stands for, in Slurm's own words."""
    if result.missing:
        raise _make_unreachable_error(result)
    said = result.stderr or (b"" if result.ok else result.stdout)
    words = "; ".join(line.strip() for line in _decode(said).splitlines() if line.strip())
    if no_conf := re.search(_NO_CONF, words):
        raise NoSlurmConf(
            f"{result.argv[0]}: no slurm.conf{f' at {no_conf[1]}' if no_conf[1] else ''}",
            hint="Set SLURM_CONF to the cluster's slurm.conf.",
        )
    if result.timed_out:
        raise SlurmUnreachable(f"{result.argv[0]}: no answer within {timeout_s:g} s{f': {words}' if words else ''}")
    if result.ok:
        return _decode(result.stdout)
    kind = SlurmUnreachable if re.search(UNREACHABLE, words) else SlurmError
    code = result.exit_code if result.exit_code and result.exit_code > 0 else 1
    raise kind(words or f"{result.argv[0]} ended with exit code {result.exit_code}", exit_code=code)


def _make_unreachable_error(result: CommandResult) -> SlurmUnreachable:
    return SlurmUnreachable(_decode(result.stderr), hint="Are Slurm's commands on PATH? (module load slurm)")


def _decode(text: bytes) -> str:
    # not surrogateescape: what a user puts into a job's name must survive JSON and SQLite
    return text.decode("utf-8", "replace")


# The command of an intended change, and which changes are never made. Pure. Apart from commands.py: gsub makes few.
JOB_ADDRESS = re.compile(r"\d+(_\d+|_\[[\d,:-]+\])?(\+\d+)?", re.ASCII)
_NODE_NAME = re.compile(r"(?!all$)[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII | re.IGNORECASE)
_KEY = re.compile(r"[A-Za-z]+", re.ASCII)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
# What Switches=0 means: 24.11.5 and 26.05.5 take that and clear the field, but a job that waits for a switch waits on.
# Runs within one pass of the scheduler, in 22.05.8 too.
_NO_SWITCH_WAIT = "1@0"


def argv_of(action: SlurmAction) -> list[str]:
    """The command of one action. SlurmError for a target, key or value that could mean more than it says."""
    node = action.verb in (Verb.DRAIN, Verb.RESUME)
    if not (_NODE_NAME if node else JOB_ADDRESS).fullmatch(action.target):
        raise SlurmError(f"'{action.target}' is not a {'node name' if node else 'job id or array task address'}")
    if action.verb is Verb.CANCEL:
        return ["scancel", action.target]
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


def keep_hands_off(action: SlurmAction, node: Node) -> None:
    """A drain has an owner: what a person or another tool set stays as it is. SlurmError says so."""
    ours, out = node.reason.startswith(DRAIN_PREFIX), bool(node.flags & {"DRAIN", "FAIL"})
    if action.value.startswith(GATE_PREFIX) and node.prolog_failed:
        return
    if action.verb is Verb.DRAIN and node.reason and not ours and (out or node.state == "DOWN"):
        raise SlurmError(f"node {node.name} is out already: {node.reason}", hint="We touch only our own drains.")
    if action.verb is Verb.RESUME and not (ours and out):
        raise SlurmError(
            f"node {node.name} is not drained by us: {node.state}, reason '{node.reason}'",
            hint="We touch only our own drains.",
        )
