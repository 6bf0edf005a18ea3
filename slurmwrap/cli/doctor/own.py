"""Checks of slurmwrap itself: configuration, the user's database, the site's folders."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from slurmwrap.cli.completion import MARK, Shell, place_of
from slurmwrap.cli.doctor.check import FAIL, OK, SKIP, WARN, Check, Ground
from slurmwrap.config import site_file, user_file, user_state_dir
from slurmwrap.errors import StoreError
from slurmwrap.slurm.kept import folder_of, is_ours_alone
from slurmwrap.store.database import Database
from slurmwrap.store.userstate import DATABASE

_ASKED = "Until then each gsub asks Slurm by itself."
_FOR_ALL = {  # where administrators put it
    "bash": ("/usr/share/bash-completion/completions/gsub", "/etc/bash_completion.d/gsub"),
    "zsh": ("/usr/local/share/zsh/site-functions/_gsub", "/usr/share/zsh/site-functions/_gsub"),
    "fish": ("/usr/share/fish/vendor_completions.d/gsub.fish", "/etc/fish/completions/gsub.fish"),
}


def configuration(ground: Ground) -> Check:
    """Which files were read; what is wrong with them was said before any check."""
    read = [str(path) for path in (site_file(ground.environ), user_file(ground.environ)) if path.exists()]
    return Check(name="configuration", state=OK, text=", ".join(read) or "defaults: there is no file")


def database(ground: Ground) -> Check:
    """The database that this user's commands read."""
    site = ground.config.site.state_dir
    path = Path(site) / "site.db" if site and os.access(site, os.W_OK) else user_state_dir(ground.environ) / DATABASE
    if not path.exists():
        return Check(name="database", state=OK, text=f"{path}: begins with the first reconcile")
    try:
        with Database.open(path, readonly=True) as store:
            blocked = len(store.blocked_inputs())
    except StoreError as error:
        return Check(name="database", state=FAIL, text=str(error), hint=error.hint)
    return Check(name="database", state=OK, text=f"{path}: healthy, {blocked} blocked inputs")


def state_dir(ground: Ground) -> Check:
    """Where this user's own records go: on a network file system SQLite's locks may not hold."""
    path = user_state_dir(ground.environ)
    there = next(one for one in (path, *path.parents) if one.exists())
    if not os.access(there, os.W_OK):
        hint = "Set XDG_STATE_HOME to a directory that you may write to. gsub submits all the same."
        return Check(name="state", state=WARN, text=f"{there} cannot be written to", hint=hint)
    return Check(name="state", state=OK, text=str(path))


def answers(ground: Ground) -> Check:
    """Where gsub keeps Slurm's answers for some seconds: only a directory that is this user's alone is believed."""
    try:
        folder = folder_of(ground.environ, ground.uid)
        found = os.lstat(folder)  # a link is none
    except FileNotFoundError:
        return Check(name="kept answers", state=OK, text="none yet: the first gsub makes a private directory")
    except OSError as error:
        return Check(name="kept answers", state=WARN, text=str(error), hint=_ASKED)
    if not stat.S_ISDIR(found.st_mode) or not is_ours_alone(found, ground.uid):
        hint = f"Remove it, or ask uid {found.st_uid} about it. {_ASKED}"
        return Check(name="kept answers", state=WARN, text=f"{folder} is not this user's alone", hint=hint)
    return Check(name="kept answers", state=OK, text=folder)


def completion(ground: Ground) -> Check:
    """Whether this user's shell completes gsub by our file."""
    name = Path(ground.environ.get("SHELL", "")).name
    if name not in {shell.value for shell in Shell}:
        return Check(name="completion", state=SKIP, text=f"the shell is {name or 'not known'}")
    place = place_of(Shell(name), ground.environ)
    own = place.directory / place.names["gsub"]
    files = (own, *(Path(one) for one in _FOR_ALL.get(name, ())))
    ours = [path for path in files if path.is_file() and MARK in path.read_text(encoding="utf-8", errors="replace")]
    if not ours:
        hint = f"`slurmwrap completion {name} --install` completes gsub's options, partitions, nodes on TAB."
        return Check(name="completion", state=OK, text=f"{name}: not installed", hint=hint)
    return Check(name="completion", state=OK, text=f"{name}: {ours[0]}")


def site(ground: Ground) -> Check:
    """The folders that an administrator made."""
    wanted = {"spool": ground.config.site.spool, "published": ground.config.site.published}
    named = {key: path for key, path in wanted.items() if path}
    if not named:
        return Check(name="site", state=SKIP, text="not configured: everybody's own jobs only")
    missing = [f"site.{key}: {path}" for key, path in named.items() if not Path(path).is_dir()]
    if missing:
        hint = "`slurmwrap hooks plan` says which directories there must be, whose and with which modes."
        return Check(name="site", state=FAIL, text=f"no directory: {', '.join(missing)}", hint=hint)
    return Check(name="site", state=OK, text=", ".join(f"{key} {path}" for key, path in named.items()))
