"""Find the files that a job will read from those that its trial opened: siblings, shards, patterns, manifests.

A trial opens a few files of a dataset. The others are found by what the program itself used: a directory that it
listed, a pattern that it expanded, a manifest that names an opened file, a number in the name of an opened file. A file
is taken only if the trial opened enough files of the same kind in the same place: one shard, two samples, three of the
formats in which checkpoints are saved, because old checkpoints lie next to the one that is read.
"""

from __future__ import annotations

import glob
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path

from slurmwrap.prerun.inputs.opened_files import OpenedFiles

# Files that are taken at most, and entries that are listed at most.
MAX_FILES = 1_500_000
_MAX_LISTED = 5_000_000
_MAX_MANIFESTS = 20
_MAX_MANIFEST_BYTES = 256 << 20
_MAX_PATTERN_WORDS = 200
_SHARD_SUFFIXES = frozenset(
    (".tar", ".tgz", ".gz", ".zip", ".parquet", ".arrow", ".feather", ".tfrecord", ".tfrecords", ".jsonl", ".ndjson")
)
_CHECKPOINT_SUFFIXES = frozenset((".pt", ".pth", ".ckpt", ".safetensors", ".bin", ".pkl", ".pickle", ".model", ".h5"))
_MANIFEST_SUFFIXES = (".txt", ".csv", ".tsv", ".lst", ".list", ".scp", ".json", ".jsonl", ".ndjson", ".manifest")
# A download that has not ended, an editor's copy.
_UNFINISHED = (".part", ".partial", ".tmp", ".temp", ".crdownload", ".incomplete", ".download", ".swp", "~", ".bak")
_JSON_STRING = re.compile(r'"((?:[^"\\]|\\.){1,1024})"')
_FIELD = re.compile(r'[^,;|"\t\r\n]{1,1024}')
_WORD = re.compile(r"\S{1,1024}")
_BRACES = re.compile(r"\{(\d+)\.\.(\d+)\}")


def expand_inputs(
    opened: OpenedFiles, named: Sequence[str] = (), words: Iterable[str] = (), chdir: str = "/"
) -> dict[str, str]:
    """Return the files that the job will read, each with the reason, in the order of certainty; at most MAX_FILES.

    `named`: files that the job's commands name. `words`: words of its command lines, in which patterns are looked for.
    A file may be missing or be no regular file. Reads directories and manifests.
    """
    found: dict[str, str] = {}
    _add(found, ((path, "opened in the pre-run") for path in opened.files))
    _add(found, ((path, "named by the script") for path in named))
    _add(found, _list_numbered(opened.files))
    _add(found, _match_words(words, chdir, opened.files))
    _add(found, _match_patterns(opened))
    _add(found, _list_siblings(opened))
    _add(found, _read_manifests(opened.files))
    return found


def _add(found: dict[str, str], more: Iterable[tuple[str, str]]) -> None:
    for path, why in islice(more, _MAX_LISTED):
        if len(found) >= MAX_FILES:
            return
        name = path.rpartition("/")[2]
        if name and not name.startswith(".") and not name.endswith(_UNFINISHED):
            found.setdefault(path, why)


def get_kind(path: str) -> str:
    """Return the suffix in lower case, with numbers replaced: ".jpg", ".tfrecord-#-of-#"; "" without a suffix."""
    return re.sub(r"\d+", "#", os.path.splitext(path)[1].lower()) if not path.endswith(".#") else ""


def _count_enough(kind: str) -> int:
    """Return how many files of a kind the trial must have opened in a place before others of the place are taken."""
    if kind in _SHARD_SUFFIXES or "-of-" in kind:
        return 1
    return 3 if kind in _CHECKPOINT_SUFFIXES else 2


def _select_kinds(paths: Iterable[str]) -> set[str]:
    counts = Counter(map(get_kind, paths))
    return {kind for kind, count in counts.items() if kind and count >= _count_enough(kind)}


def _normalize_numbers(name: str) -> str:
    return re.sub(r"\d+", "#", name)


def _list_numbered(files: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the files that differ from opened ones only in numbers: train-00001-of-00128, img_0007.jpg."""
    patterns: Counter[tuple[str, str]] = Counter()
    for path in files:
        folder, _, name = path.rpartition("/")
        if re.search(r"\d", os.path.splitext(name)[0] or name):
            patterns[folder, _normalize_numbers(name)] += 1
    wanted: dict[str, set[str]] = {}
    for (folder, pattern), count in patterns.items():
        if "#-of-#" in pattern or count >= _count_enough(get_kind(pattern)):
            wanted.setdefault(folder, set()).add(pattern)
    for folder, names in wanted.items():
        for name in _list_files(folder):
            if _normalize_numbers(name) in names:
                yield f"{folder}/{name}", "numbered like a file that was opened in the pre-run"


def _list_siblings(opened: OpenedFiles) -> Iterator[tuple[str, str]]:
    """Yield the files of listed directories that are of a kind that was opened there or in a parallel directory.

    Directories are parallel if they are equally deep below the same listed directory, with every one between listed:
    the classes of an image folder.
    """
    listed = set(opened.directories)
    places = {folder: _find_place(folder, listed) for folder in listed}
    files: dict[tuple[str, int], list[str]] = {}
    for path in opened.files:
        if place := places.get(path.rpartition("/")[0]):
            files.setdefault(place, []).append(path)
    kinds = {place: _select_kinds(paths) for place, paths in files.items()}
    for folder in opened.directories:
        if wanted := kinds.get(places[folder]):
            for name in _list_files(folder):
                if get_kind(name) in wanted:
                    yield f"{folder}/{name}", "in a directory that the program lists"


def _find_place(folder: str, listed: set[str]) -> tuple[str, int]:
    """Return (the highest directory above that is listed without a gap, the depth below it)."""
    depth = 0
    while (parent := folder.rpartition("/")[0]) in listed:
        folder, depth = parent, depth + 1
    return folder, depth


def _list_files(folder: str) -> Iterator[str]:
    with suppress(OSError), os.scandir(folder or "/") as entries:
        for entry in entries:
            with suppress(OSError):
                if not entry.is_dir():
                    yield entry.name


def _match_patterns(opened: OpenedFiles) -> Iterator[tuple[str, str]]:
    """Yield the files that match a pattern of glob, of the kinds that were opened."""
    files = set(opened.files)
    for pattern in opened.patterns:
        with suppress(OSError, ValueError, re.error):
            matches = list(islice(glob.iglob(pattern, recursive=True), MAX_FILES))
            wanted = _select_kinds(path for path in map(os.path.normpath, matches) if path in files)
            for path in matches:
                if get_kind(path) in wanted:
                    yield os.path.normpath(path), "matches a pattern that the program uses"


def _match_words(words: Iterable[str], chdir: str, files: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the files that a word of the job's command lines names by `{000..127}`, or by `*` if one was opened."""
    opened = set(files)
    for word in islice(words, _MAX_PATTERN_WORDS):
        value = word.partition("=")[2] if re.match(r"--?[\w-]+=", word) else word
        if "$" in value or "://" in value or not value:
            continue
        path = os.path.normpath(os.path.join(chdir, value))
        if _BRACES.search(path):
            for one in islice(expand_braces(path), MAX_FILES):
                if os.path.lexists(one):
                    yield one, "named by the script"
        elif set("*?") & set(path):
            matches = list(islice(glob.iglob(path), MAX_FILES))
            if any(match in opened for match in matches):
                yield from ((match, "named by the script") for match in matches)


def expand_braces(text: str) -> Iterator[str]:
    """Yield the words that the shell and webdataset make of `{000..127}`, with the width of the first number."""
    found = _BRACES.search(text)
    if found is None:
        yield text
        return
    first, last = int(found[1]), int(found[2])
    width = len(found[1]) if found[1].startswith("0") else 0
    for number in range(first, last + 1) if first <= last else range(first, last - 1, -1):
        yield from expand_braces(f"{text[: found.start()]}{number:0{width}d}{text[found.end() :]}")


def _read_manifests(files: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the files that an opened text, CSV or JSON file names, if it names one that was opened too."""
    by_name: dict[str, list[str]] = {}
    for path in files:
        by_name.setdefault(path.rpartition("/")[2], []).append(path)
    for manifest in [path for path in files if path.lower().endswith(_MANIFEST_SUFFIXES)][:_MAX_MANIFESTS]:
        text = _read_text(manifest)
        tokens = list(dict.fromkeys(_list_tokens(text, is_json=manifest.lower().endswith(("json", "jsonl")))))
        del text
        bases, kinds = _find_bases(tokens, by_name, manifest)
        for token in tokens:
            if get_kind(token) in kinds:
                for base in bases:
                    yield os.path.normpath(base + token), f"named in {manifest}"


def _read_text(path: str) -> str:
    with suppress(OSError), Path(path).open("rb") as stream:
        return stream.read(_MAX_MANIFEST_BYTES).decode("utf-8", "surrogateescape")
    return ""


def _list_tokens(text: str, *, is_json: bool) -> Iterator[str]:
    if is_json:
        yield from (one.replace("\\/", "/") for one in _JSON_STRING.findall(text) if "." in one)
        return
    yield from (one.strip() for one in _FIELD.findall(text) if "." in one)
    if "," not in text[:65536]:
        yield from (one for one in _WORD.findall(text) if "." in one)


def _find_bases(tokens: Iterable[str], opened: Mapping[str, list[str]], manifest: str) -> tuple[list[str], set[str]]:
    """Return (directories that the names start from, kinds of the named files), by the names of opened files.

    A base is "" for absolute names, else it ends with "/".
    """
    bases: Counter[str] = Counter()
    kinds: set[str] = set()
    for token in tokens:
        for path in opened.get(token.rpartition("/")[2], ()):
            relative = token.removeprefix("./")
            if path != manifest and get_kind(path) and (path == token or path.endswith(f"/{relative}")):
                bases["" if path == token else path[: len(path) - len(relative)]] += 1
                kinds.add(get_kind(path))
    return [base for base, _ in bases.most_common(4)], kinds
