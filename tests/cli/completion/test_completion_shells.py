"""Completion by TAB in real shells, with a fake Slurm: names with shell syntax, other releases, no answer.

tests/slurm/test_completion_lab.py tests completion with a real Slurm."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from shells import Desk, Fish, TypedShell, completion_script
from waiting import allow

from slurmwrap.cli.completion import NOT_OFFERED
from slurmwrap.gsub import gsub_script
from slurmwrap.sbatch.option_table import OWN, SBATCH, Release

pytestmark = pytest.mark.early

SHELLS = ("bash", "zsh", "fish")


@pytest.fixture
def context(tmp_path: Path) -> Desk:
    return Desk(tmp_path)  # without any answer: Slurm is not available


@pytest.fixture(scope="module")
def zcompdump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The completion cache of zsh: without it each zsh takes half a second to start."""
    return tmp_path_factory.mktemp("zsh") / "zcompdump"


@pytest.fixture
def open_shell(context: Desk, tmp_path: Path, zcompdump: Path) -> Iterator[Callable[..., TypedShell]]:
    opened: list[TypedShell] = []

    def start_shell(shell: str, more: str = "", **script: Any) -> TypedShell:
        path = completion_script(shell, tmp_path, **script)
        opened.append(TypedShell(shell, path, context.env, context.work, tmp_path, more, dump=zcompdump))
        return opened[-1]

    yield start_shell
    for one in opened:
        one.close()


@pytest.fixture
def offered(context: Desk, tmp_path: Path, open_shell: Callable[..., TypedShell]) -> Callable[..., set[str]]:
    """`offered(shell, line)`: what TAB offers in a new shell."""

    def complete(shell: str, line: str) -> set[str]:
        if shell == "fish":
            return set(Fish(completion_script(shell, tmp_path), context.env, context.work).complete(line))
        return set(open_shell(shell).complete(line).offers)

    return complete


def _names_of(release: Release | None) -> set[str]:
    known = {option for option in SBATCH if option.name not in NOT_OFFERED}
    if release is None:  # the release is unknown: only options that all releases have
        known = {option for option in known if option.since <= (22, 5) and option.until is None}
    return {f"--{option.name}" for option in known if option.known_to(release)} | {f"--{own.name}" for own in OWN}


RELEASES: list[tuple[str | None, Release | None]] = [
    (None, None), ("slurm-wlm 22.05.8", (22, 5)), ("slurm 24.11.5", (24, 11)), ("slurm 26.05.5-1", (26, 5)),
]  # fmt: skip


@pytest.mark.parametrize("shell", SHELLS)
def test_exactly_the_options_of_the_installed_slurm_release_are_offered(
    shell: str, context: Desk, offered: Callable[..., set[str]]
) -> None:
    found = {}
    for version_text, release in RELEASES:
        context.answers({}, version_text)
        found[release] = {one.rstrip("=") for one in offered(shell, "gsub --")}
    assert found == {release: _names_of(release) for _, release in RELEASES}


LINES = {  # typed line -> line after TAB
    "gsub --nodel": "gsub --nodelist=",
    "gsub --prerun=ga": "gsub --prerun=gate ",
    "gsub --prerun pro": "gsub --prerun profile ",
    "gsub --mail-type=END,FA": "gsub --mail-type=END,FAIL ",
    "gsub --signal=B:USR2": "gsub --signal=B:USR2@",
    "gsub -d afterno": "gsub -d afternotok:",
    "gsub --open-m": "gsub --open-mode=",
    "gsub --output=tr": "gsub --output=train.sbatch ",
    "gsub -o tr": "gsub -o train.sbatch ",
    "gsub -otr": "gsub -otrain.sbatch ",
    "gsub my": "gsub my\\ data.txt ",
    "gsub --chdir=s": "gsub --chdir=sub/",
    "gsub -HN2 --overc": "gsub -HN2 --overcommit ",
    "gsub -N1 : --qo": "gsub -N1 : --qos=",
    "gsub train.sbatch --par": "gsub train.sbatch --par",
    "gsub train.sbatch my": "gsub train.sbatch my\\ data.txt ",
    "gsub -- my": "gsub -- my\\ data.txt ",
    "gsub --comment=m": "gsub --comment=m",
    "slurmwrap nod": "slurmwrap nodes ",
    "slurmwrap lab k": "slurmwrap lab kernel ",
    "slurmwrap lab up --topology no": "slurmwrap lab up --topology none ",
    "slurmwrap classify tr": "slurmwrap classify train.sbatch ",
    "slurmwrap classify a tr": "slurmwrap classify a train.sbatch ",
    "slurmwrap completion z": "slurmwrap completion zsh ",
}
LINES_IN_ZSH = {
    "gsub --mail-type=END,FA": "gsub --mail-type=END,FAIL,",
}


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_bash_and_zsh_complete_a_line(shell: str, open_shell: Callable[..., TypedShell]) -> None:
    terminal = open_shell(shell)
    wanted = LINES | (LINES_IN_ZSH if shell == "zsh" else {})
    assert {line: terminal.complete(line).line for line in LINES} == wanted


def test_fish_completes_a_line(context: Desk, tmp_path: Path) -> None:
    fish = Fish(completion_script("fish", tmp_path), context.env, context.work)
    lines = {
        "gsub --nodel": {"--nodelist": "nodes to use"},
        "gsub --prerun=ga": {"--prerun=gate": ""},
        "gsub --prerun pro": {"profile": ""},
        "gsub --mail-type=END,FA": {"--mail-type=END,FAIL": ""},
        "gsub --exclusive=m": {"--exclusive=mcs": ""},
        "gsub -d afterno": {"afternotok:": ""},
        "gsub --output=tr": {"--output=train.sbatch": ""},
        "gsub -N1 : --qo": {"--qos": "quality of service"},
        "gsub train.sbatch --par": {},
        "gsub train.sbatch my": {"my data.txt": ""},
        "gsub --comment=m": {},
        "slurmwrap lab up --topology no": {"none": ""},
        "slurmwrap nodes sh": {"show": "Show why a node is avoided, term by term"},
        "slurmwrap classify tr": {"train.sbatch": ""},
    }
    found = fish.complete_all(list(lines))
    assert found["slurmwrap nodes sh"].keys() == {"show"}
    found["slurmwrap nodes sh"] = lines["slurmwrap nodes sh"]  # the text is the help of the command
    assert found == lines


@pytest.mark.parametrize("shell", SHELLS)
def test_sbatch_is_completed_where_it_is_an_alias_of_gsub(
    shell: str, context: Desk, open_shell: Callable[..., TypedShell], tmp_path: Path
) -> None:
    if shell == "fish":
        fish = Fish(completion_script(shell, tmp_path, True), context.env, context.work)
        assert set(fish.complete("sbatch --prer")) == {
            "--prerun", "--prerun-gpus", "--prerun-steps", "--prerun-command",
        }  # fmt: skip
    else:
        assert open_shell(shell, sbatch=True).complete("sbatch --explai").line == "sbatch --explain "


GSUB_WITH_RECENT_RUNS = """#!/bin/sh
[ "$SLURMWRAP_COMPLETE" = jobs ] && [ $# = 0 ] && printf '47|FAILED|train\\n46||two words\\n'
"""


@pytest.mark.parametrize("shell", SHELLS)
def test_recent_runs_and_jobs_in_the_queue_are_offered(
    shell: str, context: Desk, open_shell: Callable[..., TypedShell], tmp_path: Path
) -> None:
    context.program("gsub", GSUB_WITH_RECENT_RUNS)
    line = "slurmwrap why "
    for queue, wanted in (("", ["46", "47"]), ("51|RUNNING|now\n47|PENDING|again", ["46", "47", "51"])):
        context.answers({"squeue -h --me": "51\n47" if queue and shell == "bash" else queue})
        if shell == "fish":
            found = Fish(completion_script(shell, tmp_path), context.env, context.work).complete(line)
            assert found["46"].strip() == "two words"
            assert found["47"] == ("PENDING  again" if queue else "FAILED  train")
            assert sorted(found) == wanted
        else:
            assert sorted(one.split()[0] for one in open_shell(shell).complete(line).offers) == wanted


# --- gsub new and its templates -------------------------------------------------------------------------------------

GSUB_NEW_LINES = {
    "gsub ne": "gsub new ",
    "gsub new --lis": "gsub new --list ",
    "gsub new --templa": "gsub new --template=",
    "gsub new --template tor": "gsub new --template torchrun ",
    "gsub new --template=deep": "gsub new --template=deepspeed ",
    "gsub --template=acc": "gsub --template=accelerate ",
    "gsub new --template jax -o tr": "gsub new --template jax -o train.sbatch ",
    "gsub new --template jax -G 8 --nodel": "gsub new --template jax -G 8 --nodelist=",
    "gsub new --template jax my": "gsub new --template jax my\\ data.txt ",
    "gsub new --template jax train.sbatch --li": "gsub new --template jax train.sbatch --li",
    "gsub --li": "gsub --licenses=",
    "gsub train.sbatch ne": "gsub train.sbatch ne",
}


def _use_real_gsub(context: Desk) -> None:
    """Only the real gsub knows the templates."""
    (context.home / "gsub").write_text(
        f'#!/bin/sh\nexec {sys.executable} {gsub_script.__file__} "$@"\n', encoding="utf-8"
    )


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_bash_and_zsh_complete_gsub_new_with_the_options_of_a_submission(
    shell: str, context: Desk, open_shell: Callable[..., TypedShell]
) -> None:
    _use_real_gsub(context)
    terminal = open_shell(shell)
    assert {line: terminal.complete(line).line for line in GSUB_NEW_LINES} == GSUB_NEW_LINES
    (context.work / "new").touch()  # `new` is now the script of that name
    lines = {"gsub new tr": "gsub new train.sbatch ", "gsub new --li": "gsub new --li"}
    assert {line: terminal.complete(line).line for line in lines} == lines


def test_fish_completes_gsub_new(context: Desk, tmp_path: Path) -> None:
    _use_real_gsub(context)
    fish = Fish(completion_script("fish", tmp_path), context.env, context.work)
    lines = {
        "gsub ne": {"new": "write a batch script from a template"},
        "gsub new --lis": {"--list": "show the templates"},
        "gsub new --templa": {"--template": "make the script from this template"},
        "gsub new --template tor": {"torchrun": "one torchrun per node; it starts a process per GPU"},
        "gsub new --template=li": {"--template=list": ""},
        "gsub new --template jax my": {"my data.txt": ""},
        "gsub new --template jax train.sbatch --lis": {},
        "gsub --lis": {},
        "gsub train.sbatch ne": {},
    }
    found = fish.complete_all(list(lines))
    assert found["gsub new --template tor"].keys() == {"torchrun"}
    found["gsub new --template tor"] = lines["gsub new --template tor"]  # the text comes from the template
    assert found == lines
    (context.work / "new").touch()
    assert (fish.complete("gsub new --lis"), fish.complete("gsub ne")) == ({}, {"new": ""})


# --- hostile names ----------------------------------------------------------------------------------------------------

# Each name begins with a unique letter, which is typed. A shell that evaluates a name creates a file.
HOSTILE = {
    "a": "a b c",
    "b": "b$(touch PWNED)",
    "c": "c`touch PWNED`",
    "d": "d;touch PWNED",
    "e": "e'touch PWNED'",
    "f": 'f"$(touch PWNED)"',
    "g": "g\\$(touch PWNED)",
    "h": "h*?[a-z]",
    "i": "i$HOME${HOME}",
    "j": "j&touch PWNED&",
    "k": "k|touch PWNED",
    "l": "l>PWNED",
    "m": "m<(touch PWNED)",
    "n": "n#!x",
    "p": "p{a,b}~",
    "q": "q%n%F{red}",
    "@": "@",
    "*": "*",
}


def _can_be_offered(typed: str, name: str) -> bool:
    if "constraint" in typed:  # these characters join features
        return not set(name) & set(",&|(![*")
    return "," not in name or "-p" not in typed


@pytest.mark.parametrize("shell", SHELLS)
def test_a_name_with_shell_syntax_is_completed_and_never_executed(
    shell: str, context: Desk, open_shell: Callable[..., TypedShell], tmp_path: Path
) -> None:
    names = "\n".join(HOSTILE.values())
    context.answers({"sinfo -h -o": names, "sacctmgr -nP show": names})
    wanted = {}
    for typed in ("gsub -p ", "gsub --qos=", "gsub --constraint="):
        for letter, name in HOSTILE.items():
            if _can_be_offered(typed, name):
                word = typed.removeprefix("gsub ")
                wanted[typed + letter] = ["-p", name] if word == "-p " else [word + name]
    if shell == "fish":
        # An unquoted * is a pattern of the user.
        wanted = {line: words for line, words in wanted.items() if line[-1] != "*"}
        received = _fish_takes(Fish(completion_script(shell, tmp_path), context.env, context.work), list(wanted))
    else:
        received, terminal = {}, open_shell(shell, "HISTFILE=/dev/null; set +o histexpand 2>/dev/null\n")
        for line in wanted:
            terminal.run(terminal.complete(line).line)
            received[line] = context.got()
    if shell == "zsh":  # zsh removes the trailing comma when a blank is typed
        received = {line: [*words[:-1], words[-1].removesuffix(",")] for line, words in received.items()}
    assert received == wanted
    assert list(tmp_path.rglob("*PWNED*")) == []


# Not included: $(...) in a file path. zsh itself executes it for any command (`ls $(touch x)/` and TAB).
LINES_WITH_COMMANDS = [
    "gsub --$(touch PWNED)=",
    "gsub --partition=$(touch PWNED)",
    "gsub --part'$(touch PWNED)'=g",
    "gsub -w 'n[$(touch PWNED)]",
    "gsub -x a[$(touch PWNED)],",
    'gsub --output="$(touch PWNED)',
    "gsub --gres=gpu:`touch PWNED`",
    "gsub `touch PWNED` --",
    "gsub --dependency=afterok:$(touch PWNED):",
    "slurmwrap $(touch PWNED) ",
    "slurmwrap lab 'x[$(touch PWNED)]' --",
]


@pytest.mark.parametrize("shell", SHELLS)
def test_tab_does_not_execute_a_typed_command_substitution(
    shell: str, context: Desk, open_shell: Callable[..., TypedShell], tmp_path: Path
) -> None:
    context.answers({"sinfo -h -o": "gpu", "scontrol show hostnames": "n0\nn1"})
    if shell == "fish":
        Fish(completion_script(shell, tmp_path), context.env, context.work).complete_all(LINES_WITH_COMMANDS)
    else:
        terminal = open_shell(shell)
        for line in LINES_WITH_COMMANDS:
            terminal.complete(line)
    assert list(tmp_path.rglob("*PWNED*")) == []


def _fish_takes(fish: Fish, lines: list[str]) -> dict[str, list[str]]:
    """Run each line with its one offer, quoted as fish inserts it, and return the words received."""
    output = fish.run(
        "for line in $argv[2..]\n"
        "  set offer (complete --escape -C $line | string split -f1 \\t)\n"
        "  eval (string replace -r '[^ ]*$' '' -- $line)$offer\n"
        "  command cat ../bin/got; echo \\x1e\n"
        "end",
        *lines,
    )
    return {line: got.split("\0")[:-1] for line, got in zip(lines, output.split("\x1e\n"), strict=False)}


@pytest.mark.parametrize("shell", SHELLS)
def test_a_name_with_control_characters_is_not_printed(
    shell: str, context: Desk, open_shell: Callable[..., TypedShell], tmp_path: Path
) -> None:
    context.answers({"sinfo -h -o": "good\nbad\x1b[2Jname"})
    if shell == "fish":
        offers = Fish(completion_script(shell, tmp_path), context.env, context.work).complete("gsub -p ")
        assert set(offers) == {"good", "bad?[2Jname"}
        return
    terminal = open_shell(shell)
    assert terminal.complete("gsub -p ").offers == ("good",)
    assert b"\x1b[2J" not in terminal.terminal.seen


# --- Slurm is not available -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", ["bash", "zsh"])
@pytest.mark.parametrize("hangs", [True, False])
def test_without_an_answer_of_slurm_nothing_is_offered_and_slurm_is_asked_once(
    shell: str, hangs: bool, context: Desk, open_shell: Callable[..., TypedShell]
) -> None:
    context.answers({})
    if hangs:
        (context.home / "hang").touch()
    terminal = open_shell(shell, patience_s=allow(0.5) if hangs else allow(20))
    before = len(terminal.terminal.seen)
    assert [terminal.complete("gsub --partition=g").line for _ in range(3)] == ["gsub --partition=g"] * 3
    assert context.asked().count("sinfo -h -o %R") == 1
    assert b"Unable" not in terminal.terminal.seen[before:] and b"erminated" not in terminal.terminal.seen[before:]


@pytest.mark.parametrize("shell", SHELLS)
def test_without_slurm_options_are_still_completed(
    shell: str, context: Desk, open_shell: Callable[..., TypedShell], tmp_path: Path
) -> None:
    context.env["PATH"] = str(_link_programs(tmp_path / "tools", "bash", "zsh", "fish", "timeout", "date", "cat"))
    if shell == "fish":
        fish = Fish(completion_script(shell, tmp_path), context.env, context.work)
        option, value = fish.complete_all(["gsub --partit", "gsub --partition=g"]).values()
        assert (set(option), value) == ({"--partition"}, {})
        return
    terminal = open_shell(shell)
    assert terminal.complete("gsub --partit").line == "gsub --partition="
    assert terminal.complete("gsub --partition=g").line == "gsub --partition=g"


def _link_programs(directory: Path, *programs: str) -> Path:
    directory.mkdir()
    for name in programs:
        if found := shutil.which(name):
            (directory / name).symlink_to(found)
    return directory


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_the_answer_of_slurm_is_cached_for_several_tabs(
    shell: str, context: Desk, open_shell: Callable[..., TypedShell]
) -> None:
    context.answers({"sinfo -h -o": "gpu\ncpu"})
    terminal = open_shell(shell)
    assert [terminal.complete("gsub -p ").offers for _ in range(3)] == [("cpu", "gpu")] * 3
    assert context.asked().count("sinfo -h -o %R") == 1


@pytest.mark.parametrize("shell", SHELLS)
def test_a_users_own_template_is_offered_with_the_shipped_templates(
    shell: str, context: Desk, offered: Callable[..., set[str]], tmp_path: Path
) -> None:
    own = tmp_path / ".config/slurmwrap/templates/pretrain.j2"
    own.parent.mkdir(parents=True)
    own.write_text("{# about: our runs #}\n{# tasks: node #}\n", encoding="utf-8")
    _use_real_gsub(context)
    shipped = {"accelerate", "array", "deepspeed", "jax", "list", "srun", "torchrun"}
    assert offered(shell, "gsub --template ") == {*shipped, "pretrain"}


# --- the user's own settings of the shell -----------------------------------------------------------------------------

SETTINGS = {
    "bash": ["shopt -s failglob nullglob dotglob", "set -u", "set -f", "IFS=,", "set -o posix"],
    "zsh": ["setopt ksharrays", "setopt shwordsplit", "setopt nounset", "setopt noglob", "IFS=,", "setopt rematchpcre"],
}


@pytest.mark.parametrize(
    ("shell", "setting"),
    [
        pytest.param(shell, setting, marks=[] if place < 2 else pytest.mark.slow)
        for shell, settings in SETTINGS.items()
        for place, setting in enumerate(settings)
    ],
)
def test_completion_works_with_unusual_shell_settings(
    shell: str, setting: str, context: Desk, open_shell: Callable[..., TypedShell]
) -> None:
    context.answers({"sinfo -h -o": "gpu\ncpu"})
    terminal = open_shell(shell, setting + "\n")
    assert terminal.complete("gsub --partition=g").line.rstrip(", ") == "gsub --partition=gpu"
    assert terminal.complete("gsub --open-m").line == "gsub --open-mode="


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_ten_thousand_nodes_are_offered_folded_until_a_prefix_is_typed(
    shell: str, context: Desk, open_shell: Callable[..., TypedShell]
) -> None:
    names = [f"g{number}" for number in range(10_000)]
    context.answers({"sinfo -h -o": "g[0-9999]", "scontrol show hostnames": "\n".join(names)})
    terminal = open_shell(shell)
    assert terminal.complete("gsub -w ").offers == ("g\\[0-9999\\]",)
    assert terminal.complete("gsub -w g123").offers == tuple(sorted(n for n in names if n.startswith("g123")))
