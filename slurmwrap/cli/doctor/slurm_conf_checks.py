"""Checks of what slurm.conf says for us: the hooks, the partition of pre-runs, the topology, the clock, cli_filter."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from slurmwrap.cli.doctor.check_records import FAIL, OK, SKIP, UNKNOWN, WARN, CheckContext, CheckResult
from slurmwrap.host.run_command import run
from slurmwrap.install.hook_versions import read_checksum
from slurmwrap.model.node import Node, Partition, Snapshot

_MARK = b"slurmwrap"  # in the comment that each of our shims begins with
_HOOKS = ("Prolog", "Epilog", "EpilogSlurmctld")
_READ = 1 << 16
_SKEW_S, _BAD_SKEW_S = 5.0, 60.0
_AWAY = "Slurm does not answer"


def check_hooks_in_slurm_conf(ground: CheckContext) -> CheckResult:
    """Whether slurm.conf names our hooks, and their files are whole on this host."""
    if not isinstance(ground.slurm, Mapping):
        return CheckResult(name="hooks", state=SKIP, text=_AWAY)
    named = {key: ground.setting(key) for key in _HOOKS}
    if not ground.config.site.spool and not any(_list_own_hooks(value) for value in named.values()):
        return CheckResult(name="hooks", state=SKIP, text="site.spool is not configured: no hooks are expected")
    missing = [key for key, value in named.items() if not _is_there(value)]
    if missing:
        hint = "`slurmwrap hooks plan` shows the lines and files that are missing, `slurmwrap hooks install` adds them."
        text = f"slurm.conf does not name these hooks: {', '.join(missing)}"
        return CheckResult(name="hooks", state=FAIL, text=text, hint=hint)
    return _check_settings(ground)


def hooks_directory(ground: CheckContext) -> Path | None:
    """Where our hooks lie on this host: slurm.conf may name the site's own next to ours. None: not here."""
    return next((path.parent for path in _list_own_hooks(ground.setting("EpilogSlurmctld"))), None)


def _check_settings(ground: CheckContext) -> CheckResult:
    flags = ground.setting("PrologFlags").lower()
    directory = hooks_directory(ground)
    if "alloc" not in flags and "contain" not in flags:
        hint = "PrologFlags=Alloc in slurm.conf: without it the Prolog of nodes without a step runs never or late."
        return CheckResult(name="hooks", state=WARN, text=f"PrologFlags={flags or 'none'}", hint=hint)
    if directory is not None and not read_checksum(directory):
        hint = "`slurmwrap hooks install` writes them anew."
        return CheckResult(
            name="hooks", state=FAIL, text=f"{directory}: files are missing or cannot be read", hint=hint
        )
    return CheckResult(name="hooks", state=OK, text=f"{', '.join(_HOOKS)}: {directory or 'named; not on this host'}")


def _is_there(value: str) -> bool:
    """Named, and ours as far as can be seen: on a login node the files need not be."""
    paths = list(_list_files(value))
    return bool(_list_own_hooks(value)) or (value not in ("", "(null)") and not paths)


def _list_own_hooks(value: str) -> list[Path]:
    return [path for path in _list_files(value) if _starts_us(path)]


def _list_files(value: str) -> Iterator[Path]:
    """slurm.conf(5): paths with commas between, each may be a glob pattern."""
    for part in value.split(","):
        pattern = part.strip()
        if pattern.startswith("/"):
            yield from Path("/").glob(pattern[1:])


def _starts_us(path: Path) -> bool:
    try:
        with path.open("rb") as stream:
            return _MARK in stream.read(_READ)
    except OSError:
        return False


def check_prerun_partition(ground: CheckContext) -> CheckResult:
    """Where trials run: up, with GPUs, and time enough."""
    if ground.config.prerun.mode == "off":
        return CheckResult(name="prerun partition", state=SKIP, text="prerun.mode is off")
    if not isinstance(ground.snapshot, Snapshot):
        return CheckResult(name="prerun partition", state=SKIP, text=_AWAY)
    wanted = ground.config.prerun.partition
    if not wanted:
        return CheckResult(name="prerun partition", state=OK, text="each job's own", hint=_OWN)
    found = next((one for one in ground.snapshot.partitions if one.name == wanted), None)
    if found is None:
        known = ", ".join(one.name for one in ground.snapshot.partitions[:8])
        hint = f"Correct prerun.partition: Slurm shows {known}. (A hidden or forbidden one is not shown to you.)"
        return CheckResult(name="prerun partition", state=FAIL, text=f"Slurm has no partition '{wanted}'", hint=hint)
    wrong = tuple(_find_partition_faults(found, ground))
    if wrong:
        text = f"trials cannot all run in '{wanted}'"
        hint = "Correct the partition in slurm.conf, or prerun.partition and prerun.time_limit_s here."
        return CheckResult(name="prerun partition", state=WARN, text=text, hint=hint, details=wrong)
    return CheckResult(
        name="prerun partition", state=OK, text=f"{wanted}: up, {_count_gpus(ground.nodes, wanted)} GPUs"
    )


_OWN = "A small partition of its own (prerun.partition) starts trials while the others are full."


def _find_partition_faults(found: Partition, ground: CheckContext) -> Iterator[str]:
    limit = ground.config.prerun.time_limit_s
    if found.state != "UP":
        yield f"it is {found.state}"
    if not _count_gpus(ground.nodes, found.name):
        yield "none of its nodes that are up has a GPU"
    if found.max_time_s is not None and found.max_time_s < limit:
        yield f"MaxTime is {found.max_time_s:g} s, and a trial asks for {limit} s (prerun.time_limit_s)"
    for key, value in _list_restrictions(found.name, ground):
        yield f"{key}={value}: trials of everybody else are refused there"


def _list_restrictions(name: str, ground: CheckContext) -> Iterator[tuple[str, str]]:
    done = run(["scontrol", "show", "partition", name, "-o"], timeout_s=5.0, environ=ground.environ)
    for key in ("AllowAccounts", "AllowGroups", "AllowQos"):
        told = re.search(rf"\b{key}=(\S+)", done.stdout.decode("utf-8", "replace"))
        if told and told[1] not in ("ALL", "(null)"):
            yield key, told[1]


def _count_gpus(nodes: tuple[Node, ...], partition: str) -> int:
    return sum(node.gpus for node in nodes if partition in node.partitions and node.usable)


def check_topology(ground: CheckContext) -> CheckResult:
    """Who knows which nodes are near each other."""
    if not isinstance(ground.snapshot, Snapshot):
        return CheckResult(name="topology", state=SKIP, text=_AWAY)
    known, nodes = ground.snapshot.topology, len(ground.nodes)
    if known.remarks:
        hint = "See placement.topology_file or placement.topology_features (docs/placement.md)."
        return CheckResult(
            name="topology", state=WARN, text="the site's own word is odd", hint=hint, details=known.remarks
        )
    if not known.source and nodes > 1:
        hint = "TopologyPlugin in slurm.conf, or placement.topology_file here: else nothing is placed by distance."
        return CheckResult(
            name="topology", state=WARN, text=f"it is not known how {nodes} nodes are connected", hint=hint
        )
    text = f"{len(known.domains)} switches, blocks or racks, by {known.source}" if known.source else "one node"
    return CheckResult(name="topology", state=OK, text=text)


def check_clock(ground: CheckContext) -> CheckResult:
    """This host's clock next to slurmctld's, who says when its answer was made."""
    if not isinstance(ground.slurm, Mapping):
        return CheckResult(name="clock", state=SKIP, text=_AWAY)
    environ = {**ground.environ, "SLURM_TIME_FORMAT": "%s"}
    before = time.time()
    done = run(["scontrol", "show", "config"], timeout_s=ground.config.slurm_timeout_s, environ=environ)
    after = time.time()
    told = re.search(rb"Configuration data as of (\d+)", done.stdout)
    if not told:
        return CheckResult(name="clock", state=UNKNOWN, text="slurmctld did not say what time it is")
    skew = _compute_clock_offset(int(told[1]), before, after)
    figures = {"clock_skew_s": round(skew, 1)}
    if abs(skew) > _SKEW_S:
        state = FAIL if abs(skew) > _BAD_SKEW_S else WARN
        text = f"this host is {abs(skew):.0f} s {'behind' if skew > 0 else 'ahead of'} slurmctld"
        hint = "`chronyc tracking` on both: MUNGE refuses credentials of clocks that are 5 minutes apart."
        return CheckResult(name="clock", state=state, text=text, hint=hint, figures=figures)
    return CheckResult(name="clock", state=OK, text="this host and slurmctld agree", figures=figures)


def _compute_clock_offset(theirs: int, before: float, after: float) -> float:
    """Seconds that slurmctld's whole second lies outside of the time in which it was asked."""
    if theirs + 1 < before:
        return theirs + 1 - before
    return max(0.0, theirs - after)


def cli_filter(ground: CheckContext) -> CheckResult:
    """Whether users of plain sbatch are told what gsub would have done."""
    if not isinstance(ground.slurm, Mapping):
        return CheckResult(name="cli_filter", state=SKIP, text=_AWAY)
    plugins = ground.setting("CliFilterPlugins")
    if "lua" not in plugins:
        return CheckResult(
            name="cli_filter",
            state=OK,
            text=f"{plugins.replace('(null)', '') or 'none'}; slurmwrap's is optional (docs/hooks.md)",
        )
    script = Path(ground.setting("SLURM_CONF") or "/etc/slurm/slurm.conf").with_name("cli_filter.lua")
    try:
        ours = b"slurmwrap" in script.read_bytes()
    except OSError as error:
        hint = "sbatch fails where the plugin is named and its script is missing."
        return CheckResult(name="cli_filter", state=WARN, text=f"{script}: {error.strerror}", hint=hint)
    return CheckResult(name="cli_filter", state=OK, text=f"{script}{_OURS if ours else _THEIRS}")


_OURS, _THEIRS = "", ": a script of the site's own"
