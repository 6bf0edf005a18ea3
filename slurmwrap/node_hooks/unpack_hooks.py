"""Install, verify or remove the hooks' files on one node, or check that its slurm.conf names them.

A batch script runs this module on the node as root. It imports nothing of slurmwrap: the controller sends its text
together with the files. It follows no symbolic link, writes to no directory that other users than root can write, and
replaces or removes only slurmwrap's own files. The exit code states what went wrong.
"""
import base64
import hashlib
import io
import os
import re
import stat
import sys
import tarfile

DONE, NOT_ROOT, OPEN_TO_OTHERS, NOT_OURS, NOT_WRITTEN, DIFFERS = 0, 21, 22, 23, 24, 25
NOT_NAMED, STALE, NO_CONF, STILL_NAMED = 26, 27, 28, 29
CONFIGLESS = "/run/slurm/conf/slurm.conf"
SETTING = re.compile(r"^\s*(prolog|epilog)\s*\+?=\s*\"?([^\s\"#]+)", re.IGNORECASE)
INCLUDE = re.compile(r"^\s*include\s+(\S+)", re.IGNORECASE)
MARK = b"slurmwrap"
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


class UnpackRefused(Exception):
    """Raised when the action is refused; `code` is one of the exit codes above."""

    def __init__(self, code, text):
        Exception.__init__(self, text)
        self.code = code


def run(action, packed, named=()):
    """Carry out one action and return the exit code.

    `action`: "lay" (install and verify the files), "look" (check slurm.conf), "free" (check that the files can be
    removed) or "take" (remove them). `packed`: a tar.gz as base64 whose names lack the leading slash. `named`: settings
    that slurm.conf must contain, as "Prolog=/.../prolog".
    """
    try:
        if os.geteuid() != 0:
            raise UnpackRefused(NOT_ROOT, "not root")
        if action == "look":
            look(named)
            return DONE
        with tarfile.open(fileobj=io.BytesIO(base64.b64decode(packed)), mode="r:gz") as archive:
            files = [(one.name, one.mode, archive.extractfile(one).read()) for one in archive if one.isfile()]
        if action != "lay":
            refuse_named(["/" + name for name, _, _ in files])
        for name, mode, content in files if action != "free" else ():
            (lay if action == "lay" else take)(name, mode, content)
    except UnpackRefused as refusal:
        sys.stdout.write("%s\n" % refusal)
        return refusal.code
    except OSError as error:
        sys.stdout.write("%s\n" % error)
        return NOT_WRITTEN
    return DONE


def look(named):
    """Raise UnpackRefused unless the slurm.conf of this node's slurmd contains all settings of `named`."""
    path, found = conf()
    if not path:
        raise UnpackRefused(NO_CONF, "no slurm.conf")
    for one in named:
        key, _, value = one.partition("=")
        if (key.lower(), value) not in found:
            stale = path == CONFIGLESS or os.path.basename(os.path.dirname(path)) == "conf-cache"
            raise UnpackRefused(STALE if stale else NOT_NAMED, "%s has not %s" % (path, one))


def refuse_named(paths):
    """Raise UnpackRefused when slurm.conf names one of `paths`: Slurm drains a node whose Epilog is missing."""
    path, found = conf()
    named = [value for _, value in found if value in paths]
    if named:
        raise UnpackRefused(STILL_NAMED, "%s names %s" % (path, named[0]))


def conf():
    """Return (path, [(key, value)] of Prolog and Epilog) of slurmd's slurm.conf; ("", []) when there is none."""
    for path in (os.environ.get("SLURM_CONF", ""), CONFIGLESS, "/etc/slurm/slurm.conf", "/etc/slurm-llnl/slurm.conf"):
        if path and os.path.isfile(path):
            return path, list(settings(path, 0))
    return "", []


def settings(path, depth):
    """Yield (key in lower case, value) of Prolog and Epilog in the file and the files that it includes."""
    with io.open(path, encoding="latin-1") as stream:
        lines = stream.read().splitlines()
    for line in lines:
        included, setting = INCLUDE.match(line), SETTING.match(line)
        if included and depth < 8:
            below = os.path.join(os.path.dirname(path), included.group(1))
            for one in settings(below, depth + 1) if os.path.isfile(below) else ():
                yield one
        elif setting:
            yield setting.group(1).lower(), setting.group(2)


def lay(name, mode, content):
    """Write one file, unless it exists with this content and mode, and read it back.

    Raise UnpackRefused when a file there is not slurmwrap's own, or when the content read back differs.
    """
    folder, last = opened(name, True)
    try:
        there = read(folder, last)
        if there is not None and there != content and MARK not in there:
            raise UnpackRefused(NOT_OURS, "/%s is not slurmwrap's" % name)
        if there != content or stat.S_IMODE(os.stat(last, dir_fd=folder, follow_symlinks=False).st_mode) != mode:
            write(folder, last, mode, content)
        back = read(folder, last)
        if back is None or hashlib.sha256(back).digest() != hashlib.sha256(content).digest():
            raise UnpackRefused(DIFFERS, "/%s differs after it was written" % name)
    finally:
        os.close(folder)


def take(name, mode, content):
    """Remove one file of slurmwrap, and the directories slurmwrap/hooks and slurmwrap above it when they are empty.

    Raise UnpackRefused when the file is not slurmwrap's own.
    """
    folder, last = opened(name, False)
    if folder < 0:
        return
    try:
        there = read(folder, last)
        if there is not None:
            if MARK not in there:
                raise UnpackRefused(NOT_OURS, "/%s is not slurmwrap's" % name)
            os.unlink(last, dir_fd=folder)
    except FileNotFoundError:
        # Nodes share this directory, and another node has removed the file.
        pass
    finally:
        os.close(folder)
    parts = name.split("/")[:-1]
    while parts and (parts[-1] == "slurmwrap" or parts[-2:] == ["slurmwrap", "hooks"]):
        try:
            os.rmdir("/" + "/".join(parts))
        except OSError:
            return
        parts.pop()


def opened(name, make):
    """Open the directory of the file `name`, component by component and without following links.

    Return (descriptor of the directory, last part of `name`). The descriptor is -1 when the directory is missing and
    `make` is not set. Raise UnpackRefused when other users can write one of the directories, unless it is sticky.
    """
    parts = name.split("/")
    folder = os.open("/", os.O_RDONLY | os.O_DIRECTORY)
    for part in parts[:-1]:
        try:
            below = os.open(part, _DIRECTORY, dir_fd=folder)
        except FileNotFoundError:
            if not make:
                os.close(folder)
                return -1, parts[-1]
            try:
                os.mkdir(part, 0o755, dir_fd=folder)
            except FileExistsError:
                pass
            below = os.open(part, _DIRECTORY, dir_fd=folder)
        os.close(folder)
        folder = below
        found = os.fstat(folder)
        others = found.st_mode & stat.S_IWOTH or (found.st_mode & stat.S_IWGRP and found.st_gid != 0)
        if found.st_uid != 0 or (others and not found.st_mode & stat.S_ISVTX):
            os.close(folder)
            raise UnpackRefused(OPEN_TO_OTHERS, "others can write %s of /%s" % (part, name))
    return folder, parts[-1]


def read(folder, name):
    """Return the content of a regular file; None when it is missing. Raise UnpackRefused for another type of file."""
    try:
        handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    except FileNotFoundError:
        return None
    with os.fdopen(handle, "rb") as stream:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise UnpackRefused(NOT_OURS, "%s is not a plain file" % name)
        return stream.read()


def write(folder, name, mode, content):
    """Write a file under a temporary name and rename it, so that a hook that starts meanwhile sees a complete file."""
    aside = ".%s.%d" % (name, os.getpid())
    handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=folder)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fchown(handle, 0, 0)
            os.fchmod(handle, mode)
            os.fsync(handle)
        os.rename(aside, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        os.unlink(aside, dir_fd=folder)
        raise
