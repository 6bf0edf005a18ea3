"""A first look at a call: is it certain, without reading it whole, that it asks for no GPU and for nothing of
slurmwrap's?

Most calls of a site whose sbatch is gsub are none of our business, and each pays for every module we load. So this one
stands on nothing but os, and says yes only to what it understands: an abbreviated option, a quote or a backslash in a
directive, a script on stdin or found by PATH all go the long way (sbatch/parse_request.py), which decides.
tests/sbatch/test_fast_passthrough.py holds it to the option table, and to the long way's answers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

# What getopt_long takes from the next word where none is attached.
LETTERS_WITH_VALUE = "ABCFJLMNSabcdeimnopqtwx"
FLAG_LETTERS = "HOQWsv"
LONG_WITH_VALUE = frozenset(
    (
        *("account", "acctg-freq", "array", "batch", "begin", "bb", "bbf", "cluster", "clusters", "comment"),
        *("constraint", "container", "cores-per-socket", "core-spec", "cpus-per-task", "cpu-freq", "deadline"),
        *("delay-boot", "dependency", "distribution", "error", "exclude", "exclusive", "export"),
        *("extra-node-info", "hint", "input", "job-name", "kill-on-invalid-dep", "licenses", "mail-type"),
        *("mail-user", "mem", "mem-bind", "mem-per-cpu", "mincpus", "network", "nice", "nodefile", "nodelist"),
        *("nodes", "ntasks", "ntasks-per-core", "ntasks-per-node", "ntasks-per-socket", "open-mode", "output"),
        *("partition", "priority", "profile", "propagate", "qos", "reservation", "signal", "sockets-per-node"),
        *("switches", "tasks-per-node", "thread-spec", "threads-per-core", "time", "time-min", "tmp"),
        *("wait-all-nodes", "wckey", "wrap"),
    )
)
LONG_FLAGS = frozenset(
    (
        *("contiguous", "hold", "no-requeue", "overcommit", "oversubscribe", "parsable"),
        *("quiet", "requeue", "verbose", "wait"),
    )
)
_MAGIC = (b"#SBATCH", b"#SLURM")
_OUR_MAGIC = b"#GSUB"
# What lets a directive spell a word otherwise.
_ODD = b"\"'\\"
# bytes of a script that are looked at
_MOST = 1 << 20


def is_certain_passthrough(
    words: Sequence[str], environ: Mapping[str, str], read: Callable[[str], bytes | None]
) -> bool:
    """Whether the call certainly goes to sbatch as it is.

    `read`: the content of a regular file by its name in the working directory, None where there is none.
    """
    if any(name.startswith(("GSUB_", "SBATCH_G", "SBATCH_TRES")) for name in environ):
        return False
    script = find_script_word(words)
    if script is None:
        return False
    # --wrap: nothing more to be read
    if script == "":
        return True
    content = read(script)
    return content is not None and len(content) <= _MOST and _is_plain_script(content)


def find_script_word(words: Sequence[str]) -> str | None:
    """The script that the call names, "" for --wrap; None where an option may ask for a GPU, may be ours, or is read
    otherwise than at a glance."""
    wrapped, at = False, 0
    while at < len(words) and words[at].startswith("-"):
        word = words[at]
        if word.startswith("--"):
            name, equals, _ = word[2:].partition("=")
            if name not in (LONG_WITH_VALUE if equals else LONG_FLAGS):
                return None
            wrapped = wrapped or name == "wrap"
            at += 1
        else:
            if not _is_plain_letter(word):
                return None
            at += 2 if len(word) == 2 and word[1] in LETTERS_WITH_VALUE else 1
    rest = words[at:]
    if wrapped or not rest:
        return "" if wrapped and not rest else None
    return rest[0] if ":" not in rest else None


def _is_plain_letter(word: str) -> bool:
    """One letter with its value or alone: -N2, -N 2, -H; no bundle, no -G, no -D."""
    if len(word) == 2:
        return word[1] in LETTERS_WITH_VALUE or word[1] in FLAG_LETTERS
    return len(word) > 2 and word[1] in LETTERS_WITH_VALUE


def _is_plain_script(content: bytes) -> bool:
    for line in content.split(b"\n"):
        if line.startswith(_OUR_MAGIC):
            return False
        if line.startswith(_MAGIC) and not _is_plain_line(line):
            return False
    return True


def _is_plain_line(line: bytes) -> bool:
    """Every option is one of the plain ones, by its whole name; values may be the words that follow."""
    if any(byte in _ODD for byte in line):
        return False
    return all(_is_plain_word(word) for word in line.decode("ascii", "replace").split() if "-" in word)


def _is_plain_word(word: str) -> bool:
    if "--" in word:
        # #SBATCH--mem=1 is a directive too
        name = word[word.index("--") + 2 :].partition("=")[0]
        return name in LONG_WITH_VALUE or name in LONG_FLAGS
    return "G" not in word


def read_regular_file(path: str) -> bytes | None:
    """Its content; None for what is none, cannot be read, or is read only once (a pipe)."""
    from stat import S_ISREG

    try:
        if not S_ISREG(os.stat(path).st_mode):  # noqa: PTH116
            # Not even opened: who writes to a pipe would go on when we do, and end when we close it.
            return None
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if not S_ISREG(os.fstat(descriptor).st_mode):
            return None
        return os.read(descriptor, _MOST + 1)
    except OSError:
        return None
    finally:
        os.close(descriptor)
