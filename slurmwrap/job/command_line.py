"""The words after `gsub` → CommandLine: sbatch's options, ours, the script and its arguments. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slurmwrap.errors import UsageError
from slurmwrap.job.getopt import BadOption, Given, Names, names_for, scan
from slurmwrap.job.options import ANSWERED_AT_ONCE


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLine:
    """One command line, split as sbatch splits it. `script` None: --wrap or standard input."""

    argv: tuple[str, ...]
    given: tuple[Given, ...]  # in order; `word` counts words of `argv` without the `:` before the script
    script: str | None
    args: tuple[str, ...]
    hetjob: bool  # `:` stands between options
    without_own: tuple[str, ...]  # argv as plain sbatch may have it

    @property
    def first_component(self) -> tuple[str, ...]:
        """The words that concern the first component alone: its options, the script, the script's arguments."""
        first = self.argv.index(":") if self.hetjob else len(self.argv)
        end = len(self.argv) - len(self.args) - (self.script is not None)
        return (*self.argv[: min(first, end)], *self.argv[end:])

    @property
    def other_components(self) -> tuple[str, ...]:
        """From the first `:` up to the script, as plain sbatch may have it."""
        end = len(self.without_own) - len(self.args) - (self.script is not None)
        return self.without_own[self.without_own.index(":") : end] if self.hetjob else ()

    def has(self, *options: str) -> bool:
        """Whether one of sbatch's options is given."""
        return any(one.option in options and not one.own for one in self.given)


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
        found = scan(words, names or names_for(), ANSWERED_AT_ONCE)
    except BadOption as bad:
        raise UsageError(str(bad), hint=bad.hint) from None
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
