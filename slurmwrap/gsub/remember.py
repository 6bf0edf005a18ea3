"""What is known of a job beforehand, and how it is kept afterwards."""

from __future__ import annotations

from collections.abc import Callable

from slurmwrap.fast_dataclasses import replace
from slurmwrap.profiling.profile_key import profile_key_of, published_key_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from slurmwrap.gsub.submit_context import SubmitContext
    from slurmwrap.model.resource_profile import ResourceProfile


def find_known_profile(key: str, desk: SubmitContext) -> ResourceProfile | None:
    """What is known under `key` for the user who submits."""
    return choose_profile(key, desk.uid, desk.memory.profile(key), desk.published.profiles)


def choose_profile(
    key: str, uid: int, own: ResourceProfile | None, published: Iterable[ResourceProfile]
) -> ResourceProfile | None:
    """The user's own, or the site's of the same user (a key is a user's claim): the one that rests on more runs."""
    site_key = published_key_of(profile_key_of(uid, key))
    known = [replace(p, key=key) for p in published if p.key == site_key] + ([own] if own else [])
    return max(known, key=lambda p: (p.runs, p.measured_at), default=None)


def keep(write: Callable[[], None], desk: SubmitContext) -> None:
    """What cannot be remembered (a full disk, no home) must not cost a job that Slurm already has."""
    try:
        write()
    except Exception as error:
        # Nor must a fault of slurmwrap's.
        desk.say(f"this is not remembered for `slurmwrap why`: {error}")
