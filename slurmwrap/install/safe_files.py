"""Read and write files below one root directory without following anything that an ordinary user could have put there.

Every directory of a path is opened by descriptor (adapter). It must belong to a trusted user (root, SlurmUser), and no
other user may write to it, unless it is sticky, where users cannot replace files of others. A symbolic link is followed
only if a trusted user created it. Files are written under a temporary name and renamed. The temporary name is fixed, so
that a file left by a crash is found.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from slurmwrap.errors import SlurmwrapError
from slurmwrap.fast_dataclasses import dataclass, field, replace

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LINKS = 16
MOST = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundFile:
    """The content and metadata of a regular file. `xattrs`: the extended attributes that could be read."""

    content: bytes
    mode: int
    uid: int
    gid: int
    xattrs: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileTree:
    """The files of one system. `root`: "/" or an image's directory; all paths are relative to it."""

    root: Path
    trusted: frozenset[int]  # uids

    def directory(self, path: Path) -> os.stat_result | None:
        """Return the status of a directory; None when it does not exist.

        Trusted links are followed. Raise SlurmwrapError when `path` is not a directory.
        """
        with self._open_parent(path) as (parent, name):
            if parent < 0:
                return None
            try:
                found = os.stat(name or ".", dir_fd=parent, follow_symlinks=False)
            except FileNotFoundError:
                return None
        if not stat.S_ISDIR(found.st_mode):
            raise SlurmwrapError(f"{path} is not a directory", hint="Move it away, or choose another place.")
        return found

    def read(self, path: Path) -> FoundFile | None:
        """Return a regular file; None when it does not exist. Raise SlurmwrapError for others, and above 64 MiB."""
        with self._open_parent(path) as (parent, name):
            if parent < 0:
                return None
            try:
                handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)
            except FileNotFoundError:
                return None
            except OSError as error:
                raise SlurmwrapError(f"{path}: {error.strerror}", hint="It must be a plain file.") from error
            with os.fdopen(handle, "rb") as stream:
                found = os.fstat(handle)
                if not stat.S_ISREG(found.st_mode) or found.st_size > MOST:
                    raise SlurmwrapError(f"{path} is not a plain file of at most {MOST >> 20} MiB")
                return FoundFile(
                    content=stream.read(), mode=stat.S_IMODE(found.st_mode), uid=found.st_uid, gid=found.st_gid,
                    xattrs=_read_xattrs(handle),
                )  # fmt: skip

    def real(self, path: Path) -> Path:
        """Return `path` with its trusted links resolved, the last part included: the file that an edit must replace."""
        real = PurePosixPath("/", *self._resolve_parts(path))
        return Path(real)

    def write(self, path: Path, file: FoundFile) -> None:
        """Create or replace `path` atomically, with owner, mode and attributes, and flush it to disk."""
        with self._open_parent(path) as (parent, name):
            if parent < 0:
                raise SlurmwrapError(f"{path.parent} does not exist")
            aside = _make_temporary_name(name)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(aside, dir_fd=parent)
            try:
                self._fill(parent, aside, file)
                os.rename(aside, name, src_dir_fd=parent, dst_dir_fd=parent)
                os.fsync(parent)
            except OSError as error:
                with contextlib.suppress(OSError):
                    os.unlink(aside, dir_fd=parent)
                raise SlurmwrapError(f"{path}: {error.strerror}", hint="Nothing was changed there.") from error

    def _fill(self, parent: int, aside: str, file: FoundFile) -> None:
        handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=parent)
        with os.fdopen(handle, "wb") as stream:
            stream.write(file.content)
            stream.flush()
            _set_owner(handle, file.uid, file.gid)
            os.fchmod(handle, file.mode)
            for name, value in file.xattrs.items():
                # The file system may lack attributes, or the policy may set the label itself.
                with contextlib.suppress(OSError):
                    os.setxattr(handle, name, value)
            os.fsync(handle)

    def make_directory(self, path: Path, mode: int, uid: int, gid: int) -> None:
        """Create one directory, whose parent must exist. Raise SlurmwrapError when it cannot be created."""
        with self._open_parent(path) as (parent, name):
            try:
                if parent < 0:
                    raise FileNotFoundError(2, "its parent does not exist")
                os.mkdir(name, 0o700, dir_fd=parent)
                handle = os.open(name, _DIRECTORY, dir_fd=parent)
            except OSError as error:
                owner = f"-o {uid} -g {gid}"
                raise SlurmwrapError(
                    f"{path} cannot be made: {error.strerror}",
                    hint=f"Where root may not write (NFS with root_squash), make it on the file server: "
                    f"install -d -m {mode:04o} {owner} {path}",
                ) from error
            try:
                _set_owner(handle, uid, gid)
                os.fchmod(handle, mode)
            finally:
                os.close(handle)

    def remove(self, path: Path) -> None:
        """Remove a file, if it exists, and the temporary file that a crash may have left next to it."""
        with self._open_parent(path) as (parent, name):
            for one in (name, _make_temporary_name(name)) if parent >= 0 else ():
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(one, dir_fd=parent)

    def remove_aside(self, path: Path) -> None:
        """Remove only the temporary file that a crash may have left next to `path`."""
        self.remove(path.with_name(_make_temporary_name(path.name)))

    def is_link(self, path: Path) -> bool:
        """Return whether the last part of `path` is a symbolic link, whose target slurmwrap did not create."""
        return self.real(path) != self.real(path.parent) / path.name

    def empty(self, path: Path) -> bool:
        """Remove everything in a directory, by descriptor. Return False when something stays.

        No link is followed, neither at `path` nor below it. Links of SlurmUser in the path are not followed either,
        because they could lead root to any directory.
        """
        if self.is_link(path):
            return False
        real = replace(self, trusted=frozenset({0, os.geteuid()})).real(path)
        handle = self._open_parts(real.parts[1:])
        if handle < 0:
            return True
        try:
            gone = [_remove_entry(name, handle) for name in os.listdir(handle)]  # noqa: PTH208 - by descriptor
            return all(gone)
        finally:
            os.close(handle)

    def remove_directory(self, path: Path) -> bool:
        """Remove an empty directory. Return False when it is not empty or is a link."""
        if self.is_link(path):
            return False
        with self._open_parent(path) as (parent, name):
            try:
                if parent >= 0:
                    os.rmdir(name, dir_fd=parent)
            except FileNotFoundError:
                pass
            except OSError:
                return False
        return True

    def names(self, path: Path) -> tuple[str, ...]:
        """Return the names in a directory; () when it does not exist."""
        with self._open_parent(path / "x") as (parent, _):
            return tuple(sorted(os.listdir(parent))) if parent >= 0 else ()  # noqa: PTH208 - by descriptor

    @contextmanager
    def _open_parent(self, path: Path) -> Iterator[tuple[int, str]]:
        """Yield (descriptor of the parent of `path`, -1 when it does not exist; its last part, "" for "/")."""
        parts = self._resolve_parts(path)
        handle = self._open_parts(parts[:-1])
        try:
            yield handle, parts[-1] if parts else ""
        finally:
            if handle >= 0:
                os.close(handle)

    def _open_parts(self, parts: Collection[str]) -> int:
        handle = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        walked = "/"
        try:
            for part in parts:
                try:
                    below = os.open(part, _DIRECTORY, dir_fd=handle)
                except FileNotFoundError:
                    os.close(handle)
                    return -1
                os.close(handle)
                handle, walked = below, f"{walked.rstrip('/')}/{part}"
                self._check_trusted(os.fstat(handle), walked)
        except OSError as error:
            os.close(handle)
            raise SlurmwrapError(f"{walked}: {part}: {error.strerror}") from error
        except BaseException:
            os.close(handle)
            raise
        return handle

    def _resolve_parts(self, path: Path) -> tuple[str, ...]:
        """Return the parts of `path` with links resolved as by the kernel, but within this root."""
        todo, done, links = [part for part in path.parts if part != "/"], list[str](), 0
        while todo:
            part = todo.pop(0)
            if part == "..":
                done = done[:-1]
                continue
            link = self.root.joinpath(*done, part)
            if not link.is_symlink():
                done.append(part)
                continue
            links += 1
            if link.lstat().st_uid not in self.trusted or links > _LINKS:
                raise SlurmwrapError(
                    f"{link} is a link that uid {link.lstat().st_uid} made", hint="Name the real place."
                )
            target = PurePosixPath(os.readlink(link))  # noqa: PTH115 - as text, not resolved
            done = [] if target.is_absolute() else done
            todo = [name for name in target.parts if name != "/"] + todo
        return tuple(done)

    def _check_trusted(self, found: os.stat_result, walked: str) -> None:
        others = found.st_mode & stat.S_IWOTH or (found.st_mode & stat.S_IWGRP and found.st_gid != 0)
        if found.st_uid not in self.trusted or (others and not found.st_mode & stat.S_ISVTX):
            raise SlurmwrapError(
                f"{walked} can be written by others (uid {found.st_uid}, mode {stat.S_IMODE(found.st_mode):04o}): "
                "root must not run, or write, what lies below",
                hint=f"Choose another place, or run: chown root {walked} && chmod go-w {walked}",
            )


def _remove_entry(name: str, folder: int) -> bool:
    """Remove a file or directory tree and return whether it is gone.

    A tree of a thousand levels stays, and a file that a file server does not let root remove.
    """
    try:
        if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            shutil.rmtree(name, dir_fd=folder)
        else:
            os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        return True
    except (OSError, RecursionError):
        return False
    return True


def _set_owner(handle: int, uid: int, gid: int) -> None:
    if os.geteuid() == 0:
        os.fchown(handle, uid, gid)


def _make_temporary_name(name: str) -> str:
    """Return the temporary name. It begins with a dot, so that no pattern in slurm.conf matches it."""
    return f".{name}.slurmwrap-new"


def _read_xattrs(handle: int) -> dict[str, bytes]:
    found = {}
    with contextlib.suppress(OSError):
        for name in os.listxattr(handle):
            found[name] = os.getxattr(handle, name)
    return found
