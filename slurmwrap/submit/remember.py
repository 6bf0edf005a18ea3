"""What is known of a job beforehand, and how it is kept afterwards."""

from __future__ import annotations

from collections.abc import Callable

from slurmwrap.profiling.key import profile_key_of, published_key_of
from slurmwrap.records import replace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slurmwrap.profiling.profile import ResourceProfile
    from slurmwrap.submit.desk import Desk


def known_profile(key: str, desk: Desk) -> ResourceProfile | None:
    """The user's own, or the site's of the same user (a key is a user's word): the one that rests on more runs."""
    site_key = published_key_of(profile_key_of(desk.uid, key))
    found = [p for p in desk.published.profiles if p.key == site_key]
    own = desk.memory.profile(key)
    known = [replace(p, key=key) for p in found] + ([own] if own else [])
    return max(known, key=lambda p: (p.runs, p.measured_at), default=None)


def keep(write: Callable[[], None], desk: Desk) -> None:
    """What cannot be remembered (a full disk, no home) must not cost a job that Slurm already has."""
    try:
        write()
    except Exception as error:  # nor must a fault of ours
        desk.say(f"this is not remembered for `slurmwrap why`: {error}")
