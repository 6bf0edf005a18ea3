"""Find an error with which the output of a job ends although Slurm calls the job COMPLETED. Pure.

A crash before `echo done`, in a pipe to `tee log` or before `|| true`, and training with a loss of NaN, end with exit
code 0. Precision has priority, because sound jobs print many errors that they survive. So only what a process writes as
it dies counts (an uncaught Python exception, argparse's refusal, the shell's line about a killed process), and only if
hardly anything follows it. A NaN loss counts if it is on each of the last lines that show the training loss.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice, pairwise

from slurmwrap.diagnosis.log_progress import has_finished, is_progress
from slurmwrap.diagnosis.log_rows import LogRows, Traceback, find_tracebacks, strip_prefix
from slurmwrap.fast_dataclasses import dataclass

NAN_LINES = 3  # number of lines at the end with the training loss, all of them NaN
# Number of lines without a known meaning that may follow the error.
_OTHER_LINES = 5
_PROGRESS_LINES = 1  # a progress bar is drawn once more when its process dies
_END_ROWS = 400  # number of rows at the end that are searched
# Length of a row in characters that a script's own `echo` hardly reaches.
_LONG_ROW = 200
_USAGE_ROWS = 40
# The outermost frame of an uncaught exception. Output of print_exc() and logging.exception() begins where the exception
# was caught, that of a worker or thread in multiprocessing or threading.
_OUTERMOST = re.compile(
    r'\s*(?:│ )?(?:File "[^"\n]{1,400}", line \d+, in <module>'
    r'|File "<frozen runpy>", line \d+, in _run_module_as_main|File "[^"\n]{1,400}runpy\.py", line \d+, in _run_module'
    r"|/?\S{1,300}:\d+ in <module>)"
)
_WORKER = re.compile(r"multiprocessing/(?:spawn|forkserver|process)\.py")
_LOGGED = re.compile(
    r"\b(?:ERROR|WARN(?:ING)?|CRITICAL|EXCEPTION|INFO|DEBUG)\b|[Rr]etry|[Ii]gnor|[Ss]kip|[Ff]all(?:ing)? back"
)
# Exceptions with which a program is ended from outside, or at its own end.
_STOP_EXCEPTIONS = frozenset(
    ("KeyboardInterrupt", "SystemExit", "SignalException", "BrokenPipeError", "CancelledError", "GeneratorExit")
)
_TEARDOWN = re.compile(
    r"[Dd]estroy|[Pp]rocess group|NCCL|TCPStore|[Cc]onnection (?:reset|refused|closed|aborted)|EOFError|wandb"
)
_MISSING_MODULE = ("ImportError", "ModuleNotFoundError")
_KILLED = re.compile(
    r"\S{1,300}: line \d+: +\d+ (?:Segmentation fault|Aborted|Bus error|Illegal instruction|Killed"
    r"|Floating point exception)\b"
)
_NO_PROGRAM = re.compile(
    r"\S{1,300}: line \d+: (?:\S{0,200}/)?(?:python[\d.]*|torchrun|accelerate|deepspeed|srun|mpirun): "
    r"(?:command not found|No such file or directory)|\S{0,200}python[\d.]*: can't open file "
)
_SYNTAX = re.compile(r"(?:SyntaxError|IndentationError|TabError): ")
_ARGPARSE_ERROR = re.compile(r"\S{1,200}\.py: error: ")
_NOISE = re.compile(
    r"srun: |slurmstepd: |wandb: |\[?[WEI]\d{4} |\[[WEI]|\[rank ?\d+\]:? ?\[[WEI]|Exception ignored|warnings\.warn\("
    r"|.{0,300}(?:Warning: |resource_tracker|torch/distributed/elastic|HYDRA_FULL_ERROR|TORCH_USE_CUDA_DSA"
    r"|CUDA_LAUNCH_BLOCKING|kernel errors might be|process group has NOT been destroyed|(?:-{8}|={8}|\*{8}))"
    r"|[\w./-]{1,200} FAILED$|Failures:$|Root Cause \(first|<NO_OTHER_FAILURES>|\[\d+\]:$|During handling of"
    r"|The above exception"
    r"|(?:real|user|sys)\s+\d+m|(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) .{10,40}$|\d{4}-\d\d-\d\d[T ][\d:.,+Z-]{5,20}$|\W*$"
)
_END_WORDS = re.compile(r"\b(?:done|finish(?:ed)?|complete[d]?|end(?:ed|s)?|exit(?:ed|ing)?)\b", re.IGNORECASE)
_TRAINING_WORDS = re.compile(
    r"train|eval|test|valid|epoch|step|fit|tun(?:ed|ing)|sav|model|checkpoint|result|accura|loss|metric|predict|generat"
    r"|export|success|trial|sampl",
    re.IGNORECASE,
)
_VALUE = r"(?:tensor\()?\[?(?P<value>[-+]?(?:nan|inf(?:inity)?|\d[\d.,]{0,20}(?:e[-+]?\d{1,4})?))\b"
_LOSS = re.compile(
    rf"(?<![\w/-])(?P<key>(?:(?:total|avg|mean|running|lm|smoothed|batch|step|train(?:ing)?)[_ /.-]{{0,2}})?loss)\b"
    rf"['\"]?\)?\s{{0,4}}[=:| ]?\s{{0,4}}\(?{_VALUE}",
    re.IGNORECASE,
)
_NOT_TRAINING_LOSS = re.compile(r"\b(?:val(?:id\w{0,6})?|eval\w{0,6}|test\w{0,3}|dev|best|min|lowest)\b", re.IGNORECASE)
_NAN_PREFIXES = ("nan", "inf")
_HINTS = ("Traceback", "Error: ", "error: ", ": line ", "can't open file")
_NAN_HINTS = ("nan", " inf", "=inf", ":inf", "(inf", "-inf", "+inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputEnd:
    """The error with which a log ends. Rows `start` to `row` show what died; `row` is the last of them.

    `nan`: it is a loss of NaN, and `start` is the first row since the loss was last finite.
    """

    log: int  # index of the log
    start: int
    row: int
    nan: bool = False


def may_end_in_error(text: str) -> bool:
    """Return True if the text is worth reading: most jobs that complete have none of these words."""
    lower = text.lower()
    return any(hint in text for hint in _HINTS) or any(hint in lower for hint in _NAN_HINTS)


def find_error_at_end(logs: Sequence[LogRows]) -> OutputEnd | None:
    """Return the error with which the output ends; None if it ends well, or if that is in doubt."""
    for index, log in enumerate(logs):
        start = max(0, len(log.rows) - _END_ROWS)
        died = _find_last_death(log, start)
        others = [other for other in logs if other is not log]
        if died is not None and not _is_contradicted(log, died, others):
            return OutputEnd(log=index, start=died[0], row=died[1])
    for index, log in enumerate(logs):
        rows = _find_nan_rows(log)
        if rows:
            return OutputEnd(log=index, start=rows[0], row=rows[-1], nan=True)
    return None


# --- a process that died ---------------------------------------------------------------------------------------------


def _find_last_death(log: LogRows, start: int) -> tuple[int, int] | None:
    """Return (first row, last row) of what the last process to die wrote.

    None if no process died, or if the output went on well.
    """
    blocks = find_tracebacks(log)
    fatal = [block for block in blocks if block.start >= start and _is_uncaught(log, block)]
    died = [(block.start, block.end) for block in fatal]
    died += [(row, row) for row in range(start, len(log.rows)) if _is_death_message(log, row)]
    if not died:
        return None
    last = max(died, key=lambda one: one[1])
    inside = frozenset(at for block in blocks for at in range(block.start, block.end + 1))
    if not _ends_output(log, last[1], inside):
        return None
    block = next((one for one in fatal if one.end == last[1]), None)
    if block is not None and _TEARDOWN.search(log.rows[block.end]) and _has_finished_before(log, block.start):
        return None
    return _find_first_related_row(log, last[0], blocks, inside), last[1]


def _is_uncaught(log: LogRows, block: Traceback) -> bool:
    first = next((frame for frame in block.frames.split("\n") if frame.strip("│╭╮─ \t")), "")
    if (
        block.ignored
        or block.exception in _STOP_EXCEPTIONS
        or not _OUTERMOST.match(first)
        or _WORKER.search(block.frames)
    ):
        return False
    before = next((row for row in reversed(log.rows[max(0, block.start - 2) : block.start]) if row.strip()), "")
    return "exitcode" in before or not _LOGGED.search(before) or "Warning: " in before


def _is_death_message(log: LogRows, row: int) -> bool:
    """Return True if the row is what the shell, the interpreter or argparse writes about a process that ends."""
    text = strip_prefix(log.rows[row])
    if _SYNTAX.match(text):
        return any(one.lstrip().startswith('File "') for one in log.rows[max(0, row - 6) : row])
    if _ARGPARSE_ERROR.match(text):
        return any(strip_prefix(one).startswith("usage: ") for one in log.rows[max(0, row - _USAGE_ROWS) : row])
    return bool(_KILLED.match(text) or _NO_PROGRAM.match(text))


def _ends_output(log: LogRows, row: int, inside: frozenset[int]) -> bool:
    """Return True if hardly anything follows `row`: other ranks' errors, launcher messages, a script's `echo done`."""
    other, progress = 0, set()
    for text in _select_rows_between(log, row, len(log.rows), inside):
        if is_progress(text):
            progress.add(text)
        elif has_finished(text) and not _is_echo(text):
            return False
        elif not _is_echo(text):
            other += 1 if len(text) <= _LONG_ROW else _OTHER_LINES
    return other <= _OTHER_LINES and len(progress) <= _PROGRESS_LINES


def _select_rows_between(log: LogRows, row: int, end: int, inside: frozenset[int]) -> Iterator[str]:
    """Yield the rows with content of their own: not of a traceback (`inside`), a long message or a launcher."""
    for at in range(row + 1, end):
        text = strip_prefix(log.rows[at])
        if at not in inside and text.strip() and not text.startswith((" ", "\t")) and not _NOISE.match(text):
            yield text


def _is_echo(text: str) -> bool:
    """Return True if a batch script may have printed it after a program, whatever its result: "job 81 finished"."""
    return len(text) <= _LONG_ROW and bool(_END_WORDS.search(text)) and not _TRAINING_WORDS.search(text)


def _has_finished_before(log: LogRows, row: int) -> bool:
    return any(has_finished(text) and not _is_echo(text) for text in log.rows[max(0, row - _END_ROWS) : row])


def _find_first_related_row(log: LogRows, start: int, blocks: Sequence[Traceback], inside: frozenset[int]) -> int:
    """Return the first row of the first of the tracebacks that belong together: ranks die one after another."""
    first = start
    for block in sorted((one for one in blocks if one.end < start), key=lambda one: -one.end):
        between = list(islice(_select_rows_between(log, block.end, first, inside), _OTHER_LINES + 1))
        if first - block.end > _END_ROWS or len(between) > _OTHER_LINES or any(map(is_progress, between)):
            break
        first = block.start
    return first


def _is_contradicted(log: LogRows, died: tuple[int, int], others: Sequence[LogRows]) -> bool:
    """Return True if another file of the job shows a good end: the lines of two files have no known order."""
    missing = any(name in log.rows[died[1]] for name in _MISSING_MODULE)
    for other in others:
        rows = other.rows[-_END_ROWS:]
        if any(has_finished(text) and not _is_echo(text) for text in rows) or (missing and any(map(is_progress, rows))):
            return True
        if any(_has_reached_end(text) for text in rows[-20:]):
            return True
    return False


_PART = re.compile(r"\b(\d{1,9}) ?/ ?(\d{1,9})\b")


def _has_reached_end(text: str) -> bool:
    return is_progress(text) and any(int(found[1]) == int(found[2]) > 1 for found in _PART.finditer(text))


# --- a loss of NaN ---------------------------------------------------------------------------------------------------


def _find_nan_rows(log: LogRows) -> tuple[int, ...]:
    """Return the rows with the training loss since it was last finite, if they show that it stayed NaN; else ().

    It did if at least NAN_LINES rows show NaN, or if the whole output shows no finite loss and ends with such a row.
    """
    if not any(word in log.text.lower() for word in _NAN_PREFIXES):
        return ()
    found: list[int] = []
    seen: set[str] = set()
    was_finite = False
    for row in range(len(log.rows) - 1, -1, -1):
        broken = _is_broken(log.rows[row])
        if broken is False:
            was_finite = True
            break
        if broken:
            found.append(row)
            seen.add(log.rows[row])
    rows = tuple(reversed(found))
    if len(seen) >= NAN_LINES and _is_counting_up(log, found):
        return rows
    ends = bool(rows) and log.whole and not any(row.strip() for row in log.rows[rows[-1] + 1 :])
    return rows if ends and not was_finite else ()


def _is_broken(row: str) -> bool | None:
    """Return True if the training loss of the row is NaN or infinite; None if the row shows none."""
    text = row[:600]
    if "loss" not in text and "Loss" not in text and "LOSS" not in text:
        return None
    values = [
        one["value"].lower().lstrip("+-")
        for one in _LOSS.finditer(text)
        if not _NOT_TRAINING_LOSS.search(text[max(0, one.start() - 12) : one.start()])
    ]
    return all(value.startswith(_NAN_PREFIXES) for value in values) if values else None


def _is_counting_up(log: LogRows, rows: Sequence[int]) -> bool:
    """Return True if the rows count something up: steps, epochs, time. A table of settings does not."""
    counts = [re.findall(r"\d+", log.rows[row]) for row in reversed(rows)]
    return any(before != after for before, after in pairwise(counts))
