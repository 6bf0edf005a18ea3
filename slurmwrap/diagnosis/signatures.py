"""Reads messages/*.toml (and a site's own files) into a SignatureSet. Pure but for reading the files.

A signature names a cause or a consequence by a regular expression over one line. Before any expression runs, plain
literals that it cannot match without are looked for, so that a log costs little however many signatures there are.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from slurmwrap.diagnosis.literals import required_literals
from slurmwrap.diagnosis.taxonomy import CATEGORIES, DECISIONS
from slurmwrap.errors import ConfigError

ROLES = ("root", "cascade", "advice", "background")
PLACES = ("log", "kernel")
_STRENGTHS = {"strong": 70, "ordinary": 40, "summary": 30, "hint": 20}
_ROLE_WEIGHTS = {"advice": 95, "background": 95, "cascade": 55}  # on one line these beat a root of less weight
WITHOUT_DIGITS = str.maketrans("", "", "0123456789")
_FOLDER = Path(__file__).with_name("messages")
# By who prints them. Of two that match one line with the same weight, the one that is named first here wins.
_FILES = (
    "common",
    "slurm",
    "shell",
    "python",
    "files",
    "process",
    "cuda",
    "mpi",
    "nccl",
    "container",
    "network",
    "kernel",
)
SHIPPED = tuple(_FOLDER / f"{name}.toml" for name in _FILES)
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
class Signature:
    """One message. Expressions are kept as text and compiled when first needed."""

    id: str
    category: str  # "" for roles other than root, unless they tell something on their own
    patterns: tuple[str, ...]
    by: str  # which software prints it, with its source
    examples: tuple[str, ...]
    role: str = "root"
    weight: int = 70  # the heaviest wins, then the earliest
    where: str = "log"  # log: output of the job · kernel: the node's kernel log
    frame: str = ""  # must be found in the traceback that the line ends
    context: str = ""  # must be found in the lines before
    unless: str = ""  # must not be found in the line
    quiet: bool = False  # counts even where the line calls itself a warning
    decision: str = ""  # "" = the category's
    advice: str = ""  # "" = the category's
    counterexamples: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Needle:
    """A literal and the expressions (signature index, pattern index) that need one such line."""

    literal: str
    wanted_by: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SignatureSet:
    """All signatures of one version, with the literals that lead to them, per place."""

    version: str
    signatures: tuple[Signature, ...]
    needles: Mapping[str, tuple[Needle, ...]]
    triggers: Mapping[str, tuple[Needle, ...]]  # short pieces, each with the needles for the log that hold it


@cache
def compiled(pattern: str) -> re.Pattern[str]:
    """The expression, compiled once per process."""
    return re.compile(pattern)


@cache
def default_signatures() -> SignatureSet:
    """The set that ships with this version."""
    return load_signatures(*SHIPPED)


def load_signatures(*paths: Path) -> SignatureSet:
    """One set from several files; a later file's signature replaces an earlier one of the same id.

    Raises ConfigError naming file and signature.
    """
    found: dict[str, Signature] = {}
    versions: list[str] = []
    pieces: list[str] = []
    for path in paths:
        tables = _read(path)
        versions.extend(_texts(tables.get("version", ())))
        pieces.extend(_texts(tables.get("triggers", ())))
        found.update({signature.id: signature for signature in (_signature(t, path) for t in tables["signature"])})
    ordered = tuple(found.values())
    needles = _needles(ordered)
    return SignatureSet(
        version="+".join(versions),
        signatures=ordered,
        needles=needles,
        triggers=_triggers(pieces, needles["log"]),
    )


def _triggers(pieces: list[str], needles: tuple[Needle, ...]) -> dict[str, tuple[Needle, ...]]:
    """Each needle under one piece that it holds; a needle that holds none is its own. All without digits."""
    table: dict[str, list[Needle]] = {}
    for needle in needles:
        bare = needle.literal.translate(WITHOUT_DIGITS)
        piece = next((piece for piece in pieces if piece in bare), bare)
        table.setdefault(piece, []).append(needle)
    return {piece: tuple(users) for piece, users in table.items()}


def _read(path: Path) -> dict[str, Any]:
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read signatures {path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path}: {error}", hint="signatures are TOML; see docs/diagnosis.md") from error
    return {"signature": [], **tables}


def _signature(table: Mapping[str, Any], path: Path) -> Signature:
    where = f"{path}: signature {table.get('id', '(no id)')!r}"
    if unknown := sorted(set(table) - _KEYS):
        raise ConfigError(f"{where} has the unknown key {unknown[0]!r}", hint=f"keys: {', '.join(sorted(_KEYS))}")
    role, strength = table.get("role", "root"), table.get("strength", "strong")
    signature = Signature(
        id=str(table.get("id", "")),
        category=str(table.get("category", "")),
        patterns=_texts(table.get("pattern", ())),
        by=str(table.get("by", "")),
        examples=_texts(table.get("example", ())),
        role=role,
        weight=int(table.get("weight", _ROLE_WEIGHTS.get(role, _STRENGTHS.get(strength, 70)))),
        where=str(table.get("where", "log")),
        frame=str(table.get("frame", "")),
        context=str(table.get("context", "")),
        unless=str(table.get("unless", "")),
        quiet=bool(table.get("quiet", False)),
        decision=str(table.get("decision", "")),
        advice=str(table.get("advice", "")),
        counterexamples=_texts(table.get("counter", ())),
    )
    _check(signature, where)
    if path not in SHIPPED:  # the shipped ones are compiled when needed; a test checks them all
        _check_expressions(signature, where)
    return signature


def _texts(value: Any) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(str(item) for item in value)


def _check(signature: Signature, where: str) -> None:
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


def _needles(signatures: tuple[Signature, ...]) -> dict[str, tuple[Needle, ...]]:
    wanted: dict[str, dict[str, list[tuple[int, int]]]] = {place: {} for place in PLACES}
    for index, signature in enumerate(signatures):
        for number, pattern in enumerate(signature.patterns):
            for literal in _literals_of(signature, pattern):
                wanted[signature.where].setdefault(literal, []).append((index, number))
    return {
        place: tuple(Needle(literal=literal, wanted_by=tuple(users)) for literal, users in table.items())
        for place, table in wanted.items()
    }


def _literals_of(signature: Signature, pattern: str) -> tuple[str, ...]:
    literals = required_literals(pattern)
    if not literals:
        raise ConfigError(
            f"signature {signature.id!r}: {pattern!r} has no plain text of three characters to look for",
            hint="put a literal piece of the message outside of brackets and alternatives",
        )
    return literals


def _check_expressions(signature: Signature, where: str) -> None:
    for pattern in (*signature.patterns, signature.frame, signature.context, signature.unless):
        try:
            re.compile(pattern)
        except re.error as error:
            raise ConfigError(f"{where}: {error} in {pattern!r}") from error
        if "(?i" in pattern:
            raise ConfigError(f"{where}: (?i) in {pattern!r}", hint="write [Nn]o instead of (?i)no")
