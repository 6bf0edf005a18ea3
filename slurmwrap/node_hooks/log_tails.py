"""Read the ends of the job's output files, and of its ranks' files next to them, with the rights of the job's user.

The content is a claim of the user: they can write anything to these files.
"""

import json
import os
import re
import stat
from . import deadline_child, hook_environment, step_counts, user_files


# The first part resolves a file name pattern of sbatch's --output (sbatch(1), "filename pattern") to path components.
#
# Slurm passes the unresolved pattern to hooks (22.05.8), and a node's Epilog knows neither job name nor array. Known
# values are inserted; a component with an unknown value becomes a regular expression.

# The number that Slurm writes for %a when the job is not in an array.
NO_TASK = 4294967294
# Tokens whose value is a number.
NUMBERS = b"jAaJbntUr"
# Placeholders for unknown digits and unknown text. No path contains a NUL byte.
DIGITS, ANY = b"\0d", b"\0a"


def known(environ, host):
    """Return the values of the tokens that an Epilog can know.

    `host`: the real short host name (%N is not NodeName).
    """
    job_id = environ.get(b"SLURM_JOB_ID", b"")
    values = {b"j": job_id, b"J": job_id, b"u": environ.get(b"SLURM_JOB_USER", b"")}
    values.update({b"U": environ.get(b"SLURM_JOB_UID", b""), b"N": host, b"n": b"0", b"t": b"0", b"s": b"batch"})
    for token, name in ((b"A", b"SLURM_ARRAY_JOB_ID"), (b"a", b"SLURM_ARRAY_TASK_ID"), (b"x", b"SLURM_JOB_NAME")):
        if environ.get(name):  # 22.05 does not set these variables
            values[token] = environ[name]
    # Slurm 26.05 has two further tokens.
    if environ.get(b"SLURM_JOB_SLUID"):
        values.update({b"S": environ[b"SLURM_JOB_SLUID"], b"r": environ.get(b"SLURM_JOB_RESTART_COUNT", b"0")})
    return values


def readings(pattern, values, work_dir):
    """Return the possible readings of `pattern`, best first, as lists of components (bytes or compiled expressions).

    The reading for a job outside an array precedes the one for an array of unknown id.
    """
    # In a pattern with a backslash Slurm replaces no token.
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


# The second part selects, from the files next to the job's output, the few files of ranks (`srun --output=log.%t` and
# similar) that are worth reading.
#
# It runs with the rights of the job's user. Slurm passes no hook the --output of a step. So a file counts if the user
# wrote it since the job began, and its name either contains the job id as a separate number or belongs to a numbered
# family that begins at 0 and is named like output. The content is the user's claim about their own job.

# Bytes that are read of each file.
RANK_TAIL = 16 * 1024
KEPT = 8  # files sent
LOOKED = 64  # files opened: those that were written last the longest time ago, and the newest
NAMED = 1024  # files on which lstat is called
SKIPPED = 8  # skipped files that the observation names; it counts the others
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
    """Return (found, skipped): [(path, bytes, truncated)] with the first rank to fail first, and ["name: reason"].

    `known`: paths that are read in any case. `since`: Unix time; when it is None no file is read. `of_array`: see
    named_like.
    """
    if since is None:
        return [], []
    written = []
    names = named_like(user_files.listed(directory), job_id, of_array)
    for name in names[:NAMED]:
        other = os.path.join(directory, name)
        at = find_write_time(other, uid, since) if other not in known else None
        if at is not None:
            written.append((at, other))
    written.sort()
    few = written if len(written) <= LOOKED else written[: LOOKED // 2] + written[-(LOOKED // 2) :]
    read, skipped = _read([other for _, other in few], uid)
    kept = preferred(read)
    left = len(written) - len(kept) - len(skipped) + max(0, len(names) - NAMED)
    if left:
        skipped.append("%d more files next to it: at most %d are kept" % (left, KEPT))
    return kept, skipped[-SKIPPED:]


def named_like(names, job_id, of_array=False):
    """Return those of `names` (bytes) that belong to a job, judged by the names alone.

    `of_array`: the pattern of the job's output contains %a. One task of each array has the array's id as its own job
    id. For this task, a file named 41_7 is not a rank's file, but the output of another task.
    """
    number = re.compile(rb"(?<![0-9])(?:(?<![0-9A-Za-z])(?P<array>[0-9]+)_)?%d(?![0-9])(?P<task>_[0-9])?" % job_id)
    found, families = [], {}
    for name in names:
        if any(not _is_of_other_job(match, job_id, of_array) for match in number.finditer(name)):
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


def _is_of_other_job(match, job_id, of_array):
    """Return whether the file belongs to another job although its name contains the job id.

    In slurm-16_18.out the number 18 is the index of an array task, not job 18. In 0_4711 and 20261121_4711 it is no
    index: jobs that run at the same time have ids of about the same size, so the first number cannot be the id of an
    array. With `of_array`, a name like 41_7 is the output of another task.
    """
    if of_array and match.group("task"):
        return True
    array = int(match.group("array") or 0)
    return job_id <= 10 * array <= 100 * job_id and (of_array or array != job_id)


def preferred(read):
    """Return up to KEPT of `read`, [(path, data, truncated)] ordered by time of last write.

    Ranks whose text shows a failure come first, the earliest first, then the newest files.
    """
    failed = [one for one in read if _FAILED.search(one[1])][: KEPT - 2]
    newest = [one for one in reversed(read) if one not in failed][: KEPT - len(failed)]
    return failed + newest


def find_write_time(path, uid, since):
    try:
        found = os.lstat(path)
    except OSError:
        return None
    counts = stat.S_ISREG(found.st_mode) and found.st_uid == uid and found.st_size and found.st_mtime >= since - 2.0
    return found.st_mtime if counts else None


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


# The third part reads the log files that the user's submission names (prerun/static/job_logs.py): a program's log
# elsewhere, perhaps written by a container. Like all other content it is the user's claim about their own job.

LOG_SUFFIXES = (".log", ".out", ".err", "log.txt", "stdout", "stderr")
# Files that are read, and files that are read of one directory: those that were written last.
NAMED_LOGS = 8
LOGS_OF_DIRECTORY = 4
NAMES_SIZE = 64 * 1024  # bytes of the file that names them


def list_logs_of(path: bytes, uid: int, since: float) -> list:
    """Return the log files (bytes) that `path` means: itself, or if it ends with "/" the newest logs below it.

    Only files that `uid` wrote since Unix time `since` count. The directories below are not searched.
    """
    if b"\0" in path:
        return []
    if not path.endswith(b"/"):
        return [path] if find_write_time(path, uid, since) is not None else []
    suffixes = tuple(suffix.encode("ascii") for suffix in LOG_SUFFIXES)
    try:
        names = [name for name in user_files.listed(path, NAMED) if name.endswith(suffixes)]
    except (user_files.Unreadable, OSError):
        return []
    written = [(find_write_time(path + name, uid, since), path + name) for name in names]
    return [one for _, one in sorted((at, one) for at, one in written if at is not None)[-LOGS_OF_DIRECTORY:]]


# Bytes that are read of each of the job's output files.
TAIL = 64 * 1024
# Most bytes that the child may send: both tails as JSON, every byte escaped.
ANSWER = 4 << 20


def tails(environ, started_at, deadline):
    """Return the job's log tails and step counts as facts.

    `logs`; `log_error`: why a file was not read; `logs_skipped`: the ranks' files that were omitted; `steps`: when the
    job counts its steps (step_counts.py).

    Returns by `deadline` even when the file system hangs, with what was read by then.
    """
    uid, gid = hook_environment.number(environ, "SLURM_JOB_UID"), hook_environment.number(environ, "SLURM_JOB_GID")
    wanted = patterns(environ)
    if not uid or gid is None:
        return {"logs": [], "log_error": "a job of root" if uid == 0 else "the job's user is unknown"}
    user = hook_environment.text(environ, "SLURM_JOB_USER")
    values = known(environ, os.uname().nodename.split(".")[0].encode("utf-8", "surrogateescape"))
    work_dir = environ.get(b"SLURM_JOB_WORK_DIR", b"")
    files = [(name, readings(name, values, work_dir)) for name in wanted]
    ranks_of = hook_environment.job_id(environ), work_dir, _is_named_by_task(wanted)
    cluster = hook_environment.text(environ, "SLURM_CLUSTER_NAME")
    return _as_user(files, user, uid, gid, started_at, deadline, ranks_of=ranks_of, cluster=cluster)


def read(paths: tuple, user: str, uid: int, gid: int, deadline: float, begins: dict, named=(), since=None) -> dict:
    """Return the same facts for known `paths` (bytes, absolute). The caller may also be a process of that user.

    `begins`: name -> [bytes, mark] of the file at the end of an earlier run. Each log then also has `size`, `mark`,
    `first_line` and `modified`. `named`: further logs as in list_logs_of, which count only if they were written since
    Unix time `since`; None: they are not read.
    """
    files = [(path, [_parts(path)]) for path in paths if path.startswith(b"/")]
    files = [one for one in files if one[0] != b"/dev/null"]
    named = [path for path in named if path.startswith(b"/")] if since is not None else []
    return _as_user(files, user, uid, gid, since, deadline, begins, named=named)


def _parts(path):
    return [part for part in path.split(b"/") if part]


def _as_user(files, user, uid, gid, started_at, deadline, begins=None, ranks_of=None, named=(), cluster=""):
    def look(send):
        state = step_counts.home_of(uid) if ranks_of is not None else None
        user_files.become(user, uid, gid, send.descriptor)
        read = []
        for name, readings in files:
            path, log = read_output_file(name, readings, uid, started_at, begins)
            send(json.dumps(log).encode("utf-8") + b"\n")
            read += [path] if path else []
        own = len(read)
        for path in [one for name in named[:NAMED] for one in list_logs_of(name, uid, started_at)]:
            if path not in read and len(read) < own + NAMED_LOGS:
                send(json.dumps(read_output_file(path, [_parts(path)], uid, started_at, begins)[1]).encode() + b"\n")
                read.append(path)
        if ranks_of is not None:
            job_id, work_dir, of_array = ranks_of
            place = os.path.dirname(read[0]) if read else work_dir
            logs = named_logs(state, cluster, job_id, uid) if state is not None and started_at is not None else {}
            read += _send_named_logs(logs, uid, started_at, set(read), send)
            _send_rank_files(place, job_id, uid, started_at, set(read), of_array, send)
            steps = step_counts.below(state and os.path.join(state, b"steps"), job_id, uid, started_at)
            send(json.dumps({"steps": steps}).encode("utf-8") + b"\n")

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


def _send_named_logs(named, uid, started_at, known, send):
    """Send the logs that gsub named for this job (see named_logs) and that are not `known`; return their paths."""
    found = [path for name in list(named)[:NAMED] for path in list_logs_of(name, uid, started_at)]
    paths = [path for path in sorted(set(found), key=found.index) if path not in known][:NAMED_LOGS]
    for path in paths:
        try:
            log = user_files.span(path, uid, RANK_TAIL, named.get(path))
        except (user_files.Unreadable, OSError):
            continue
        cut = log["start"] > log["first"]
        text = _whole_lines(log["data"], cut).decode("utf-8", "replace")
        send(json.dumps([_text(path), text, cut, "", {"named": True}]).encode("utf-8") + b"\n")
    return paths


def named_logs(state, cluster, job_id, uid):
    """Return {path (bytes): [bytes, mark] before the job, or None} that gsub wrote to job_logs/<job id> below `state`.

    {} when there is none, or that of a job of another cluster. Whatever the user wrote there instead, the result has
    these types. `cluster`: "" when unknown.
    """
    try:
        path = os.path.join(state, b"job_logs", b"%d" % job_id)
        record = json.loads(user_files.tail(path, uid, NAMES_SIZE)[0].decode("utf-8"))
        if cluster and record["cluster"] != cluster:
            return {}
        found = dict((os.fsencode(name), end) for name, end in record["logs"].items() if name.startswith("/"))
    except (user_files.Unreadable, OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return {}
    valid = dict((name, end) for name, end in found.items() if _is_end(end))
    return dict((name, valid.get(name)) for name in found)


def _is_end(end):
    is_pair = isinstance(end, list) and len(end) == 2
    return is_pair and type(end[0]) is int and 0 <= end[0] < 1 << 62 and isinstance(end[1], str)


def _send_rank_files(directory, job_id, uid, started_at, known, of_array, send):
    """Send the ranks' files in the directory of the job's first output file, or without one in its work directory."""
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


def _is_named_by_task(wanted):
    """Return whether a pattern of the output contains %a, the index of an array task."""
    return any(re.search(rb"%[0-9]*a", pattern) for pattern in wanted)


def patterns(environ):
    """Return the patterns of stdout and stderr that can name a file, without duplicates."""
    found = []
    for key in (b"SLURM_JOB_STDOUT", b"SLURM_JOB_STDERR"):
        value = environ.get(key, b"")
        if value and value not in (b"/dev/null", b"(null)") and value not in found:
            found.append(value)
    return found


def read_output_file(pattern, readings, uid, started_at, begins, counted=user_files.COUNTED):
    """Return (path if the file was read, else None; [name, text or None, truncated, error, further facts]).

    `counted`: see user_files.span.
    """
    error = "no such file"
    for components in readings:
        path = pattern
        try:
            path = user_files.find(components, uid, started_at)
            found = user_files.span(path, uid, TAIL, (begins or {}).get(_text(path)), counted)
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
    """Return `data` without an incomplete first line, unless there is no other line."""
    start = data.find(b"\n") + 1 if more else 0
    return data[start:] or data


def _facts(found):
    kept, names, errors = [], set(), []
    for name, text, truncated, error, known in found:
        if error:
            errors.append("%s: %s" % (name, error))
        elif name not in names:
            # Two patterns may name the same file.
            names.add(name)
            kept.append(dict(known, name=name, text=text, truncated=truncated))
    facts = {"logs": kept}
    if errors:
        facts["log_error"] = "; ".join(errors)
    return facts
