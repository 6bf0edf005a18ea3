"""Parse the command line of gsub as glibc's getopt_long does for sbatch: options, script, arguments. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slurmwrap.errors import UnknownOption, UsageError
from slurmwrap.fast_dataclasses import dataclass, replace
from slurmwrap.nearest_name import find_nearest
from slurmwrap.sbatch.option_table import (
    ANSWERED_AT_ONCE,
    BASE,
    BY_LETTER,
    BY_NAME,
    NONE,
    NOT_IN_SCRIPTS,
    OPTIONAL,
    OWN_BY_NAME,
    SBATCH,
    Argument,
    GsubOption,
    Release,
    SbatchOption,
    canonicalize_option,
)


class BadOption(Exception):
    """A word that getopt_long would refuse.

    `word` is its index, `hint` may name the option that was meant, and `before` holds the options parsed before it.
    """

    def __init__(self, message: str, word: int, hint: str = "", *, unknown: bool = False) -> None:
        super().__init__(message)
        self.word = word
        self.hint = hint
        # True if no known option has this name; a site plugin may still define it.
        self.unknown = unknown
        self.before: tuple[ParsedOption, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedOption:
    """One option as it was found. Its value starts at character `value_at` of the word with index `value_word`."""

    # Canonical long name.
    option: str
    value: str | None
    # Index of the word that contains the option.
    word: int
    value_word: int
    value_at: int
    own: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """All options at the start of a list of words. `rest` is the index of the first word that is not an option."""

    given: tuple[ParsedOption, ...]
    rest: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """The option names that are valid in one place: sbatch's options, those of site plugins (SPANK), and gsub's own.

    `release` None means that the release of sbatch is not known. Then the names of all releases are accepted, and a
    prefix is resolved among the names of 22.05 first. That accepts more than any one sbatch does, never less.
    """

    sbatch: Mapping[str, SbatchOption]
    letters: Mapping[str, SbatchOption]
    own: Mapping[str, GsubOption]
    release: Release | None = None


def build_names(release: Release | None = None, extra: Sequence[SbatchOption] = ()) -> Names:
    """Return the names on a command line of sbatch `release` with the options `extra` of site plugins."""
    known = {
        option.name: _adapt_to_release(option, release) for option in (*SBATCH, *extra) if option.known_to(release)
    }
    return Names(sbatch=known, letters=BY_LETTER, own=OWN_BY_NAME, release=release)


def add_plugin_names(plugins: Mapping[str, Argument]) -> Names:
    """Return the names for a call that was parsed with these options of site plugins."""
    return build_names(extra=[SbatchOption(name, "", argument) for name, argument in plugins.items()])


def _adapt_to_release(option: SbatchOption, release: Release | None) -> SbatchOption:
    argument = option.argument_in(release)
    return option if argument is option.argument else replace(option, argument=argument)


def build_directive_names(names: Names) -> Names:
    """Return the names that `#SBATCH` lines accept: sbatch's, without gsub's own."""
    return Names(sbatch=names.sbatch, letters=names.letters, own={}, release=names.release)


_GSUB_OPTION_HINT = "It is gsub's own option; gsub --help lists them."
# The names that `#GSUB` lines accept; --partition only as --partition=auto.
OWN_NAMES = Names(
    sbatch={"partition": BY_NAME["partition"]},
    letters={},
    own={n: o for n, o in OWN_BY_NAME.items() if n not in NOT_IN_SCRIPTS},
)


def scan(words: Sequence[str], names: Names, stop_at: frozenset[str] = frozenset()) -> Scan:
    """Parse options up to `--`, the first word that is not one, or the first option in `stop_at`. Raise BadOption."""
    given: list[ParsedOption] = []
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] != "-":
        if words[at] == "--":
            at += 1
            break
        try:
            found = (
                [_parse_long_option(words, at, names)]
                if words[at].startswith("--")
                else _parse_letters(words, at, names)
            )
        except BadOption as bad:
            bad.before = tuple(given)
            raise
        given += found
        at = max(found[-1].word, found[-1].value_word) + 1
        if any(one.option in stop_at for one in found):
            break
    return Scan(given=tuple(given), rest=at)


def _parse_long_option(words: Sequence[str], at: int, names: Names) -> ParsedOption:
    """Parse one `--name`, `--name=value` or `--name value`."""
    name, equals, value = words[at][2:].partition("=")
    option = _find_option(words[at], name, names, at)
    own = isinstance(option, GsubOption)
    if equals and option.argument is NONE:
        raise BadOption(f"option '--{option.name}' doesn't allow an argument", at, _GSUB_OPTION_HINT if own else "")
    if equals:
        where = (value, at, 3 + len(name))
    elif option.argument in (NONE, OPTIONAL):
        return ParsedOption(
            option=canonicalize_option(option.name),
            value=None,
            word=at,
            value_word=at,
            value_at=len(words[at]),
            own=own,
        )
    elif at + 1 == len(words):
        raise BadOption(f"option '--{option.name}' requires an argument", at, _GSUB_OPTION_HINT if own else "")
    else:
        where = (words[at + 1], at + 1, 0)
    text, word, offset = where
    return ParsedOption(
        option=canonicalize_option(option.name), value=text, word=at, value_word=word, value_at=offset, own=own
    )


def _parse_letters(words: Sequence[str], at: int, names: Names) -> list[ParsedOption]:
    """Parse one word of short options: bundled flags, the last of which may have a value (`-HN2`, `-N 2`)."""
    found: list[ParsedOption] = []
    word = words[at]
    for offset in range(1, len(word)):
        option = names.letters.get(word[offset])
        if option is None:
            raise BadOption(f"invalid option -- '{word[offset]}'", at)
        rest = word[offset + 1 :]
        if option.argument is NONE or (option.argument is OPTIONAL and not rest):
            value, value_word, value_at = None, at, offset + 1
        elif rest:
            value, value_word, value_at = rest, at, offset + 1
        elif at + 1 == len(words):
            raise BadOption(f"option requires an argument -- '{word[offset]}'", at)
        else:
            value, value_word, value_at = words[at + 1], at + 1, 0
        name = canonicalize_option(option.name)
        found.append(ParsedOption(option=name, value=value, word=at, value_word=value_word, value_at=value_at))
        if value is not None:
            break
    return found


def _find_option(word: str, name: str, names: Names, at: int) -> SbatchOption | GsubOption:
    """Return the option for `name`: an exact name of sbatch, one of gsub, or the only sbatch option it abbreviates."""
    exact = names.sbatch.get(name) or names.own.get(name)
    if exact is not None:
        return exact
    possible = _list_options_with_prefix(name, names)
    if len(possible) == 1:
        return possible[0]
    if possible:
        listed = " ".join(f"'--{option.name}'" for option in possible)
        raise BadOption(f"option '{word}' is ambiguous; possibilities: {listed}", at)
    raise BadOption(f"unrecognized option '{word}'", at, _suggest_option(name, names), unknown=True)


def _list_options_with_prefix(prefix: str, names: Names) -> list[SbatchOption]:
    possible = [option for name, option in names.sbatch.items() if name.startswith(prefix)]
    if names.release is None:
        return [option for option in possible if option.known_to(BASE)] or possible
    return possible


def _suggest_option(name: str, names: Names) -> str:
    """Return a hint with gsub's own option that was probably meant, or "". For its own options sbatch gives no hint."""
    with_prefix = [own for own in names.own if len(name) > 1 and own.startswith(name)]
    meant = with_prefix[0] if with_prefix else find_nearest(name, names.own, 0.7)
    return f"Did you mean gsub's '--{meant}'? gsub's own options are not abbreviated." if meant else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLine:
    """One command line, split as sbatch splits it. `script` is None for --wrap and standard input."""

    argv: tuple[str, ...]
    # In the order of the command line; `word` is an index into `argv` without the `:` before the script.
    given: tuple[ParsedOption, ...]
    script: str | None
    args: tuple[str, ...]
    # There is a `:` between options.
    hetjob: bool
    # `argv` without gsub's own options.
    without_own: tuple[str, ...]

    @property
    def first_component(self) -> tuple[str, ...]:
        """The words that concern only the first component: its options, the script, the script's arguments.

        --wrap gives the script of the whole job, whichever component it is in.
        """
        first = self.argv.index(":") if self.hetjob else len(self.argv)
        end = len(self.argv) - len(self.args) - (self.script is not None)
        wraps = [f"--wrap={one.value}" for one in self.given if one.option == "wrap" and one.word >= first]
        return (*self.argv[: min(first, end)], *wraps, *self.argv[end:])

    @property
    def option_words(self) -> tuple[str, ...]:
        """sbatch's options as they were typed, without gsub's own and without the `--` after them.

        Not valid if there is a `:` before the script; use `first_component` then.
        """
        end = max((max(one.word, one.value_word) + 1 for one in self.given), default=0)
        own = {at for one in self.given if one.own for at in (one.word, one.value_word)}
        return tuple(word for at, word in enumerate(self.argv[:end]) if at not in own)

    @property
    def other_components(self) -> tuple[str, ...]:
        """The words from the first `:` up to the script, without gsub's own options."""
        end = len(self.without_own) - len(self.args) - (self.script is not None)
        return self.without_own[self.without_own.index(":") : end] if self.hetjob else ()

    def has(self, *options: str) -> bool:
        """Return whether one of these sbatch options is given."""
        return any(one.option in options and not one.own for one in self.given)


def remove_quiet(words: Sequence[str], names: Names | None = None) -> tuple[str, ...]:
    """Return the option words without any --quiet, also in a bundle of letters.

    In a bundle (`-HQ`) only the flags before the value of a letter are considered.
    """
    kept = [at for at, word in enumerate(words) if word != ":"]
    quiet = [kept[one.word] for one in split_command_line(words, names).given if one.option == "quiet"]
    left = {at: "-" if words[at].startswith("--") else words[at].replace("Q", "", quiet.count(at)) for at in quiet}
    return tuple(left.get(at, word) for at, word in enumerate(words) if left.get(at) != "-")


def select_words_for_sbatch(argv: Sequence[str], names: Names | None = None) -> tuple[str, ...]:
    """Return the call without gsub's own options, even if sbatch refuses it or it has an option of a site plugin."""
    own = {at for one in parse_own_options(argv, names) for at in (one.word, one.value_word)}
    return tuple(word for index, word in enumerate(argv) if index not in own)


def parse_own_options(argv: Sequence[str], names: Names | None = None) -> tuple[ParsedOption, ...]:
    """Return gsub's own options in a call that may contain unknown options; `word` is an index into `argv`.

    After an unknown option the search continues only while options follow: the next other word may be the value of
    that option, or the script, whose arguments must not be read as options.
    """
    words = [word for word in argv if word != ":"]
    kept = [at for at, word in enumerate(argv) if word != ":"]
    own: list[ParsedOption] = []
    at = 0
    while at < len(words):
        try:
            found, after = scan(words[at:], names or build_names(), ANSWERED_AT_ONCE).given, len(words)
        except BadOption as bad:
            found, after = bad.before, at + bad.word + 1
        own += [
            replace(one, word=kept[at + one.word], value_word=kept[at + one.value_word]) for one in found if one.own
        ]
        at = after
    return tuple(own)


def split_command_line(argv: Sequence[str], names: Names | None = None) -> CommandLine:
    """Split the command line after the program's name.

    Raise UsageError (exit code 255) with sbatch's message for what sbatch would refuse. The error has a hint only if
    one of gsub's own options is involved; without a hint the caller may let sbatch report the error.

    Options end at the script, at `--`, and at --help, --usage and --version, which sbatch answers immediately. sbatch
    removes every `:` first and reads the options of all components of a heterogeneous job as one line. Here the
    arguments of the script keep their `:` (sbatch removes them there too).
    """
    kept = [index for index, word in enumerate(argv) if word != ":"]
    words = [argv[index] for index in kept]
    try:
        found = scan(words, names or build_names(), ANSWERED_AT_ONCE)
    except BadOption as bad:
        raise (UnknownOption if bad.unknown else UsageError)(str(bad), hint=bad.hint) from None
    script_at = kept[found.rest] if found.rest < len(kept) else len(argv)
    own_indices = {kept[i] for one in found.given if one.own for i in (one.word, one.value_word)}
    return CommandLine(
        argv=tuple(argv),
        given=found.given,
        script=argv[script_at] if script_at < len(argv) else None,
        args=tuple(argv[script_at + 1 :]),
        hetjob=":" in argv[:script_at],
        without_own=tuple(word for index, word in enumerate(argv) if index not in own_indices),
    )
