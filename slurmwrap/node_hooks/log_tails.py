"""Turns the job's output patterns into log tails, read as the job's user. What comes back is the user's claim."""
import json
import os
import re

from . import deadline_child, hook_environment, output_pattern, rank_files, step_counts, user_files

TAIL = 64 * 1024
ANSWER = 4 << 20  # both tails as JSON, every byte escaped


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
    values = output_pattern.known(environ, os.uname().nodename.split(".")[0].encode("utf-8", "surrogateescape"))
    work_dir = environ.get(b"SLURM_JOB_WORK_DIR", b"")
    files = [(name, output_pattern.readings(name, values, work_dir)) for name in wanted]
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
        found, skipped = rank_files.beside(directory, job_id, uid, started_at, known, of_array)
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
        elif name not in names:  # two patterns may name one file
            names.add(name)
            kept.append(dict(known, name=name, text=text, truncated=truncated))
    facts = {"logs": kept}
    if errors:
        facts["log_error"] = "; ".join(errors)
    return facts
