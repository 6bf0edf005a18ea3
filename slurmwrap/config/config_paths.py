"""Where the configuration and the user's state lie, and whose files are believed. Edge: stat of those files."""

from __future__ import annotations

import os
from collections.abc import Mapping

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

    from slurmwrap.config.config_sections import Config


def find_site_file(environ: Mapping[str, str]) -> Path:
    """The site's configuration file, which need not exist."""
    return _make_path(name_of_site_file(environ))


def find_user_file(environ: Mapping[str, str]) -> Path:
    """The user's configuration file, which need not exist."""
    return _make_path(name_of_user_file(environ))


def find_user_state_dir(environ: Mapping[str, str]) -> Path:
    """The user's own state: database, pre-runs' files, step counts ($XDG_STATE_HOME/slurmwrap)."""
    return _make_path(find_state_dir(environ))


def find_state_dir(environ: Mapping[str, str]) -> str:
    """The same for gsub, which does without pathlib: its import costs 4 ms."""
    return os.path.join(
        _read_absolute_path(environ, "XDG_STATE_HOME") or f"{_find_home(environ)}/.local/state", "slurmwrap"
    )


def name_of_site_file(environ: Mapping[str, str]) -> str:
    """The same for gsub."""
    return environ.get("SLURMWRAP_CONFIG") or "/etc/slurmwrap/config.toml"


def name_of_user_file(environ: Mapping[str, str]) -> str:
    """The same for gsub."""
    base = _read_absolute_path(environ, "XDG_CONFIG_HOME") or f"{_find_home(environ)}/.config"
    return os.path.join(base, "slurmwrap", "config.toml")


def _make_path(name: str) -> Path:
    from pathlib import Path

    return Path(name)


def _read_absolute_path(environ: Mapping[str, str], name: str) -> str:
    """ "" for what is not set, for a relative path, which would mean another place in each directory, and as root for
    another user's directory (`sudo -E`): their files are not to be believed, and they could not write to ours there."""
    value = environ.get(name, "")
    return value if value.startswith("/") and (os.geteuid() or not _find_owner(value)) else ""


def _find_owner(path: str) -> int:
    """0 too for what is not there yet."""
    try:
        return os.stat(path).st_uid
    except OSError:
        return 0


def _find_home(environ: Mapping[str, str]) -> str:
    """$HOME, else what the password database says: cron, systemd and Slurm's hooks set none."""
    if home := _read_absolute_path(environ, "HOME"):
        return home
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return "/nonexistent"


def find_other_writers(found: os.stat_result) -> str:
    """Why someone else than root and ourselves may have written a file. A group that is the owner's own (many systems
    give each user one, with a umask of 002) and root's are not someone else."""
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
    """Whether this process is root's or SlurmUser's, who act on other people's jobs."""
    import pwd

    if not os.geteuid():
        return True
    try:
        if config.site.slurm_user and pwd.getpwnam(config.site.slurm_user).pw_uid == os.geteuid():
            return True
    except KeyError:
        pass
    return bool(config.site.state_dir) and _find_owner(config.site.state_dir) == os.geteuid()
