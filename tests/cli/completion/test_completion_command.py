"""slurmwrap completion: contents of the scripts, reading them in each shell, and the paths of --install."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from in_process import Runner
from shells import Desk, completion_script
from waiting import allow

from slurmwrap.cli.completion import (
    NOT_OFFERED,
    OWN_WORDS,
    SBATCH_WORDS,
    Shell,
    gsub_offers,
    render_script,
    slurmwrap_commands,
)
from slurmwrap.cli.slurmwrap import app
from slurmwrap.sbatch.option_table import BY_NAME, OWN_BY_NAME, Argument

ROOT = typer.main.get_command(app)
SHELLS = ("bash", "zsh", "fish")


# --- the table --------------------------------------------------------------------------------------------------------


def test_exactly_the_known_options_have_a_description() -> None:
    assert (set(SBATCH_WORDS), set(OWN_WORDS)) == (set(BY_NAME), set(OWN_BY_NAME))
    assert set(BY_NAME) >= NOT_OFFERED


def test_flags_have_no_values_and_descriptions_are_at_most_50_characters() -> None:
    offers = gsub_offers()
    assert [o.long for o in offers if o.argument is Argument.NONE and o.values] == []
    assert [o.long for o in offers if not 0 < len(o.about) <= 50] == []


def test_every_command_of_slurmwrap_is_completed() -> None:
    found = {command.name: command for command in slurmwrap_commands(ROOT)}
    assert {"", "why", "lab", "lab up", "nodes show", "prerun list", "profile measure", "completion"} <= set(found)
    assert [name for name, command in found.items() for one in command.options if not one.about] == []
    up = {option.long: option.values for option in found["lab up"].options}
    assert {name: up[name] for name in ("--dir", "--topology", "--nodes", "--no-reconcile")} == {
        "--dir": "dir", "--topology": "choice tree none", "--nodes": "", "--no-reconcile": "",
    }  # fmt: skip
    assert (found["why"].arguments, found["classify"].arguments, found["classify"].repeats) == (
        ("run",),
        ("file",),
        True,
    )


# --- the scripts ------------------------------------------------------------------------------------------------------


def test_shellcheck_has_no_complaint_about_the_bash_script(tmp_path: Path) -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed")
    done = subprocess.run(
        ["shellcheck", completion_script("bash", tmp_path)], capture_output=True, text=True, timeout=allow(60)
    )
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_reads_its_script_without_output(shell: str, tmp_path: Path) -> None:
    start = {
        "bash": ["bash", "--norc", "-c", ". $1; . $2", "-"],
        "zsh": ["zsh", "-f", "-c", "compdef() { :; }; . $1; . $2", "-"],
        "fish": ["fish", "--no-config", "-c", "source $argv[1]; source $argv[2]"],
    }[shell]
    (tmp_path / "sbatch").mkdir()
    paths = [completion_script(shell, tmp_path), completion_script(shell, tmp_path / "sbatch", sbatch=True)]
    done = subprocess.run([*start, *paths], capture_output=True, text=True, timeout=allow(60))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# --- the command ------------------------------------------------------------------------------------------------------


def _install(home: Path, *words: str) -> tuple[int, str]:
    env = {"HOME": str(home), "XDG_DATA_HOME": "", "XDG_CONFIG_HOME": ""}
    result = Runner().invoke(app, ["completion", *words, "--install"], env=env)
    return result.exit_code, result.output + str(result.exception or "")


@pytest.mark.parametrize(
    ("words", "files"),
    [
        (["bash"], {f".local/share/bash-completion/completions/{name}" for name in ("gsub", "slurmwrap")}),
        (
            ["bash", "--sbatch"],
            {f".local/share/bash-completion/completions/{name}" for name in ("gsub", "slurmwrap", "sbatch")},
        ),
        (["zsh"], {".local/share/zsh/site-functions/_gsub"}),
        (["fish"], {".config/fish/completions/gsub.fish", ".config/fish/completions/slurmwrap.fish"}),
    ],
)
def test_install_writes_the_script_where_the_shell_looks_for_it(
    words: list[str], files: set[str], tmp_path: Path
) -> None:
    for _ in range(2):  # an older script of slurmwrap is replaced
        code, message = _install(tmp_path, *words)
        assert code == 0, message
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()} == files
    text = render_script(Shell(words[0]), ROOT, sbatch="--sbatch" in words)
    assert {(tmp_path / name).read_text(encoding="utf-8") for name in files} == {text}


def test_a_file_that_slurmwrap_did_not_write_is_kept(tmp_path: Path) -> None:
    directory = tmp_path / ".config/fish/completions"
    directory.mkdir(parents=True)
    (directory / "slurmwrap.fish").write_text("# mine\n")
    code, message = _install(tmp_path, "fish")
    assert (code, message) == (1, f"{directory}/slurmwrap.fish exists and was not written by slurmwrap")
    assert [path.name for path in directory.iterdir()] == ["slurmwrap.fish"]


@pytest.mark.parametrize("shell", SHELLS)
def test_a_new_shell_finds_the_installed_script(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    context = Desk(tmp_path)
    _install(tmp_path, shell)
    start = {
        "bash": [
            "bash", "--norc", "-c",
            ". /usr/share/bash-completion/bash_completion; _completion_loader gsub; complete -p gsub",
        ],
        "zsh": [
            "zsh", "-f", "-c",
            "fpath=(~/.local/share/zsh/site-functions $fpath); autoload -Uz compinit; compinit -u -D; "
            "print $_comps[gsub] $_comps[slurmwrap]",
        ],
        "fish": ["fish", "-c", "complete -C 'gsub --partit'"],
    }[shell]  # fmt: skip
    if shell == "bash" and not Path("/usr/share/bash-completion/bash_completion").exists():
        pytest.skip("bash-completion is not installed")
    env = {**context.env, "TERM": "dumb"}
    done = subprocess.run(start, env=env, cwd=context.work, capture_output=True, text=True, timeout=allow(60))
    expected = {"bash": "complete -F _gsub gsub", "zsh": "_gsub _gsub", "fish": "--partition\tpartition to run in"}
    assert done.stdout.strip() == expected[shell], done.stderr


def test_every_command_is_imported_without_the_optional_packages(tmp_path: Path) -> None:
    """A plain `pip install slurmwrap` has no optional package; the completion script names every command."""
    block = "import sys; sys.modules.update(dict.fromkeys(('numpy', 'highspy', 'matplotlib', 'prometheus_client')))"
    run = "from slurmwrap.cli.slurmwrap import main; sys.argv = ['slurmwrap', 'completion', 'bash']; main()"
    done = subprocess.run(
        [sys.executable, "-c", f"{block}; {run}"], env={"HOME": str(tmp_path), "PATH": os.environ["PATH"]},
        capture_output=True, text=True, timeout=allow(60),
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "whatif" in done.stdout
