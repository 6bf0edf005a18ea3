"""Turns what lies next to the job's output into the few rank files worth reading: `srun --output=log.%t` and the like.

Runs as the job's user. Slurm tells no hook what a step's --output was, so a file counts when its name holds the job id
as a number of its own, or when it is one of a numbered family that begins at 0 and is named like output, and when the
user wrote it since the job began. What is read is the user's claim about their own job.
"""
import os
import re
import stat

from . import user_files

RANK_TAIL = 16 * 1024
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


def beside(directory, job_id, uid, since, known, of_array=False):
    """(found, skipped): found [(path, bytes, truncated)], the first to fail first; skipped ["name: why"].

    `known`: paths that are read anyway; `since`: Unix time, None reads nothing; `of_array`: see named_like.
    """
    if since is None:
        return [], []
    written = []
    names = named_like(user_files.listed(directory), job_id, of_array)
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


def named_like(names, job_id, of_array=False):
    """Those of `names` (bytes) that belong to a job by their names alone.

    `of_array`: the job's output is named by %a. One task of each array has the array's id as its own, and what is
    called 41_7 is then not a rank of it, but the output of another task.
    """
    number = re.compile(rb"(?<![0-9])(?:(?<![0-9A-Za-z])(?P<array>[0-9]+)_)?%d(?![0-9])(?P<task>_[0-9])?" % job_id)
    found, families = [], {}
    for name in names:
        if any(not _of_another(match, job_id, of_array) for match in number.finditer(name)):
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


def _of_another(match, job_id, of_array):
    """Whether the id is the index of an array's task, as in slurm-16_18.out for job 18, or of_array holds.

    In 0_4711 and 20261121_4711 it is no index: jobs that run at the same time have ids of about the same size.
    """
    if of_array and match.group("task"):
        return True
    array = int(match.group("array") or 0)
    return job_id <= 10 * array <= 100 * job_id and (of_array or array != job_id)


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
            data, more = user_files.tail(path, uid, RANK_TAIL)
            found.append((path, data, more))
        except (user_files.Unreadable, OSError) as reason:
            why = getattr(reason, "strerror", None) or str(reason)
            skipped.append("%s: %s" % (os.path.basename(path).decode("utf-8", "replace"), why))
    return found, skipped
