"""Check whether a program accepts its command line: compare the arguments with a Parser as argparse would. Pure.

After an argument that only the running shell knows nothing is certain, and errors become warnings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from slurmwrap.fast_dataclasses import dataclass, field
from slurmwrap.model.finding import Finding, Severity
from slurmwrap.nearest_name import find_nearest
from slurmwrap.prerun.static.argparse_model import ArgparseOption, Parser
from slurmwrap.prerun.static.shell_words import UNKNOWN, Guess
from slurmwrap.prerun.static.started_program import EntryPoint

# argparse's own pattern. Newer Pythons accept -1e3 and -1_000 as well.
_NUMBER = re.compile(r"^-\d+$|^-\d*\.\d+$")
_LIKE_NUMBER = re.compile(r"^-\.?\d")


@dataclass(slots=True)
class _Line:
    """A parsed command line."""

    # Words that belong to no option.
    loose: list[str] = field(default_factory=list)
    # Flags, in the spelling of their definition.
    given: set[str] = field(default_factory=set)
    # (what is wrong, fix) of errors, and of remarks that are always warnings.
    faults: list[tuple[str, str]] = field(default_factory=list)
    doubts: list[tuple[str, str]] = field(default_factory=list)
    # The rest of the line is not checked: only the shell knows it, or argparse passes it on.
    open_end: bool = False


def find_misfitting_options(entry: EntryPoint, parser: Parser, script: str) -> Iterator[Finding]:
    """Yield findings at the line of the batch script."""
    line = _parse_line(entry, parser)
    unknown_words = any(UNKNOWN in word for word in entry.argv) or any(isinstance(w, Guess) for w in entry.argv)
    certain = parser.certain and entry.certain and not unknown_words
    faults = [*line.faults]
    if not unknown_words and not line.open_end and not line.faults:
        faults += _check_positionals(line, parser)
    for severity, remarks in (
        (Severity.ERROR if certain else Severity.WARNING, faults),
        (Severity.WARNING, line.doubts),
    ):
        for message, fix in remarks:
            yield Finding(
                severity=severity, message=message, file=script, line=entry.line, fix=fix, category="semantic_error"
            )


def _parse_line(entry: EntryPoint, parser: Parser) -> _Line:
    """Parse the arguments from left to right as argparse would. Stop where the rest can no longer be known."""
    line, words = _Line(), list(entry.argv)
    flags = parser.by_flag()
    rest = any(o.nargs in ("...", "A...", "unknown") and not o.flags for o in parser.options)
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if word == "--" or (rest and line.loose):
            line.open_end = True
            break
        if not _is_option(word):
            line.loose.append(word)
            continue
        name, equals, value = word.partition("=")
        if UNKNOWN in name:
            line.open_end = True
            continue
        options = _list_matching_options(word if not equals else name, flags, parser)
        if not options:
            line.faults.append(_describe_unknown(name, flags, parser, entry))
            at += sum(1 for _ in _list_values(words[at:]))
            continue
        line.given.update(flag for option in options for flag in option.flags)
        if len({(o.takes_value, o.nargs, o.action) for o in options}) != 1 or not options[0].sure:
            # The flag has several different definitions, so any following words may be its values.
            at += sum(1 for _ in _list_values(words[at:]))
            line.open_end = True
            continue
        at += _count_values(options, name, equals, value, words[at:], line)
    return line


def _is_option(word: str) -> bool:
    if not word.startswith("-") or word == "-" or " " in word or isinstance(word, Guess):
        return False
    return not _LIKE_NUMBER.match(word)


def _list_values(words: Sequence[str]) -> Iterator[str]:
    for word in words:
        if _is_option(word):
            return
        yield word


def _list_matching_options(
    name: str, flags: Mapping[str, tuple[ArgparseOption, ...]], parser: Parser
) -> tuple[ArgparseOption, ...]:
    """Return the definitions that argparse would take `name` for. A flag may be abbreviated if that is unambiguous."""
    if name in flags:
        return flags[name]
    if name in ("-h", "--help"):
        return (ArgparseOption(flags=("-h", "--help"), name="--help", action="help"),)
    if parser.abbreviations or not name.startswith("--"):
        longer = tuple(o for flag, found in flags.items() if flag.startswith(name) for o in found)
        if longer:
            return longer
    if not name.startswith("--"):
        short = flags.get(name[:2], ())
        return tuple(ArgparseOption(flags=o.flags, name=o.name, action="?", sure=False) for o in short)
    return ()


def _describe_unknown(name: str, flags: Mapping[str, object], parser: Parser, entry: EntryPoint) -> tuple[str, str]:
    near = (
        find_nearest(name, flags, cutoff=0.7)
        or find_nearest(name.replace("_", "-"), flags)
        or find_nearest(name, flags)
    )
    program = entry.path or "the program"
    fix = f"did you mean {near}?" if near else f"{program} takes {', '.join(sorted(flags)[:12]) or 'no options'}"
    return f"{program} does not take {name} (argparse: unrecognized arguments)", fix


def _count_values(
    options: Sequence[ArgparseOption], name: str, equals: str, value: str, following: Sequence[str], line: _Line
) -> int:
    """Return how many words of `following` belong to the option."""
    option = options[0]
    if not option.takes_value:
        if equals and option.action in ("store_true", "store_false", "count"):
            line.faults.append((f"{name} takes no value, {value!r} is given", f"{name} alone ({option.where})"))
        return sum(1 for _ in _list_values(following)) if option.action == "?" else 0
    if equals:
        _check_values(option, name, [value], line)
        return 0
    values_given = list(_list_values(following))
    count, least = _parse_nargs(option.nargs, len(values_given))
    if len(values_given) < least:
        many = "one argument" if least == 1 and option.nargs is None else f"{option.nargs or least} arguments"
        line.faults.append(
            (f"{name} expects {many}, but none follows" if not values_given else f"{name} expects {many}", option.where)
        )
    _check_values(option, name, values_given[:count], line)
    return min(count, len(values_given))


def _parse_nargs(nargs: str | int | None, count_available: int) -> tuple[int, int]:
    """Return (number of words taken, number of words needed)."""
    if nargs is None:
        return 1, 1
    if isinstance(nargs, int):
        return nargs, nargs
    return {"?": (1, 0), "*": (count_available, 0), "+": (count_available, 1)}.get(nargs, (count_available, 0))


def _check_values(option: ArgparseOption, name: str, values: Sequence[str], line: _Line) -> None:
    for value in values:
        if UNKNOWN in value or isinstance(value, Guess):
            continue
        if option.type in ("int", "float"):
            try:
                converted: object = int(value) if option.type == "int" else float(value)
            except ValueError:
                line.faults.append((f"{name} expects {option.type}, {value!r} is given", f"see {option.where}"))
                continue
        elif option.type in ("", "str"):
            converted = value
        else:
            if option.type == "bool" and value.lower() in ("false", "no", "0", "off"):
                message = f"{name} {value} means True: type=bool takes any text but the empty one as True"
                line.doubts.append((message, f"use action='store_true' or BooleanOptionalAction at {option.where}"))
            continue
        if option.choices is not None and converted not in option.choices:
            shown = ", ".join(map(str, option.choices))
            near = find_nearest(value, map(str, option.choices))
            message = f"{name} {value}: invalid choice (choose from {shown})"
            line.faults.append((message, f"did you mean {near}?" if near else f"see {option.where}"))


def _check_positionals(line: _Line, parser: Parser) -> Iterator[tuple[str, str]]:
    """Yield errors for missing or superfluous positional words, and for required options that are missing."""
    if parser.subcommands:
        return
    positional = [o for o in parser.options if not o.flags]
    fixed = all(o.nargs is None and o.sure for o in positional)
    if fixed and len(line.loose) > len(positional):
        extra = line.loose[len(positional) :]
        yield (
            f"argparse: unrecognized arguments: {' '.join(extra)}",
            "a flag (store_true) takes no value; options begin with --",
        )
    needed = [o for o in positional if o.home] if fixed and all(o.home for o in positional) else []
    for option in needed[len(line.loose) :]:
        yield f"the argument {option.name} is required", f"see {option.where}"
    for option in parser.options:
        if option.flags and option.required and option.sure and option.home and not line.given & set(option.flags):
            yield f"{option.name} is required", f"add {option.name} VALUE; see {option.where}"
