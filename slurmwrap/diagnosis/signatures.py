"""Read messages/*.toml, and a site's own files, into a SignatureSet. Pure except for reading the files.

A signature names a cause or a consequence by a regular expression over one line. Before any expression runs, plain
literals that it needs are searched for, so that a log costs little however many signatures there are.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from slurmwrap.diagnosis.advice import list_places
from slurmwrap.diagnosis.regex_prefilter import find_harmful_shape, find_required_literals
from slurmwrap.diagnosis.taxonomy import CATEGORIES, DECISIONS
from slurmwrap.errors import ConfigError
from slurmwrap.fast_dataclasses import dataclass

ROLES = ("root", "cascade", "advice", "background")
PLACES = ("log", "kernel")
_STRENGTHS = {"strong": 70, "ordinary": 40, "summary": 30, "hint": 20}
_SITE_WEIGHT = 79
# On one line, signatures of these roles outrank a root of less weight.
_ROLE_WEIGHTS = {"advice": 95, "background": 95, "cascade": 55}
_OVERLAPPING_REPEATS = re.compile(r"(\\[Sw])([*+])((?:\\\(\)\?)?[\])]?(?: |:|\[: \])?\??(?:\(\?:)?\.\{0,)")
WORD = re.compile(r"[A-Za-z_]+")
GRAM = 4
_MESSAGES_DIR = Path(__file__).with_name("messages")
# By the program that prints the message. If two signatures of equal weight match a line, the file that is listed first
# wins.
_FILE_NAMES = (
    "common",
    "slurm",
    "shell",
    "python",
    "files",
    "storage",
    "process",
    "torch",
    "frameworks",
    "jax",
    "tensorflow",
    "cuda",
    "mpi",
    "nccl",
    "container",
    "batch_systems",
    "languages",
    "hpc_apps",
    "accelerators",
    "workflows",
    "network",
    "apps",
    "kernel",
    "generic",
)
SHIPPED = tuple(_MESSAGES_DIR / f"{name}.toml" for name in _FILE_NAMES)
_KEYS = frozenset(
    (
        "id",
        "category",
        "pattern",
        "by",
        "example",
        "role",
        "strength",
        "weight",
        "where",
        "frame",
        "context",
        "unless",
        "quiet",
        "decision",
        "advice",
        "counter",
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSignature:
    """One known message. Expressions are kept as text and compiled when first needed."""

    id: str
    category: str  # "" for roles other than root, unless the message is meaningful on its own.
    patterns: tuple[str, ...]
    # The software that prints it, with the source.
    by: str
    examples: tuple[str, ...]
    role: str = "root"
    weight: int = 70  # the heaviest wins, then the earliest
    where: str = "log"  # "log": output of the job; "kernel": the node's kernel log
    frame: str = ""  # must match in the traceback that the line ends
    context: str = ""  # must match in the lines before
    unless: str = ""  # must not match in the line
    quiet: bool = False  # counts even if the line calls itself a warning
    decision: str = ""  # "": the category's decision
    advice: str = ""  # "": the category's advice
    counterexamples: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Needle:
    """A literal, and the expressions (indexes in SignatureSet.ranked) that need a line with it."""

    literal: str
    wanted_by: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What a text must hold before a search for a needle is worthwhile. It is looked up in a set of words."""

    bare: str  # the literal without its digits
    words: frozenset[str]  # words that are complete in it
    head: str  # the word at its start, which may be the end of a longer one; "" if none
    tail: str  # the word at its end, which may be the start of a longer one; "" if none
    part: str  # its only word, which may be a part of a longer one
    needles: tuple[Needle, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SignatureSet:
    """All signatures of one version, with the literals that select them, for each place (log, kernel)."""

    version: str
    signatures: tuple[LogSignature, ...]
    # All expressions with their signatures, the heaviest first, then in the order of the files.
    ranked: tuple[tuple[LogSignature, str], ...]
    needles: Mapping[str, tuple[Needle, ...]]
    # Needles for the log, by a word that must be complete in the text.
    probes: Mapping[str, tuple[Probe, ...]]
    # The other needles, by GRAM characters of a word; "" for those with fewer.
    partial: Mapping[str, tuple[Probe, ...]]


@cache
def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Return the expression, compiled once per process.

    In `\\S*.{0,160}` both parts match the same characters, so a row full of near misses would cost their product. The
    first part is therefore bounded.
    """
    return re.compile(
        _OVERLAPPING_REPEATS.sub(lambda found: f"{found[1]}{{{int(found[2] == '+')},30}}{found[3]}", pattern)
    )


@cache
def get_default_signatures() -> SignatureSet:
    """Return the set that ships with this version."""
    return load_signatures(*SHIPPED)


@cache
def get_signatures_with(site: str) -> SignatureSet:
    """Return the shipped set plus the file that a site names (diagnosis.signatures); the shipped set alone for "".

    Raises ConfigError as load_signatures does.
    """
    return load_signatures(*SHIPPED, Path(site).expanduser()) if site else get_default_signatures()


def load_signatures(*paths: Path) -> SignatureSet:
    """Return one set from several files. A later file's signature replaces an earlier one with the same id.

    Raises ConfigError with file and signature.
    """
    found: dict[str, LogSignature] = {}
    versions: list[str] = []
    for path in paths:
        tables = _read_toml(path)
        versions.extend(_list_texts(tables.get("version", ())))
        found.update(
            {signature.id: signature for signature in (_parse_signature(t, path) for t in tables["signature"])}
        )
    ordered = tuple(found.values())
    ranked = tuple(sorted(((s, p) for s in ordered for p in s.patterns), key=lambda pair: -pair[0].weight))
    needles = _build_needles(ranked)
    probes, partial = _build_probes(needles["log"])
    return SignatureSet(
        version="+".join(versions),
        signatures=ordered,
        ranked=ranked,
        needles=needles,
        probes=probes,
        partial=partial,
    )


def strip_digits(text: str) -> str:
    """Return `text` as literals are first searched for in it: no digits, one `?` for each non-ASCII character.

    Python searches ASCII text several times faster than other text.
    """
    return text.encode("ascii", "replace").translate(None, b"0123456789").decode("ascii")


def _build_probes(needles: tuple[Needle, ...]) -> tuple[dict[str, tuple[Probe, ...]], dict[str, tuple[Probe, ...]]]:
    """Return the probes by a whole word; and those without one by a piece of a word, the rarest among all of them."""
    table: dict[str, list[Needle]] = {}
    for needle in needles:
        table.setdefault(strip_digits(needle.literal), []).append(needle)
    probes = [_make_probe(bare, tuple(users)) for bare, users in table.items()]
    by_word: dict[str, list[Probe]] = {}
    for probe in probes:
        if probe.words:
            by_word.setdefault(max(probe.words, key=len), []).append(probe)
    others = [probe for probe in probes if not probe.words]
    common = Counter(gram for probe in others for gram in _list_grams(probe))
    by_gram: dict[str, list[Probe]] = {}
    for probe in others:
        by_gram.setdefault(min(_list_grams(probe), key=lambda gram: (common[gram], gram), default=""), []).append(probe)
    return _freeze_table(by_word), _freeze_table(by_gram)


def _freeze_table(table: Mapping[str, list[Probe]]) -> dict[str, tuple[Probe, ...]]:
    return {key: tuple(probes) for key, probes in table.items()}


def _list_grams(probe: Probe) -> set[str]:
    words = (probe.head, probe.tail, probe.part)
    return {word[at : at + GRAM] for word in words for at in range(len(word) - GRAM + 1)}


def _make_probe(bare: str, needles: tuple[Needle, ...]) -> Probe:
    found = [(word.start() == 0, word.end() == len(bare), word[0]) for word in WORD.finditer(bare)]
    return Probe(
        bare=bare,
        words=frozenset(word for first, last, word in found if not first and not last),
        head=next((word for first, last, word in found if first and not last), ""),
        tail=next((word for first, last, word in found if last and not first), ""),
        part=next((word for first, last, word in found if first and last), ""),
        needles=needles,
    )


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read signatures {path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path}: {error}", hint="signatures are TOML; see docs/diagnosis.md") from error
    return {"signature": [], **tables}


def _parse_signature(table: Mapping[str, Any], path: Path) -> LogSignature:
    where = f"{path}: signature {table.get('id', '(no id)')!r}"
    if unknown := sorted(set(table) - _KEYS):
        raise ConfigError(f"{where} has the unknown key {unknown[0]!r}", hint=f"keys: {', '.join(sorted(_KEYS))}")
    role = table.get("role", "root")
    signature = LogSignature(
        id=str(table.get("id", "")),
        category=str(table.get("category", "")),
        patterns=_list_texts(table.get("pattern", ())),
        by=str(table.get("by", "")),
        examples=_list_texts(table.get("example", ())),
        role=role,
        weight=int(table.get("weight", _ROLE_WEIGHTS.get(role, _parse_weight(table, path)))),
        where=str(table.get("where", "log")),
        frame=str(table.get("frame", "")),
        context=str(table.get("context", "")),
        unless=str(table.get("unless", "")),
        quiet=bool(table.get("quiet", False)),
        decision=str(table.get("decision", "")),
        advice=str(table.get("advice", "")),
        counterexamples=_list_texts(table.get("counter", ())),
    )
    _check_fields(signature, where)
    # The shipped expressions are compiled only when needed; a test checks them all.
    if path not in SHIPPED:
        _check_expressions(signature, where)
    return signature


def _parse_weight(table: Mapping[str, Any], path: Path) -> int:
    """Return the weight by strength. A site's own signature outranks the shipped ones of its class on the same line."""
    if "strength" not in table and path not in SHIPPED:
        return _SITE_WEIGHT
    return _STRENGTHS.get(table.get("strength", "strong"), 70)


def _list_texts(value: Any) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(str(item) for item in value)


def _check_fields(signature: LogSignature, where: str) -> None:
    problems = (
        ("no id", not signature.id),
        ("no pattern", not signature.patterns),
        (f"the unknown role {signature.role!r}", signature.role not in ROLES),
        (f"the unknown place {signature.where!r}", signature.where not in PLACES),
        (f"the unknown category {signature.category!r}", signature.category not in CATEGORIES and signature.category),
        ("no category", signature.role == "root" and not signature.category),
        (f"the unknown decision {signature.decision!r}", signature.decision not in ("", *DECISIONS)),
    )
    for problem, found in problems:
        if found:
            raise ConfigError(f"{where} has {problem}", hint="see docs/diagnosis.md")


def _build_needles(ranked: tuple[tuple[LogSignature, str], ...]) -> dict[str, tuple[Needle, ...]]:
    wanted: dict[str, dict[str, list[int]]] = {place: {} for place in PLACES}
    for index, (signature, pattern) in enumerate(ranked):
        for literal in _list_literals(signature, pattern):
            wanted[signature.where].setdefault(literal, []).append(index)
    return {
        place: tuple(Needle(literal=literal, wanted_by=tuple(users)) for literal, users in table.items())
        for place, table in wanted.items()
    }


def _list_literals(signature: LogSignature, pattern: str) -> tuple[str, ...]:
    literals = find_required_literals(pattern)
    if not literals:
        raise ConfigError(
            f"signature {signature.id!r}: {pattern!r} has no plain text of three characters to look for",
            hint="put a literal piece of the message outside of brackets and alternatives",
        )
    return literals


def _check_expressions(signature: LogSignature, where: str) -> None:
    _check_regexes(signature, where)
    groups = {name for pattern in signature.patterns for name in re.compile(pattern).groupindex}
    if unknown := sorted(set(list_places(signature.advice)) - groups):
        raise ConfigError(f"{where}: advice names {{{unknown[0]}}}", hint="no pattern has a group (?P<name>…) of it")


def _check_regexes(signature: LogSignature, where: str) -> None:
    for pattern in (*signature.patterns, signature.frame, signature.context, signature.unless):
        try:
            re.compile(pattern)
        except re.error as error:
            raise ConfigError(f"{where}: {error} in {pattern!r}") from error
        if harm := find_harmful_shape(pattern):
            raise ConfigError(f"{where}: {pattern!r} may be slow: {harm}", hint="a log of any content must cost little")
        if "(?i" in pattern:
            raise ConfigError(f"{where}: (?i) in {pattern!r}", hint="write [Nn]o instead of (?i)no")
