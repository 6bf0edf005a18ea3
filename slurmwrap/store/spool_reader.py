"""Read the spool of observations (adapter). Any user may write into the shared one, so its files are checked.

A file is opened without following links and without blocking. It must be a small regular file and a MUNGE credential,
and the encoding user must be entitled to its content. Any other file is returned as RejectedEntry with the reason.
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


# Parsing of spool files (JSON) and of the shim's records of EpilogSlurmctld into observations.
_MAX_LEVELS, _TOO_DEEP = 64, "it nests too deeply"
_CONTEXTS = frozenset(one.value for one in Context)
_NONCE = re.compile(r"[0-9a-f]{32}\Z")
_UUID = re.compile(r"-([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\.env\Z")


class UntrustedRecord(Exception):
    """Raised with the reason why a file is rejected."""


def parse(payload: bytes) -> Observation:
    """Parse spool_writer.serialize's JSON into an Observation with `uid` -1. UntrustedRecord for anything else."""
    try:
        plain = json.loads(payload, parse_constant=_reject_constant)
        if b"\\u" in payload or not payload.isascii():
            # Lone surrogates cannot be stored in the database; this raises for them.
            json.dumps(plain, ensure_ascii=False).encode()
        return _check_observation(plain)
    except RecursionError:
        raise UntrustedRecord(_TOO_DEEP) from None
    except (ValueError, KeyError, TypeError) as error:
        raise UntrustedRecord(f"it is not an observation: {make_printable(str(error))}") from None


def _check_observation(plain: Any) -> Observation:
    if type(plain) is not dict:
        raise ValueError("no JSON object")
    if plain["version"] != VERSION:
        raise ValueError("unknown version: another slurmwrap sends it")
    if not _NONCE.match(plain["nonce"]):
        raise ValueError("no nonce")
    if type(plain["job_id"]) is not int or not 0 < plain["job_id"] < 1 << 32:
        raise ValueError("no job id")
    if type(plain["at"]) not in (int, float) or not 0 <= plain["at"] < 1 << 40:
        raise ValueError("no time")
    if type(plain["facts"]) is not dict or type(plain["cluster"]) is not str or type(plain["node"]) is not str:
        raise ValueError("facts, cluster or node is of another kind")
    if _is_nested_deeper(plain["facts"], _MAX_LEVELS):
        raise UntrustedRecord(_TOO_DEEP)
    if plain["context"] not in _CONTEXTS:
        raise ValueError(f"context '{plain['context']}' is unknown: a newer slurmwrap sends it")
    return Observation(
        nonce=plain["nonce"],
        cluster=plain["cluster"],
        job_id=plain["job_id"],
        context=Context(plain["context"]),
        at=float(plain["at"]),
        node=plain["node"],
        facts=plain["facts"],
    )


def _is_nested_deeper(plain: Any, levels: int) -> bool:
    """Return whether lists and objects are nested deeper than `levels`.

    json reads deeper nesting than later code can process recursively: one user's file would then end every pass.
    """
    inside = plain.values() if type(plain) is dict else plain
    return not levels or any(_is_nested_deeper(one, levels - 1) for one in inside if type(one) in (dict, list))


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


def parse_environment(environ: dict[bytes, bytes], name: str, data: bytes, written: float) -> Observation:
    """Parse file `name`, written at Unix time `written`; its name contains the nonce. Raises UntrustedRecord."""
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
    """Return user text as one line of limited length, for tables and terminals."""
    return visible(text[:200])[:200]


# Decision whether a decoded observation is trusted, from MUNGE's statement about the encoding user and host.
#
# Names in NodeAddr are resolved to addresses; there is no other access from here.
_NODE_CONTEXTS = (Context.PROLOG, Context.EPILOG, Context.SAMPLES)
_USER_CONTEXTS = (Context.SUBMIT, Context.PRERUN)


class Senders:
    """Permissions of senders during one collect: node hooks are root on their own node; users report their own jobs."""

    def __init__(self, node_addresses: Callable[[], Mapping[str, str]], trusted: Collection[int]) -> None:
        self._ask = node_addresses
        self._trusted = trusted
        self._by_node: Mapping[str, str] | None = None
        self._resolved: dict[str, frozenset[str]] = {}

    def refusal(self, found: Observation, sealed: Decoded) -> str:
        """Return why `found` is not trusted; "" when it is."""
        if found.context in _USER_CONTEXTS:
            # It may only be about the user's own job, which reconcile checks against Slurm's record.
            return ""
        if found.context not in _NODE_CONTEXTS:
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
# Maximum bytes of a file from an untrusted owner: parsed JSON takes up to 25 times the memory of its text.
USER_BYTES = 1 << 17
# Maximum entries that one collect lists, so that it ends even if a user fills the directory.
MAX_ENTRIES = 200_000
MAX_REJECTED = 1000
ROOT_SHARE = 8  # files of trusted owners that are read for each file of any other user
USER_SHARE = 1000  # files of each other user that are read in one collect; the rest of a flood waits for the next
LEFT_BEHIND_S = 3600.0  # a temporary file of this age has lost its writer
WHOLE_S = 60.0  # the same for the EpilogSlurmctld shim, whose deadline is 10 s
REJECTED = "rejected"
# Number of files that are opened together, and number of threads.
_FILES_AT_ONCE, _THREADS = 64, 4
_NAME = re.compile(r"\d{1,20}-[A-Za-z0-9._-]{1,255}-[0-9a-f]{32}\.obs\Z")


class _Unfinished(Exception):
    """Raised for a file that its writer has not finished yet."""


class SealedSpool:
    """The spool that nodes, users and the controller share (mode 1733), as read by its owner or root."""

    def __init__(
        self,
        directory: Path | str,
        socket: str,
        node_addresses: Callable[[], Mapping[str, str]],
        trusted_uids: Collection[int],
        cluster: str,
    ) -> None:
        """`node_addresses`: NodeName → NodeAddr, called once per collect. `trusted_uids`: root and SlurmUser."""
        self._directory = Path(directory)
        self._socket = socket
        self._node_addresses = node_addresses
        self._trusted = frozenset(trusted_uids)
        self._cluster = cluster
        # Names of files that could not be removed; they are skipped afterwards.
        self._stuck: set[str] = set()
        # How many entries the next collect leaves out: those of the last one, if it did not reach the directory's end.
        self._passed = 0

    def collect(self, limit: int = 1000) -> Iterator[SpoolEntry]:
        """Yield complete files: oldest first per owner, owners in turn. StoreError when munged does not answer.

        The directory is listed once; files that arrive later are left to the next collect.
        """
        senders = Senders(self._node_addresses, self._trusted)
        with _open_directory(self._directory) as folder:
            waiting = list(_list_entries(folder.descriptor, skip=self._stuck, passed=self._passed))
            # `rejected/` and the wake file are not in the list.
            full = len(waiting) + len(self._stuck) + 2 >= MAX_ENTRIES
            self._passed = self._passed + MAX_ENTRIES if full else 0
            chosen = islice(_order_fairly(waiting, self._trusted, USER_SHARE), limit)
            while several := list(islice(chosen, _FILES_AT_ONCE)):
                opened = _run_in_threads(lambda one: self._open_sealed(folder.descriptor, *one), several)
                for (name, uid), found in zip(several, opened, strict=True):
                    if found is not None:
                        yield SpoolEntry(name=name, item=self._make_entry(name, uid, found, senders))

    def _open_sealed(self, folder: int, name: str, uid: int) -> munge.Decoded | UntrustedRecord | None:
        """Return the decoded file, or why it is not trusted; None if its writer has not finished it."""
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
            return _make_rejected_entry(name, str(reason), uid)

    def _unseal_file(self, folder: int, name: str, uid: int) -> munge.Decoded:
        limit = MAX_BYTES if uid in self._trusted else USER_BYTES
        data = _read(folder, name, aside=name.startswith("."), limit=limit)
        if not _NAME.match(name):
            raise UntrustedRecord("its name is not one of slurmwrap's")
        if not data.startswith(b"MUNGE:"):
            raise UntrustedRecord("it is not a MUNGE credential")
        try:
            sealed = munge.decode(data, socket=self._socket)
        except munge.BadCredential as error:
            raise UntrustedRecord(str(error)) from None
        # MUNGE can compress: a credential of one kilobyte may hold a megabyte.
        if sealed.uid not in self._trusted and len(sealed.payload) > USER_BYTES:
            raise UntrustedRecord(f"it unpacks to more than {USER_BYTES} bytes")
        return sealed

    def _make_observation(self, sealed: munge.Decoded, senders: Senders) -> Observation:
        found = parse(sealed.payload)
        if found.cluster != self._cluster:
            raise UntrustedRecord(f"it is about cluster {make_printable(found.cluster)}")
        if refusal := senders.refusal(found, sealed):
            raise UntrustedRecord(refusal)
        # The uid in the nonce prevents that a user uses up the nonce of another user's observation.
        if sealed.uid not in self._trusted:
            found = replace(found, nonce=f"{sealed.uid}-{found.nonce}")
        return replace(found, uid=sealed.uid)

    def discard(self, collected: Sequence[SpoolEntry]) -> None:
        """Remove stored files; keep the newest thousand of the rejected ones in `rejected/`."""
        with _open_directory(self._directory) as folder:
            for one in collected:
                if not _remove(folder.descriptor, one.name, keep=isinstance(one.item, RejectedEntry)):
                    self._stuck.add(one.name)


class PlainSpool:
    """A private directory: the controller hooks' records, or a user's own spool. Its owner vouches for its content."""

    def __init__(self, directory: Path | str, trusted_uids: Collection[int] = ()) -> None:
        """`trusted_uids` may own the directory, besides root and this user."""
        self._directory = Path(directory)
        self._owners = frozenset({0, os.geteuid(), *trusted_uids})

    def collect(self, limit: int = 1000) -> Iterator[SpoolEntry]:
        """Yield complete files, oldest first; none if there is no directory. StoreError if other users may write it."""
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
                    yield SpoolEntry(name=name, item=_make_rejected_entry(name, str(reason), uid))

    def discard(self, collected: Sequence[SpoolEntry]) -> None:
        """Remove stored files and move rejected ones to `rejected/`."""
        with _open_directory(self._directory) as folder:
            for one in collected:
                _remove(folder.descriptor, one.name, keep=isinstance(one.item, RejectedEntry))

    def _reject_shared_directory(self, found: os.stat_result) -> None:
        if found.st_mode & 0o022 or found.st_uid not in self._owners:
            raise StoreError(
                f"{self._directory} can be written by others (uid {found.st_uid}, mode {found.st_mode & 0o7777:04o})",
                hint=f"Run: chmod 700 {self._directory}",
            )


def _run_in_threads(work: Callable[[T], U], items: Sequence[T]) -> list[U]:
    """Return the results of `work` in order. While munged decodes one credential, the next are read and sent to it.

    No thread outlives the call, because the reconciler forks to read its users' files.
    """
    # Without libmunge each call starts a process, and threads would not help.
    if len(items) == 1 or munge.load_libmunge() is None:
        return [work(one) for one in items]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(work, items))


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
    """Open the directory once, so that files are listed, read and removed in the same one."""
    try:
        return closing(_Descriptor(os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)))
    except OSError as error:
        raise StoreError(
            f"spool {directory}: {error.strerror}", hint="Does it exist, and may this user read it?"
        ) from error


def _list_entries(folder: int, skip: Collection[str] = (), passed: int = 0) -> Iterator[tuple[str, int, int]]:
    """Yield (name, owner, modification time in ns) of all files except `rejected/`, the wake file and `skip`.

    At most MAX_ENTRIES entries are listed, after the first `passed` ones.
    """
    with os.scandir(folder) as entries:
        for entry in islice(entries, passed, passed + MAX_ENTRIES):
            if entry.name in (REJECTED, "wake") or entry.name in skip:
                continue
            with suppress(FileNotFoundError):
                found = entry.stat(follow_symlinks=False)
                yield entry.name, found.st_uid, found.st_mtime_ns


def _order_fairly(
    entries: Iterable[tuple[str, int, int]], trusted: Collection[int], share: int = MAX_ENTRIES
) -> Iterator[tuple[str, int]]:
    """Order by age per owner, owners in turn, so that a flood delays no other owner. `share`: maximum per user."""
    files_of_owner: Counter[int] = Counter()
    ranked = []
    for name, uid, modified in sorted(entries, key=lambda entry: entry[2]):
        if uid in trusted or files_of_owner[uid] < share:
            ranked.append((files_of_owner[uid] // (ROOT_SHARE if uid in trusted else 1), modified, name, uid))
        files_of_owner[uid] += 1
    return ((name, uid) for _, _, name, uid in sorted(ranked))


def _read(folder: int, name: str, *, aside: bool = False, limit: int = MAX_BYTES) -> bytes:
    """Return the content of a small regular file, without blocking."""
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:
        # The file was renamed or removed after it was listed.
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


def _reject_odd_file(found: os.stat_result, is_temporary: bool, limit: int) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise UntrustedRecord("it is not a regular file")
    if is_temporary:
        if time.time() - found.st_mtime < LEFT_BEHIND_S:
            raise _Unfinished
        raise UntrustedRecord("its writer never finished it")
    if found.st_size > limit:
        raise UntrustedRecord(f"it is larger than {limit} bytes")


def _make_rejected_entry(name: str, reason: str, uid: int) -> RejectedEntry:
    return RejectedEntry(name=make_printable(name), reason=reason, uid=uid)


def _remove(folder: int, name: str, *, keep: bool) -> bool:
    """Remove a file, or move it to `rejected/` while that is not full; return False when it cannot be done."""
    try:
        # Entries that are not rejected were read, so they are regular files.
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
    """Move a file to `rejected/`, if that is a directory of this user and not full."""
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
        new_name = f"{time.time_ns()}-{sha256(os.fsencode(name)).hexdigest()[:16]}"
        os.replace(name, new_name, src_dir_fd=folder, dst_dir_fd=rejected.descriptor)
    return True
