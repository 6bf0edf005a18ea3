"""Turns the step counter's files of a real run (gsub --count-steps) into one fact. Runs as the job's user: their word.

The counter leaves "<job id>.<restart>.<node>.<pid>" in a directory of the submission below the user's state directory;
each holds one line: count, source, first and last step (seconds of that node's CLOCK_MONOTONIC), and more behind.
"""
import os
import pwd
import re
import stat

from . import user_files

BELOW_HOME = b".local/state/slurmwrap/steps"
DIRECTORIES = 512  # submissions looked through, the newest
NAMED = 20000  # names read in one of them
ALTOGETHER = 200000  # names read in all of them: about a fifth of a second on a local disk
OPENED = 256  # files opened: the processes of one job count alike
LINE = 512  # bytes of a file that are read
MOST = 10 ** 12
FASTEST = 1e6  # steps per second; what is faster, or no number any more, is no speed
SLACK_S = 2.0  # a file server's clock and ours
_SOURCE = re.compile(r"[a-z_]{1,16}\Z")  # it is shown on terminals
_NAME = re.compile(rb"([0-9]{1,10})\.([0-9]{1,6})\.[A-Za-z0-9._-]{1,200}\.[0-9]{1,10}\Z")


def home_of(uid):
    """The user's steps directory as far as root can know it (they may have set XDG_STATE_HOME); None without a home."""
    try:
        home = os.fsencode(pwd.getpwuid(uid).pw_dir)
    except (KeyError, ValueError):
        return None
    return os.path.join(home, BELOW_HOME) if home.startswith(b"/") else None


def below(place, job_id, uid, since):
    """`counted` over the directories of one user's submissions; {} when nothing was counted."""
    if place is None or since is None:
        return {}
    try:
        found = _changed(place, since)
    except (user_files.Unreadable, OSError):
        return {}
    seen = 0
    for directory in found:
        names = _listed(directory)
        seen += len(names)
        best = _of_names(directory, names, job_id, uid, since, None)
        if best or seen > ALTOGETHER:
            return best
    return {}


def counted(directory, job_id, uid, since, restart=None):
    """{"count", "source", "per_s", "processes", "first_at", "last_at"} of the busiest process; {} when none counted.

    `since`: Unix time that the run began; `restart`: which run, None for the newest one. Times are Unix seconds by the
    clock of the file system.
    """
    return _of_names(directory, _listed(directory), job_id, uid, since, restart)


def _listed(directory):
    try:
        return user_files.listed(directory, NAMED)
    except (user_files.Unreadable, OSError):
        return []


def _of_names(directory, names, job_id, uid, since, restart):
    runs = {}
    for name in names:
        match = _NAME.match(name)
        if match and int(match.group(1)) == job_id:
            runs.setdefault(int(match.group(2)), []).append(name)
    for number in sorted(runs, reverse=True):
        if restart is None or number == restart:
            best = _best(directory, sorted(runs[number]), uid, since)
            if best:
                return best
    return {}


def _changed(place, since):
    found = []
    for name in user_files.listed(place, NAMED):
        path = os.path.join(place, name)
        try:
            status = os.lstat(path)
        except OSError:
            continue
        if stat.S_ISDIR(status.st_mode) and status.st_mtime >= since - SLACK_S:
            found.append((status.st_mtime, path))
    return [path for _, path in sorted(found, reverse=True)[:DIRECTORIES]]


def _best(directory, names, uid, since):
    records = []
    for name in names[:OPENED]:
        try:
            record = _read(os.path.join(directory, name), uid, since)
        except (user_files.Unreadable, OSError, ValueError, OverflowError):
            continue
        if record:
            records.append(record)
    if not records:
        return {}
    best = max(records, key=lambda one: one["count"])
    return dict(best, processes=len(names))


def _read(path, uid, since):
    """One file's record; None for one of an earlier run. ValueError for what no counter wrote."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != uid:
            raise user_files.Unreadable("not the user's regular file")
        if since is not None and status.st_mtime < since - SLACK_S:
            return None
        words = os.read(descriptor, LINE).decode("ascii").split("\n", 1)[0].split()
    finally:
        os.close(descriptor)
    if len(words) < 4:
        raise ValueError("half written")
    count, source, first, last = int(words[0]), words[1], float(words[2]), float(words[3])
    if not 0 < count < MOST or not 0 <= first <= last < MOST or not _SOURCE.match(source):
        raise ValueError("out of range")
    span = last - first
    per_s = (count - 1) / span if count > 1 and span > 0 else None
    # Also infinity, which would spoil the whole observation's JSON.
    if per_s is not None and per_s > FASTEST:
        per_s = None
    return {
        "count": count,
        "source": source,
        "per_s": None if per_s is None else round(per_s, 6),
        "first_at": status.st_mtime - span,
        "last_at": status.st_mtime,
    }
