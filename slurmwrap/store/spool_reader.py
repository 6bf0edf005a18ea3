"""Edge: the spool, where observations arrive. Anyone may write into the shared one: nothing in it is believed at once.

A file is opened without following links and without blocking, must be regular and small, must be a MUNGE credential,
and its maker must be one who can know what it says. Everything else comes back as RejectedEntry with the reason.
"""

from __future__ import annotations

import json
import os
import re
import socket
import stat
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from slurmwrap.errors import StoreError
from slurmwrap.escape import visible
from slurmwrap.fast_dataclasses import replace
from slurmwrap.host import munge
from slurmwrap.model.observation import Context, Observation, RejectedEntry, SpoolEntry
from slurmwrap.node_hooks import epilog_slurmctld, hook_environment
from slurmwrap.store.spool_writer import VERSION

if TYPE_CHECKING:
    from slurmwrap.host.munge import Decoded
    from slurmwrap.model.observation import Observation


# Turns the JSON of a spool file, and the shim's record of EpilogSlurmctld, into an observation.
_LEVELS, _TOO_DEEP = 64, "it nests too deeply"
_NONCE = re.compile(r"[0-9a-f]{32}\Z")
_UUID = re.compile(r"-([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\.env\Z")


class UntrustedRecord(Exception):
    """Why a file is rejected."""


def parse(payload: bytes) -> Observation:
    """An Observation from leave.serialize's JSON. Raises Unbelieved for anything else; `uid` is -1."""
    try:
        plain = json.loads(payload, parse_constant=_reject_constant)
        if b"\\u" in payload or not payload.isascii():
            # Half a surrogate pair fits into no database.
            json.dumps(plain, ensure_ascii=False).encode()
        return _check_observation(plain)
    except RecursionError:
        raise UntrustedRecord(_TOO_DEEP) from None
    except (ValueError, KeyError, TypeError) as error:
        raise UntrustedRecord(f"it is not an observation: {make_printable(str(error))}") from None


def _check_observation(plain: Any) -> Observation:
    if type(plain) is not dict or plain["version"] != VERSION:
        raise ValueError("unknown version")
    if not _NONCE.match(plain["nonce"]):
        raise ValueError("no nonce")
    if type(plain["job_id"]) is not int or not 0 < plain["job_id"] < 1 << 32:
        raise ValueError("no job id")
    if type(plain["at"]) not in (int, float) or not 0 <= plain["at"] < 1 << 40:
        raise ValueError("no time")
    if type(plain["facts"]) is not dict or type(plain["cluster"]) is not str or type(plain["node"]) is not str:
        raise ValueError("facts, cluster or node is of another kind")
    if _is_deeper(plain["facts"], _LEVELS):
        raise UntrustedRecord(_TOO_DEEP)
    return Observation(
        nonce=plain["nonce"],
        cluster=plain["cluster"],
        job_id=plain["job_id"],
        context=Context(plain["context"]),
        at=float(plain["at"]),
        node=plain["node"],
        facts=plain["facts"],
    )


def _is_deeper(plain: Any, levels: int) -> bool:
    """Whether lists and objects nest deeper than this. What json can read, later steps could not all walk through:
    one user's file would end every pass."""
    inside = plain.values() if type(plain) is dict else plain
    return not levels or any(_is_deeper(one, levels - 1) for one in inside if type(one) in (dict, list))


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


def parse_environment(environ: dict[bytes, bytes], name: str, data: bytes, written: float) -> Observation:
    """What file `name`, written at Unix time `written`, records; its nonce is in the name. Raises Unbelieved."""
    unique = _UUID.search(name)
    job_id = hook_environment.number(environ, "SLURM_JOB_ID")
    if job_id is None:
        raise UntrustedRecord("the record names no job")
    return Observation(
        nonce=unique[1].replace("-", "") if unique else sha256(name.encode() + data).hexdigest()[:32],
        cluster=hook_environment.text(environ, "SLURM_CLUSTER_NAME"),
        job_id=job_id,
        context=Context.EPILOG_SLURMCTLD,
        at=written,
        facts=epilog_slurmctld.facts(environ),
    )


def make_printable(text: str) -> str:
    """A user's text on one line of bounded length, for tables and terminals."""
    return visible(text[:200])[:200]


# Turns an unsealed observation and MUNGE's statement on its maker into "believed" or the reason why not.
#
# Asks the resolver for the addresses of NodeAddr names; nothing else leaves this module.
_OF_NODES = (Context.PROLOG, Context.EPILOG)
_OF_USERS = (Context.SUBMIT, Context.PRERUN)


class Senders:
    """Who may say what, for the length of one collect: node hooks are root on that very node, users are users."""

    def __init__(self, node_addresses: Callable[[], Mapping[str, str]], trusted: Collection[int]) -> None:
        self._ask = node_addresses
        self._trusted = trusted
        self._by_node: Mapping[str, str] | None = None
        self._resolved: dict[str, frozenset[str]] = {}

    def refusal(self, found: Observation, sealed: Decoded) -> str:
        """Why `found` is not believed; "" when it is."""
        if found.context in _OF_USERS:
            # About their own job only, which reconcile checks against Slurm's record.
            return ""
        if found.context not in _OF_NODES:
            return f"context {found.context.value} does not arrive here"
        if sealed.uid not in self._trusted:
            return f"uid {sealed.uid} cannot speak for a node"
        return self._find_sender_fault(found.node, sealed.encode_host)

    def _find_sender_fault(self, node: str, host: str) -> str:
        if self._by_node is None:
            self._by_node = self._ask()
        address = self._by_node.get(node)
        if address is None:
            return "it is about a node that Slurm does not know"
        if host == address or host in self._resolve_addresses(address):
            return ""
        return f"it was sealed on {host}, and node {node} is {address} (munged --origin sets the former)"

    def _resolve_addresses(self, name: str) -> frozenset[str]:
        if name not in self._resolved:
            try:
                found = socket.getaddrinfo(name, None, socket.AF_INET)
            except OSError:
                found = []
            self._resolved[name] = frozenset(str(entry[4][0]) for entry in found)
        return self._resolved[name]


T = TypeVar("T")
U = TypeVar("U")
MAX_BYTES = 1 << 20
# Of a file that no trusted owner wrote: parsed JSON takes up to 25 times its text.
USER_BYTES = 1 << 17
# Looked at in one collect: listing must end even if someone fills the directory.
MAX_ENTRIES = 200_000
MAX_REJECTED = 1000
ROOT_SHARE = 8  # files of trusted owners that are read for each file of any other user
USER_SHARE = 1000  # files of one other user that are read in one collect: the rest of a flood waits for the next
LEFT_BEHIND_S = 3600.0  # a file still aside after this long has lost its writer
WHOLE_S = 60.0  # the same for the EpilogSlurmctld shim, whose deadline is 10 s
REJECTED = "rejected"
# Files that are opened together, and how many of them at a time.
_AT_ONCE, _THREADS = 64, 4
_NAME = re.compile(r"\d{1,20}-[A-Za-z0-9._-]{1,255}-[0-9a-f]{32}\.obs\Z")


class _Unfinished(Exception):
    """A file that its writer has not finished yet."""


class SealedSpool:
    """The spool shared by nodes, users and the controller (mode 1733), as its owner or root reads it."""

    def __init__(
        self,
        directory: Path | str,
        socket: str,
        node_addresses: Callable[[], Mapping[str, str]],
        trusted_uids: Collection[int],
        cluster: str,
    ) -> None:
        """`node_addresses`: NodeName -> NodeAddr, asked once per collect. `trusted_uids`: root and SlurmUser."""
        self._directory = Path(directory)
        self._socket = socket
        self._node_addresses = node_addresses
        self._trusted = frozenset(trusted_uids)
        self._cluster = cluster
        # What cannot be removed is reported once.
        self._stuck: set[str] = set()

    def collect(self, limit: int = 1000) -> Iterator[SpoolEntry]:
        """Complete files, oldest first for each owner, owners in turn. StoreError when munged does not answer.

        The directory is listed once; what comes later is for the next collect.
        """
        senders = Senders(self._node_addresses, self._trusted)
        with _open_directory(self._directory) as folder:
            waiting = (entry for entry in _list_entries(folder.descriptor, skip=self._stuck))
            chosen = islice(_order_fairly(waiting, self._trusted, USER_SHARE), limit)
            while several := list(islice(chosen, _AT_ONCE)):
                opened = _run_in_threads(lambda one: self._open_sealed(folder.descriptor, *one), several)
                for (name, uid), found in zip(several, opened, strict=True):
                    if found is not None:
                        yield SpoolEntry(name=name, item=self._make_entry(name, uid, found, senders))

    def _open_sealed(self, folder: int, name: str, uid: int) -> munge.Decoded | UntrustedRecord | None:
        """What was sealed, or why it is not believed; None: its writer has not finished it."""
        try:
            return self._unseal_file(folder, name, uid)
        except _Unfinished:
            return None
        except UntrustedRecord as reason:
            return reason

    def _make_entry(
        self, name: str, uid: int, found: munge.Decoded | UntrustedRecord, senders: Senders
    ) -> Observation | RejectedEntry:
        try:
            if isinstance(found, UntrustedRecord):
                raise found
            return self._make_observation(found, senders)
        except UntrustedRecord as reason:
            return _set_aside(name, str(reason), uid)

    def _unseal_file(self, folder: int, name: str, uid: int) -> munge.Decoded:
        limit = MAX_BYTES if uid in self._trusted else USER_BYTES
        data = _read(folder, name, aside=name.startswith("."), limit=limit)
        if not _NAME.match(name):
            raise UntrustedRecord("its name is not one of ours")
        if not data.startswith(b"MUNGE:"):
            raise UntrustedRecord("it is not a MUNGE credential")
        try:
            return munge.decode(data, socket=self._socket)
        except munge.BadCredential as error:
            raise UntrustedRecord(str(error)) from None

    def _make_observation(self, sealed: munge.Decoded, senders: Senders) -> Observation:
        found = parse(sealed.payload)
        if found.cluster != self._cluster:
            raise UntrustedRecord(f"it is about cluster {make_printable(found.cluster)}")
        if refusal := senders.refusal(found, sealed):
            raise UntrustedRecord(refusal)
        # No one can use up the nonce of another's observation.
        if sealed.uid not in self._trusted:
            found = replace(found, nonce=f"{sealed.uid}-{found.nonce}")
        return replace(found, uid=sealed.uid)

    def discard(self, collected: Sequence[SpoolEntry]) -> None:
        """Removes what is stored, keeps the newest thousand of what was rejected in `rejected/`."""
        with _open_directory(self._directory) as folder:
            for one in collected:
                if not _remove(folder.descriptor, one.name, keep=isinstance(one.item, RejectedEntry)):
                    self._stuck.add(one.name)


class PlainSpool:
    """A private directory: the controller hooks' records, or a user's own spool. Its ownership is the seal."""

    def __init__(self, directory: Path | str, trusted_uids: Collection[int] = ()) -> None:
        """`trusted_uids` may own the directory next to root and ourselves."""
        self._directory = Path(directory)
        self._owners = frozenset({0, os.geteuid(), *trusted_uids})

    def collect(self, limit: int = 1000) -> Iterator[SpoolEntry]:
        """Complete files, oldest first; nothing where there is no directory. StoreError when others may write it."""
        if not self._directory.exists():
            return
        with _open_directory(self._directory) as folder:
            self._reject_shared_directory(os.fstat(folder.descriptor))
            found = (entry for entry in _list_entries(folder.descriptor) if entry[0].endswith((".obs", ".env")))
            for name, uid in islice(_order_fairly(found, ()), limit):
                try:
                    yield SpoolEntry(name=name, item=_read_plain_observation(folder.descriptor, name))
                except _Unfinished:
                    continue
                except UntrustedRecord as reason:
                    yield SpoolEntry(name=name, item=_set_aside(name, str(reason), uid))

    def discard(self, collected: Sequence[SpoolEntry]) -> None:
        """Removes what is stored, moves what was rejected."""
        with _open_directory(self._directory) as folder:
            for one in collected:
                _remove(folder.descriptor, one.name, keep=isinstance(one.item, RejectedEntry))

    def _reject_shared_directory(self, found: os.stat_result) -> None:
        if found.st_mode & 0o022 or found.st_uid not in self._owners:
            raise StoreError(
                f"{self._directory} can be written by others (uid {found.st_uid}, mode {found.st_mode & 0o7777:04o})",
                hint=f"Run: chmod 700 {self._directory}",
            )


def _run_in_threads(work: Callable[[T], U], several: Sequence[T]) -> list[U]:
    """`work` of each, in their order. While munged opens one credential, the next are read and handed to it.

    No thread outlives the call: the reconciler forks to read its users' files.
    """
    # Without the library a process is started for each.
    if len(several) == 1 or munge.load_libmunge() is None:
        return [work(one) for one in several]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(work, several))


def _read_plain_observation(folder: int, name: str) -> Observation:
    if name.endswith(".obs"):
        return parse(_read(folder, name))
    data = _read(folder, name)
    environ = epilog_slurmctld.parse(data)
    written = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime
    if not environ:
        if time.time() - written < WHOLE_S:
            raise _Unfinished
        raise UntrustedRecord("the record is not whole")
    return parse_environment(environ, name, data, written)


class _Descriptor:
    """A file descriptor that `closing` can close."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def close(self) -> None:
        os.close(self.descriptor)


def _open_directory(directory: Path) -> closing[_Descriptor]:
    """The directory by descriptor: what is looked at and what is removed are in the same one."""
    try:
        return closing(_Descriptor(os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)))
    except OSError as error:
        raise StoreError(f"spool {directory}: {error.strerror}", hint="Does it exist, and may we read it?") from error


def _list_entries(folder: int, skip: Collection[str] = ()) -> Iterator[tuple[str, int, int]]:
    """(name, owner, modification time in ns) of everything but `rejected/`, the wake file and `skip`."""
    with os.scandir(folder) as entries:
        for entry in islice(entries, MAX_ENTRIES):
            if entry.name in (REJECTED, "wake") or entry.name in skip:
                continue
            with suppress(FileNotFoundError):
                found = entry.stat(follow_symlinks=False)
                yield entry.name, found.st_uid, found.st_mtime_ns


def _order_fairly(
    entries: Iterable[tuple[str, int, int]], trusted: Collection[int], share: int = MAX_ENTRIES
) -> Iterator[tuple[str, int]]:
    """By age within an owner, owners in turn: a flood delays no one else's; `share`: of each other owner."""
    turns: Counter[int] = Counter()
    ranked = []
    for name, uid, modified in sorted(entries, key=lambda entry: entry[2]):
        if uid in trusted or turns[uid] < share:
            ranked.append((turns[uid] // (ROOT_SHARE if uid in trusted else 1), modified, name, uid))
        turns[uid] += 1
    return ((name, uid) for _, _, name, uid in sorted(ranked))


def _read(folder: int, name: str, *, aside: bool = False, limit: int = MAX_BYTES) -> bytes:
    """The bytes of a small regular file, never blocking."""
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:
        # Renamed or removed since it was listed.
        raise _Unfinished from None
    except OSError as error:
        raise UntrustedRecord(f"it cannot be opened: {error.strerror}") from None
    with closing(_Descriptor(descriptor)):
        _reject_odd_file(os.fstat(descriptor), aside, limit)
        data = b""
        while chunk := os.read(descriptor, limit + 1 - len(data)):
            data += chunk
    if len(data) > limit:
        raise UntrustedRecord("it grew while it was read")
    return data


def _reject_odd_file(found: os.stat_result, aside: bool, limit: int) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise UntrustedRecord("it is not a regular file")
    if aside:
        if time.time() - found.st_mtime < LEFT_BEHIND_S:
            raise _Unfinished
        raise UntrustedRecord("its writer never finished it")
    if found.st_size > limit:
        raise UntrustedRecord(f"it is larger than {limit} bytes")


def _set_aside(name: str, reason: str, uid: int) -> RejectedEntry:
    return RejectedEntry(name=make_printable(name), reason=reason, uid=uid)


def _remove(folder: int, name: str, *, keep: bool) -> bool:
    """Unlinks, or moves to `rejected/` while there is room; False when it cannot be done."""
    try:
        # Else it was read: a file.
        found = os.stat(name, dir_fd=folder, follow_symlinks=False) if keep else None
        if found and stat.S_ISREG(found.st_mode) and found.st_size <= MAX_BYTES and _move(folder, name):
            return True
        if found and stat.S_ISDIR(found.st_mode):
            os.rmdir(name, dir_fd=folder)
        else:
            os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _move(folder: int, name: str) -> bool:
    """Into `rejected/`, if that is a directory of our own and not full."""
    with suppress(FileExistsError):
        os.mkdir(REJECTED, 0o700, dir_fd=folder)
    found = os.stat(REJECTED, dir_fd=folder, follow_symlinks=False)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        return False
    with closing(
        _Descriptor(os.open(REJECTED, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder))
    ) as rejected:
        if len(os.listdir(rejected.descriptor)) >= MAX_REJECTED:  # noqa: PTH208 - by descriptor
            return False
        kept = f"{time.time_ns()}-{sha256(os.fsencode(name)).hexdigest()[:16]}"
        os.replace(name, kept, src_dir_fd=folder, dst_dir_fd=rejected.descriptor)
    return True
