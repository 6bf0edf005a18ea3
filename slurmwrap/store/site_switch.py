"""The file with which an administrator switches slurmwrap off for a site (`slurmwrap off`). Standard library only.

DIRECTORY/off.json, in site.published, so that gsub on every login node sees it; in site.state_dir where nothing is
published. It counts only if root or SlurmUser owns it and its directory, as everything that the site publishes.
"""

from __future__ import annotations

import json
import os

from slurmwrap.errors import StoreError
from slurmwrap.fast_dataclasses import asdict, dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slurmwrap.config.load_config import Config

SWITCH_FILE = "off.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteSwitch:
    """Since when slurmwrap is off, in Unix seconds, by whom and why."""

    at: float
    by: str = ""
    note: str = ""

    def describe(self) -> str:
        """Return who switched it off, for people: "root: upgrade of Slurm"."""
        return f"{self.by}: {self.note}" if self.note else self.by


def get_switch_directory(config: Config) -> str:
    """Return the directory of the file; "" if no site is configured."""
    return config.site.published or config.site.state_dir


def read_site_switch(config: Config) -> SiteSwitch | None:
    """Return the switch if slurmwrap is off; None if it is on, or no trusted file says otherwise."""
    directory = get_switch_directory(config)
    # One call of the operating system for each gsub at a site where slurmwrap is on.
    if not directory or not os.path.lexists(os.path.join(directory, SWITCH_FILE)):
        return None
    from slurmwrap.store.published_files import list_trusted_uids, read_trusted

    content = read_trusted(directory, SWITCH_FILE, list_trusted_uids(config))
    if content is None:
        return None
    try:
        plain = json.loads(content)
        return SiteSwitch(at=float(plain["at"]), by=str(plain["by"]), note=str(plain["note"]))
    except (ValueError, TypeError, KeyError, RecursionError):
        # Whoever may write it meant to switch slurmwrap off.
        return SiteSwitch(at=0.0, by="someone", note=f"{SWITCH_FILE} cannot be read")


def write_site_switch(directory: str, switch: SiteSwitch) -> None:
    """Switch slurmwrap off. StoreError if the file cannot be written."""
    from pathlib import Path

    from slurmwrap.store.atomic_write import replace_file

    path = Path(directory, SWITCH_FILE)
    try:
        replace_file(path, json.dumps(asdict(switch)).encode("ascii"), 0o644)
    except OSError as error:
        raise StoreError(f"slurmwrap stays on: {path}: {error.strerror or error}", hint=_HINT) from error


def remove_site_switch(directory: str) -> None:
    """Switch slurmwrap on again. StoreError if the file cannot be removed."""
    from pathlib import Path

    path = Path(directory, SWITCH_FILE)
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(f"slurmwrap stays off: {path}: {error.strerror or error}", hint=_HINT) from error


_HINT = "Run it as root or SlurmUser, on a host that may write site.published."
