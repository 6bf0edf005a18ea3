"""Determine which files a command line creates, changes or removes. Pure.

script_writes.py uses this before a trial for the lines of its script, and touch_shim.py during a trial for the commands
that run. The shim loads a copy of this file, so it imports no other module of slurmwrap and little of the standard
library. Options after coreutils 9.1, findutils 4.9, GNU tar 1.34, rsync 3.2, git 2.39, pip 23, wget 1.21, curl 7.88.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence

# Stands for text that only the running shell knows, as in shell_words.py.
UNKNOWN = "\0"
# Stands for the packages that pip and conda change.
ENVIRONMENT = "the Python environment"

_Paths = list[str]


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def find_changed_paths(words: Sequence[str], cwd: str) -> tuple[str, ...]:
    """Return the absolute paths that the command `words` would create, overwrite or remove.

    The result may contain UNKNOWN for paths that are not known, and ENVIRONMENT. `cwd` is "" if it is not known. mkdir
    is not included, because empty directories are removed after the trial.
    """
    if not words or UNKNOWN in words[0]:
        return ()
    name = os.path.basename(words[0])
    found = _RULES.get(name, _change_nothing)(list(words[1:]))
    return tuple(dict.fromkeys(path if path == ENVIRONMENT else make_absolute(path, cwd) for path in found))


def make_absolute(path: str, cwd: str) -> str:
    """Return `path` as absolute path, relative to `cwd`; UNKNOWN if the path or its directory is not known."""
    if path.startswith(UNKNOWN) or (not path.startswith("/") and not cwd):
        return UNKNOWN
    if path.startswith("~"):
        return UNKNOWN
    return os.path.normpath(os.path.join(cwd or "/", path))


def split(arguments: Sequence[str], valued: frozenset[str] = frozenset()) -> tuple[dict[str, str], _Paths]:
    """Return ({option: value or ""}, positional arguments). `valued`: the options that take a value.

    The last option in a group of one-letter options may take the next word as its value.
    """
    options: dict[str, str] = {}
    rest: _Paths = []
    words = list(arguments)
    while words:
        word = words.pop(0)
        if word == "--":
            return options, rest + words
        if not word.startswith("-") or word == "-":
            rest.append(word)
            continue
        name, equals, value = word.partition("=")
        if word.startswith("--"):
            options[name] = value if equals else (words.pop(0) if name in valued and words else "")
            continue
        for at, letter in enumerate(word[1:], 1):
            option = f"-{letter}"
            options[option] = ""
            if option in valued:
                options[option] = word[at + 1 :] or (words.pop(0) if words else "")
                break
    return options, rest


def _change_nothing(arguments: _Paths) -> _Paths:
    return []


def _make_positional_rule(valued: str = "", skipped: int = 0) -> Callable[[_Paths], _Paths]:
    return lambda arguments: split(arguments, _words(valued))[1][skipped:]


def _make_copy_rule(valued: str = "", sources: str = "") -> Callable[[_Paths], _Paths]:
    """Return the rule for commands like cp: they write to the last word, or to -t DIRECTORY.

    With one of the options in `sources`, or always if it is "*", the command removes its sources too.
    """

    def rule(arguments: _Paths) -> _Paths:
        options, rest = split(arguments, _words(valued + " -t --target-directory"))
        if "--help" in options or "--version" in options:
            return []
        target = options.get("-t") or options.get("--target-directory")
        if sources == "*":
            return rest + ([target] if target else [])
        moved = rest[:-1] if any(option in options for option in sources.split()) else []
        return moved + ([target] if target else rest[-1:])

    return rule


def _rsync(arguments: _Paths) -> _Paths:
    valued = (
        "-e -f --rsh --exclude --include --filter --exclude-from --include-from --files-from --bwlimit --partial-dir"
    )
    options, rest = split(arguments, _words(valued + " --log-file --backup-dir --chmod --temp-dir -T"))
    if "-n" in options or "--dry-run" in options or len(rest) < 2:
        return []
    return rest[-1:] + (rest[:-1] if "--remove-source-files" in options else [])


def _ln(arguments: _Paths) -> _Paths:
    options, rest = split(arguments, _words("-t --target-directory -S"))
    target = options.get("-t") or options.get("--target-directory")
    return [target] if target else (rest[-1:] if len(rest) > 1 else [os.path.basename(w) or UNKNOWN for w in rest])


def _dd(arguments: _Paths) -> _Paths:
    return [word[3:] for word in arguments if word.startswith("of=")]


def _sed(arguments: _Paths) -> _Paths:
    in_place = any(re.match(r"-[nrEsuz]*i|--in-place", word) for word in arguments)
    options, rest = split([re.sub(r"^-([nrEsuz]*)i.*", r"-\1I", w) for w in arguments], _words("-e -f --expression"))
    given = {"-e", "-f", "--expression", "--file"} & set(options)
    return (rest if given else rest[1:]) if in_place else []


def _perl(arguments: _Paths) -> _Paths:
    in_place = any(re.match(r"-[a-zA-Z0-9]*i", word) for word in arguments)
    return split(arguments, _words("-e -E"))[1] if in_place else []


def _tar(arguments: _Paths) -> _Paths:
    words = list(arguments)
    if words and not words[0].startswith("-"):
        words[0] = "-" + words[0]
    options, _ = split(words, _words("-f -C -T -X -I --file --directory --exclude"))
    folder = options.get("-C") or options.get("--directory") or "."
    if "-x" in options or "--extract" in options or "--get" in options:
        return [] if "-O" in options or "--to-stdout" in options else [folder]
    if {"-c", "-r", "-u", "--create", "--append", "--update", "--delete"} & set(options):
        file = options.get("-f") or options.get("--file") or "-"
        return [] if file == "-" else [file]
    return []


def _unzip(arguments: _Paths) -> _Paths:
    options, rest = split(arguments, _words("-d -x -P"))
    reads = {"-l", "-t", "-p", "-Z", "-z", "-c", "-v"} & set(options)
    return [] if reads or not rest else [options.get("-d") or "."]


def _packed(arguments: _Paths) -> _Paths:
    options, rest = split(arguments, _words("-S -o -T -p"))
    reads = {"-c", "--stdout", "-l", "-t", "--list", "--test"} & set(options)
    return [] if reads else [options.get("-o") or word for word in rest]


_GIT_READS = _words(
    """rev-parse log show diff status describe ls-files ls-tree ls-remote cat-file blame grep rev-list shortlog version
    help config remote branch tag name-rev merge-base symbolic-ref for-each-ref reflog --version var show-ref"""
)


def _git(arguments: _Paths) -> _Paths:
    words, folder = list(arguments), "."
    while words and words[0].startswith("-"):
        option = words.pop(0)
        if option in ("-C", "-c", "--git-dir", "--work-tree") and words:
            value = words.pop(0)
            folder = value if option == "-C" else folder
    if not words or words[0] in _GIT_READS:
        return []
    if words[0] == "clone":
        rest = split(words[1:], _words("-b -o --branch --depth --origin -c -j --reference"))[1]
        return rest[1:2] or [re.sub(r"(\.git)?/*$", "", rest[0].rpartition("/")[2])] if rest else []
    return [folder]


def _pip(arguments: _Paths) -> _Paths:
    rest = split(arguments)[1]
    if rest[:1] == ["pip"]:  # uv pip
        rest = rest[1:]
    if not rest or rest[0] not in ("install", "uninstall", "download", "wheel", "sync", "add", "remove", "lock"):
        return []
    return ["."] if rest[0] in ("download", "wheel", "lock") else [ENVIRONMENT]


def _conda(arguments: _Paths) -> _Paths:
    rest = split(arguments, _words("-n -p --name --prefix -c --channel -f --file"))[1]
    changes = {"install", "create", "remove", "uninstall", "update", "upgrade", "clean", "init", "config", "env"}
    if not rest or rest[0] not in changes or rest[:2] in (["env", "list"], ["env", "export"]):
        return []
    return [ENVIRONMENT]


def _wget(arguments: _Paths) -> _Paths:
    valued = "-O -P -o -i -t -T -U -e --output-document --directory-prefix --header --user --password --tries --timeout"
    options, rest = split(arguments, _words(valued))
    file = options.get("-O") or options.get("--output-document")
    if "--spider" in options or not (rest or "-i" in options) or file in ("-", "/dev/null"):
        return []
    return [file or options.get("-P") or options.get("--directory-prefix") or "."]


def _curl(arguments: _Paths) -> _Paths:
    valued = "-o -H -d -X -u -A -e -m -w -b -c -F -T -x -r -C -K -y -Y -z -E --output --output-dir --header --data"
    longer = " --retry --user --connect-timeout --retry-delay --request --url --max-time"
    options, _ = split(arguments, _words(valued + longer))
    folder = options.get("--output-dir") or "."
    file = options.get("-o") or options.get("--output")
    if file:
        return [] if file == "-" else [os.path.join(folder, file)]
    return [folder] if {"-O", "--remote-name", "-J"} & set(options) else []


def _find(arguments: _Paths) -> _Paths:
    at = next(
        (i for i, word in enumerate(arguments) if re.match(r"[-(!]", word) and word not in ("-L", "-H", "-P")), None
    )
    if at is None:
        return []
    paths, tests = [w for w in arguments[:at] if not w.startswith("-")] or ["."], arguments[at:]
    if "-delete" in tests:
        return paths
    for i, word in enumerate(tests):
        if word in ("-exec", "-execdir", "-ok"):
            end = next((j for j in range(i + 1, len(tests)) if tests[j] in (";", "+", "\\;")), len(tests))
            return paths if find_changed_paths([w.replace("{}", "x") for w in tests[i + 1 : end]], "/x") else []
    return []


def _xargs(arguments: _Paths) -> _Paths:
    rest = list(arguments)
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        if option in ("-I", "-n", "-P", "-L", "-d", "-a", "-s") and rest:
            rest.pop(0)
    return [UNKNOWN] if find_changed_paths([*rest, "x", "y"], "/x") else []


def _mktemp(arguments: _Paths) -> _Paths:
    options, rest = split(arguments, _words("-p --tmpdir --suffix"))
    if "-u" in options or "-t" in options or "--tmpdir" in options:
        return []
    return [options["-p"]] if options.get("-p") else rest[-1:]


def _nsys(arguments: _Paths) -> _Paths:
    if arguments[:1] not in (["profile"], ["launch"]):
        return []
    options, _ = split(arguments[1:], _words("-o -t -d -c -s -f -w -e -y --output"))
    return [options.get("-o") or options.get("--output") or "."]


def _make_output_rule(option: str, default: str = "") -> Callable[[_Paths], _Paths]:
    def rule(arguments: _Paths) -> _Paths:
        value = split(arguments, _words(f"{option} -e -s -k -c -F -p"))[0].get(option) or default
        return [value] if value else []

    return rule


def _perf(arguments: _Paths) -> _Paths:
    return _make_output_rule("-o", "perf.data")(arguments[1:]) if arguments[:1] == ["record"] else []


def _make(arguments: _Paths) -> _Paths:
    options, _ = split(arguments, _words("-C -f -j --directory"))
    return [] if "-n" in options else [options.get("-C") or options.get("--directory") or "."]


def _aws(arguments: _Paths) -> _Paths:
    if arguments[:1] == ["s3"] and arguments[1:2] and arguments[1] in ("cp", "sync", "mv", "rm"):
        return split(arguments[2:], _words("--exclude --include --profile --region"))[1][-1:]
    return []


def _rclone(arguments: _Paths) -> _Paths:
    rest = split(arguments)[1]
    return rest[-1:] if rest[:1] and rest[0] in ("copy", "sync", "move", "delete", "copyto", "purge") else []


def _ffmpeg(arguments: _Paths) -> _Paths:
    return [w for w in arguments[-1:] if not w.startswith("-")]


def _python(arguments: _Paths) -> _Paths:
    """Return the effects of `python -m pip install`. In all other Python programs the guard controls the writes."""
    at = next((i for i, word in enumerate(arguments) if not word.startswith("-") or word == "-m"), len(arguments))
    return _pip(arguments[at + 2 :]) if arguments[at : at + 2] in (["-m", "pip"], ["-m", "uv"]) else []


_RULES: Mapping[str, Callable[[_Paths], _Paths]] = {
    **dict.fromkeys(("rm", "unlink", "shred", "mkfifo", "rmdir", "srm"), _make_positional_rule()),
    "truncate": _make_positional_rule("-s -r --size --reference"),
    "touch": _make_positional_rule("-d -r -t --date --reference"),
    "tee": _make_positional_rule(),
    **dict.fromkeys(("chmod", "chown", "chgrp", "setfacl"), _make_positional_rule(skipped=1)),
    "mv": _make_copy_rule("-S --suffix", "*"),
    "cp": _make_copy_rule("-S --suffix"),
    "install": _make_copy_rule("-m -o -g -S --mode --owner --group"),
    "scp": _make_copy_rule("-P -i -o -F -c -l -S"),
    "rsync": _rsync,
    "ln": _ln,
    "dd": _dd,
    "sed": _sed,
    "gsed": _sed,
    "perl": _perl,
    **dict.fromkeys(("tar", "gtar", "bsdtar"), _tar),
    "unzip": _unzip,
    "zip": lambda arguments: split(arguments, _words("-x -i -P -n"))[1][:1],
    **dict.fromkeys(("gzip", "gunzip", "bzip2", "bunzip2", "xz", "unxz", "zstd", "unzstd", "pigz", "lz4"), _packed),
    "git": _git,
    **dict.fromkeys(("pip", "pip3", "uv", "poetry", "pipx"), _pip),
    **dict.fromkeys(("conda", "mamba", "micromamba"), _conda),
    **dict.fromkeys(("python", "python3"), _python),
    "wget": _wget,
    "curl": _curl,
    "aria2c": lambda arguments: [split(arguments, _words("-d -o --dir"))[0].get("-d") or "."],
    "find": _find,
    "xargs": _xargs,
    "mktemp": _mktemp,
    "nsys": _nsys,
    "ncu": _make_output_rule("-o"),
    "strace": _make_output_rule("-o"),
    "perf": _perf,
    "script": _make_positional_rule("-c --command"),
    "split": lambda arguments: ["."],
    "sort": _make_output_rule("-o"),
    "patch": lambda arguments: ["."],
    **dict.fromkeys(("make", "ninja", "cmake"), _make),
    **dict.fromkeys(("gcc", "g++", "cc", "nvcc", "clang", "gfortran"), _make_output_rule("-o", "a.out")),
    "aws": _aws,
    "rclone": _rclone,
    "gsutil": lambda arguments: split(arguments)[1][-1:],
    "ffmpeg": _ffmpeg,
    "7z": lambda arguments: ["."] if arguments[:1] in (["x"], ["e"], ["a"]) else [],
}
# Commands that get a shim, which checks them when they run, with the words after the shell's expansions.
SHIMMED = (
    "mkdir",
    *sorted(set(_RULES) - _words("python python3 tee xargs mktemp sort gcc g++ cc nvcc clang gfortran strace")),
)

REMOVERS = _words("rm rmdir unlink shred srm find chmod chown chgrp setfacl")
