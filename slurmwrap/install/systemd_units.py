"""Render systemd's units for the controller: reconciler, night report, watchdog. Pure, except for reading templates."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurmwrap.package_files import make_template_environment

if TYPE_CHECKING:
    from slurmwrap.install.install_target import InstallTarget

ENABLED = ("slurmwrap-reconcile.service", "slurmwrap-report.timer", "slurmwrap-watchdog.timer")
STAMPS = (Path("/var/lib/systemd/timers/stamp-slurmwrap-report.timer"),)  # of Persistent=, systemd.timer(5)
PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")  # systemd's own
_HIDDEN = ("/tmp", "/var/tmp")  # by PrivateTmp=


def rendered(target: InstallTarget, configured: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return (file name, text) of all units, sorted by name. `configured`: the site's configuration, for its paths."""
    environment = make_template_environment("hooks")
    writable = _writable(target, configured)
    paths = (*writable, target.config, target.slurm_conf, target.munge_socket, target.command)
    values = {
        "wanted": target,
        "root": target.slurm_user == "root",
        "conf": "" if target.slurm_conf == "/etc/slurm/slurm.conf" else target.slurm_conf,
        "path": ":".join((_escaped(target.slurm_bin), *PATH)) if target.slurm_bin else "",
        "writable": " ".join(f"-{_escaped(path)}" for path in writable),
        "private_tmp": not any(path.startswith(f"{hidden}/") for path in paths for hidden in _HIDDEN),
    }
    names = sorted(environment.list_templates(extensions=["j2"]))
    units = {name.removesuffix(".j2"): environment.get_template(name) for name in names}
    return tuple((name, template.render(values, name=name)) for name, template in units.items())


def _writable(target: InstallTarget, configured: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the directories to which the services write: the installation's and those in the site's configuration."""
    found = [target.spool, target.published, target.state_dir]
    textfile = _named(configured, "metrics", "textfile")
    found += [str(Path(textfile).parent)] if textfile.startswith("/") else []
    reports = _named(configured, "report", "directory")
    found += [reports] if reports.startswith("/") else []
    return tuple(dict.fromkeys(found))


def _named(configured: Mapping[str, Any], section: str, key: str) -> str:
    table = configured.get(section, {})
    value = table.get(key, "") if isinstance(table, Mapping) else ""
    return value if isinstance(value, str) else ""


def _escaped(path: str) -> str:
    """Return a path as an item of ReadWritePaths= (systemd.syntax(7)): blanks and quotes are escaped, % is doubled."""
    return "".join(f"\\x{ord(c):02x}" if c in " \t\"'\\" else c for c in path).replace("%", "%%")
