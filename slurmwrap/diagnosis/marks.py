"""Turns one log into marks: the rows that a signature or a traceback gives a meaning. Pure."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

from slurmwrap.diagnosis.advise import filled
from slurmwrap.diagnosis.lines import Log, Traceback, strip_prefix, tracebacks
from slurmwrap.diagnosis.signatures import WORD, Probe, Signature, SignatureSet, bared, compiled

DECISIVE = 90
ORDINARY = 40
HINT = 20
_CONTEXT_ROWS = 60
_REPEATS = 4

# Exceptions that only pass on what another process or an inner exception said.
_WRAPPERS = frozenset(
    (
        "ChildFailedError",
        "CalledProcessError",
        "RayTaskError",
        "ActorDiedError",
        "RayActorError",
        "WorkerCrashedError",
        "ActorUnavailableError",
        "ProcessRaisedException",
        "ProcessExitedException",
        "SignalException",
        "KeyboardInterrupt",
        "SystemExit",
        "BrokenPipeError",
        "DatasetGenerationError",
        "RendezvousClosedError",
        "TrainingFailedError",
        "TuneError",
        "RuntimeEnvSetupError",
        "RemoteError",
        "RetryError",
        "CancelledError",
        "RemoteTraceback",
        "InductorError",
        "BackendCompilerFailed",
        "InstantiationException",
        "ConfigCompositionException",
        "MultiprocessingError",
        "BrokenProcessPool",
        "ExceptionGroup",
    )
)
_WRAPPED_MESSAGE = re.compile(r"Caught \w{3,60} in (?:DataLoader worker process|replica|pin memory thread)")
_QUIET = re.compile(
    r"\bWARN(?:ING)?\b|Warning: |(?<!=)\bINFO\b|\bDEBUG\b|^\[?[WID]\d{4} |: [WI] (?:tensorflow|external|xla|\w+/)"
    r"|^\[[WI] |^[WI] tensorflow/|\b[Rr]etry(?:ing)?\b(?! (?:count|limit|budget))|\bwill retry\b|\battempt \d"
    r"|\b[Ff]alling back\b|\bcontinuing\b|\b[Ii]gnor(?:ed|ing)\b|\bskipping\b|\bnot a failure\b"
)
_LOUD = re.compile(r"NCCL WARN|\.(?:cc|cu|h):\d+ WARN |\bERROR\b|\bFATAL\b|\bCRITICAL\b|slurmstepd: error|srun: error")
# Where CPython says that text which is no file does not parse: ast.literal_eval, and eval or exec.
_UNKNOWN = re.compile(r'File "<unknown>", line \d+$', re.MULTILINE)
_STRING = re.compile(r'File "<string>", line \d+$', re.MULTILINE)
# Innermost frames of these are the library's complaint about how it is used.
_MISUSE = frozenset(("AssertionError", "ValueError", "TypeError", "NotImplementedError", "AttributeError"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """One row with a meaning. `weight` first, then position, decides which mark is the root."""

    log: int  # index of the log
    row: int
    number: int  # line number in the file
    text: str
    signature: str
    category: str
    role: str
    weight: int
    decision: str = ""
    advice: str = ""
    input_path: str = ""


def find_marks(log: Log, index: int, signatures: SignatureSet) -> tuple[Mark, ...]:
    """Marks of one log in order of rows. Source lines inside tracebacks and what Python ignored are left out."""
    blocks = tracebacks(log)
    by_end = {block.end: block for block in blocks}
    inside = _rows_inside(blocks)
    marks: list[Mark] = []
    for row, candidates in _matches(log, signatures).items():
        if row not in inside and (found := _best(log, row, candidates, by_end.get(row))):
            marks.append(_mark(log, index, row, *found))
    taken = {mark.row for mark in marks}
    marks += [_generic(log, index, block) for block in blocks if block.end not in taken and not block.ignored]
    return tuple(sorted(marks, key=lambda mark: mark.row))


def _rows_inside(blocks: Iterable[Traceback]) -> frozenset[int]:
    rows: set[int] = set()
    for block in blocks:
        rows.update(range(block.start, block.end + int(block.ignored)))
    return frozenset(rows)


def _matches(log: Log, signatures: SignatureSet) -> dict[int, tuple[tuple[Signature, str], ...]]:
    """Rows that hold a literal, with the (signature, expression) pairs that want it.

    Cheap for logs that repeat themselves: rows that differ only in digits are searched once. Cheap for many signatures:
    a literal is searched for only where the log has its words.
    """
    shapes = _shapes(log)
    rows_of = tuple(shapes.values())
    text = _Text(tuple(shapes))
    found: dict[int, set[tuple[int, int]]] = {}
    for word in ("", *(text.places.keys() & signatures.probes.keys())):
        for probe in signatures.probes.get(word, ()):
            if text.may_hold(probe):
                _seek(log, [row for place in text.find(probe, word) for row in rows_of[place]], probe, found)
    return {row: tuple(_pair(signatures, *wanted) for wanted in sorted(users)) for row, users in found.items()}


class _Text:
    """Pieces of text by the words in them, for telling quickly that a literal is in none of them."""

    def __init__(self, pieces: tuple[str, ...]) -> None:
        self.pieces = pieces
        self.places: dict[str, list[int]] = {}  # of each word; a piece that holds it twice is named twice
        for place, piece in enumerate(pieces):
            for word in WORD.findall(piece):
                self.places.setdefault(word, []).append(place)
        self._joined = "\n".join(pieces)
        self._starts = tuple(accumulate((len(piece) + 1 for piece in pieces), initial=0))
        self._words = sorted(self.places)
        self._backwards = sorted(word[::-1] for word in self._words)
        self._vocabulary = "\n".join(self._words)

    def may_hold(self, probe: Probe) -> bool:
        return (
            self.places.keys() >= probe.words
            and _begins_one(self._words, probe.tail)
            and _begins_one(self._backwards, probe.head[::-1])
            and probe.part in self._vocabulary
        )

    def find(self, probe: Probe, word: str) -> Iterable[int]:
        """The pieces that hold `probe.bare`. `word` stands whole in it, or is ""."""
        if not word:
            return _places(self._joined, self._starts, probe.bare)
        return (place for place in dict.fromkeys(self.places[word]) if probe.bare in self.pieces[place])


def _begins_one(ordered: list[str], piece: str) -> bool:
    """Whether one of `ordered` begins with `piece`."""
    at = bisect_left(ordered, piece)
    return not piece or (at < len(ordered) and ordered[at].startswith(piece))


def _shapes(log: Log) -> dict[str, list[int]]:
    """Rows by their text without digits: of each shape the first rows, and the last one."""
    shapes: dict[str, list[int]] = {}
    for row, shape in enumerate(bared(log.text).split("\n")):
        places = shapes.setdefault(shape, [])
        if len(places) < _REPEATS:
            places.append(row)
        else:
            places[-1] = row
    return shapes


def _places(text: str, starts: tuple[int, ...], literal: str) -> list[int]:
    """Which pieces of `text`, that begin at `starts`, hold `literal`."""
    places: list[int] = []
    at = text.find(literal)
    while at >= 0:
        place = bisect_right(starts, at) - 1
        places.append(place)
        at = text.find(literal, starts[place + 1])
    return places


def _seek(log: Log, rows: list[int], probe: Probe, found: dict[int, set[tuple[int, int]]]) -> None:
    for row in rows:
        for needle in probe.needles:
            if needle.literal in log.rows[row]:
                found.setdefault(row, set()).update(needle.wanted_by)


def _pair(signatures: SignatureSet, signature: int, pattern: int) -> tuple[Signature, str]:
    chosen = signatures.signatures[signature]
    return chosen, chosen.patterns[pattern]


def _best(
    log: Log, row: int, candidates: Iterable[tuple[Signature, str]], block: Traceback | None
) -> tuple[Signature, re.Match[str]] | None:
    """The heaviest signature whose conditions hold; the first of the file among equals."""
    best: tuple[Signature, re.Match[str]] | None = None
    of_data = block is not None and _parses_data(block)
    text = log.rows[row]
    bare = strip_prefix(text)
    for signature, pattern in candidates:
        if of_data and signature.category == "syntax_error":
            continue
        if best is not None and signature.weight <= best[0].weight:
            continue
        match = compiled(pattern).search(text) or (compiled(pattern).search(bare) if bare is not text else None)
        if match and _holds(signature, log, row, block):
            best = signature, match
    return best


def _parses_data(block: Traceback) -> bool:
    """A SyntaxError in text that the program parsed, such as a damaged file's header: no program's own syntax."""
    return bool(_UNKNOWN.search(block.frames)) or (block.followed and bool(_STRING.search(block.frames)))


def _holds(signature: Signature, log: Log, row: int, block: Traceback | None) -> bool:
    if signature.unless and compiled(signature.unless).search(log.rows[row]):
        return False
    if signature.frame and (block is None or not compiled(signature.frame).search(block.frames)):
        return False
    if signature.context:
        before = "\n".join(log.rows[max(0, row - _CONTEXT_ROWS) : row + 1])
        return bool(compiled(signature.context).search(before))
    return True


def _mark(log: Log, index: int, row: int, signature: Signature, match: re.Match[str]) -> Mark:
    text = log.rows[row]
    weight = signature.weight
    if signature.role == "root" and not signature.quiet and weight < DECISIVE and is_quiet(text):
        weight = HINT
    return Mark(
        log=index,
        row=row,
        number=log.numbers[row],
        text=text,
        signature=signature.id,
        category=signature.category,
        role=signature.role,
        weight=weight,
        decision=signature.decision,
        advice=filled(signature.advice, match.groupdict()),
        input_path=(match.groupdict().get("input") or ""),
    )


def is_quiet(text: str) -> bool:
    """Whether the line itself says that it is a warning, or that the program goes on."""
    return bool(_QUIET.search(text) or _QUIET.search(strip_prefix(text))) and not _LOUD.search(text)


def _generic(log: Log, index: int, block: Traceback) -> Mark:
    """The mark of a traceback that no signature knows."""
    text = log.rows[block.end]
    wrapper = block.exception in _WRAPPERS or bool(_WRAPPED_MESSAGE.search(block.message))
    passed_on = block.followed and _parses_data(block)
    misuse = block.in_library and block.exception in _MISUSE and bool(block.message)
    return Mark(
        log=index,
        row=block.end,
        number=log.numbers[block.end],
        text=text,
        signature="python.wrapped" if wrapper else "python.library_misuse" if misuse else "python.exception",
        category="semantic_error" if misuse and not wrapper else "traceback_from_crash",
        role="cascade" if wrapper else "root",
        weight=HINT if wrapper or is_quiet(strip_prefix(text)) or passed_on else ORDINARY,
    )
