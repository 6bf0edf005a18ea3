"""Convert the step counter's files of a run (gsub --count-steps) into the fact `steps`.

It runs with the rights of the job's user, who could have written these files: the fact is a claim of the user. The
counter writes files "<job id>.<restart>.<node>.<pid>" to one directory per submission below the user's state directory.
Each has one line: count, source, first and last step (seconds of that node's CLOCK_MONOTONIC), and further fields.
Next to it, "<name>.loss" holds the losses of the process (inject/slurmwrap_losses.py).
"""
import math
import os
import pwd
import re
import stat

from . import user_files

BELOW_HOME = b".local/state/slurmwrap"
# Limits: directories of submissions that are searched (the newest), names read in one directory, and names read in all
# directories (about 0.2 s on a local disk).
DIRECTORIES = 512
NAMED = 20000
ALTOGETHER = 200000
# Files opened; all processes of one job count about the same steps.
OPENED = 256
LINE = 512  # bytes that are read of a file
MOST = 10 ** 12
FASTEST = 1e6  # steps per second; a higher speed, or infinity, is discarded
SLACK_S = 2.0  # allowed difference between the clocks of a file server and of this node
LOSSES = 257  # rows of a file of losses
LOSS_BYTES = 16384
_SOURCE = re.compile(r"[a-z_]{1,16}\Z")  # it is printed on terminals, so no other characters are accepted
_NAME = re.compile(rb"([0-9]{1,10})\.([0-9]{1,6})\.[A-Za-z0-9._-]{1,200}\.[0-9]{1,10}\Z")


def home_of(uid):
    """Return slurmwrap's default directory in the user's home; None without a home directory.

    The user may have set XDG_STATE_HOME, which root cannot know.
    """
    try:
        home = os.fsencode(pwd.getpwuid(uid).pw_dir)
    except (KeyError, ValueError):
        return None
    return os.path.join(home, BELOW_HOME) if home.startswith(b"/") else None


def below(place, job_id, uid, since):
    """Search the directories of one user's submissions, newest first, and return the first result as from `counted`.

    `place`: the directory of all step counts. {} when no steps of the job were counted.
    """
    if place is None or since is None:
        return {}
    try:
        found = _changed_directories(place, since)
    except (user_files.Unreadable, OSError):
        return {}
    seen = 0
    for directory in found:
        names = _list_names(directory)
        seen += len(names)
        best = _best_of_names(directory, names, job_id, uid, since, None)
        if best or seen > ALTOGETHER:
            return best
    return {}


def counted(directory, job_id, uid, since, restart=None):
    """Return {"count", "source", "per_s", "processes", "first_at", "last_at"} of the process with the most steps.

    {} when no process counted steps. `since`: Unix time at which the run began. `restart`: restart count of the run,
    None for the newest one. Times are Unix seconds by the clock of the file system.
    """
    return _best_of_names(directory, _list_names(directory), job_id, uid, since, restart)


def losses(directory, job_id, uid, since, restart):
    """Return {"points": [[step, Unix seconds, mean loss], ...], "taken", "bad", "bad_at_end"} of a run.

    They are those of the process with the most steps among the processes that recorded losses; {} if none did.
    "taken": losses that were recorded; "bad": those that were NaN or infinite; "bad_at_end": those after the last finite
    one. Arguments as for `counted`.
    """
    best = {}
    for name in _list_names(directory)[:NAMED]:
        match = _NAME.match(name[: -len(b".loss")]) if name.endswith(b".loss") else None
        if match is None or (int(match.group(1)), int(match.group(2))) != (job_id, restart):
            continue
        try:
            found = _read_losses(os.path.join(directory, name), uid, since)
        except (user_files.Unreadable, OSError, ValueError, OverflowError):
            continue
        if found and _last_step(found) > _last_step(best):
            best = found
    return best


def _last_step(found):
    points = found.get("points")
    return points[-1][0] if points else found.get("taken", -1)


def _read_losses(path, uid, since):
    text, status = _read_text(path, uid, since, LOSS_BYTES)
    lines = text.splitlines()
    words = lines[0].split() if lines else ()
    if len(words) < 6:
        return None
    taken, bad, bad_at_end, written, rows = int(words[1]), int(words[2]), int(words[3]), float(words[4]), int(words[5])
    if not 0 <= bad_at_end <= bad <= taken < MOST or not 0 <= rows <= LOSSES or not 0 <= written < MOST:
        raise ValueError("out of range")
    points = []
    for line in lines[1 : rows + 1]:
        step, at, loss = line.split()
        # The clock of the file was `written` when the file was written.
        point = [int(step), round(status.st_mtime - (written - float(at)), 3), float(loss)]
        if not 0 < point[0] < MOST or not math.isfinite(point[1]) or not math.isfinite(point[2]):
            raise ValueError("out of range")
        if points and (point[0] <= points[-1][0] or point[1] < points[-1][1]):
            raise ValueError("half written")
        points.append(point)
    return {"points": points, "taken": taken, "bad": bad, "bad_at_end": bad_at_end}


def counted_now(directory, job_id, uid, since, restart):
    """Return `counted`'s result of a run that still runs, with `total`, the steps of all processes, and `newest_at`.

    {} when no process counted steps. A script may start several programs one after the other, so the process with the
    most steps may have ended long ago.
    """
    records = _list_records(directory, _select_names(_list_names(directory), job_id, restart), uid, since)
    if not records:
        return {}
    best = max(records, key=lambda one: one["count"])
    newest = max(one["last_at"] for one in records)
    return dict(best, processes=len(records), total=sum(one["count"] for one in records), newest_at=newest)


def _select_names(names, job_id, restart):
    prefix = b"%d.%d." % (job_id, restart)
    return sorted(name for name in names if name.startswith(prefix) and _NAME.match(name))


def _list_names(directory):
    try:
        return user_files.listed(directory, NAMED)
    except (user_files.Unreadable, OSError):
        return []


def _best_of_names(directory, names, job_id, uid, since, restart):
    runs = {}
    for name in names:
        match = _NAME.match(name)
        if match and int(match.group(1)) == job_id:
            runs.setdefault(int(match.group(2)), []).append(name)
    for number in sorted(runs, reverse=True):
        if restart is None or number == restart:
            best = _record_of_busiest(directory, sorted(runs[number]), uid, since)
            if best:
                return best
    return {}


def _changed_directories(place, since):
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


def _record_of_busiest(directory, names, uid, since):
    records = _list_records(directory, names, uid, since)
    if not records:
        return {}
    best = max(records, key=lambda one: one["count"])
    return dict(best, processes=len(names))


def _list_records(directory, names, uid, since):
    records = []
    for name in names[:OPENED]:
        try:
            record = _read(os.path.join(directory, name), uid, since)
        except (user_files.Unreadable, OSError, ValueError, OverflowError):
            continue
        if record:
            records.append(record)
    return records


def _read_text(path, uid, since, size):
    """Return the first `size` bytes of a user's file and its status. ("", status) for a file of an earlier run."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != uid:
            raise user_files.Unreadable("not the user's regular file")
        if since is not None and status.st_mtime < since - SLACK_S:
            return "", status
        return os.read(descriptor, size).decode("ascii"), status
    finally:
        os.close(descriptor)


def _read(path, uid, since):
    """Return one file's record; None for a file of an earlier run. Raise ValueError for text that no counter wrote."""
    text, status = _read_text(path, uid, since, LINE)
    if not text:
        return None
    words = text.split("\n", 1)[0].split()
    if len(words) < 4:
        raise ValueError("half written")
    count, source, first, last = int(words[0]), words[1], float(words[2]), float(words[3])
    if not 0 < count < MOST or not 0 <= first <= last < MOST or not _SOURCE.match(source):
        raise ValueError("out of range")
    span = last - first
    per_s = (count - 1) / span if count > 1 and span > 0 else None
    # Infinity would make the JSON of the whole observation invalid.
    if per_s is not None and per_s > FASTEST:
        per_s = None
    return {
        "count": count,
        "source": source,
        "per_s": None if per_s is None else round(per_s, 6),
        "first_at": status.st_mtime - span,
        "last_at": status.st_mtime,
    }
