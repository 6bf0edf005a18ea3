"""Access to resource profiles for `slurmwrap profile`: the user's own database or the site's (adapter)."""

from __future__ import annotations

import os
import pwd
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from slurmwrap.cli.record_access import find_record_source
from slurmwrap.config import load_config as configuration
from slurmwrap.config.load_config import Config, find_user_state_dir, load
from slurmwrap.console import Console
from slurmwrap.errors import PrerunFailed, PrerunInconclusive, RefusedError, SlurmwrapError, UsageError
from slurmwrap.fast_dataclasses import dataclass, replace
from slurmwrap.gsub import process_env, submit
from slurmwrap.gsub.planning_inputs import choose_profile, find_known_profile
from slurmwrap.gsub.prerun_submission import run_prerun_first
from slurmwrap.gsub.user_state import touch
from slurmwrap.model.resource_profile import ResourceProfile, RunSpeed
from slurmwrap.model.verdict import Outcome
from slurmwrap.nearest_name import find_nearest_few
from slurmwrap.profiling.job_key import derive_site_key
from slurmwrap.sbatch.parse_request import parse_request
from slurmwrap.sbatch.passthrough import find_passthrough_reason, find_prerun_reason
from slurmwrap.store.database import Database, ProfileUse
from slurmwrap.store.published_files import list_trusted_uids, read_published
from slurmwrap.store.user_state_files import UserState

LAST = "last"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileStore:
    """The profiles of one database, which need not exist yet. `published`: the site's, in addition to a user's own."""

    database: Path
    site: bool
    uid: int = -1
    published: tuple[ResourceProfile, ...] = ()

    def profiles(self) -> tuple[ResourceProfile, ...]:
        """Return all profiles that gsub would find, by key: the better one of the user's own and the site's."""
        own = {one.key: one for one in self.stored()}
        if not self.published:
            return tuple(own.values())
        keys = sorted({*own, *(use.key for use in self.uses().values() if use.uid == self.uid)})
        found = (choose_profile(key, self.uid, own.get(key), self.published) for key in keys)
        return tuple(one for one in found if one is not None)

    def stored(self) -> tuple[ResourceProfile, ...]:
        """Return the profiles in this database, by key."""
        if not self.database.exists():
            return ()
        with Database.open(self.database, readonly=True) as database:
            return database.profiles()

    def uses(self) -> Mapping[str, ProfileUse]:
        """Return the last use of each profile, with its script, by key."""
        if not self.database.exists():
            return {}
        with Database.open(self.database, readonly=True) as database:
            found = database.profile_uses()
        return {derive_site_key(use.uid, use.key) if self.site else use.key: use for use in found}

    def list_speeds(self, key: str) -> tuple[RunSpeed, ...]:
        """Return the speeds of runs of the script that used this key last: other numbers of GPUs have other keys."""
        uses = self.uses()
        own = uses.get(key)
        return tuple(
            speed
            for one in self.profiles()
            if one.key == key or (own is not None and _is_same_script(uses.get(one.key), own))
            for speed in one.speeds
        )

    def find(self, name: str) -> ResourceProfile:
        """Return the profile with this key, or with a key that begins so, or for "last" the newest measured one.

        Raise UsageError, which names similar keys, if there is none or the beginning is ambiguous.
        """
        known = self.profiles()
        exact = [one for one in known if one.key == name]
        if exact:
            return exact[0]
        if name == LAST and known:
            return max(known, key=lambda one: (one.source != "import", one.measured_at))
        matching = [one for one in known if name and self._strip_uid(one.key).startswith(name)]
        if len(matching) == 1:
            return matching[0]
        if matching:
            shown = ", ".join(one.key for one in matching[:4]) + (", …" if len(matching) > 4 else "")
            raise UsageError(f"{len(matching)} keys begin with '{name}': {shown}", hint="give more of it", exit_code=1)
        raise self._make_unknown_key_error(name, known)

    def find_exact(self, key: str) -> ResourceProfile:
        """Return the profile with this complete key in this database. Raise UsageError if there is none."""
        known = self.stored()
        found = next((one for one in known if one.key == key), None)
        if found is None:
            raise self._make_unknown_key_error(key, known)
        return found

    def keep(self, profiles: Sequence[ResourceProfile]) -> None:
        """Save the profiles in one transaction: all of them or none."""
        self.database.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with Database.open(self.database) as database, database.transaction():
            for one in profiles:
                database.save_profile(one)

    def forget(self, key: str) -> None:
        """Delete a profile and its measurements."""
        with Database.open(self.database) as database:
            database.forget_profile(key)

    def assign_owner(self, profiles: Sequence[ResourceProfile], user: str) -> list[ResourceProfile]:
        """Return `profiles` with the keys that this database uses: keys of the site's database begin with a uid.

        Raise UsageError if the owner is needed and not given, or unknown.
        """
        if not self.site:
            return list(profiles)
        if not user:
            if any(not one.key.partition(":")[0].isdecimal() for one in profiles):
                raise UsageError("the profiles have no owner", hint="name the user: --user NAME")
            return list(profiles)
        try:
            uid = pwd.getpwnam(user).pw_uid
        except KeyError:
            raise UsageError(f"--user: there is no user '{user}'") from None
        return [replace(one, key=derive_site_key(uid, one.key)) for one in profiles]

    def _strip_uid(self, key: str) -> str:
        return key.partition(":")[2] or key if self.site else key

    def _make_unknown_key_error(self, name: str, known: Sequence[ResourceProfile]) -> UsageError:
        if not known:
            return UsageError(f"there is no profile '{name}': none is known yet", exit_code=1)
        near = find_nearest_few(name, [one.key for one in known], 3, 0.5)
        near = near or [one.key for one in known if name and name.lower() in one.key.lower()][:3]
        hint = f"did you mean {' or '.join(near)}?" if near else "slurmwrap profile list"
        return UsageError(f"there is no profile '{name}'", hint=hint, exit_code=1)


def _is_same_script(use: ProfileUse | None, other: ProfileUse) -> bool:
    return use is not None and (use.uid, use.script) == (other.uid, other.script)


def open_profile_store(site: bool, environ: Mapping[str, str]) -> ProfileStore:
    """Open the user's own profiles, or with `site` the site's. Raise RefusedError if the user may not read those."""
    if not site:
        return _open_own_store(load(environ), environ)
    place = find_record_source(load(environ), environ, os.geteuid())
    if not place.site:
        raise RefusedError(
            "--site is for root and SlurmUser where site.state_dir is configured",
            hint="without --site you see your own profiles",
        )
    return ProfileStore(database=place.database, site=True)


def _open_own_store(config: Config, environ: Mapping[str, str]) -> ProfileStore:
    published: tuple[ResourceProfile, ...] = ()
    if config.site.published:
        found = read_published(config.site.published, list_trusted_uids(config))
        published = found.profiles if found is not None else ()
    database = UserState(find_user_state_dir(environ)).database
    return ProfileStore(database=database, site=False, uid=os.geteuid(), published=published)


def read_new_measurements(environ: Mapping[str, str], console: Console) -> None:
    """Ingest records of the last calls and pre-runs. If the cluster does not answer, only the newest are missing."""
    state = UserState(find_user_state_dir(environ))
    mark = state.directory / "unread"
    if not mark.exists():
        if not any(state.spool.glob("*.obs")):
            return
        # Without the mark, records of submissions without a pre-run would not be read before the next pre-run.
        with suppress(OSError):
            touch(str(mark))
    from slurmwrap.gsub import submit

    try:
        submit.open_submit_context(load(environ), environ, console)
    except (SlurmwrapError, OSError) as error:
        console.say(f"the measurements of the last pre-runs are not included yet: {error}")


def derive_script_key(path: Path) -> str:
    """Return the profile key that gsub would use for this script if it were submitted from the working directory."""
    from slurmwrap.gsub import submit
    from slurmwrap.profiling.job_key import derive_key
    from slurmwrap.sbatch.parse_request import parse_request

    environ = dict(os.environ)
    request = parse_request(
        [str(path)],
        environ=environ,
        cwd=str(Path.cwd()),
        read_script=lambda name: Path(name).read_bytes(),
        read_stdin=lambda: b"",
    )
    context = submit.open_submit_context(load(environ), environ, Console.of_terminal("slurmwrap"))
    program = next(iter(context.trials.entry_files(request)), request.script.name)
    return request.own.resource_profile or derive_key(request, program, request.shape.gpu_type or "")


# Exit codes of `slurmwrap profile measure`, as of gsub --prerun=only.
_EXIT_CODES = {
    Outcome.PASS: 0,
    Outcome.FAIL: PrerunFailed.exit_code,
    Outcome.INCONCLUSIVE: PrerunInconclusive.exit_code,
}


def measure_profile(words: Sequence[str], seconds: float, console: Console) -> tuple[ResourceProfile | None, int]:
    """Run only the job's pre-run, followed by the CPU curve. `words`: sbatch's arguments; `seconds`: for the curve.

    Return the profile that is now known (None if none), and the exit code as of gsub --prerun=only.
    """
    environ = dict(os.environ)
    request = parse_request(
        list(words),
        environ=environ,
        cwd=str(Path.cwd()),
        read_script=lambda path: Path(path).read_bytes(),
        read_stdin=sys.stdin.buffer.read,
    )
    reason = find_prerun_reason(environ) or find_passthrough_reason(request, at_terminal=process_env.is_at_terminal())
    if reason is not None:
        raise PrerunInconclusive(f"nothing can be measured: {reason}")
    request = replace(request, own=replace(request.own, prerun="only", json=False))
    context = submit.open_submit_context(configuration.load(environ), environ, console)
    prepared = replace(submit.prepare_and_warn(request, context, console), profile_s=seconds)
    verdict = run_prerun_first(prepared, context, console)
    console.say(f"{verdict.outcome.value}: {verdict.reason}")
    submit.refresh(context, console)
    return find_known_profile(prepared.profile_key, context), _EXIT_CODES[verdict.outcome]
