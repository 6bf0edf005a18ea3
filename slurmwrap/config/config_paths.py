"""Find the configuration files and the user's state directory, and check who may write them (adapter: stat, pwd)."""

from __future__ import annotations

import os
from collections.abc import Mapping

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

    from slurmwrap.config.config_defaults import Config


def find_site_file(environ: Mapping[str, str]) -> Path:
    """Return the path of the site's configuration file, which need not exist."""
    return _path_from_name(find_site_file_name(environ))


def find_user_file(environ: Mapping[str, str]) -> Path:
    """Return the path of the user's configuration file, which need not exist."""
    return _path_from_name(find_user_file_name(environ))


def find_user_state_dir(environ: Mapping[str, str]) -> Path:
    """Return the directory of the user's database, pre-run files and step counts ($XDG_STATE_HOME/slurmwrap)."""
    return _path_from_name(find_state_dir(environ))


def find_state_dir(environ: Mapping[str, str]) -> str:
    """Return the user's state directory as a string, for gsub: it avoids pathlib, whose import costs 4 ms."""
    return os.path.join(
        _read_absolute_path(environ, "XDG_STATE_HOME") or f"{_find_home(environ)}/.local/state", "slurmwrap"
    )


def find_site_file_name(environ: Mapping[str, str]) -> str:
    """Return the path of the site's configuration file as a string, for gsub."""
    return environ.get("SLURMWRAP_CONFIG") or "/etc/slurmwrap/config.toml"


def find_user_file_name(environ: Mapping[str, str]) -> str:
    """Return the path of the user's configuration file as a string, for gsub."""
    base = _read_absolute_path(environ, "XDG_CONFIG_HOME") or f"{_find_home(environ)}/.config"
    return os.path.join(base, "slurmwrap", "config.toml")


def _path_from_name(name: str) -> Path:
    from pathlib import Path

    return Path(name)


def _read_absolute_path(environ: Mapping[str, str], name: str) -> str:
    """Return the absolute path in a variable, or "" if the variable must not be used.

    It must not be used when it is not set, when the path is relative (its meaning would depend on the working
    directory), and, for root, when the directory belongs to another user (`sudo -E`): root must not trust the files
    of that user, and the user could not write to files that root created there.
    """
    value = environ.get(name, "")
    return value if value.startswith("/") and (os.geteuid() or not _find_owner(value)) else ""


def _find_owner(path: str) -> int:
    """Return the uid of the owner; 0 if the file does not exist yet."""
    try:
        return os.stat(path).st_uid
    except OSError:
        return 0


def _find_home(environ: Mapping[str, str]) -> str:
    """Return $HOME, else the home directory in the password database: cron, systemd and Slurm's hooks set no HOME."""
    if home := _read_absolute_path(environ, "HOME"):
        return home
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return "/nonexistent"


def find_other_writers(found: os.stat_result) -> str:
    """Return why someone other than root and this process's user may have written a file; "" if no one else can.

    Write access of root's group and of the owner's primary group is accepted: many systems give each user a group of
    their own, with a umask of 002.
    """
    if found.st_uid not in (0, os.geteuid()):
        return f"it belongs to uid {found.st_uid}"
    if found.st_mode & 0o002 or (found.st_mode & 0o020 and not _is_own_group(found.st_uid, found.st_gid)):
        return f"others may write it (mode {found.st_mode & 0o7777:04o})"
    return ""


def _is_own_group(uid: int, gid: int) -> bool:
    import pwd

    try:
        return gid in (0, pwd.getpwuid(uid).pw_gid)
    except KeyError:
        return False


def is_site_process(config: Config) -> bool:
    """Return whether this process runs as root or SlurmUser, which act on the jobs of other users.

    SlurmUser is the user of site.slurm_user, or the owner of site.state_dir.
    """
    import pwd

    if not os.geteuid():
        return True
    try:
        if config.site.slurm_user and pwd.getpwnam(config.site.slurm_user).pw_uid == os.geteuid():
            return True
    except KeyError:
        pass
    return bool(config.site.state_dir) and _find_owner(config.site.state_dir) == os.geteuid()
