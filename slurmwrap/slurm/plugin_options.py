"""Edge: the options that the site's plugins (SPANK) add to sbatch, as sbatch itself lists them.

`sbatch --help` names them under a title of its own, alike in 22.05, 24.11 and 26.05 (src/common/spank.c). What is shown
behind a name is the plugin's prose and need not say whether the option takes an argument. So of the options that a
call writes apart from what follows them sbatch is asked just that: `sbatch --name --help` shows the help unless --help
is the argument of --name. None of these questions can submit: the script is read from an empty standard input.
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
# The caller's may cut the names short; unset means 80.
_WIDTH = "COLUMNS"


class PluginOptions:
    """The plugins' options as sbatch in `environ` takes them; each question is asked once.

    There are none where sbatch cannot be asked or does not answer: then the call is sbatch's own to judge.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._takes_next = cache(self._needs_argument)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """In sbatch's order."""
        return parse_option_names(self._read_help())

    def used_in(self, words: Sequence[str]) -> tuple[SbatchOption, ...]:
        """All of them, for reading `words`. One that is nowhere written apart need not be known to take an argument:
        sbatch refuses `--flag=value` itself."""
        apart = find_options_written_apart(words, self.names)
        return tuple(
            SbatchOption(name, "", REQUIRED if name in apart and self._takes_next(name) else OPTIONAL)
            for name in self.names
        )

    def _needs_argument(self, name: str) -> bool:
        return not self._read_help(f"--{name}")

    def _read_help(self, *before: str) -> str:
        """What `sbatch BEFORE --help` shows, "" where that is none."""
        try:
            program = find_sbatch(self._environ)
        except SlurmwrapError:
            return ""
        environ = {
            name: value for name, value in make_wrapper_environment(program, self._environ).items() if name != _WIDTH
        }
        done = run(["sbatch", *before, "--help"], program=program, timeout_s=_TIMEOUT_S, environ=environ)
        return os.fsdecode(done.stdout) if done.ok else ""


def parse_option_names(help_text: str) -> tuple[str, ...]:
    """The names under the title. Of two owners of one name it is gsub's own."""
    told = _NEXT_TITLE.split(help_text.partition(_TITLE)[2], maxsplit=1)[0]
    return tuple(name for name in dict.fromkeys(_NAME.findall(told)) if name not in OWN_BY_NAME)


def find_options_written_apart(words: Sequence[str], names: Sequence[str]) -> frozenset[str]:
    """Those of `names` that a word without `=` may stand for."""
    said = {word[2:] for word in words if len(word) > 2 and word.startswith("--") and "=" not in word}
    return frozenset(name for name in names if any(name.startswith(one) for one in said))


def list_directive_words(script: bytes) -> tuple[str, ...]:
    """What may be an argument of a directive line; one too many costs one question."""
    lines = (line for line in script.split(b"\n") if line.startswith(MAGIC_WORDS))
    found = (word for line in lines for word in line.decode(errors="surrogateescape").split())
    return tuple(word[word.find("--") :].strip("\"'") for word in found if "--" in word)
