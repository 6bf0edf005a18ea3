"""Checks of Slurm: its commands, sbatch and gsub, slurm.conf, the controller, the adapter, MUNGE, accounting."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from slurmwrap.cli.doctor.check_records import FAIL, OK, SKIP, WARN, CheckContext, CheckResult
from slurmwrap.errors import BadCredential, NoSlurmConf, SlurmError, SlurmwrapError, StoreError
from slurmwrap.host import munge
from slurmwrap.slurm.accounting import Sacct
from slurmwrap.slurm.commands import CONF_PLACES
from slurmwrap.slurm.find_sbatch import find_sbatch
from slurmwrap.slurm.pyslurm.compatibility import PROVEN, find_installed_version
from slurmwrap.slurm.scontrol_parser import parse_release

COMMANDS = ("sbatch", "scontrol", "squeue", "scancel", "sinfo")
LEAST = (22, 5)


def check_commands(ground: CheckContext) -> CheckResult:
    """The client commands, and their release."""
    missing = [name for name in COMMANDS if not shutil.which(name, path=ground.environ.get("PATH"))]
    told = ground.release
    if missing:
        hint = "Install Slurm's client commands, or load the site's slurm module."
        return CheckResult(name="commands", state=FAIL, text=f"not on PATH: {', '.join(missing)}", hint=hint)
    if (parse_release(told) or LEAST) < LEAST:
        return CheckResult(
            name="commands", state=FAIL, text=f"Slurm {told}", hint="slurmwrap needs Slurm 22.05 or newer."
        )
    return CheckResult(name="commands", state=OK, text=f"Slurm {told}" if told else "found; of an unknown release")


def check_sbatch(ground: CheckContext) -> CheckResult:
    """Slurm's own sbatch is found, and whether the one that users type is gsub."""
    try:
        own = find_sbatch(ground.environ)
    except SlurmwrapError as error:
        return CheckResult(
            name="sbatch", state=FAIL, text=str(error), hint=f"{error.hint[:1].upper()}{error.hint[1:]}."
        )
    if not os.access(own, os.X_OK):
        return CheckResult(name="sbatch", state=FAIL, text=f"{own} cannot be executed", hint="Correct GSUB_SBATCH.")
    typed = shutil.which("sbatch", path=ground.environ.get("PATH"))
    same = typed is None or Path(typed).resolve() == Path(own).resolve()
    return CheckResult(
        name="sbatch", state=OK, text=own if same else f"{own}; `sbatch` itself is {typed}: gsub in its place"
    )


def check_slurm_conf(ground: CheckContext) -> CheckResult:
    """slurm.conf: the one that is named, or the one that is found."""
    named = ground.environ.get("SLURM_CONF")
    found = next((p for p in ([named] if named else CONF_PLACES) if os.access(p, os.R_OK)), None)
    if found:
        return CheckResult(name="slurm.conf", state=OK, text=f"{found}{' (SLURM_CONF)' if named else ''}")
    if named:
        hint = "Correct or unset SLURM_CONF."
        return CheckResult(name="slurm.conf", state=FAIL, text=f"SLURM_CONF={named} cannot be read", hint=hint)
    if isinstance(ground.slurm, NoSlurmConf):
        hint = "Set SLURM_CONF to the cluster's slurm.conf."
        return CheckResult(name="slurm.conf", state=FAIL, text="there is none", hint=hint)
    return CheckResult(
        name="slurm.conf", state=OK, text=ground.setting("SLURM_CONF") or "from the controller (configless)"
    )


def check_controller(ground: CheckContext) -> CheckResult:
    """slurmctld answers, and its release goes with the commands'."""
    if isinstance(ground.slurm, SlurmError):
        hint = ground.slurm.hint or "Is slurmctld running? gsub hands every job to sbatch as it is meanwhile."
        return CheckResult(name="controller", state=FAIL, text=str(ground.slurm), hint=hint)
    theirs, ours = ground.setting("SLURM_VERSION"), ground.release
    text = f"slurmctld {theirs} of cluster '{ground.setting('ClusterName')}' answers"
    if ours and parse_release(ours) != parse_release(theirs):
        hint = "Slurm speaks with commands of up to two (from 24.11 on three) releases before its own."
        return CheckResult(name="controller", state=WARN, text=f"{text}; the commands are {ours}", hint=hint)
    return CheckResult(name="controller", state=OK, text=text)


def check_adapter(ground: CheckContext) -> CheckResult:
    """What the reconciler talks to Slurm by."""
    if isinstance(ground.slurm, SlurmError):
        return CheckResult(name="adapter", state=SKIP, text="Slurm does not answer")
    choice = ground.choice
    if choice.name == "commands" and ground.config.slurm.adapter == "pyslurm":
        hint = "docs/pyslurm.md says which PySlurm goes with which Slurm. The commands do everything meanwhile."
        return CheckResult(name="adapter", state=WARN, text=f"commands, not PySlurm: {choice.reason}", hint=hint)
    return CheckResult(name="adapter", state=OK, text=f"{choice.name}: {choice.reason}")


def check_pyslurm(ground: CheckContext) -> CheckResult:
    """PySlurm's release next to Slurm's."""
    ours, slurms = find_installed_version(), ground.release
    if not ours:
        return CheckResult(name="PySlurm", state=SKIP, text="not installed, and not needed")
    if not slurms or parse_release(ours) != parse_release(slurms):
        slurms = slurms or "of an unknown release"
        hint = "It is left alone. PySlurm X.Y works with Slurm X.Y only (docs/pyslurm.md)."
        return CheckResult(name="PySlurm", state=OK, text=f"{ours} is not for Slurm {slurms}: not used", hint=hint)
    tried = "" if parse_release(ours) in PROVEN else "; not tried by us with this release"
    return CheckResult(name="PySlurm", state=OK, text=f"{ours} for Slurm {slurms}{tried}")


def check_munge(ground: CheckContext) -> CheckResult:
    """munged seals and opens: what hooks and the site tell each other."""
    if ground.setting("AuthType") == "auth/slurm":
        text = "auth/slurm: there need be no munged"
        hint = "Without it what hooks saw is vouched for by who owns the spool's directories (docs/hooks.md)."
        return CheckResult(name="munge", state=OK, text=text, hint=hint)
    socket = ground.config.site.munge_socket or _parse_socket(ground.setting("AuthInfo"))
    try:
        opened = munge.decode(munge.encode(b"slurmwrap doctor", socket=socket), socket=socket)
    except (StoreError, BadCredential) as error:
        return CheckResult(
            name="munge", state=FAIL, text=str(error), hint="Is munged running? `munge -n | unmunge` tells."
        )
    return CheckResult(
        name="munge", state=OK, text=f"munged answers{f' at {socket}' if socket else ''} (uid {opened.uid})"
    )


def _parse_socket(auth_info: str) -> str:
    """AuthInfo=socket=/run/munge/munge.socket.2,ttl=60; "" where it is the usual one."""
    pairs = (piece.partition("=") for piece in auth_info.split(","))
    return next((value for key, _, value in pairs if key == "socket"), "")


def check_accounting(ground: CheckContext) -> CheckResult:
    """slurmdbd, which may be missing."""
    if isinstance(ground.slurm, SlurmError):
        return CheckResult(name="accounting", state=SKIP, text="Slurm does not answer")
    if not Sacct.is_there(ground.slurm):
        hint = "slurmwrap's own records do; of jobs that it never saw nothing is known once Slurm forgot them."
        return CheckResult(name="accounting", state=OK, text="no slurmdbd", hint=hint)
    try:
        Sacct(ground.environ, timeout_s=ground.config.slurm_timeout_s).runs([1])
    except SlurmError as error:
        hint = "Is slurmdbd running? History, QOS and limits are missing until it answers."
        return CheckResult(name="accounting", state=FAIL, text=str(error), hint=hint)
    enforced = ground.setting("AccountingStorageEnforce")
    gpus = "gres/gpu" in ground.setting("AccountingStorageTRES")
    text = f"slurmdbd answers; enforced: {enforced or 'none'}; GPUs {'counted' if gpus else 'not counted'}"
    hint = "" if gpus else "AccountingStorageTRES=gres/gpu in slurm.conf: without it no history knows GPUs."
    return CheckResult(name="accounting", state=OK if gpus else WARN, text=text, hint=hint)


def check_cgroups(ground: CheckContext) -> CheckResult:
    """Whether what jobs use can be measured, and limits hold."""
    mounted = "v2" if Path("/sys/fs/cgroup/cgroup.controllers").exists() else ""
    mounted = mounted or ("v1" if Path("/sys/fs/cgroup/memory").is_dir() else "")
    plugins = ground.setting("ProctrackType"), ground.setting("TaskPlugin"), ground.setting("JobAcctGatherType")
    used = [name for name in plugins if "cgroup" in name]
    if isinstance(ground.slurm, Mapping) and not used:
        hint = "ProctrackType=proctrack/cgroup and TaskPlugin=task/cgroup: memory of jobs is measured by their cgroups."
        return CheckResult(name="cgroup", state=WARN, text="Slurm puts jobs into no cgroup", hint=hint)
    here = f"{mounted} on this host" if mounted else "none on this host"
    return CheckResult(name="cgroup", state=OK, text=f"{here}; Slurm: {', '.join(used) or 'not known'}")
