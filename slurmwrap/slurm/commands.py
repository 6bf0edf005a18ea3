"""Edge: Slurm by its commands, as `edges.Slurm`. Works alike on 22.05, 24.11 and 26.05.

Reads are text with time stamps in Unix seconds (SLURM_TIME_FORMAT=%s) and without the caller's SQUEUE_* preferences.
Several commands of one question run side by side. A submission is made once, whatever comes of it.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Thread

from slurmwrap.cluster.action import DRAIN_PREFIX, GATE_PREFIX, SlurmAction, Verb
from slurmwrap.cluster.job import JobRecord
from slurmwrap.cluster.node import Node, Snapshot
from slurmwrap.edges import Clock, SbatchCall, SbatchResult
from slurmwrap.errors import NoSlurmConf, SlurmError, SlurmUnreachable
from slurmwrap.host.clock import SystemClock
from slurmwrap.host.command import CommandResult, run
from slurmwrap.slurm.jobs import exclude_format, job_format, parse_jobs
from slurmwrap.slurm.parse import parse_config, parse_nodes
from slurmwrap.slurm.racks import Network
from slurmwrap.slurm.snapshot import Asker, requests, snapshot_of
from slurmwrap.slurm.which import slurms_own, started_with

# Where Slurm's own builds and the common packagings look when SLURM_CONF is not set. The last one: configless.
CONF_PLACES = (
    "/etc/slurm/slurm.conf",
    "/etc/slurm-llnl/slurm.conf",
    "/usr/local/etc/slurm.conf",
    "/opt/slurm/etc/slurm.conf",
    "/run/slurm/conf/slurm.conf",
)
_NO_CONF = re.compile(r"cannot stat file (\S+): .*retrying in|Could not establish a configuration source")
_UNREACHABLE = re.compile(r"Unable to contact slurm controller|Connection refused|Socket timed out|connect failure")
# The request may have arrived: nobody knows whether a job was made. A failed connect is not among them.
_AMBIGUOUS = re.compile(
    r"Socket timed out on send/recv|Zero Bytes were transmitted|Transport endpoint|Unexpected message"
)
_SUBMITTED = re.compile(r"^Submitted batch job (\d+)", re.MULTILINE)
_PARSABLE = re.compile(r"^(\d+)(?:;\S+)?$", re.MULTILINE)
_FORGOTTEN = "Invalid job id specified"
_JOB_ADDRESS = re.compile(r"\d+(_\d+|_\[[\d,:-]+\])?(\+\d+)?", re.ASCII)
_NODE_NAME = re.compile(r"(?!all$)[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII | re.IGNORECASE)
_KEY = re.compile(r"[A-Za-z]+", re.ASCII)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_HARMLESS = frozenset(("PATH", "LD_LIBRARY_PATH", "SLURM_CONF", "LC_ALL", "TERM", "INPUTRC"))
_LIMITED = frozenset(
    ("NumNodes", "MinMemoryNode", "MinMemoryCPU", "CPUsPerTask", "MinCPUsNode", "NumCPUs", "NumTasks", "TimeLimit")
)
_OWNER_TIMEOUT_S = 3.0  # scontrol takes 6 ms
# What Switches=0 means: 24.11.5 and 26.05.5 take that and clear the field, but a job that waits for a switch waits on.
_NO_SWITCH_WAIT = "1@0"  # runs within one pass of the scheduler, in 22.05.8 too
SBATCH_TIMEOUT_S = 120.0  # sbatch itself retries for 20 s and more when the controller is busy


class SlurmCommands:
    """Slurm as `environ` sees it (SLURM_CONF, PATH). Raises SlurmUnreachable and SlurmError as edges.Slurm says.

    `network`: what a snapshot's topology is made of, beside what Slurm tells (SiteRacks).
    """

    def __init__(
        self,
        environ: Mapping[str, str] = os.environ,
        *,
        timeout_s: float = 10.0,
        clock: Clock | None = None,
        network: Network = lambda told, nodes: told,
    ) -> None:
        self._timeout_s = timeout_s
        self._clock = clock or SystemClock()
        self._network = network
        self._given = environ
        self._environ = _reading_environ(environ)
        self._asker = Asker(user=_user_name(os.geteuid()), uid=os.geteuid())
        self._config: Mapping[str, str] | None = None
        self._conf_seen = False

    def config(self) -> Mapping[str, str]:
        """`scontrol show config`, read once: "SlurmUser" → "slurm(64030)", "MinJobAge" → "300 sec"."""
        if self._config is None:
            self._config = parse_config(self._read(["scontrol", "show", "config"])[0])
        return self._config

    def cluster_name(self) -> str:
        """ClusterName of slurm.conf."""
        return self.config().get("ClusterName", "")

    def snapshot(self) -> Snapshot:
        """Nodes, topology, partitions, reservations, our limits and (once) the configuration, by two commands."""
        nodes, rest = self._side_by_side(
            ["scontrol", "show", "node", "-d", "-o"],
            ["scontrol", "-o"],
            stdin=requests(self._config, self._asker),
        )
        told_nodes, told = _checked(nodes, self._timeout_s), _decode(rest.stdout)
        gone = "PartitionName=" not in told and _UNREACHABLE.search(_decode(rest.stderr))
        if rest.timed_out or rest.missing or gone:
            _checked(replace(rest, exit_code=rest.exit_code or 1), self._timeout_s)
        snapshot, self._config = snapshot_of(
            told_nodes, told, self._config, self._asker, self._network, self._clock.now()
        )
        return snapshot

    def node_addresses(self) -> Mapping[str, str]:
        """NodeName → NodeAddr, a host name or an address."""
        return {node.name: node.address for node in self._nodes()}

    def sbatch(self, call: SbatchCall) -> SbatchResult:
        """Submits once, in the caller's own environment. sbatch's words and exit code come back as they are."""
        self._need_conf()
        script = [] if call.script_path is None else [call.script_path]
        environ = call.environ or self._given
        program = slurms_own(environ)
        result = run(
            [program, *call.options, *script, *call.args],
            timeout_s=SBATCH_TIMEOUT_S if call.timeout_s is None else call.timeout_s,
            stdin=call.stdin,
            environ=started_with(program, environ),
            cwd=call.cwd,
        )
        if result.missing:
            raise _not_started(result)
        stdout, stderr = _decode(result.stdout), _decode(result.stderr)
        found = _SUBMITTED.findall(stdout) or _PARSABLE.findall(stdout)
        job_id = int(found[-1]) if found else None
        return SbatchResult(
            exit_code=1 if result.exit_code is None else result.exit_code,
            stdout=stdout,
            stderr=stderr,
            job_id=job_id,
            timed_out=job_id is None and (result.timed_out or bool(_AMBIGUOUS.search(stderr))),
        )

    def job(self, address: str) -> JobRecord | None:
        """One job by raw id or array address ("77_2"); of a bare array id the master's record."""
        if not _JOB_ADDRESS.fullmatch(address):
            raise SlurmError(f"'{address}' is not a job id or array task address")
        found = self._jobs("-j", address)
        return next((job for job in found if str(job.job_id) == address), found[0] if found else None)

    def jobs(self, user: str | None = None) -> tuple[JobRecord, ...]:
        """All jobs that Slurm still knows, ended ones too, of one user or all."""
        return self._jobs(*([] if user is None else [f"--user={user}"]))

    def apply(self, action: SlurmAction, owner: int | None = None, also: Sequence[SlurmAction] = ()) -> None:
        """Carries out one action. SlurmError when Slurm refuses, or when a node is not ours to touch.

        `owner`: where we are root Slurm is asked in the name of this uid, so that he gets nothing that he may not
        have, and keeps his limits: what root sets is exempt from those of association and QOS (slurmctld's
        ADMIN_SET_LIMIT). `also`: further updates of the same job in the same call, all or none of which a job that
        starts meanwhile has.
        """
        if action.verb in (Verb.DRAIN, Verb.RESUME):
            self._guard(action)
        argv = [*argv_of(action), *(argv_of(one)[-1] for one in also)]
        if any(one.verb is not Verb.UPDATE_JOB or one.target != action.target for one in (action, *also) if also):
            raise SlurmError(f"only updates of one job go together, not {' and '.join(map(str, (action, *also)))}")
        if owner is not None and os.geteuid() not in (0, owner):
            for one in (action, *also):
                self._keep_limits(one)
        if owner is None or os.geteuid() != 0:
            self._read(argv)
            return
        self._need_conf()
        # the process is his: he may look into it, and stop it
        environ = {name: value for name, value in self._environ.items() if name in _HARMLESS}
        timeout_s = min(_OWNER_TIMEOUT_S, self._timeout_s)
        _checked(run(argv, timeout_s=timeout_s, environ=environ, cwd="/", uid=owner), timeout_s)

    def may_resize(self) -> bool:
        """Whether `apply` changes nodes, CPUs and memory of other users' jobs: as root in their names, else only where
        nobody has limits that an administrator's word would free him of."""
        enforced = self.config().get("AccountingStorageEnforce", "none").split(",")
        return os.geteuid() == 0 or {"limits", "qos", "safe", "all"}.isdisjoint(enforced)

    def _keep_limits(self, action: SlurmAction) -> None:
        """As SlurmUser we are an administrator, not the job's owner: nobody is to be freed of his limits by that."""
        if action.key in _LIMITED and not self.may_resize():
            raise SlurmError(
                f"{action.key} of job {action.target}: association and QOS would limit it no more",
                hint="Let the reconciler run as root: it asks in the name of the job's owner then.",
            )

    def _guard(self, action: SlurmAction) -> None:
        """A drain has an owner: what a person or another tool set stays as it is."""
        node = next((node for node in self._nodes(action.target) if node.name == action.target), None)
        if node is None:
            raise SlurmError(f"there is no node '{action.target}'")
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

    def _nodes(self, *names: str) -> tuple[Node, ...]:
        return parse_nodes(self._read(["scontrol", "show", "node", *names, "-d", "-o"])[0])

    def _jobs(self, *selection: str) -> tuple[JobRecord, ...]:
        separator = f"\x1f{os.urandom(8).hex()}\x1f"  # in the environment: argv can be read by everyone
        argv = ["squeue", "--noheader", "--all", "--states=all", *selection]
        try:
            rows, excluded = self._read(
                argv,
                argv,
                environs=(
                    {"SQUEUE_FORMAT2": job_format(separator)},
                    {"SQUEUE_FORMAT": exclude_format(separator)},
                ),
            )
            return parse_jobs(rows, excluded, separator)
        except ValueError as error:
            raise SlurmError(f"squeue: {error}") from error
        except SlurmError as error:
            if _FORGOTTEN in str(error):
                return ()
            raise

    def _read(self, *commands: Sequence[str], environs: Sequence[Mapping[str, str]] = ()) -> list[str]:
        """The outputs of commands run side by side. The first failure raises."""
        return [_checked(result, self._timeout_s) for result in self._side_by_side(*commands, environs=environs)]

    def _side_by_side(
        self, *commands: Sequence[str], stdin: bytes | None = None, environs: Sequence[Mapping[str, str]] = ()
    ) -> list[CommandResult]:
        """Runs them all at once; `stdin` goes to the last."""
        self._need_conf()
        results: dict[int, CommandResult] = {}

        def work(at: int) -> None:
            environ = {**self._environ, **environs[at]} if environs else self._environ
            given = stdin if at == len(commands) - 1 else None
            results[at] = run(commands[at], timeout_s=self._timeout_s, stdin=given, environ=environ)

        threads = [Thread(target=work, args=(at,)) for at in range(1, len(commands))]
        for thread in threads:
            thread.start()
        work(0)
        for thread in threads:
            thread.join()
        return [results[at] for at in range(len(commands))]

    def _need_conf(self) -> None:
        """Without slurm.conf every command retries for 60 s: ask before. Configless sites must not be refused."""
        if self._conf_seen:
            return
        named = self._environ.get("SLURM_CONF")
        if named and not os.access(named, os.R_OK):
            raise NoSlurmConf(f"SLURM_CONF={named}: cannot be read", hint="Correct or unset SLURM_CONF.")
        if not named and not any(Path(place).exists() for place in CONF_PLACES):
            probe = run(["scontrol", "ping"], timeout_s=2.0, environ=self._environ)
            if probe.missing or _NO_CONF.search(_decode(probe.stderr)):
                _checked(replace(probe, exit_code=1), 2.0)
        self._conf_seen = True


def argv_of(action: SlurmAction) -> list[str]:
    """The command of one action. SlurmError for a target, key or value that could mean more than it says."""
    node = action.verb in (Verb.DRAIN, Verb.RESUME)
    if not (_NODE_NAME if node else _JOB_ADDRESS).fullmatch(action.target):
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


def _reading_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """For reads: the user's tastes (SQUEUE_*, SLURM_TIME_FORMAT) and another cluster must not shine in."""
    kept = {k: v for k, v in environ.items() if not k.startswith(("SQUEUE_", "SCONTROL_")) and k != "SLURM_CLUSTERS"}
    # TERM and INPUTRC: scontrol reads its requests by readline
    # SCONTROL_ALL: a partition that is only hidden may well be the one that a job names
    kept["SCONTROL_ALL"] = "1"
    kept["SLURM_BITSTR_LEN"] = "0"  # the tasks of an array, uncut
    return {**kept, "LC_ALL": "C", "SLURM_TIME_FORMAT": "%s", "TERM": "dumb", "INPUTRC": "/dev/null"}


def _user_name(uid: int) -> str:
    """Of the password database; "" for an account that it does not know."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return ""


def _checked(result: CommandResult, timeout_s: float) -> str:
    """Its standard output, or the error it stands for, in Slurm's own words."""
    if result.missing:
        raise _not_started(result)
    words = "; ".join(line.strip() for line in _decode(result.stderr or result.stdout).splitlines() if line.strip())
    if no_conf := _NO_CONF.search(words):
        raise NoSlurmConf(
            f"{result.argv[0]}: no slurm.conf{f' at {no_conf[1]}' if no_conf[1] else ''}",
            hint="Set SLURM_CONF to the cluster's slurm.conf.",
        )
    if result.timed_out:
        raise SlurmUnreachable(f"{result.argv[0]}: no answer within {timeout_s:g} s{f': {words}' if words else ''}")
    if result.ok:
        return _decode(result.stdout)
    kind = SlurmUnreachable if _UNREACHABLE.search(words) else SlurmError
    code = result.exit_code if result.exit_code and result.exit_code > 0 else 1
    raise kind(words or f"{result.argv[0]} ended with exit code {result.exit_code}", exit_code=code)


def _not_started(result: CommandResult) -> SlurmUnreachable:
    return SlurmUnreachable(_decode(result.stderr), hint="Are Slurm's commands on PATH? (module load slurm)")


def _decode(text: bytes) -> str:
    # not surrogateescape: what a user puts into a job's name must survive JSON and SQLite
    return text.decode("utf-8", "replace")
