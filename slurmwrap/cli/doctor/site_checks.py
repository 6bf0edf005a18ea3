"""Checks of the site's installation: spool, published directory, reconciler, report, units, rules, mail, metrics."""

from __future__ import annotations

import importlib.util
import json
import os
import pwd
import secrets
import shutil
import smtplib
import stat
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

from slurmwrap.cli.doctor.check_records import FAIL, OK, SKIP, WARN, CheckContext, CheckResult
from slurmwrap.cli.doctor.database_checks import explain_unreadable_path
from slurmwrap.cli.doctor.slurm_checks import find_hooks_directory
from slurmwrap.config.load_config import RULES
from slurmwrap.errors import BadCredential, StoreError
from slurmwrap.host import munge
from slurmwrap.host.journal import Journal
from slurmwrap.host.run_command import run
from slurmwrap.install.service_watchdog import (
    LATE_S,
    REPORT_S,
    is_watchdog_on_time,
    last_beat,
    last_report,
    last_watch,
)
from slurmwrap.install.systemd_units import ENABLED
from slurmwrap.store.published_files import FILE
from slurmwrap.store.site_switch import get_switch_directory, read_site_switch
from slurmwrap.store.sqlite_connection import connect_readonly, translate_sqlite_errors

_MODE = 0o1733
# Seconds. The reconciler normally reads an observation within seconds.
_WAITING_S = 600.0
_MAIL_S = 5.0
_PLAN = "`slurmwrap hooks plan` prints the directories that must exist, with their owners and modes."


def check_spool(context: CheckContext) -> CheckResult:
    """Check the spool's owner and mode, and that a signed record can be written there and read back unchanged."""
    name = context.config.site.spool
    if not name:
        return CheckResult(name="spool", state=SKIP, text="site.spool is not configured: nothing arrives from nodes")
    try:
        found = Path(name).stat()
    except OSError as error:
        return CheckResult(name="spool", state=FAIL, text=f"{name}: {error.strerror}", hint=_PLAN)
    if wrong := _find_spool_fault(found, context):
        owner = context.slurm_user or "SlurmUser"
        return CheckResult(
            name="spool",
            state=FAIL,
            text=f"{name}: {wrong}",
            hint=f"Run: chown {owner} {name}; chmod {_MODE:04o} {name}",
        )
    try:
        _write_probe(Path(name), context.config.site.munge_socket)
    except (OSError, StoreError, BadCredential) as error:
        hint = getattr(error, "hint", "Is its file system full or mounted read-only? `df` and `mount` show it.")
        return CheckResult(name="spool", state=FAIL, text=f"{name}: {error}", hint=hint)
    return CheckResult(name="spool", state=OK, text=f"{name}: a signed record was written, read and removed")


def _find_spool_fault(found: os.stat_result, context: CheckContext) -> str:
    """Return what is wrong with the type, owner or mode of the spool; "" if nothing is.

    The owner can remove all records, so it must be root or SlurmUser. The mode must let every user create files but
    neither list them nor remove those of others: write and search permission, the sticky bit, no read permission.
    """
    mode = stat.S_IMODE(found.st_mode)
    if not stat.S_ISDIR(found.st_mode):
        return "it is no directory"
    if found.st_uid not in _list_trusted_uids(context):
        return f"it belongs to {_get_user_name(found.st_uid)}, who could remove everything in it"
    if mode & 0o1033 != 0o1033:
        return f"mode {mode:04o}, not {_MODE:04o}: {_describe_mode(mode)}"
    return f"mode {mode:04o}, not {_MODE:04o}: every user can list the records of others" if mode & 0o044 else ""


def _describe_mode(mode: int) -> str:
    if mode & 0o033 != 0o033:
        return "nodes and users cannot write"
    return "without the sticky bit every user could remove the records of others"


def _list_trusted_uids(context: CheckContext) -> set[int]:
    try:
        return {0, pwd.getpwnam(context.slurm_user).pw_uid}
    except KeyError:
        return {0}


def _get_user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def _write_probe(spool: Path, socket: str) -> None:
    """Write a signed record under a temporary name, read it back and remove it.

    The reconciler ignores temporary names for an hour. Raise StoreError or BadCredential if the record has changed.
    """
    payload = secrets.token_bytes(64)
    probe = spool / f".doctor-{os.getpid()}-{secrets.token_hex(8)}"
    descriptor = os.open(probe, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "r+b") as stream:
            stream.write(munge.encode(payload, socket=socket))
            stream.flush()
            os.fsync(descriptor)
            stream.seek(0)
            if munge.decode(stream.read(), socket=socket).payload != payload:
                raise StoreError("what was read back is not what was written")
    finally:
        probe.unlink()


def check_waiting_records(context: CheckContext) -> CheckResult:
    """Check whether records wait in the spool for longer than the reconciler should need."""
    name = context.config.site.spool
    if not name or not os.access(name, os.R_OK):
        why = "only its owner can list it" if name else "site.spool is not configured"
        return CheckResult(name="spool queue", state=SKIP, text=why)
    ages = list(_list_ages(name, context.now))
    old = [age for age in ages if age > _WAITING_S]
    figures = {"spool_waiting": len(ages), "spool_oldest_s": round(max(ages, default=0.0))}
    if old:
        text = (
            f"{len(old)} records wait for more than {_WAITING_S / 60:g} minutes, the oldest for {_format_age(max(old))}"
        )
        hint = "Does the reconciler run? See `systemctl status slurmwrap-reconcile`, and its log for errors."
        return CheckResult(name="spool queue", state=WARN, text=text, hint=hint, figures=figures)
    return CheckResult(name="spool queue", state=OK, text=f"{len(ages)} records wait", figures=figures)


def _list_ages(name: str, now: float) -> Iterator[float]:
    """Yield each record's age in seconds. Records that the reconciler removes meanwhile are left out."""
    with os.scandir(name) as entries:
        for one in entries:
            with suppress(FileNotFoundError):
                if one.name.endswith(".obs"):
                    yield now - one.stat(follow_symlinks=False).st_mtime


def check_published(context: CheckContext) -> CheckResult:
    """Check the directory that gsub and `why` read: all users need read access, and only SlurmUser write access."""
    name = context.config.site.published
    if not name:
        return CheckResult(
            name="published", state=SKIP, text="site.published is not configured: users see their own runs only"
        )
    try:
        found = Path(name).stat()
    except OSError as error:
        return CheckResult(name="published", state=FAIL, text=f"{name}: {error.strerror}", hint=_PLAN)
    mode, owner = stat.S_IMODE(found.st_mode), context.slurm_user or "SlurmUser"
    fix = f"Run: chown {owner} {name}; chmod 0755 {name}"
    if found.st_uid not in _list_trusted_uids(context) or mode & 0o022:
        text = (
            f"{name} can be written by others ({_get_user_name(found.st_uid)}, mode {mode:04o}): gsub does not trust it"
        )
        return CheckResult(name="published", state=FAIL, text=text, hint=fix)
    if mode & 0o055 != 0o055:
        return CheckResult(
            name="published", state=FAIL, text=f"{name}: mode {mode:04o}, users cannot read it", hint=fix
        )
    return CheckResult(name="published", state=OK, text=name)


def check_switch(context: CheckContext) -> CheckResult:
    """Check whether an administrator switched slurmwrap off."""
    if not get_switch_directory(context.config):
        return CheckResult(name="switch", state=SKIP, text="no site is configured on this host")
    switch = read_site_switch(context.config)
    if switch is None:
        return CheckResult(name="switch", state=OK, text="slurmwrap is on")
    since = f"{_format_age(context.now - switch.at)} ago by {switch.describe()}"
    hint = "`slurmwrap on` switches it on again."
    return CheckResult(name="switch", state=WARN, text=f"slurmwrap was switched off {since}", hint=hint)


def check_reconciler(context: CheckContext) -> CheckResult:
    """Check when the reconciler last completed a pass: by its heartbeat, else by the time of the published file.

    Without both, check whether a process holds the lock of the site's database.
    """
    config = context.config.site
    if config.state_dir and (beat := last_beat(Path(config.state_dir))):
        return _judge_heartbeat(context.now - beat, "passed")
    if not config.published:
        return _check_reconciler_lock(context)
    path = Path(config.published) / FILE
    try:
        return _judge_heartbeat(context.now - path.stat().st_mtime, "published")
    except OSError as error:
        hint = "It publishes in its first pass: `systemctl start slurmwrap-reconcile`."
        return CheckResult(name="reconciler", state=FAIL, text=f"{path}: {error.strerror}", hint=hint)


def _judge_heartbeat(age: float, did: str) -> CheckResult:
    figures = {"reconciler_age_s": round(age)}
    if age < LATE_S:
        return CheckResult(name="reconciler", state=OK, text=f"it {did} {_format_age(age)} ago", figures=figures)
    hint = "`systemctl status slurmwrap-reconcile` on the controller; `slurmwrap reconcile --once` prints its errors."
    return CheckResult(
        name="reconciler", state=FAIL, text=f"it last {did} {_format_age(age)} ago", hint=hint, figures=figures
    )


def _check_reconciler_lock(context: CheckContext) -> CheckResult:
    database = context.site_database
    if database is None or not database.parent.is_dir():
        return CheckResult(name="reconciler", state=SKIP, text="no site is configured on this host")
    lock = database.with_suffix(".lock")
    inode = lock.stat().st_ino if lock.exists() else -1
    if any(line.split()[1:2] == ["FLOCK"] and f":{inode} " in line for line in _read_locks()):
        return CheckResult(name="reconciler", state=OK, text=f"it holds {lock}")
    hint = "`systemctl start slurmwrap-reconcile` on the controller."
    return CheckResult(
        name="reconciler", state=WARN, text="no reconciler runs now: no process holds the database's lock", hint=hint
    )


def _read_locks() -> list[str]:
    try:
        return Path("/proc/locks").read_text().splitlines()
    except OSError:
        return []


def check_night_report(context: CheckContext) -> CheckResult:
    """Check when the last night report was completed."""
    config = context.config
    directory = config.report.directory or (config.site.state_dir and f"{config.site.state_dir}/reports")
    if not directory:
        return CheckResult(name="night report", state=SKIP, text="no site is configured")
    if not os.access(Path(directory).parent, os.R_OK | os.X_OK):
        return CheckResult(name="night report", state=SKIP, text=explain_unreadable_path(Path(directory).parent))
    age = context.now - last_report(Path(directory))
    if age < REPORT_S:
        return CheckResult(
            name="night report", state=OK, text=f"the last one was made {_format_age(age)} ago, in {directory}"
        )
    created = _read_creation_time(context)
    if created and context.now - created < REPORT_S:
        return CheckResult(name="night report", state=OK, text="none yet: the site's records began today")
    hint = "`systemctl list-timers slurmwrap-report.timer`, then `journalctl -u slurmwrap-report`."
    text = (
        f"none was ever made in {directory}" if age >= context.now else f"the last one was made {_format_age(age)} ago"
    )
    return CheckResult(name="night report", state=WARN, text=text, hint=hint)


def _read_creation_time(context: CheckContext) -> float:
    """Return when the site's database was created, in Unix seconds; 0.0 if it cannot be read."""
    try:
        with (
            translate_sqlite_errors(path := context.site_database or Path()),
            closing(connect_readonly(path, busy_s=2.0)) as database,
        ):
            return float(database.execute("SELECT min(at) FROM migrations").fetchone()[0] or 0.0)
    except StoreError:
        return 0.0


def check_units(context: CheckContext) -> CheckResult:
    """Check systemd's state of slurmwrap's units, on the host that has site.state_dir."""
    state = context.config.site.state_dir
    if not state or not Path(state).is_dir():
        return CheckResult(name="units", state=SKIP, text="they belong on the controller")
    if not shutil.which("systemctl") or not Path("/run/systemd/system").is_dir():
        return CheckResult(name="units", state=SKIP, text="this host does not run systemd")
    states = {unit: _ask_systemd(unit) for unit in ENABLED}
    wrong = [f"{unit}: {state}" for unit, state in states.items() if state != "active"]
    if wrong:
        hint = (
            "`systemctl enable --now slurmwrap-reconcile.service slurmwrap-report.timer`; `hooks install` writes them."
        )
        return CheckResult(name="units", state=FAIL, text=", ".join(wrong), hint=hint)
    return CheckResult(name="units", state=OK, text=", ".join(ENABLED))


def _ask_systemd(unit: str) -> str:
    done = run(["systemctl", "is-active", unit], timeout_s=5.0)
    return done.stdout.decode("utf-8", "replace").strip() or "systemd does not answer"


def check_rules(context: CheckContext) -> CheckResult:
    """Check whether each rule with mode `act` is able to act."""
    acting = [rule for rule in RULES if context.config.mode_of(rule) == "act"]
    wrong = tuple(_list_rule_obstacles(context, acting))
    if wrong:
        return CheckResult(
            name="rules", state=WARN, text=f"{len(wrong)} problems with rules in mode act", details=wrong
        )
    text = f"act: {', '.join(acting)}" if acting else "none acts; all record and advise"
    return CheckResult(name="rules", state=OK, text=text, details=_list_disabled_gates(context, acting))


def _list_disabled_gates(context: CheckContext, acting: list[str]) -> tuple[str, ...]:
    """Return a remark if the rule `gate` acts but the hooks were built without the gate.

    The gate needs two switches: the rule permits it, and the hooks' own setting makes the Prolog ask.
    """
    settings = (find_hooks_directory(context) or Path("/nonexistent")) / "hooks.json"
    try:
        gate = json.loads(settings.read_text(encoding="utf-8")).get("gate")
    except (OSError, ValueError, AttributeError):
        return ()
    return (
        ("gate: the hooks were built with the gate off, so no Prolog asks",)
        if "gate" in acting and gate == "off"
        else ()
    )


def _list_rule_obstacles(context: CheckContext, acting: list[str]) -> Iterator[str]:
    config, slurm_user = context.config, context.setting("SlurmUser").partition("(")[0]
    configured = config.site.slurm_user
    if configured and slurm_user and configured not in (slurm_user, "root"):
        yield (
            f"site.slurm_user is {configured}, and Slurm's SlurmUser is {slurm_user}: "
            f"Slurm refuses requests of {configured}"
        )
    # Only a process of root can send a request as the job's owner, so that Slurm applies the owner's limits to it.
    limited = {"limits", "qos", "safe", "all"} & set(context.setting("AccountingStorageEnforce").split(","))
    if limited and configured not in ("", "root") and {"resize", "tune"} & set(acting):
        yield (
            "resize and tune: limits are enforced, and only a reconciler that runs as root asks in the owner's name "
            "(docs/hooks.md)"
        )
    if "gate" in acting and not config.site.published:
        yield "gate: site.published is empty, so no node can read its permit"
    state_dir = config.site.state_dir
    undone = " and ".join(rule for rule in ("order", "limit") if rule in acting)
    # Only on the controller: elsewhere there is no such directory, or it cannot be read.
    here = bool(state_dir) and os.access(state_dir, os.R_OK | os.X_OK)
    if undone and here and not is_watchdog_on_time(Path(state_dir), context.now):
        seen = last_watch(Path(state_dir))
        last = f"last ran {_format_age(context.now - seen)} ago" if seen else "never ran here"
        yield (
            f"{undone}: the watchdog, which undoes what they changed if the reconciler stops, {last}: "
            "`systemctl enable --now slurmwrap-watchdog.timer`"
        )


def check_log(context: CheckContext) -> CheckResult:
    """Check whether journald listens on this host if the log is sent to it."""
    wanted = context.config.log.to
    if wanted == "stderr":
        return CheckResult(name="log", state=OK, text="to stderr")
    there = Journal().is_there()
    if wanted == "journal" and not there:
        hint = 'log.to = "stderr", or start systemd-journald: until then it goes to stderr as text.'
        return CheckResult(
            name="log", state=WARN, text="log.to is journal, and no journald listens on this host", hint=hint
        )
    text = "to journald with fields" if there else "no journald on this host: to stderr"
    return CheckResult(name="log", state=OK, text=text if wanted == "journal" or not there else f"{text}, as a service")


def check_mail(context: CheckContext) -> CheckResult:
    """Check whether the mail server answers EHLO and NOOP. No mail is sent."""
    server = context.config.mail.server
    if not server:
        return CheckResult(name="mail", state=SKIP, text="mail.server is not configured: none is sent")
    host, _, port = server.rpartition(":") if ":" in server else (server, "", "25")
    try:
        with smtplib.SMTP(host, int(port), timeout=_MAIL_S) as connection:
            connection.ehlo_or_helo_if_needed()
            code, answer = connection.noop()
    except (OSError, ValueError, smtplib.SMTPException) as error:
        hint = "See mail.server; `slurmwrap config show mail.server` shows where it is set."
        return CheckResult(name="mail", state=FAIL, text=f"{server}: {error}", hint=hint)
    state = OK if code == 250 else WARN
    return CheckResult(name="mail", state=state, text=f"{server} answers: {code} {answer.decode('utf-8', 'replace')}")


def _format_age(seconds: float) -> str:
    for size, unit in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


_NAME = "metrics"
_MOST_PERIODS = 5  # the file may be older than metrics.every_s by this factor


def check_textfile(context: CheckContext) -> CheckResult:
    """Check that the reconciler can and does write metrics.textfile: prometheus_client, its directory, its age."""
    wanted = context.config.metrics.textfile
    if not wanted:
        return CheckResult(name=_NAME, state=SKIP, text="metrics.textfile is not configured")
    if importlib.util.find_spec("prometheus_client") is None:
        hint = "pip install 'slurmwrap[metrics]', or Debian's python3-prometheus-client."
        return CheckResult(
            name=_NAME, state=WARN, text="prometheus_client is not installed: nothing is written", hint=hint
        )
    path = Path(wanted)
    if not path.parent.is_dir():
        hint = f"Create it, writable by SlurmUser: install -d -o SLURMUSER {path.parent}"
        return CheckResult(name=_NAME, state=WARN, text=f"{path.parent} does not exist", hint=hint)
    try:
        age = context.now - path.stat().st_mtime
    except OSError as error:
        hint = "The reconciler's log has the reason: journalctl -u slurmwrap-reconcile"
        return CheckResult(name=_NAME, state=WARN, text=f"{path}: {os.strerror(error.errno or 0)}", hint=hint)
    if age > max(60.0, _MOST_PERIODS * context.config.metrics.every_s):
        hint = "Does the reconciler run, and was it started since the configuration changed?"
        return CheckResult(name=_NAME, state=WARN, text=f"{path} was written {age:.0f} s ago", hint=hint)
    return CheckResult(name=_NAME, state=OK, text=f"{path}, {max(0.0, age):.0f} s old")
