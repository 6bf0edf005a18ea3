"""Decide quickly whether a call certainly asks for no GPU and uses no slurmwrap feature, and can go to sbatch as it is.

At a site whose sbatch is gsub, most calls do not concern slurmwrap, and each of them pays for every module that is
loaded. So this module imports only os, and answers yes only for what it fully understands. An abbreviated option, a
quote or a backslash in a directive, a script on standard input or one found by PATH all go through the full parser
(sbatch/parse_request.py), which decides. tests/sbatch/test_fast_passthrough.py compares this module with the option
table and with the results of the full parser. A call with a dependency is not certain either, because it may name a
member of a packed job (gsub/pack_dependency.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

# Letters for which getopt_long takes the next word as the value if none is attached.
LETTERS_WITH_VALUE = "ABCFJLMNSabceimnopqtwx"
FLAG_LETTERS = "HOQWsv"
LONG_WITH_VALUE = frozenset(
    (
        *("account", "acctg-freq", "array", "batch", "begin", "bb", "bbf", "cluster", "clusters", "comment"),
        *("constraint", "container", "cores-per-socket", "core-spec", "cpus-per-task", "cpu-freq", "deadline"),
        *("delay-boot", "distribution", "error", "exclude", "exclusive", "export"),
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
_GSUB_MAGIC = b"#GSUB"
_AUTO = "auto"
# Characters with which a directive can write the same word in another way.
_QUOTING_CHARACTERS = b"\"'\\"
# Number of bytes of a script that are read at most.
_MAX_SCRIPT_BYTES = 1 << 20


def is_certain_passthrough(
    words: Sequence[str], environ: Mapping[str, str], read: Callable[[str], bytes | None]
) -> bool:
    """Return whether the call certainly goes to sbatch as it is.

    `read`: returns the content of a regular file by its name in the working directory, None if there is none.
    """
    # These variables may ask for a GPU or a large array, or carry gsub's own options.
    if any(name.startswith(("GSUB_", "SBATCH_G", "SBATCH_TRES", "SBATCH_ARRAY")) for name in environ):
        return False
    if environ.get("SBATCH_PARTITION") == _AUTO:
        return False
    script = find_script_word(words)
    if script is None:
        return False
    # --wrap: there is no script to read.
    if script == "":
        return True
    content = read(script)
    return content is not None and len(content) <= _MAX_SCRIPT_BYTES and _is_plain_script(content)


def find_script_word(words: Sequence[str]) -> str | None:
    """Return the script that the call names, "" for --wrap.

    None if an option may ask for a GPU, may be gsub's own, or needs the full parser.
    """
    # --partition=auto leaves the choice to gsub (gsub/choose_partition.py).
    if any(word.endswith(_AUTO) for word in words):
        return None
    # An array with such a number may have to be split (sbatch/passthrough.py, may_need_splitting).
    if any(_has_large_number(word) for word in words) and any(_may_be_array(word) for word in words):
        return None
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
            if not _is_plain_short_option(word):
                return None
            at += 2 if len(word) == 2 and word[1] in LETTERS_WITH_VALUE else 1
    rest = words[at:]
    if wrapped or not rest:
        return "" if wrapped and not rest else None
    return rest[0] if ":" not in rest else None


def _is_plain_short_option(word: str) -> bool:
    """Return whether the word is one letter with or without a value: -N2, -N 2, -H; no bundle, no -G, no -D."""
    if len(word) == 2:
        return word[1] in LETTERS_WITH_VALUE or word[1] in FLAG_LETTERS
    return len(word) > 2 and word[1] in LETTERS_WITH_VALUE


def _is_plain_script(content: bytes) -> bool:
    for line in content.split(b"\n"):
        if line.startswith(_GSUB_MAGIC):
            return False
        if line.startswith(_MAGIC) and not _is_plain_line(line):
            return False
    return True


def _may_be_array(word: str) -> bool:
    return word.startswith(("--array", "-a"))


def _has_large_number(text: str) -> bool:
    """Return whether the text has a number of four digits or more."""
    return any(text[at : at + 4].isdigit() for at in range(len(text) - 3))


def _is_plain_line(line: bytes) -> bool:
    """Return whether every option is in the tables above, by its full name; its value may be in the next words."""
    if any(byte in _QUOTING_CHARACTERS for byte in line):
        return False
    text = line.decode("ascii", "replace")
    if any(word.endswith(_AUTO) for word in text.split()):
        return False
    if ("-a" in text) and _has_large_number(text):
        return False
    return all(_is_plain_word(word) for word in text.split() if "-" in word)


def _is_plain_word(word: str) -> bool:
    if "--" in word:
        # `#SBATCH--mem=1` is a directive too.
        name = word[word.index("--") + 2 :].partition("=")[0]
        return name in LONG_WITH_VALUE or name in LONG_FLAGS
    return "G" not in word


def read_regular_file(path: str) -> bytes | None:
    """Return the file's content; None if it is not a regular file (a pipe can be read only once) or is unreadable."""
    from stat import S_ISREG

    try:
        if not S_ISREG(os.stat(path).st_mode):  # noqa: PTH116
            # Do not even open a pipe: its writer would go on as soon as it is opened, and end when it is closed.
            return None
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if not S_ISREG(os.fstat(descriptor).st_mode):
            return None
        return os.read(descriptor, _MAX_SCRIPT_BYTES + 1)
    except OSError:
        return None
    finally:
        os.close(descriptor)
