"""Decide whether a failure of a rehearsal may come from the shortened epochs rather than from the program. Pure.

A rehearsal ends loops and loaders after a few batches, so counts differ from those of the job: fewer predictions than
labels, a metric without one of the classes, a file that is only written every tenth epoch. A failure counts as the
job's own only if no count can cause it: a name, attribute, key or argument that does not exist anywhere, shapes inside
the model, a directory that nobody creates.
"""

from __future__ import annotations

import re

from slurmwrap.model.trial_result import Rehearsal, TrialResult
from slurmwrap.prerun.verdict.python_traceback import Frame, TracebackSummary
from slurmwrap.prerun.verdict.single_gpu_limits import Read


def _any(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns), re.IGNORECASE)


# Errors of an index, a count or a condition, whose values depend on how many batches there were.
_COUNTING = frozenset(
    {
        *("ZeroDivisionError", "StopIteration", "StopAsyncIteration", "FloatingPointError", "StatisticsError"),
        *("AssertionError", "UndefinedMetricWarning", "NotFittedError", "EmptyDataError", "BrokenPipeError"),
        *("TimeoutError", "KeyboardInterrupt", "SystemExit", "EOFError", "OverflowError", "MemoryError"),
    }
)
# Errors that a program or library raises after looking at values.
_CHECKS = frozenset({"ValueError", "RuntimeError", "IndexError", "TypeError", "InvalidArgumentError", "Exception"})
# Messages about the number of things.
_COUNT_MESSAGES = _any(
    r"\bempty\b|zero[- ](?:size|length|sized|dimensional)|non-?empty",
    r"\bno (?:data|samples|batches|items|elements|values|rows|runs?|logs?|metrics?)\b",
    r"at least (?:one|two|\d+)|only (?:one|1|\d+) (?:class|label|unique|sample|value)|one class|single class",
    r"\bclasses\b|inconsistent (?:numbers?|lengths?)",
    r"numbers? of (?:samples|classes|labels|elements|items|rows|predictions|batches)",
    r"n_samples|n_splits|n_components|perplexity|\bk must\b|must (?:all )?(?:be|have) (?:of )?(?:the )?same length",
    r"\blen(?:gth)?s?\b|not enough|too few|insufficient|fewer than|less than|greater than|larger than|exceeds?\b",
    r"(?:list|tuple|string|deque|pop) index out of range|pop from|out of bounds for (?:dimension|axis)|need at least",
    r"expected more than 1 value|could not be broadcast|broadcast together|concatenat|stack expects|cannot reshape",
    r"shape '\[.*\]' is invalid for input of size|has no finite|\bnan\b|\binf(?:inity)?\b",
    r"not (?:been )?(?:fitted|converge)|all the input array dimensions|size of tensor a",
    r"\bnever\b|ran out of|exhausted|finished",
)
# Messages about None, which a value may still be that the missing batches would have set.
_NONE_MESSAGES = re.compile(r"\bNone(?:Type)?\b")
_MISSING_NAME = re.compile(
    r"name '(?P<name>\w+)' is not defined|local variable '(?P<local>\w+)'|has no attribute '(?P<attribute>\w+)'"
)
_USAGE = _any(r"error: (?:unrecognized arguments|argument \S+|the following arguments are required)|no such option")
# Code of libraries that runs the model or its loss: what fails there depends on the data's shapes, not on counts.
_MODEL_FILES = re.compile(
    r"/torch/nn/|/torch/_(?:dynamo|inductor)|/keras/src/(?:layers|ops|losses)/|/flax/(?:linen|nnx)/|/transformers/models/"
)
_READS = _any(r"\bload\w*\(|\bopen\((?!.*['\"][wax]b?\+?['\"])|\bread\w*\(|\bimread\(|from_pretrained\(|restore")


def find_shortening_doubt(result: TrialResult, found: TracebackSummary | None, category: str, read: Read) -> str:
    """Return why the failure may come from the rehearsal; "" if the job would meet it as well.

    `category`: the diagnosis. `read` returns the text of a source file that the traceback names.
    """
    rehearsal = result.rehearsal
    if rehearsal is None:
        return ""
    if rehearsal.refused:
        return f"the pre-run refused its connection to {rehearsal.refused[0]}"
    if result.signal is not None or category in ("cpu_oom", "core_dump", "invalid_memory_access"):
        return "the process died, perhaps of what the pre-run keeps in memory"
    if found is None:
        said = "\n".join(log.text[-4096:] for log in result.logs)
        return "" if _USAGE.search(said) else "a command failed that may need the results of a whole run"
    if found.kind in _COUNTING or found.kind.endswith("Warning"):
        return f"a {found.kind} may come from the few batches"
    return _doubt_error(found, rehearsal, read)


def _doubt_error(found: TracebackSummary, rehearsal: Rehearsal, read: Read) -> str:
    if found.kind in ("ImportError", "ModuleNotFoundError", "SyntaxError", "IndentationError", "NotImplementedError"):
        return ""
    missing = _MISSING_NAME.search(found.message)
    if found.kind in ("NameError", "UnboundLocalError", "AttributeError") and missing is not None:
        if _NONE_MESSAGES.search(found.message):
            return "a value is None that later batches may set"
        name = next(filter(None, missing.groups()))
        made = _is_made(name, found, read, attribute=missing["attribute"] is not None)
        return f"'{name}' may be set in a batch that was left out" if made else ""
    if found.kind == "KeyError":
        return _doubt_key(found, read)
    if found.kind == "FileNotFoundError":
        return _doubt_missing_file(found)
    if _NONE_MESSAGES.search(found.message):
        return "a value is None that later batches may set"
    # Inside the model, sizes are those of a batch.
    if any(_MODEL_FILES.search(frame.file) for frame in found.frames):
        return (
            "" if not re.search(r"expected more than 1 value", found.message, re.IGNORECASE) else "the batch is small"
        )
    if found.kind in _CHECKS and (_COUNT_MESSAGES.search(found.message) or _names_two_counts(found)):
        return f"'{found.message[:80]}' may come from the few batches"
    return ""


def _names_two_counts(found: TracebackSummary) -> bool:
    """Return whether a message compares two numbers, of which one may be the number of batches or samples."""
    numbers = set(re.findall(r"(?<![\w.\-])\d+(?![\w.])", found.message))
    return len(numbers) > 1 and found.kind != "TypeError"


def _is_made(name: str, found: TracebackSummary, read: Read, *, attribute: bool) -> bool:
    """Return whether one of the program's files in the traceback sets the name or attribute somewhere."""
    dot = r"\.\s*" if attribute else r"(?<![.\w])"
    made = re.compile(
        rf"{dot}{name}\s*(?:[-+*/|&]?=(?!=)|:\s*\w[\w\[\], ]*=|,[^=\n]*=(?!=))|\bfor\s[^:\n]*\b{name}\b[^:\n]*\bin\b"
        rf"|\bas\s+{name}\b|\b(?:def|class|import|global|nonlocal)\s[^\n]*\b{name}\b|setattr\([^\n]*['\"]{name}['\"]"
        rf"|\(?\b{name}\s*:="
    )
    return any(made.search(text) for text in _read_own_files(found, read))


def _doubt_key(found: TracebackSummary, read: Read) -> str:
    key = found.message.strip("'\"")
    if not key:
        return "a key may be added in a batch that was left out"
    blamed = found.own
    for path, text in _read_own_files_by_path(found, read).items():
        for number, line in enumerate(text.splitlines(), 1):
            if (path, number) != (blamed.file, blamed.line) and re.search(
                rf"['\"]{re.escape(key)}['\"]|\b{re.escape(key)}=", line
            ):
                return f"the key '{key}' may be added in a batch that was left out"
    return "" if re.fullmatch(r"[A-Za-z_][\w/. -]*", key) else f"the key {key} may come from a count"


def _doubt_missing_file(found: TracebackSummary) -> str:
    """Doubt a missing file that the program reads: it may write it only in some epochs. A write has no such excuse."""
    named = re.search(r"'([^']+)'", found.message)
    path = named[1] if named else ""
    if not _READS.search("\n".join(frame.code for frame in found.frames if frame.own)):
        return ""
    results = _any(
        r"best|last|final|epoch|step|ckpt|checkpoint|model|weights|state|output|result|pred|log|\.(?:pth?|tar|bin|safetensors)$"
    )
    return f"'{path}' may be written only by a whole run" if results.search(path) else ""


def _read_own_files(found: TracebackSummary, read: Read) -> list[str]:
    return list(_read_own_files_by_path(found, read).values())


def _read_own_files_by_path(found: TracebackSummary, read: Read) -> dict[str, str]:
    own: list[Frame] = [frame for frame in found.frames if frame.own]
    return {path: text for path in dict.fromkeys(f.file for f in own) if (text := read(path)) is not None}


def describe_rehearsal(rehearsal: Rehearsal, *, is_complete: bool) -> str:
    """Return what the rehearsal showed, to follow "3 optimizer steps ran on one GPU, "."""
    again = "; started again, it resumed" if rehearsal.resumed else ""
    if is_complete:
        return f"then the script ran to its end with shortened epochs{again}"
    reached = "the next epoch began" if rehearsal.next_epoch else "an epoch ended early" if rehearsal.endings else ""
    stops = {
        "time": "its time was up",
        "loop": "a loop could not be ended",
        "no_activity": "it stood still",
        "disk": "its files would have filled the node's disk",
    }
    stopped = stops.get(rehearsal.stopped_by, "it was stopped")
    return f"then {reached} before {stopped}{again}" if reached else f"then {stopped} before its epoch ended{again}"
