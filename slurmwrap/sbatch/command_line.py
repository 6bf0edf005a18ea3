"""The words after `gsub` → CommandLine: sbatch's options, ours, the script and its arguments. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from slurmwrap.errors import UnknownOption, UsageError
from slurmwrap.fast_dataclasses import dataclass, replace
from slurmwrap.sbatch.getopt import BadOption, Names, ParsedOption, build_names, scan
from slurmwrap.sbatch.options import ANSWERED_AT_ONCE


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLine:
    """One command line, split as sbatch splits it. `script` None: --wrap or standard input."""

    argv: tuple[str, ...]
    # In order; `word` counts words of `argv` without the `:` before the script.
    given: tuple[ParsedOption, ...]
    script: str | None
    args: tuple[str, ...]
    hetjob: bool  # `:` stands between options
    # argv as plain sbatch may have it
    without_own: tuple[str, ...]

    @property
    def first_component(self) -> tuple[str, ...]:
        """The words that concern the first component alone: its options, the script, the script's arguments.

        --wrap is the whole job's script, whichever component it is in.
        """
        first = self.argv.index(":") if self.hetjob else len(self.argv)
        end = len(self.argv) - len(self.args) - (self.script is not None)
        wraps = [f"--wrap={one.value}" for one in self.given if one.option == "wrap" and one.word >= first]
        return (*self.argv[: min(first, end)], *wraps, *self.argv[end:])

    @property
    def option_words(self) -> tuple[str, ...]:
        """sbatch's options as they were typed, without ours and without the `--` behind them. Not with `:` before
        the script: then ask for the first component."""
        end = max((max(one.word, one.value_word) + 1 for one in self.given), default=0)
        own = {at for one in self.given if one.own for at in (one.word, one.value_word)}
        return tuple(word for at, word in enumerate(self.argv[:end]) if at not in own)

    @property
    def other_components(self) -> tuple[str, ...]:
        """From the first `:` up to the script, as plain sbatch may have it."""
        end = len(self.without_own) - len(self.args) - (self.script is not None)
        return self.without_own[self.without_own.index(":") : end] if self.hetjob else ()

    def has(self, *options: str) -> bool:
        """Whether one of sbatch's options is given."""
        return any(one.option in options and not one.own for one in self.given)


def remove_quiet(words: Sequence[str], names: Names | None = None) -> tuple[str, ...]:
    """Option words less every --quiet, also in a bundle (`-HQ`, where flags are in front of a letter's value)."""
    kept = [at for at, word in enumerate(words) if word != ":"]
    quiet = [kept[one.word] for one in split_command_line(words, names).given if one.option == "quiet"]
    left = {at: "-" if words[at].startswith("--") else words[at].replace("Q", "", quiet.count(at)) for at in quiet}
    return tuple(left.get(at, word) for at, word in enumerate(words) if left.get(at) != "-")


def select_words_for_sbatch(argv: Sequence[str], names: Names | None = None) -> tuple[str, ...]:
    """The call without our own options, also one that sbatch refuses or that has a site plugin's option."""
    own = {at for one in parse_own_options(argv, names) for at in (one.word, one.value_word)}
    return tuple(word for index, word in enumerate(argv) if index not in own)


def parse_own_options(argv: Sequence[str], names: Names | None = None) -> tuple[ParsedOption, ...]:
    """Our own options in a call that may not be readable to its end; they count words of `argv`.

    Behind an option that we do not know our own are looked for as long as only options follow: the next other word
    may be its value or the script, whose arguments are no one's but its own.
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
    """Splits what follows the program's name. UsageError 255 in sbatch's words for what it would refuse; it has a
    hint only where one of our own options is concerned, so that without one sbatch may be left to say it itself.

    Options end at the script, at `--`, and at --help, --usage and --version, which sbatch answers at once. sbatch
    takes out every `:` first and reads the options of all components of a heterogeneous job as one line; the
    arguments of the script keep theirs here (and lose them in sbatch).
    """
    kept = [index for index, word in enumerate(argv) if word != ":"]
    words = [argv[index] for index in kept]
    try:
        found = scan(words, names or build_names(), ANSWERED_AT_ONCE)
    except BadOption as bad:
        raise (UnknownOption if bad.unknown else UsageError)(str(bad), hint=bad.hint) from None
    script_at = kept[found.rest] if found.rest < len(kept) else len(argv)
    drop = {kept[i] for one in found.given if one.own for i in (one.word, one.value_word)}
    return CommandLine(
        argv=tuple(argv),
        given=found.given,
        script=argv[script_at] if script_at < len(argv) else None,
        args=tuple(argv[script_at + 1 :]),
        hetjob=":" in argv[:script_at],
        without_own=tuple(word for index, word in enumerate(argv) if index not in drop),
    )
