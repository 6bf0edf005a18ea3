"""Checks of Slurm: its commands, sbatch and gsub, slurm.conf, the controller, the adapter, MUNGE, accounting."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from slurmwrap.cli.doctor.check_records import FAIL, OK, SKIP, UNKNOWN, WARN, CheckContext, CheckResult
from slurmwrap.errors import BadCredential, NoSlurmConf, SlurmError, SlurmwrapError, StoreError
from slurmwrap.host import munge
from slurmwrap.host.run_command import run
from slurmwrap.install.hook_versions import OTHER_RELEASE_HINT, explain_other_release, read_checksum
from slurmwrap.model.cluster import Node, Partition, Snapshot
from slurmwrap.slurm.commands import CONF_PLACES
from slurmwrap.slurm.find_sbatch import find_sbatch
from slurmwrap.slurm.pyslurm.compatibility import PROVEN, find_installed_version
from slurmwrap.slurm.sacct import Sacct
from slurmwrap.slurm.scontrol_parser import parse_release

COMMANDS = ("sbatch", "scontrol", "squeue", "scancel", "sinfo")
LEAST = (22, 5)


def check_commands(context: CheckContext) -> CheckResult:
    """Check that the client commands are on PATH and new enough."""
    missing = [name for name in COMMANDS if not shutil.which(name, path=context.environ.get("PATH"))]
    release = context.release
    if missing:
        hint = "Install Slurm's client commands, or load the site's slurm module."
        return CheckResult(name="commands", state=FAIL, text=f"not on PATH: {', '.join(missing)}", hint=hint)
    if (parse_release(release) or LEAST) < LEAST:
        return CheckResult(
            name="commands", state=FAIL, text=f"Slurm {release}", hint="slurmwrap needs Slurm 22.05 or newer."
        )
    return CheckResult(
        name="commands", state=OK, text=f"Slurm {release}" if release else "found; of an unknown release"
    )


def check_sbatch(context: CheckContext) -> CheckResult:
    """Check that Slurm's own sbatch is found, and report whether gsub is installed under the name sbatch."""
    try:
        own = find_sbatch(context.environ)
    except SlurmwrapError as error:
        return CheckResult(
            name="sbatch", state=FAIL, text=str(error), hint=f"{error.hint[:1].upper()}{error.hint[1:]}."
        )
    if not os.access(own, os.X_OK):
        return CheckResult(name="sbatch", state=FAIL, text=f"{own} cannot be executed", hint="Correct GSUB_SBATCH.")
    typed = shutil.which("sbatch", path=context.environ.get("PATH"))
    same = typed is None or Path(typed).resolve() == Path(own).resolve()
    return CheckResult(
        name="sbatch", state=OK, text=own if same else f"{own}; `sbatch` itself is {typed}: gsub in its place"
    )


def check_slurm_conf(context: CheckContext) -> CheckResult:
    """Check the slurm.conf that SLURM_CONF names, or the one that is found."""
    named = context.environ.get("SLURM_CONF")
    found = next((p for p in ([named] if named else CONF_PLACES) if os.access(p, os.R_OK)), None)
    if found:
        return CheckResult(name="slurm.conf", state=OK, text=f"{found}{' (SLURM_CONF)' if named else ''}")
    if named:
        hint = "Correct or unset SLURM_CONF."
        return CheckResult(name="slurm.conf", state=FAIL, text=f"SLURM_CONF={named} cannot be read", hint=hint)
    if isinstance(context.slurm, NoSlurmConf):
        hint = "Set SLURM_CONF to the cluster's slurm.conf."
        return CheckResult(name="slurm.conf", state=FAIL, text="no slurm.conf was found", hint=hint)
    return CheckResult(
        name="slurm.conf", state=OK, text=context.setting("SLURM_CONF") or "from the controller (configless)"
    )


def check_controller(context: CheckContext) -> CheckResult:
    """Check that slurmctld answers, and that its release is compatible with that of the commands."""
    if isinstance(context.slurm, SlurmError):
        hint = context.slurm.hint or "Is slurmctld running? Meanwhile gsub passes every job to sbatch unchanged."
        return CheckResult(name="controller", state=FAIL, text=str(context.slurm), hint=hint)
    controller, commands = context.setting("SLURM_VERSION"), context.release
    text = f"slurmctld {controller} of cluster '{context.setting('ClusterName')}' answers"
    if commands and parse_release(commands) != parse_release(controller):
        hint = "Slurm supports commands of up to two (from 24.11 on three) releases before its own."
        return CheckResult(name="controller", state=WARN, text=f"{text}; the commands are {commands}", hint=hint)
    return CheckResult(name="controller", state=OK, text=text)


def check_adapter(context: CheckContext) -> CheckResult:
    """Report which adapter the reconciler uses, and check that it is the configured one."""
    if isinstance(context.slurm, SlurmError):
        return CheckResult(name="adapter", state=SKIP, text="Slurm does not answer")
    choice = context.choice
    if choice.name == "commands" and context.config.slurm.adapter == "pyslurm":
        hint = "docs/pyslurm.md lists the PySlurm release for each Slurm release. The commands are used meanwhile."
        return CheckResult(name="adapter", state=WARN, text=f"commands, not PySlurm: {choice.reason}", hint=hint)
    return CheckResult(name="adapter", state=OK, text=f"{choice.name}: {choice.reason}")


def check_pyslurm(context: CheckContext) -> CheckResult:
    """Compare the release of an installed PySlurm with Slurm's."""
    pyslurm, slurm = find_installed_version(), context.release
    if not pyslurm:
        return CheckResult(name="PySlurm", state=SKIP, text="not installed, and not needed")
    if not slurm or parse_release(pyslurm) != parse_release(slurm):
        slurm = slurm or "of an unknown release"
        hint = "It is not used. PySlurm X.Y works with Slurm X.Y only (docs/pyslurm.md)."
        return CheckResult(name="PySlurm", state=OK, text=f"{pyslurm} is not for Slurm {slurm}: not used", hint=hint)
    remark = "" if parse_release(pyslurm) in PROVEN else "; not tested with this release"
    return CheckResult(name="PySlurm", state=OK, text=f"{pyslurm} for Slurm {slurm}{remark}")


def check_munge(context: CheckContext) -> CheckResult:
    """Check that munged encodes and decodes a credential; the hooks' records are signed with such credentials."""
    if context.setting("AuthType") == "auth/slurm":
        text = "auth/slurm: munged is not needed"
        hint = "Without munged the owner of a directory in the spool proves who wrote the records (docs/hooks.md)."
        return CheckResult(name="munge", state=OK, text=text, hint=hint)
    socket = context.config.site.munge_socket or _parse_socket(context.setting("AuthInfo"))
    try:
        opened = munge.decode(munge.encode(b"slurmwrap doctor", socket=socket), socket=socket)
    except (StoreError, BadCredential) as error:
        return CheckResult(
            name="munge", state=FAIL, text=str(error), hint="Is munged running? `munge -n | unmunge` shows it."
        )
    return CheckResult(
        name="munge", state=OK, text=f"munged answers{f' at {socket}' if socket else ''} (uid {opened.uid})"
    )


def _parse_socket(auth_info: str) -> str:
    """Return the socket in AuthInfo, such as "socket=/run/munge/munge.socket.2,ttl=60"; "" for the default socket."""
    pairs = (piece.partition("=") for piece in auth_info.split(","))
    return next((value for key, _, value in pairs if key == "socket"), "")


def check_accounting(context: CheckContext) -> CheckResult:
    """Check slurmdbd, which is optional, and whether it counts GPUs."""
    if isinstance(context.slurm, SlurmError):
        return CheckResult(name="accounting", state=SKIP, text="Slurm does not answer")
    if not Sacct.is_there(context.slurm):
        hint = "slurmwrap's own records are enough. Jobs that it never saw are unknown once Slurm has removed them."
        return CheckResult(name="accounting", state=OK, text="no slurmdbd", hint=hint)
    try:
        Sacct(context.environ, timeout_s=context.config.slurm_timeout_s).runs([1])
    except SlurmError as error:
        hint = "Is slurmdbd running? History, QOS and limits are missing until it answers."
        return CheckResult(name="accounting", state=FAIL, text=str(error), hint=hint)
    enforced = context.setting("AccountingStorageEnforce")
    gpus = "gres/gpu" in context.setting("AccountingStorageTRES")
    text = f"slurmdbd answers; enforced: {enforced or 'none'}; GPUs {'counted' if gpus else 'not counted'}"
    hint = "" if gpus else "AccountingStorageTRES=gres/gpu in slurm.conf: without it the accounting has no GPUs."
    return CheckResult(name="accounting", state=OK if gpus else WARN, text=text, hint=hint)


def check_cgroups(context: CheckContext) -> CheckResult:
    """Check whether Slurm puts jobs into cgroups, which measure and limit their memory."""
    mounted = "v2" if Path("/sys/fs/cgroup/cgroup.controllers").exists() else ""
    mounted = mounted or ("v1" if Path("/sys/fs/cgroup/memory").is_dir() else "")
    plugins = context.setting("ProctrackType"), context.setting("TaskPlugin"), context.setting("JobAcctGatherType")
    used = [name for name in plugins if "cgroup" in name]
    if isinstance(context.slurm, Mapping) and not used:
        hint = "ProctrackType=proctrack/cgroup and TaskPlugin=task/cgroup: memory of jobs is measured by their cgroups."
        return CheckResult(name="cgroup", state=WARN, text="Slurm puts jobs into no cgroup", hint=hint)
    version = f"{mounted} on this host" if mounted else "none on this host"
    return CheckResult(name="cgroup", state=OK, text=f"{version}; Slurm: {', '.join(used) or 'not known'}")


# Checks of settings in slurm.conf: the hooks, the partition of pre-runs, the topology, the clock, cli_filter.
# Every hook shim contains this word in the comment at its beginning.
_MARK = b"slurmwrap"
_HOOKS = ("Prolog", "Epilog", "EpilogSlurmctld")
_MARK_WITHIN = 1 << 16
_SKEW_S, _BAD_SKEW_S = 5.0, 60.0
_NO_ANSWER = "Slurm does not answer"


def check_hooks_in_slurm_conf(context: CheckContext) -> CheckResult:
    """Check that slurm.conf names slurmwrap's hooks, and that their files are complete on this host."""
    if not isinstance(context.slurm, Mapping):
        return CheckResult(name="hooks", state=SKIP, text=_NO_ANSWER)
    named = {key: context.setting(key) for key in _HOOKS}
    if not context.config.site.spool and not any(_list_own_hooks(value) for value in named.values()):
        return CheckResult(name="hooks", state=SKIP, text="site.spool is not configured: no hooks are expected")
    missing = [key for key, value in named.items() if not _names_own_hook(value)]
    if missing:
        hint = "`slurmwrap hooks plan` shows the lines and files that are missing, `slurmwrap hooks install` adds them."
        text = f"slurm.conf does not name these hooks: {', '.join(missing)}"
        return CheckResult(name="hooks", state=FAIL, text=text, hint=hint)
    return _check_hook_files(context)


def find_hooks_directory(context: CheckContext) -> Path | None:
    """Return the directory of slurmwrap's hooks on this host; None if they are not on this host.

    slurm.conf may name the site's own scripts as well; only slurmwrap's are considered.
    """
    return find_directory_of_hook(context.setting("EpilogSlurmctld"))


def find_directory_of_hook(setting: str) -> Path | None:
    """Return the directory of slurmwrap's hooks, given slurm.conf's EpilogSlurmctld; None if it is not on this host."""
    return next((path.parent for path in _list_own_hooks(setting)), None)


def _check_hook_files(context: CheckContext) -> CheckResult:
    flags = context.setting("PrologFlags").lower()
    directory = find_hooks_directory(context)
    if "alloc" not in flags and "contain" not in flags:
        hint = "Set PrologFlags=Alloc in slurm.conf: without it the Prolog runs late, or never on nodes without a step."
        return CheckResult(name="hooks", state=WARN, text=f"PrologFlags={flags or 'none'}", hint=hint)
    if directory is not None and not read_checksum(directory):
        hint = "`slurmwrap hooks install` writes them again."
        return CheckResult(
            name="hooks", state=FAIL, text=f"{directory}: files are missing or cannot be read", hint=hint
        )
    if directory is not None:
        text = explain_other_release(*((directory / name).read_bytes() for name in ("node_hooks.pyz", "hooks.json")))
        if text:
            return CheckResult(name="hooks", state=WARN, text=f"{directory}: {text}", hint=OTHER_RELEASE_HINT)
    return CheckResult(name="hooks", state=OK, text=f"{', '.join(_HOOKS)}: {directory or 'named; not on this host'}")


def _names_own_hook(value: str) -> bool:
    """Return whether the setting names one of slurmwrap's hooks.

    If none of the named files exists on this host, as on a login node, they are assumed to be slurmwrap's.
    """
    paths = list(_list_files(value))
    return bool(_list_own_hooks(value)) or (value not in ("", "(null)") and not paths)


def _list_own_hooks(value: str) -> list[Path]:
    return [path for path in _list_files(value) if _is_own_hook(path)]


def _list_files(value: str) -> Iterator[Path]:
    """Yield the files of a setting: comma-separated paths, each of which may be a glob pattern (slurm.conf(5))."""
    for part in value.split(","):
        pattern = part.strip()
        if pattern.startswith("/"):
            yield from Path("/").glob(pattern[1:])


def _is_own_hook(path: Path) -> bool:
    try:
        with path.open("rb") as stream:
            return _MARK in stream.read(_MARK_WITHIN)
    except OSError:
        return False


def check_prerun_partition(context: CheckContext) -> CheckResult:
    """Check the partition of pre-runs: whether it is up, has GPUs, allows the time limit, and is open to all users."""
    if context.config.prerun.mode == "off":
        return CheckResult(name="prerun partition", state=SKIP, text="prerun.mode is off")
    if not isinstance(context.snapshot, Snapshot):
        return CheckResult(name="prerun partition", state=SKIP, text=_NO_ANSWER)
    wanted = context.config.prerun.partition
    if not wanted:
        return CheckResult(name="prerun partition", state=OK, text="each job's own", hint=_OWN_PARTITION_HINT)
    found = next((one for one in context.snapshot.partitions if one.name == wanted), None)
    if found is None:
        known = ", ".join(one.name for one in context.snapshot.partitions[:8])
        hint = f"Correct prerun.partition: Slurm shows {known}. (A hidden or forbidden one is not shown to you.)"
        return CheckResult(name="prerun partition", state=FAIL, text=f"Slurm has no partition '{wanted}'", hint=hint)
    wrong = tuple(_find_partition_faults(found, context))
    if wrong:
        text = f"pre-runs cannot all run in '{wanted}'"
        hint = "Correct the partition in slurm.conf, or prerun.partition and prerun.time_limit_s here."
        return CheckResult(name="prerun partition", state=WARN, text=text, hint=hint, details=wrong)
    return CheckResult(
        name="prerun partition", state=OK, text=f"{wanted}: up, {_count_gpus(context.nodes, wanted)} GPUs"
    )


_OWN_PARTITION_HINT = "A small partition of its own (prerun.partition) starts pre-runs while the others are full."


def _find_partition_faults(found: Partition, context: CheckContext) -> Iterator[str]:
    limit = context.config.prerun.time_limit_s
    if found.state != "UP":
        yield f"it is {found.state}"
    if not _count_gpus(context.nodes, found.name):
        yield "none of its nodes that are up has a GPU"
    if found.max_time_s is not None and found.max_time_s < limit:
        yield f"MaxTime is {found.max_time_s:g} s, and a pre-run asks for {limit} s (prerun.time_limit_s)"
    for key, value in _list_restrictions(found.name, context):
        yield f"{key}={value}: pre-runs of all others are refused there"


def _list_restrictions(name: str, context: CheckContext) -> Iterator[tuple[str, str]]:
    done = run(["scontrol", "show", "partition", name, "-o"], timeout_s=5.0, environ=context.environ)
    for key in ("AllowAccounts", "AllowGroups", "AllowQos"):
        match = re.search(rf"\b{key}=(\S+)", done.stdout.decode("utf-8", "replace"))
        if match and match[1] not in ("ALL", "(null)"):
            yield key, match[1]


def _count_gpus(nodes: tuple[Node, ...], partition: str) -> int:
    return sum(node.gpus for node in nodes if partition in node.partitions and node.usable)


def check_topology(context: CheckContext) -> CheckResult:
    """Check the source of the network topology."""
    if not isinstance(context.snapshot, Snapshot):
        return CheckResult(name="topology", state=SKIP, text=_NO_ANSWER)
    known, nodes = context.snapshot.topology, len(context.nodes)
    if known.remarks:
        hint = "See placement.topology_file or placement.topology_features (docs/placement.md)."
        return CheckResult(
            name="topology", state=WARN, text="the site's own topology has defects", hint=hint, details=known.remarks
        )
    if not known.source and nodes > 1:
        hint = "Set TopologyPlugin in slurm.conf, or placement.topology_file: otherwise placement ignores distances."
        return CheckResult(
            name="topology", state=WARN, text=f"it is not known how {nodes} nodes are connected", hint=hint
        )
    text = f"{len(known.domains)} switches, blocks or racks, by {known.source}" if known.source else "one node"
    return CheckResult(name="topology", state=OK, text=text)


def check_clock(context: CheckContext) -> CheckResult:
    """Compare this host's clock with slurmctld's, whose answer carries its time."""
    if not isinstance(context.slurm, Mapping):
        return CheckResult(name="clock", state=SKIP, text=_NO_ANSWER)
    environ = {**context.environ, "SLURM_TIME_FORMAT": "%s"}
    before = time.time()
    done = run(["scontrol", "show", "config"], timeout_s=context.config.slurm_timeout_s, environ=environ)
    after = time.time()
    match = re.search(rb"Configuration data as of (\d+)", done.stdout)
    if not match:
        return CheckResult(name="clock", state=UNKNOWN, text="slurmctld's answer has no time")
    skew = _compute_clock_offset(int(match[1]), before, after)
    figures = {"clock_skew_s": round(skew, 1)}
    if abs(skew) > _SKEW_S:
        state = FAIL if abs(skew) > _BAD_SKEW_S else WARN
        text = f"this host is {abs(skew):.0f} s {'behind' if skew > 0 else 'ahead of'} slurmctld"
        hint = "`chronyc tracking` on both: MUNGE refuses credentials of clocks that are 5 minutes apart."
        return CheckResult(name="clock", state=state, text=text, hint=hint, figures=figures)
    return CheckResult(name="clock", state=OK, text="this host and slurmctld agree", figures=figures)


def _compute_clock_offset(controller: int, before: float, after: float) -> float:
    """Return by how many seconds slurmctld's time is outside of the interval from `before` to `after`.

    slurmctld gives whole seconds: `controller` stands for the second that begins then. Negative: slurmctld is behind.
    """
    if controller + 1 < before:
        return controller + 1 - before
    return max(0.0, controller - after)


def check_cli_filter(context: CheckContext) -> CheckResult:
    """Check that the cli_filter.lua that slurm.conf names exists.

    slurmwrap's cli_filter, which is optional, shows users of plain sbatch what gsub would have done.
    """
    if not isinstance(context.slurm, Mapping):
        return CheckResult(name="cli_filter", state=SKIP, text=_NO_ANSWER)
    plugins = context.setting("CliFilterPlugins")
    if "lua" not in plugins:
        return CheckResult(
            name="cli_filter",
            state=OK,
            text=f"{plugins.replace('(null)', '') or 'none'}; slurmwrap's is optional (docs/hooks.md)",
        )
    script = Path(context.setting("SLURM_CONF") or "/etc/slurm/slurm.conf").with_name("cli_filter.lua")
    try:
        is_own = b"slurmwrap" in script.read_bytes()
    except OSError as error:
        hint = "sbatch fails where the plugin is named and its script is missing."
        return CheckResult(name="cli_filter", state=WARN, text=f"{script}: {error.strerror}", hint=hint)
    return CheckResult(name="cli_filter", state=OK, text=f"{script}{_OWN_SCRIPT if is_own else _SITE_SCRIPT}")


_OWN_SCRIPT, _SITE_SCRIPT = "", ": a script of the site's own"
