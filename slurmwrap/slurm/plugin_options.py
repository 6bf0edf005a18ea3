"""Options that the site's plugins (SPANK) add to sbatch, as sbatch itself lists them (adapter).

`sbatch --help` lists them under a title of their own, in the same way in 22.05, 24.11 and 26.05 (src/common/spank.c).
The text after a name is written by the plugin's author and need not show whether the option takes an argument. So for
each option that a call separates from the next word by a blank, `sbatch --name --help` is run: it shows the help unless
--help is taken as the argument of --name. These calls cannot submit: the script is read from an empty standard input.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from functools import cache, cached_property

from slurmwrap.errors import SlurmwrapError
from slurmwrap.host.run_command import run
from slurmwrap.sbatch.option_table import OPTIONAL, OWN_BY_NAME, REQUIRED, SbatchOption
from slurmwrap.sbatch.script_directives import MAGIC_WORDS
from slurmwrap.slurm.find_sbatch import find_sbatch, make_wrapper_environment

_TITLE = "\nOptions provided by plugins:\n"
_NEXT_TITLE = re.compile(r"^\S", re.MULTILINE)
_NAME = re.compile(r"^ {6}--([^\s=]+)", re.MULTILINE)
_TIMEOUT_S = 5.0  # sbatch takes 6 ms
# The caller's value may cut the names short; unset means 80.
_WIDTH_VARIABLE = "COLUMNS"


class PluginOptions:
    """The plugins' options as sbatch in `environ` accepts them; each call of sbatch is made once.

    There are none if sbatch cannot be run or fails: then sbatch itself judges the call.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._takes_next = cache(self._needs_argument)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the options, in sbatch's order."""
        return parse_option_names(self._read_help())

    def used_in(self, words: Sequence[str]) -> tuple[SbatchOption, ...]:
        """Return all plugin options, for parsing `words`.

        An option that nowhere stands apart from a following word needs no check whether it takes an argument: sbatch
        itself refuses `--flag=value`.
        """
        separated = find_options_written_apart(words, self.names)
        return tuple(
            SbatchOption(name, "", REQUIRED if name in separated and self._takes_next(name) else OPTIONAL)
            for name in self.names
        )

    def _needs_argument(self, name: str) -> bool:
        return not self._read_help(f"--{name}")

    def _read_help(self, *before: str) -> str:
        """Return what `sbatch BEFORE --help` shows, "" if sbatch is missing or fails."""
        try:
            program = find_sbatch(self._environ)
        except SlurmwrapError:
            return ""
        environ = {
            name: value
            for name, value in make_wrapper_environment(program, self._environ).items()
            if name != _WIDTH_VARIABLE
        }
        result = run(["sbatch", *before, "--help"], program=program, timeout_s=_TIMEOUT_S, environ=environ)
        return os.fsdecode(result.stdout) if result.ok else ""


def parse_option_names(help_text: str) -> tuple[str, ...]:
    """Return the names under the title of the plugins. Names that gsub itself defines are left out."""
    section = _NEXT_TITLE.split(help_text.partition(_TITLE)[2], maxsplit=1)[0]
    return tuple(name for name in dict.fromkeys(_NAME.findall(section)) if name not in OWN_BY_NAME)


def find_options_written_apart(words: Sequence[str], names: Sequence[str]) -> frozenset[str]:
    """Return those of `names` that a word without `=` may stand for."""
    prefixes = {word[2:] for word in words if len(word) > 2 and word.startswith("--") and "=" not in word}
    return frozenset(name for name in names if any(name.startswith(one) for one in prefixes))


def list_directive_words(script: bytes) -> tuple[str, ...]:
    """Return words that may be arguments of directive lines. A superfluous word costs only one call of sbatch."""
    lines = (line for line in script.split(b"\n") if line.startswith(MAGIC_WORDS))
    found = (word for line in lines for word in line.decode(errors="surrogateescape").split())
    return tuple(word[word.find("--") :].strip("\"'") for word in found if "--" in word)
