"""Find marks in one log: the rows to which a signature or a traceback gives a meaning. Pure."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate, compress, islice, pairwise
from operator import ne

from slurmwrap.diagnosis.advice import fill_template
from slurmwrap.diagnosis.log_rows import LogRows, Traceback, find_bare_exceptions, find_tracebacks, strip_prefix
from slurmwrap.diagnosis.signatures import GRAM, WORD, LogSignature, Probe, SignatureSet, compile_pattern, strip_digits
from slurmwrap.fast_dataclasses import dataclass

DECISIVE = 90
STRONG = 70
ORDINARY = 40
BARE = 35
HINT = 20
_CONTEXT_ROWS = 60
_MOST_REPEATS = 4

# Exceptions that only pass on what another process or an inner exception reported.
_WRAPPER_EXCEPTIONS = frozenset(
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
        "BadStateException",
        "SparkException",
        "FailedJobError",
        "UncompletedJobError",
        "Py4JJavaError",
        "WorkerDiedError",
        "NodeFailureError",
        "PapermillExecutionError",
    )
)
_WRAPPED_MESSAGE = re.compile(
    r"Caught \w{3,60} in (?:DataLoader worker process|replica|pin memory thread)"
    r"|^process \d{1,6} terminated with signal SIGKILL"
)
_WARNING_WORDS = re.compile(
    r"\bWARN(?:ING)?\b|Warning: |(?<!=)\bINFO\b|\bDEBUG\b|^\[?[WID]\d{4} |: [WI] (?:tensorflow|external|xla|\w+/)"
    r"|^\[[WI] |^[WI] tensorflow/|\b[Rr]etry(?:ing)?\b(?! (?:count|limit|budget))|\bwill retry\b|\battempt \d"
    r"|\b[Ff]alling back\b|\bcontinuing\b|\b[Ii]gnor(?:ed|ing)\b|\bskipping\b|\bnot a failure\b"
)
_ERROR_WORDS = re.compile(
    r"NCCL WARN|\.(?:cc|cu|h):\d+ WARN |\bERROR\b|\bFATAL\b|\bCRITICAL\b|slurmstepd: error|srun: error"
)
# Memory that ran out is that of the device if the line speaks of one, and not of the host.
_GPU_WORDS = re.compile(
    r"\b(?:GPUs?|NPU|XPU|MLU|HPU|DCU|TPU|VRAM|HBM|SYCL|OpenCL|ROCm)\b|\b[Gg]pu(?![\w-])|GPU|CUDA|[Cc]uda(?![\w.-]{0,20}/)"
    r"|\bcuMem|\bHIP\b|\bhip[A-Z_]|[Dd]evice memory|\.cuh?\b|/acc/|aclrt|\bmlu\b|\bcu-[a-z]|\bCu(?:Mem|Dev|Mat|Vec|Arr)"
    r"|\brmm::|(?:Device|DEVICE|device)_?(?:Mem|MEM|mem|Al|AL|al)\w*|\bcn(?:rt|mem)|\b[Aa]ccelerator\b"
)
_HOST_WORDS = re.compile(r"[Hh]ost|HOST|[Pp]inned|\bCPU\b|\bcpu\b|RAM\b|page-?locked|cgroup|[Oo]om.?[Kk]ill")
# The command of a process that died, as bash and subprocess repeat it. Its words are no message.
_ECHOED_COMMAND = re.compile(
    r"(?<=: )(line \d{1,6}: +\d{1,9} (?:[A-Z][a-z]{2,12}(?:[ /][a-z0-9/]{1,12}){0,4}|Exit \d{1,3}|CPU time limit"
    r" exceeded)(?: +\(core dumped\)|(?=  ))) .+$"
)
_COMMAND_OF_CHILD = re.compile(
    r"(Error: Command |\bcmd ?)(?:'?\[.{1,1900}\]'?|'.{1,1900}')(?= (?:returned|died|timed|code|exit))"
)
# A command that `set -x` shows before it runs.
_TRACED_COMMAND = re.compile(r"\+{1,4} [\w./]{1,200}(?: |$)")
# A line of a program's help text: "  --abort-on-nan   abort the run when the loss is not finite".
_HELP_LINE = re.compile(r"\s{1,12}-{1,2}[A-Za-z][\w-]{0,40}(?:[, =]|$)")
# CPython's location for a syntax error in text that is not a file: ast.literal_eval, and eval or exec.
_FILE_UNKNOWN = re.compile(r'File "<unknown>", line \d+$', re.MULTILINE)
_FILE_STRING = re.compile(r'File "<string>", line \d+$', re.MULTILINE)
# If the innermost frame of one of these is in a library, the library complains about how it is used.
_MISUSE_EXCEPTIONS = frozenset(("AssertionError", "ValueError", "TypeError", "NotImplementedError", "AttributeError"))


@dataclass(frozen=True, slots=True, kw_only=True)
class LogMatch:
    """One row with a meaning, called a mark. `weight` first, then the position, decides which mark is the root."""

    log: int  # index of the log
    row: int
    # Line number in the file.
    number: int
    text: str
    signature: str
    category: str
    role: str
    weight: int
    decision: str = ""
    advice: str = ""
    input_path: str = ""


def find_marks(log: LogRows, index: int, signatures: SignatureSet) -> tuple[LogMatch, ...]:
    """Return the marks of one log in the order of rows, without source lines in tracebacks and what Python ignored."""
    blocks = find_tracebacks(log)
    by_end = {block.end: block for block in blocks}
    inside = _list_rows_inside(blocks)
    marks: list[LogMatch] = []
    for row, wanted in _find_candidate_rows(log, signatures).items():
        if row in inside:
            continue
        candidates = (signatures.ranked[place] for place in wanted)
        if found := _find_best_signature(log, row, candidates, by_end.get(row)):
            marks.append(_make_mark(log, index, row, *found))
    # A row that matched only a consequence may still be the only failure of the log. So tracebacks without a signature,
    # exceptions that stand alone and exceptions without a traceback get marks of low weight.
    taken = {mark.row for mark in marks}
    consequences = {mark.row for mark in marks if mark.role == "cascade"}
    marks += [_match_traceback(log, index, block) for block in blocks if block.end not in taken and not block.ignored]
    marks += [_match_lone_exception(log, index, block.end) for block in _find_lone(blocks, consequences)]
    known = (taken - consequences) | inside | by_end.keys()
    marks += [
        _match_bare_exception(log, index, row, weak=row in taken)
        for row, name in find_bare_exceptions(log)
        if row not in known and name not in _WRAPPER_EXCEPTIONS and not _WRAPPED_MESSAGE.search(log.rows[row])
    ]
    return tuple(sorted(marks, key=lambda mark: mark.row))


def _find_lone(blocks: Iterable[Traceback], consequences: set[int]) -> Iterator[Traceback]:
    """Yield the exceptions that mostly follow from another failure, to be used if the log shows no other.

    A chain of them (the connection to a worker broke, so the worker is gone) only says that another process ended.
    """
    chained = False
    for block in blocks:
        wrapper = block.exception in _WRAPPER_EXCEPTIONS or bool(_WRAPPED_MESSAGE.search(block.message))
        if block.end in consequences and not (wrapper or block.ignored or block.followed or chained):
            yield block
        chained = block.followed and (block.end in consequences or chained)


def _list_rows_inside(blocks: Iterable[Traceback]) -> frozenset[int]:
    rows: set[int] = set()
    for block in blocks:
        rows.update(range(block.start, block.end + int(block.ignored)))
    return frozenset(rows)


def _find_candidate_rows(log: LogRows, signatures: SignatureSet) -> dict[int, list[int]]:
    """Return the rows that hold a literal, with the expressions that need it (indexes in `ranked`), heaviest first.

    The cost is low for logs that repeat themselves, because rows that differ only in digits are searched once. It is
    low for many signatures, because a literal is searched for only if the log has its words.
    """
    shapes = _group_by_shape(log)
    rows_of = tuple(shapes.values())
    text = _TextIndex(tuple(shapes))
    found: dict[int, set[int]] = {}
    for word in text.places.keys() & signatures.probes.keys():
        for probe in signatures.probes[word]:
            if places := text.find(probe, word):
                _seek_probe(log, [row for index in places for row in rows_of[index]], probe, found)
    for gram in ("", *(text.grams & signatures.partial.keys())):
        for probe in signatures.partial.get(gram, ()):
            if places := text.find(probe, ""):
                _seek_probe(log, [row for index in places for row in rows_of[index]], probe, found)
    return {row: sorted(users) for row, users in found.items()}


class _TextIndex:
    """Pieces of text, indexed by their words, to find quickly which pieces hold a literal."""

    def __init__(self, pieces: tuple[str, ...]) -> None:
        self.pieces = pieces
        # Word -> indexes of the pieces that hold it; a piece that holds it twice is listed twice.
        self.places: dict[str, list[int]] = {}
        for place, piece in enumerate(pieces):
            for word in WORD.findall(piece):
                self.places.setdefault(word, []).append(place)
        self._words = sorted(self.places)
        self._backwards = sorted(word[::-1] for word in self._words)
        self._vocabulary = "\n".join(self._words) + "\n"
        known = self._vocabulary
        self.grams = {known[at : at + GRAM] for at in range(len(known))}
        self._starts = tuple(accumulate((len(word) + 1 for word in self._words), initial=0))

    def find(self, probe: Probe, word: str) -> list[int]:
        """Return the indexes of the pieces that hold `probe.bare`. `word` is a whole word of it, or ""."""
        places = self.places
        if probe.part not in self._vocabulary:
            return []
        for whole in probe.words:
            if whole not in places:
                return []
        if probe.tail and not _has_prefix(self._words, probe.tail):
            return []
        if probe.head and not _has_prefix(self._backwards, probe.head[::-1]):
            return []
        near = places[word] if word else self._find_near(probe)
        bare, pieces = probe.bare, self.pieces
        return [place for place in dict.fromkeys(near) if bare in pieces[place]]

    def _find_near(self, probe: Probe) -> Iterable[int]:
        if not (probe.head or probe.tail or probe.part):
            return range(len(self.pieces))
        return [place for name in self._list_words(probe) for place in self.places[name]]

    def _list_words(self, probe: Probe) -> list[str]:
        """Return the words that may be the one at the start or the end of a literal, or the one around all of it."""
        if probe.tail:
            return _list_with_prefix(self._words, probe.tail)
        if probe.head:
            return [name[::-1] for name in _list_with_prefix(self._backwards, probe.head[::-1])]
        return [self._words[place] for place in _find_pieces(self._vocabulary, self._starts, probe.part)]


def _has_prefix(ordered: list[str], piece: str) -> bool:
    """Return True if one of `ordered` begins with `piece`."""
    at = bisect_left(ordered, piece)
    return at < len(ordered) and ordered[at].startswith(piece)


def _list_with_prefix(ordered: list[str], piece: str) -> list[str]:
    """Return those of `ordered` that begin with `piece`."""
    at = end = bisect_left(ordered, piece)
    while end < len(ordered) and ordered[end].startswith(piece):
        end += 1
    return ordered[at:end]


def _group_by_shape(log: LogRows) -> dict[str, list[int]]:
    """Return the rows by their text without digits: for each text its first rows and its last one."""
    shapes: dict[str, list[int]] = {}
    rows = strip_digits(log.text).split("\n")
    # Indexes at which a sequence of rows with the same shape begins.
    begins = [0, *compress(range(1, len(rows)), map(ne, islice(rows, 1, None), rows))]
    for begin, end in pairwise((*begins, len(rows))):
        places = shapes.setdefault(rows[begin], [])
        places.extend(range(begin, min(end, begin + _MOST_REPEATS - len(places))))
        places[-1] = end - 1
    return shapes


def _find_pieces(text: str, starts: tuple[int, ...], literal: str) -> list[int]:
    """Return the indexes of the pieces of `text` that hold `literal`. `starts`: where each piece begins."""
    places: list[int] = []
    at = text.find(literal)
    while at >= 0:
        place = bisect_right(starts, at) - 1
        places.append(place)
        at = text.find(literal, starts[place + 1])
    return places


def _seek_probe(log: LogRows, rows: list[int], probe: Probe, found: dict[int, set[int]]) -> None:
    for row in rows:
        for needle in probe.needles:
            if needle.literal in log.rows[row]:
                found.setdefault(row, set()).update(needle.wanted_by)


def _find_best_signature(
    log: LogRows, row: int, candidates: Iterable[tuple[LogSignature, str]], block: Traceback | None
) -> tuple[LogSignature, re.Match[str]] | None:
    """Return the first signature whose conditions hold, with its match; `candidates` are ordered by weight.

    Advice that follows a cause on the same line does not replace the cause.
    """
    advice: tuple[LogSignature, re.Match[str]] | None = None
    parses_data = block is not None and _is_parsing_data(block)
    text = _cut_command(log.rows[row])
    bare = strip_prefix(text)
    if block is None and (_HELP_LINE.match(text) or _TRACED_COMMAND.match(text)):
        return None
    for signature, pattern in candidates:
        if (signature.frame and block is None) or (parses_data and signature.category == "syntax_error"):
            continue
        match = compile_pattern(pattern).search(text) or (
            compile_pattern(pattern).search(bare) if bare is not text else None
        )
        if not match or not _is_fulfilled(signature, log, row, text, block):
            continue
        if signature.role != "advice":
            return advice if advice and advice[1].start() <= match.start() else (signature, match)
        if advice is None or match.start() < advice[1].start():
            advice = signature, match
    return advice


def _is_parsing_data(block: Traceback) -> bool:
    """Return True for a SyntaxError in text that the program parsed, such as a damaged file's header.

    It is not a syntax error of the program itself.
    """
    return bool(_FILE_UNKNOWN.search(block.frames)) or (block.followed and bool(_FILE_STRING.search(block.frames)))


def _cut_command(row: str) -> str:
    """Return a row without the command that it repeats, if it reports how a process died."""
    if ": line " in row:
        return _ECHOED_COMMAND.sub(r"\1", row)
    return _COMMAND_OF_CHILD.sub(r"\1", row) if "Command " in row or "cmd" in row else row


def _is_fulfilled(signature: LogSignature, log: LogRows, row: int, text: str, block: Traceback | None) -> bool:
    if signature.unless and compile_pattern(signature.unless).search(text):
        return False
    if signature.frame and (block is None or not compile_pattern(signature.frame).search(block.frames)):
        return False
    if signature.context:
        before = "\n".join(log.rows[max(0, row - _CONTEXT_ROWS) : row + 1])
        return bool(compile_pattern(signature.context).search(before))
    return True


def _make_mark(log: LogRows, index: int, row: int, signature: LogSignature, match: re.Match[str]) -> LogMatch:
    text = log.rows[row]
    weight = signature.weight
    category = signature.category
    if category == "cpu_oom" and weight <= STRONG + 1 and _GPU_WORDS.search(text) and not _HOST_WORDS.search(text):
        category = "gpu_oom"
    if signature.role == "root" and not signature.quiet and weight < DECISIVE and is_quiet(text):
        weight = HINT
    return LogMatch(
        log=index,
        row=row,
        number=log.numbers[row],
        text=text,
        signature=signature.id,
        category=category,
        role=signature.role,
        weight=weight,
        decision=signature.decision,
        advice=fill_template(signature.advice, match.groupdict()),
        input_path=(match.groupdict().get("input") or ""),
    )


def is_quiet(text: str) -> bool:
    """Return True if the line itself says that it is a warning, or that the program continues."""
    return bool(_WARNING_WORDS.search(text) or _WARNING_WORDS.search(strip_prefix(text))) and not _ERROR_WORDS.search(
        text
    )


def _match_exception(log: LogRows, index: int, row: int, signature: str, weight: int) -> LogMatch:
    return LogMatch(
        log=index,
        row=row,
        number=log.numbers[row],
        text=log.rows[row],
        signature=signature,
        category="traceback_from_crash",
        role="root",
        weight=weight,
    )


def _match_lone_exception(log: LogRows, index: int, row: int) -> LogMatch:
    """Return a mark for an exception that usually follows another failure, for a log that shows no other."""
    return _match_exception(log, index, row, "python.consequence_alone", HINT)


def _match_bare_exception(log: LogRows, index: int, row: int, *, weak: bool) -> LogMatch:
    """Return a mark for an exception that was printed without its traceback."""
    weak = weak or is_quiet(log.rows[row])
    return _match_exception(log, index, row, "python.exception_bare", HINT if weak else BARE)


def _match_traceback(log: LogRows, index: int, block: Traceback) -> LogMatch:
    """Return the mark of a traceback that no signature knows."""
    text = log.rows[block.end]
    wrapper = block.exception in _WRAPPER_EXCEPTIONS or bool(_WRAPPED_MESSAGE.search(block.message))
    passed_on = block.followed and _is_parsing_data(block)
    misuse = block.in_library and block.exception in _MISUSE_EXCEPTIONS and bool(block.message)
    return LogMatch(
        log=index,
        row=block.end,
        number=log.numbers[block.end],
        text=text,
        signature="python.wrapped" if wrapper else "python.library_misuse" if misuse else "python.exception",
        category="semantic_error" if misuse and not wrapper else "traceback_from_crash",
        role="cascade" if wrapper else "root",
        weight=HINT if wrapper or is_quiet(strip_prefix(text)) or passed_on else ORDINARY,
    )
