"""Turns the job's output patterns into log tails, read as the job's user. What comes back is the user's claim."""

import os
import re
import os
import re
import stat
from . import user_files
import json
import os
import re
from . import deadline_child, hook_environment, step_counts, user_files


# Turns a file name pattern of sbatch's --output into path components that can be looked up.
#
# Slurm gives hooks the pattern unresolved (22.05.8), and a node's Epilog knows neither job name nor array. What is known
# is filled in; for the rest a component becomes a regular expression. sbatch(1), "filename pattern".
# What Slurm writes for %a outside an array.
NO_TASK = 4294967294
NUMBERS = b"jAaJbntUr"
# No path holds a NUL.
DIGITS, ANY = b"\0d", b"\0a"


def known(environ, host):
    """Values of the tokens that this Epilog can know. `host`: the real short host name (%N is not NodeName)."""
    job_id = environ.get(b"SLURM_JOB_ID", b"")
    values = {b"j": job_id, b"J": job_id, b"u": environ.get(b"SLURM_JOB_USER", b"")}
    values.update({b"U": environ.get(b"SLURM_JOB_UID", b""), b"N": host, b"n": b"0", b"t": b"0", b"s": b"batch"})
    for token, name in ((b"A", b"SLURM_ARRAY_JOB_ID"), (b"a", b"SLURM_ARRAY_TASK_ID"), (b"x", b"SLURM_JOB_NAME")):
        if environ.get(name):  # not set by 22.05
            values[token] = environ[name]
    # 26.05, which has two tokens more
    if environ.get(b"SLURM_JOB_SLUID"):
        values.update({b"S": environ[b"SLURM_JOB_SLUID"], b"r": environ.get(b"SLURM_JOB_RESTART_COUNT", b"0")})
    return values


def readings(pattern, values, work_dir):
    """The ways to read `pattern`, best first: each a list of components, bytes or compiled expressions.

    An absent array is tried before an array of unknown id.
    """
    # A backslash switches all replacement off.
    if b"\\" in pattern:
        return [_split(pattern.replace(b"\\", b""), work_dir)]
    alone = dict(values)
    alone.setdefault(b"A", values.get(b"j", b""))
    alone.setdefault(b"a", b"%d" % NO_TASK)
    first, second = _replace(pattern, alone), _replace(pattern, values)
    return [_split(found, work_dir) for found in ([first] if first == second else [first, second])]


def _replace(pattern, values):
    def one(match):
        width, token = match.groups()
        if token == b"%":
            return b"%"
        if token not in b"jAaJNntsuUxb" and token not in values:
            return match.group(0)
        value = values.get(token)
        if not value:
            return DIGITS if token in NUMBERS else ANY
        return value.zfill(min(int(width or 0), 10)) if token in NUMBERS else value

    return re.sub(rb"%(\d*)([A-Za-z%])", one, pattern, flags=re.DOTALL)


def _split(path, work_dir):
    full = os.path.normpath(os.path.join(work_dir or b"/", path))
    return [_component(part) for part in full.split(b"/") if part]


def _component(part):
    if b"\0" not in part:
        return part
    pieces = re.split(rb"(\0[da])", part)
    source = b"".join({DIGITS: rb"[0-9]+", ANY: rb"[^/]+"}.get(piece) or re.escape(piece) for piece in pieces)
    return re.compile(source + rb"\Z", re.DOTALL)


# Turns what lies next to the job's output into the few rank files worth reading: `srun --output=log.%t` and the like.
#
# Runs as the job's user. Slurm gives no hook what a step's --output was, so a file counts when its name holds the job id
# as a number of its own, or when it is one of a numbered family that begins at 0 and is named like output, and when the
# user wrote it since the job began. What is read is the user's claim about their own job.
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


TAIL = 64 * 1024
# Both tails as JSON, every byte escaped.
ANSWER = 4 << 20


def tails(environ, started_at, deadline):
    """Facts `logs` and, where a file was not read, `log_error`; `logs_skipped` names ranks' files that were left out;
    `steps` where the job counts its steps (step_counts.py).

    Returns by `deadline` whatever the file system does, with what was read by then.
    """
    uid, gid = hook_environment.number(environ, "SLURM_JOB_UID"), hook_environment.number(environ, "SLURM_JOB_GID")
    wanted = patterns(environ)
    if not uid or gid is None:
        return {"logs": [], "log_error": "a job of root" if uid == 0 else "the job's user is unknown"}
    user = hook_environment.text(environ, "SLURM_JOB_USER")
    values = known(environ, os.uname().nodename.split(".")[0].encode("utf-8", "surrogateescape"))
    work_dir = environ.get(b"SLURM_JOB_WORK_DIR", b"")
    files = [(name, readings(name, values, work_dir)) for name in wanted]
    ranks_of = hook_environment.job_id(environ), work_dir, _by_task(wanted)
    return _as_user(files, user, uid, gid, started_at, deadline, ranks_of=ranks_of)


def read(paths: tuple, user: str, uid: int, gid: int, deadline: float, begins: dict) -> dict:
    """The same for `paths` that are known (bytes, absolute); also for a caller that is that user themselves.

    `begins`: name -> [bytes, mark] of the file when an earlier run had ended. Each log then has `size`, `mark`,
    `first_line` and `modified` as well.
    """
    files = [(path, [[part for part in path.split(b"/") if part]]) for path in paths if path.startswith(b"/")]
    return _as_user([one for one in files if one[0] != b"/dev/null"], user, uid, gid, None, deadline, begins)


def _as_user(files, user, uid, gid, started_at, deadline, begins=None, ranks_of=None):
    def look(send):
        steps_place = step_counts.home_of(uid) if ranks_of is not None else None
        user_files.become(user, uid, gid, send.descriptor)
        read = []
        for name, readings in files:
            path, log = _one(name, readings, uid, started_at, begins)
            send(json.dumps(log).encode("utf-8") + b"\n")
            read += [path] if path else []
        if ranks_of is not None:
            job_id, work_dir, of_array = ranks_of
            place = os.path.dirname(read[0]) if read else work_dir
            _ranks(place, job_id, uid, started_at, set(read), of_array, send)
            send(json.dumps({"steps": step_counts.below(steps_place, job_id, uid, started_at)}).encode("utf-8") + b"\n")

    answer = deadline_child.call(look, deadline, ANSWER)
    lines = [json.loads(line.decode("utf-8")) for line in answer.data.split(b"\n")[:-1]]
    facts = _facts([line for line in lines if isinstance(line, list)])
    for line in lines:
        if isinstance(line, dict) and line.get("skipped"):
            facts["logs_skipped"] = line["skipped"]
        if isinstance(line, dict) and line.get("steps"):
            facts["steps"] = line["steps"]
    if not answer.complete:
        why = "the file system did not answer in time" if answer.late else "not readable"
        facts["log_error"] = "; ".join(filter(None, [facts.get("log_error"), why]))
    return facts


def _ranks(directory, job_id, uid, started_at, known, of_array, send):
    """Sends the ranks' files that lie next to the job's first output, or where the job ran if it wrote none."""
    if not directory.startswith(b"/"):
        return
    try:
        found, skipped = beside(directory, job_id, uid, started_at, known, of_array)
    except (user_files.Unreadable, OSError) as reason:
        found, skipped = [], ["ranks' files: %s" % (getattr(reason, "strerror", None) or reason)]
    for path, data, more in found:
        text = _whole_lines(data, more).decode("utf-8", "replace")
        send(json.dumps([_text(path), text, more, "", {"beside": True}]).encode("utf-8") + b"\n")
    send(json.dumps({"skipped": skipped}).encode("utf-8") + b"\n")


def _by_task(wanted):
    """Whether the output is named by the index of an array's task."""
    return any(re.search(rb"%[0-9]*a", pattern) for pattern in wanted)


def patterns(environ):
    """The patterns of stdout and stderr that can name a file, each once."""
    found = []
    for key in (b"SLURM_JOB_STDOUT", b"SLURM_JOB_STDERR"):
        value = environ.get(key, b"")
        if value and value not in (b"/dev/null", b"(null)") and value not in found:
            found.append(value)
    return found


def _one(pattern, readings, uid, started_at, begins):
    """(path when it was read, [name, text or None, truncated, error, more facts]) of one file."""
    error = "no such file"
    for components in readings:
        path = pattern
        try:
            path = user_files.find(components, uid, started_at)
            found = user_files.span(path, uid, TAIL, (begins or {}).get(_text(path)))
            cut = found["start"] > found["first"]
            data = _whole_lines(found["data"], cut)
            line = found["line"] + found["data"].count(b"\n", 0, len(found["data"]) - len(data))
            known = {"size": found["total"], "mark": found["mark"], "first_line": line, "modified": found["modified"]}
            known = {} if begins is None else known
            return path, [_text(path), data.decode("utf-8", "replace"), cut, "", known]
        except FileNotFoundError:
            continue
        except user_files.Unreadable as reason:
            error = str(reason)
        except OSError as reason:
            error = reason.strerror or "cannot be read"
        return None, [_text(path), None, False, error, {}]
    return None, [_text(pattern), None, False, error, {}]


def _text(path):
    return path.decode("utf-8", "replace")


def _whole_lines(data, more):
    """Without the half line at the start, unless it is all there is."""
    start = data.find(b"\n") + 1 if more else 0
    return data[start:] or data


def _facts(found):
    kept, names, errors = [], set(), []
    for name, text, truncated, error, known in found:
        if error:
            errors.append("%s: %s" % (name, error))
        elif name not in names:
            # Two patterns may name one file.
            names.add(name)
            kept.append(dict(known, name=name, text=text, truncated=truncated))
    facts = {"logs": kept}
    if errors:
        facts["log_error"] = "; ".join(errors)
    return facts
