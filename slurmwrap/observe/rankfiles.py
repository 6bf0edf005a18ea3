"""Turns what lies beside the job's output into the few rank files worth reading: `srun --output=log.%t` and the like.

Runs as the job's user. Slurm tells no hook what a step's --output was, so a file counts when its name holds the job id
as a number of its own, or when it is one of a numbered family that begins at 0 and is named like output, and when the
user wrote it since the job began. What is read is the user's word about his own job.
"""
import os
import re
import stat

from . import userfile

TAIL = 16 * 1024
KEPT = 8  # files sent
LOOKED = 64  # files opened: the ones that went quiet first, and the newest
NAMED = 1024  # files whose status is asked for
SKIPPED = 8  # named in the observation; the rest are counted
_FAMILY = re.compile(
    rb"(?:log|out|err|output|stdout|stderr|rank|task|node|worker|proc|host)[._-]?"
    rb"(?P<number>[0-9]{1,6})(?P<suffix>(?:\.(?:log|out|err|txt|stdout|stderr))?)\Z",
    re.IGNORECASE,
)
_FAILED = re.compile(
    rb"Traceback|[Ee]rror\b|ERROR|Exception|[Ss]egmentation fault|[Aa]ssert|FATAL|[Ff]atal|[Aa]bort|Killed"
    rb"|terminate called"
)


def beside(directory, job_id, uid, since, known):
    """(found, skipped): found [(path, bytes, truncated)], the first to fail first; skipped ["name: why"].

    `known`: paths that are read anyway; `since`: Unix time, None reads nothing.
    """
    if since is None:
        return [], []
    written = []
    names = named_like(userfile.listed(directory), job_id)
    for name in names[:NAMED]:
        other = os.path.join(directory, name)
        at = _written(other, uid, since) if other not in known else None
        if at is not None:
            written.append((at, other))
    written.sort()
    few = written if len(written) <= LOOKED else written[: LOOKED // 2] + written[-(LOOKED // 2) :]
    read, skipped = _read([other for _, other in few], uid)
    kept = preferred(read)
    left = len(written) - len(kept) - len(skipped) + max(0, len(names) - NAMED)
    if left:
        skipped.append("%d more files beside it: no more than %d are kept" % (left, KEPT))
    return kept, skipped[-SKIPPED:]


def named_like(names, job_id):
    """Those of `names` (bytes) that belong to a job by their names alone."""
    own = re.compile(rb"(?<![0-9])%d(?![0-9])" % job_id)
    found, families = [], {}
    for name in names:
        if own.search(name):
            found.append(name)
            continue
        member = _FAMILY.search(name)
        if member:
            families.setdefault((name[: member.start("number")], member.group("suffix")), []).append(name)
    for (stem, suffix), members in sorted(families.items()):
        numbers = set(int(name[len(stem) : len(name) - len(suffix)]) for name in members)
        if 0 in numbers and len(numbers) > 1:
            found.extend(sorted(members))
    return found


def preferred(read):
    """Up to KEPT of `read`, (path, data, truncated) by time of the last write: who failed first, then the newest."""
    failed = [one for one in read if _FAILED.search(one[1])][: KEPT - 2]
    newest = [one for one in reversed(read) if one not in failed][: KEPT - len(failed)]
    return failed + newest


def _written(path, uid, since):
    try:
        found = os.lstat(path)
    except OSError:
        return None
    ours = stat.S_ISREG(found.st_mode) and found.st_uid == uid and found.st_size and found.st_mtime >= since - 2.0
    return found.st_mtime if ours else None


def _read(paths, uid):
    found, skipped = [], []
    for path in paths:
        try:
            data, more = userfile.tail(path, uid, TAIL)
            found.append((path, data, more))
        except (userfile.Unreadable, OSError) as reason:
            why = getattr(reason, "strerror", None) or str(reason)
            skipped.append("%s: %s" % (os.path.basename(path).decode("utf-8", "replace"), why))
    return found, skipped
