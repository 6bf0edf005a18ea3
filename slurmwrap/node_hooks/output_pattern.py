"""Turns a file name pattern of sbatch's --output into path components that can be looked up. Pure.

Slurm gives hooks the pattern unresolved (22.05.8), and a node's Epilog knows neither job name nor array. What is known
is filled in; for the rest a component becomes a regular expression. sbatch(1), "filename pattern".
"""
import os
import re

NO_TASK = 4294967294  # what Slurm writes for %a outside an array
NUMBERS = b"jAaJbntUr"
DIGITS, ANY = b"\0d", b"\0a"  # no path holds a NUL


def known(environ, host):
    """Values of the tokens that this Epilog can know. `host`: the real short host name (%N is not NodeName)."""
    job_id = environ.get(b"SLURM_JOB_ID", b"")
    values = {b"j": job_id, b"J": job_id, b"u": environ.get(b"SLURM_JOB_USER", b"")}
    values.update({b"U": environ.get(b"SLURM_JOB_UID", b""), b"N": host, b"n": b"0", b"t": b"0", b"s": b"batch"})
    for token, name in ((b"A", b"SLURM_ARRAY_JOB_ID"), (b"a", b"SLURM_ARRAY_TASK_ID"), (b"x", b"SLURM_JOB_NAME")):
        if environ.get(name):  # not set by 22.05
            values[token] = environ[name]
    if environ.get(b"SLURM_JOB_SLUID"):  # 26.05, which has two tokens more
        values.update({b"S": environ[b"SLURM_JOB_SLUID"], b"r": environ.get(b"SLURM_JOB_RESTART_COUNT", b"0")})
    return values


def readings(pattern, values, work_dir):
    """The ways to read `pattern`, best first: each a list of components, bytes or compiled expressions.

    An absent array is tried before an array of unknown id.
    """
    if b"\\" in pattern:  # a backslash switches all replacement off
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
