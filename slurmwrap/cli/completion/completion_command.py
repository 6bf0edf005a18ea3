"""slurmwrap completion: prints or installs the script that completes gsub and slurmwrap in bash, zsh or fish."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from slurmwrap.cli.completion.completion_tables import gsub_offers, slurmwrap_commands
from slurmwrap.errors import SlurmwrapError
from slurmwrap.fast_dataclasses import dataclass
from slurmwrap.resources import make_template_environment
from slurmwrap.store.atomic_write import replace_file

# By it our own file is known when it is to be replaced.
MARK = "Made by: slurmwrap completion"


class Shell(StrEnum):
    """The shells that can be taught."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionPlace:
    """Where a user's own completions lie, which file serves which command, and what else they have to do."""

    directory: Path
    names: Mapping[str, str]  # command → file name
    then: str


def completion(
    ctx: typer.Context,
    shell: Annotated[Shell, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")],
    install: Annotated[bool, typer.Option("--install", help="Put it where your shell looks, in your home.")] = False,
    sbatch: Annotated[
        bool, typer.Option("--sbatch", help="Complete sbatch in the same way, where it is gsub by another name.")
    ] = False,
) -> None:
    """Complete options, partitions, nodes, jobs … of gsub on TAB.

    \b
    Examples:  source <(slurmwrap completion bash)
               slurmwrap completion fish --install
    For everybody: docs/completion.md says where the files go.
    """
    text = render_script(shell, ctx.find_root().command, sbatch=sbatch)
    if not install:
        typer.echo(text, nl=False)
        return
    place = place_of(shell, os.environ)
    for path in write_completion_files(place, text, sbatch=sbatch):
        typer.echo(f"Written: {path}")
    typer.echo(place.then)


def render_script(shell: Shell, root: Any, *, sbatch: bool = False) -> str:
    """The whole script. `root`: slurmwrap's command tree."""
    # "{#" occurs in shell code, so comments have marks of their own; every text goes through the shell's filter.
    environment = make_template_environment("completion", comment_start_string="<#--", comment_end_string="--#>")
    environment.filters |= {"sh": _quote_sh, "zsh": _quote_zsh, "fish": _quote_fish}
    return environment.get_template(f"{shell.value}.j2").render(
        mark=f"{MARK} {shell.value}{' --sbatch' if sbatch else ''}",
        offers=gsub_offers(),
        commands=slurmwrap_commands(root),
        gsubs=["gsub", "sbatch"] if sbatch else ["gsub"],
    )


def _quote_sh(text: str) -> str:
    # Also where nothing needs it: zsh reads more into bare words.
    return "'" + text.replace("'", "'\\''") + "'"


def _quote_zsh(text: str) -> str:
    """Part of one spec of zsh's _arguments, where \\ : [ ] speak; the spec is quoted as a whole."""
    return "".join(f"\\{c}" if c in "\\:[]" else c for c in text).replace("'", "'\\''")


def _quote_fish(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


# --- putting it in place ----------------------------------------------------------------------------------------------


def place_of(shell: Shell, environ: Mapping[str, str]) -> CompletionPlace:
    """Where that shell looks for what a user adds themselves."""
    home = Path(environ.get("HOME") or Path.home())
    data = Path(environ.get("XDG_DATA_HOME") or home / ".local/share")
    config = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    if shell is Shell.BASH:
        return CompletionPlace(
            directory=data / "bash-completion/completions",
            names={"gsub": "gsub", "slurmwrap": "slurmwrap", "sbatch": "sbatch"},
            then="New shells have it where the package bash-completion is; elsewhere add to ~/.bashrc:\n"
            "  source <(slurmwrap completion bash)",
        )
    if shell is Shell.ZSH:
        directory = data / "zsh/site-functions"
        return CompletionPlace(
            directory=directory,
            names={"gsub": "_gsub"},
            then="If it is not there yet, add to ~/.zshrc before the line with compinit:\n"
            f"  fpath=({shlex.quote(str(directory))} $fpath)\n"
            "and start a new shell (after an update of this file: rm -f ~/.zcompdump).",
        )
    return CompletionPlace(
        directory=config / "fish/completions",
        names={"gsub": "gsub.fish", "slurmwrap": "slurmwrap.fish", "sbatch": "sbatch.fish"},
        then="New shells have it.",
    )


def write_completion_files(place: CompletionPlace, text: str, *, sbatch: bool = False) -> list[Path]:
    """Writes the files. SlurmwrapError, and nothing is written, where one is there that someone else wrote."""
    paths = [place.directory / name for command, name in place.names.items() if sbatch or command != "sbatch"]
    for path in paths:
        if path.exists() and MARK not in path.read_text(encoding="utf-8", errors="replace"):
            raise SlurmwrapError(
                f"{path} is there and not ours", hint="move it away, or use the script without --install"
            )
    try:
        place.directory.mkdir(parents=True, exist_ok=True)
        for path in paths:
            # A shell that starts meanwhile reads one of the two.
            replace_file(path, text, 0o644)
    except OSError as error:
        raise SlurmwrapError(f"cannot write {error.filename}: {error.strerror}") from error
    return paths
