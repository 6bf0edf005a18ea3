"""Find the files that a job names, compute their digest, and read them to see whether they are broken (adapter).

Reads are bounded in bytes and time. Nothing is unpickled, and no reference in a file to other files is followed.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from slurmwrap.prerun.static.entry_points import list_started_programs
from slurmwrap.prerun.static.shell_words import UNKNOWN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slurmwrap.prerun.static.started_program import StartedProgram
    from slurmwrap.sbatch.job_request import JobRequest


def _split_words(text: str) -> frozenset[str]:
    return frozenset(text.split())


MIB = 1 << 20
# Number of words that are looked up at most: each one is a stat, perhaps on a slow file system.
_MAX_WORDS = 1000
# The job writes the file after such an option ("-o" of sort and curl, "of=" of dd).
_WRITTEN = r"(?i)out(?!lier)|save|log|result|dest|dump|export|report|trace|profil|^(-o|of)$"
# Commands whose arguments are not data: they write, remove or list files, or run them as code.
_NO_READERS = _split_words(
    """
    : [ [[ test echo printf set unset export declare local readonly typeset shopt ulimit umask module ml source . cd
    pushd popd true false exit return shift eval read exec trap wait kill sleep date hostname hash type which command
    alias rm rmdir mkdir mktemp touch truncate ln mv chmod chown chgrp tee ls stat du df find git pip pip3 conda mamba
    spack make cmake sbatch salloc scancel scontrol squeue sacct sinfo nvidia-smi
    """
)
_LAST_IS_WRITTEN = ("cp", "rsync", "scp", "install", "sbcast")
# The job creates the path after such an option, or may create it.
_OUTPUT = (
    r"(?i)^-o$|out|save|log|result|dest|work[-_]?dir|run[-_]?dir|exp|ckpt|checkpoint|resume|dump|board|wandb|cache|tmp|temp"
    r"|scratch|prefix|target|report|profil|trace|artifact|store|socket|pid|record|download|export|root[-_]?dir"
)
_NUMBER = r"-\.?\d"
_PAIR = r"[A-Za-z_][\w.]*="
# Options without dashes, as in `OUTPUT_DIR ./out`.
_YACS = r"[A-Z][A-Z0-9_]+(\.[A-Z0-9_]+)*"
_DATA = (
    r"(?i)\.(pt|pth|ckpt|bin|npy|npz|h5|hdf5|parquet|json|jsonl|csv|tsv|txt|yaml|yml|toml|gz|zip|tar|pkl|safetensors"
    r"|png|jpe?g|arrow|tfrecord|lmdb|model|bz2|xz|zst|py|sh|cfg|ini)$"
)


def list_named_files(request: JobRequest, environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Return the regular files that the script's commands and arguments name for reading, absolute and in order.

    Files of code (.py, .sh) are left out.
    """
    text = request.script.content.decode("utf-8", "surrogateescape")
    commands = list_started_programs(text, request.chdir, request.args, environ) if text.startswith("#!") else ()
    given = [(request.args, request.chdir), *((_list_read_words(one), one.cwd or request.chdir) for one in commands)]
    pairs = ((name, _resolve_path(value, cwd)) for argv, cwd in given for name, value in list_named_values(argv))
    paths = (path for name, path in pairs if path and not re.search(_WRITTEN, name))
    kept = islice((p for p in dict.fromkeys(paths) if not p.endswith((".py", ".sh"))), _MAX_WORDS)
    return tuple(path for path in kept if _is_file(path))


def _list_read_words(command: StartedProgram) -> tuple[str, ...]:
    """Return the words of one command that may name data, and the files that it reads by `<`."""
    if command.entry is not None:
        return (*command.entry.argv, *command.reads)
    name, *words = command.words or ("",)
    name = os.path.basename(name)
    # The parser takes "[" for the start of a pattern, so UNKNOWN stands for it too.
    if UNKNOWN in name or name in _NO_READERS or (name == "tar" and _is_creating_archive(words)):
        words = []
    elif name in _LAST_IS_WRITTEN:
        words = words[:-1]
    return (*words, *command.reads)


def _is_creating_archive(words: Sequence[str]) -> bool:
    """Return whether tar runs with c, r, u or A, so that it writes its archive.

    The first word may be letters without a dash (tar(1)).
    """
    letters = [w for at, w in enumerate(words) if (not at and not w.startswith("--")) or re.match(r"-[^-]", w)]
    return bool({"--create", "--append", "--update"} & set(words)) or any(set("cruA") & set(w) for w in letters[:1])


def list_missing_paths(argv: Sequence[str], cwd: str) -> Iterator[tuple[str, str]]:
    """Yield (option, absolute path) of arguments that are certainly paths to read but do not exist."""
    for name, value in list_named_values(argv):
        path = _resolve_path(value, cwd)
        if path and _is_surely_path(value, cwd) and not re.search(_OUTPUT, name) and not os.path.lexists(path):
            yield name, path


def list_given_files(argv: Sequence[str], cwd: str) -> Iterator[tuple[str, str]]:
    """Yield (option, absolute path) of arguments that are existing data files to read."""
    for name, value in list_named_values(argv):
        path = _resolve_path(value, cwd)
        if path and re.search(_DATA, path) and not re.search(_OUTPUT, name) and _is_file(path):
            yield name, path


def list_named_values(argv: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield (option, value) of `--option value`, `--option=value` and `key=value`; option "" for a separate word."""
    option = ""
    for word in argv:
        if word.startswith("-") and "=" not in word and not re.match(_NUMBER, word):
            option = word
            continue
        name, value = word.split("=", 1) if re.match(r"--?[\w-]+=|[\w.]+=", word) else (option, word)
        option = word if not option and re.fullmatch(_YACS, word) else ""
        pairs = value.split(",")
        # `--model_args pretrained=./model,dtype=bfloat16` holds several pairs.
        if all(re.match(_PAIR, pair) for pair in pairs[1:]):
            value = pairs[0]
            yield from (tuple(pair.split("=", 1)) for pair in pairs[1:])  # type: ignore[misc]
        yield name, value


def digest(path: str) -> str:
    """Return the sha256 of size, first and last MiB, which identifies the input. OSError if it cannot be read."""
    from hashlib import sha256

    with open(path, "rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        found = sha256(f"{size}\n".encode())
        found.update(stream.read(MIB))
        stream.seek(max(0, size - MIB))
        found.update(stream.read(MIB))
    return found.hexdigest()


def inspect(path: str) -> str | None:
    """Return what is wrong with the file; None if slurmwrap's own read found nothing or the file cannot be judged."""
    # Imported here because zipfile and others would slow down the start of gsub.
    from slurmwrap.prerun.static import file_formats

    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return "does not exist"
    except OSError:
        # slurmwrap may not read it, which is not a fault of the data.
        return None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return None
        with os.fdopen(descriptor, "rb", closefd=False) as stream:
            return file_formats.find_format_fault(stream, status.st_size, os.path.splitext(path)[1].lower())
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    finally:
        os.close(descriptor)


def _resolve_path(value: str, cwd: str) -> str:
    if value.startswith("~"):
        # The shell does not expand `--data=~/x`; some programs expand it themselves.
        return ""
    if not value or UNKNOWN in value or value.startswith("-") or "://" in value or set("*?[{\n") & set(value):
        return ""
    if not value.startswith("/") and not cwd:
        return ""
    return os.path.normpath(os.path.join(cwd, value))


def _is_surely_path(value: str, cwd: str) -> bool:
    """Return whether the value is a path. A model name "org/model" and a type "bf16/fp32" have a slash as well."""
    if "/" not in value:
        return False
    if value.startswith(("/", "./", "../")):
        return True
    first = value.split("/", 1)[0]
    return bool(re.search(_DATA, value)) or (bool(cwd) and os.path.isdir(os.path.join(cwd, first)))


def _is_file(path: str) -> bool:
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False
