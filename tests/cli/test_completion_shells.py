"""TAB in real shells, beside a stand-in for Slurm that says what no real one would: hostile names, other releases,
nothing at all. tests/slurm/test_completion_lab.py has the real Slurm."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from shells import Desk, Fish, TypedShell, completion_script

from slurmwrap.cli import start
from slurmwrap.cli.completion.words import NOT_OFFERED
from slurmwrap.job.options import OWN, SBATCH, Release

pytestmark = pytest.mark.early

SHELLS = ("bash", "zsh", "fish")


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)  # without any answer: a Slurm that is away


@pytest.fixture
def open_shell(desk: Desk, tmp_path: Path) -> Iterator[Callable[..., TypedShell]]:
    opened: list[TypedShell] = []

    def start(shell: str, more: str = "", sbatch: bool = False) -> TypedShell:
        opened.append(
            TypedShell(shell, completion_script(shell, tmp_path, sbatch), desk.env, desk.work, tmp_path, more)
        )
        return opened[-1]

    yield start
    for one in opened:
        one.close()


def _names_of(release: Release | None) -> set[str]:
    known = {option for option in SBATCH if option.name not in NOT_OFFERED}
    if release is None:  # Slurm does not say which it is: what all releases have
        known = {option for option in known if option.since <= (22, 5) and option.until is None}
    return {f"--{option.name}" for option in known if option.known_to(release)} | {f"--{own.name}" for own in OWN}


RELEASES: list[tuple[str | None, Release | None]] = [
    ("slurm-wlm 22.05.8", (22, 5)), ("slurm 24.11.5", (24, 11)), ("slurm 26.05.5-1", (26, 5)), (None, None),
]  # fmt: skip


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(("says", "release"), RELEASES)
def test_what_this_release_of_sbatch_has_is_offered_and_no_more(
    shell: str,
    says: str | None,
    release: Release | None,
    desk: Desk,
    open_shell: Callable[..., TypedShell],
    tmp_path: Path,
) -> None:
    desk.answers({}, says)
    if shell == "fish":
        offers = set(Fish(completion_script(shell, tmp_path), desk.env, desk.work).complete("gsub --"))
    else:
        offers = set(open_shell(shell).complete("gsub --").offers)
    assert {one.rstrip("=") for one in offers} == _names_of(release)


LINES = {  # what TAB makes of the line
    "gsub --nodel": {"bash": "gsub --nodelist=", "zsh": "gsub --nodelist="},
    "gsub --prerun=ga": {"bash": "gsub --prerun=gate ", "zsh": "gsub --prerun=gate "},
    "gsub --prerun pro": {"bash": "gsub --prerun profile ", "zsh": "gsub --prerun profile "},
    "gsub --mail-type=END,FA": {"bash": "gsub --mail-type=END,FAIL ", "zsh": "gsub --mail-type=END,FAIL,"},
    "gsub --signal=B:USR2": {"bash": "gsub --signal=B:USR2@", "zsh": "gsub --signal=B:USR2@"},
    "gsub -d afterno": {"bash": "gsub -d afternotok:", "zsh": "gsub -d afternotok:"},
    "gsub --open-m": {"bash": "gsub --open-mode=", "zsh": "gsub --open-mode="},
    "gsub --output=tr": {"bash": "gsub --output=train.sbatch ", "zsh": "gsub --output=train.sbatch "},
    "gsub -o tr": {"bash": "gsub -o train.sbatch ", "zsh": "gsub -o train.sbatch "},
    "gsub -otr": {"bash": "gsub -otrain.sbatch ", "zsh": "gsub -otrain.sbatch "},
    "gsub my": {"bash": "gsub my\\ data.txt ", "zsh": "gsub my\\ data.txt "},
    "gsub --chdir=s": {"bash": "gsub --chdir=sub/", "zsh": "gsub --chdir=sub/"},
    "gsub -HN2 --overc": {"bash": "gsub -HN2 --overcommit ", "zsh": "gsub -HN2 --overcommit "},
    "gsub -N1 : --qo": {"bash": "gsub -N1 : --qos=", "zsh": "gsub -N1 : --qos="},
    "gsub train.sbatch --par": {"bash": "gsub train.sbatch --par", "zsh": "gsub train.sbatch --par"},
    "gsub train.sbatch my": {"bash": "gsub train.sbatch my\\ data.txt ", "zsh": "gsub train.sbatch my\\ data.txt "},
    "gsub -- my": {"bash": "gsub -- my\\ data.txt ", "zsh": "gsub -- my\\ data.txt "},
    "gsub --comment=m": {"bash": "gsub --comment=m", "zsh": "gsub --comment=m"},
    "slurmwrap nod": {"bash": "slurmwrap nodes ", "zsh": "slurmwrap nodes "},
    "slurmwrap lab k": {"bash": "slurmwrap lab kernel ", "zsh": "slurmwrap lab kernel "},
    "slurmwrap lab up --topology no": {
        "bash": "slurmwrap lab up --topology none ", "zsh": "slurmwrap lab up --topology none ",
    },
    "slurmwrap classify tr": {"bash": "slurmwrap classify train.sbatch ", "zsh": "slurmwrap classify train.sbatch "},
    "slurmwrap classify a tr": {
        "bash": "slurmwrap classify a train.sbatch ", "zsh": "slurmwrap classify a train.sbatch ",
    },
    "slurmwrap completion z": {"bash": "slurmwrap completion zsh ", "zsh": "slurmwrap completion zsh "},
}  # fmt: skip


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_a_line_is_completed(shell: str, open_shell: Callable[..., TypedShell]) -> None:
    terminal = open_shell(shell)
    assert {line: terminal.complete(line).line for line in LINES} == {line: want[shell] for line, want in LINES.items()}


def test_fish_completes_a_line(desk: Desk, tmp_path: Path) -> None:
    fish = Fish(completion_script("fish", tmp_path), desk.env, desk.work)
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
    found = {line: fish.complete(line) for line in lines}
    assert found["slurmwrap nodes sh"].keys() == {"show"}
    found["slurmwrap nodes sh"] = lines["slurmwrap nodes sh"]  # its words are the command's own help
    assert found == lines


@pytest.mark.parametrize("shell", SHELLS)
def test_sbatch_is_completed_where_it_is_gsub_by_another_name(
    shell: str, desk: Desk, open_shell: Callable[..., TypedShell], tmp_path: Path
) -> None:
    if shell == "fish":
        assert set(Fish(completion_script(shell, tmp_path, True), desk.env, desk.work).complete("sbatch --prer")) == {
            "--prerun", "--prerun-gpus", "--prerun-steps", "--prerun-command",
        }  # fmt: skip
    else:
        assert open_shell(shell, sbatch=True).complete("sbatch --explai").line == "sbatch --explain "


RECENT = """#!/bin/sh
[ "$SLURMWRAP_COMPLETE" = jobs ] && [ $# = 0 ] && printf '47|FAILED|train\\n46||two words\\n'
"""


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("queue", "wanted"), [("", {"47", "46"}), ("51|RUNNING|now\n47|PENDING|again", {"51", "47", "46"})]
)
def test_recent_runs_are_offered_beside_the_jobs_in_the_queue(
    shell: str, queue: str, wanted: set[str], desk: Desk, open_shell: Callable[..., TypedShell], tmp_path: Path
) -> None:
    desk.answers({"squeue -h --me": "51\n47" if queue and shell == "bash" else queue})
    desk.program("gsub", RECENT)
    line = "slurmwrap why "
    if shell == "fish":
        found = Fish(completion_script(shell, tmp_path), desk.env, desk.work).complete(line)
        assert set(found) == wanted
        assert found["46"].strip() == "two words"
        assert found["47"] == ("PENDING  again" if queue else "FAILED  train")
        return
    offers = [one.split()[0] for one in open_shell(shell).complete(line).offers]
    assert sorted(offers) == sorted(wanted)


# --- gsub new and its templates -------------------------------------------------------------------------------------

NEW = {
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


def _real_gsub(desk: Desk) -> None:
    """Only it knows the templates."""
    (desk.home / "gsub").write_text(f'#!/bin/sh\nexec {sys.executable} {start.__file__} "$@"\n', encoding="utf-8")


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_gsub_new_is_a_command_with_the_options_of_a_submission(
    shell: str, desk: Desk, open_shell: Callable[..., TypedShell]
) -> None:
    _real_gsub(desk)
    terminal = open_shell(shell)
    assert {line: terminal.complete(line).line for line in NEW} == NEW
    templates = terminal.complete("gsub new --template ").offers
    assert set(templates) == {"accelerate", "array", "deepspeed", "jax", "list", "srun", "torchrun"}
    (desk.work / "new").touch()  # then it is that script
    lines = {"gsub new tr": "gsub new train.sbatch ", "gsub new --li": "gsub new --li"}
    assert {line: terminal.complete(line).line for line in lines} == lines


def test_fish_completes_gsub_new(desk: Desk, tmp_path: Path) -> None:
    _real_gsub(desk)
    fish = Fish(completion_script("fish", tmp_path), desk.env, desk.work)
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
    found = {line: fish.complete(line) for line in lines}
    assert found["gsub new --template tor"].keys() == {"torchrun"}
    found["gsub new --template tor"] = lines["gsub new --template tor"]  # its words are the template's own
    assert found == lines
    (desk.work / "new").touch()
    assert (fish.complete("gsub new --lis"), fish.complete("gsub ne")) == ({}, {"new": ""})


# --- hostile names ----------------------------------------------------------------------------------------------------

# Each begins with a letter of its own, to be typed; a shell that evaluates one leaves a file.
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


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("typed", ["gsub --partition=", "gsub -p ", "gsub --qos=", "gsub --constraint="])
def test_a_hostile_name_is_a_word_and_never_a_command(
    shell: str, typed: str, desk: Desk, open_shell: Callable[..., TypedShell], tmp_path: Path
) -> None:
    names = "\n".join(HOSTILE.values())
    desk.answers({"sinfo -h -o": names, "sacctmgr -nP show": names})
    took = {}
    wanted = {
        letter: name for letter, name in HOSTILE.items() if "," not in name or "qos" in typed or "-p" not in typed
    }
    if "constraint" in typed:  # features are joined by these
        wanted = {letter: name for letter, name in HOSTILE.items() if not set(name) & set(",&|(![*")}
    if shell == "fish":
        wanted.pop("*", None)  # typed bare it is a pattern of the user's, which fish expands when the line is run
        for letter in wanted:
            took[letter] = _fish_takes(desk, completion_script(shell, tmp_path), typed + letter)
    else:
        terminal = open_shell(shell, "HISTFILE=/dev/null; set +o histexpand 2>/dev/null\n")
        for letter in wanted:
            completed = terminal.complete(typed + letter).line
            terminal.terminal.type(completed + "\n")
            terminal.terminal.until(rb"\[\[>")
            took[letter] = desk.got()
    glued = typed.removeprefix("gsub ")
    expected = {letter: ["-p", name] if glued == "-p " else [glued + name] for letter, name in wanted.items()}
    if shell == "zsh" and "-p" in glued:  # the comma is for more, and goes when a blank is typed
        took = {letter: [*words[:-1], words[-1].removesuffix(",")] for letter, words in took.items()}
    assert took == expected
    assert list(tmp_path.rglob("*PWNED*")) == []


# Not here: $(...) in the path of a file, which zsh itself runs for any command (`ls $(touch x)/` and TAB).
TYPED = [
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
def test_what_is_typed_is_not_run_by_tab(
    shell: str, desk: Desk, open_shell: Callable[..., TypedShell], tmp_path: Path
) -> None:
    desk.answers({"sinfo -h -o": "gpu", "scontrol show hostnames": "n0\nn1"})
    fish = Fish(completion_script(shell, tmp_path), desk.env, desk.work)
    terminal = None if shell == "fish" else open_shell(shell)
    for line in TYPED:
        fish.complete(line) if terminal is None else terminal.complete(line)
        assert list(tmp_path.rglob("*PWNED*")) == [], line


def _fish_takes(desk: Desk, path: Path, line: str) -> list[str]:
    """The one offer, quoted as fish inserts it, on a line that is run."""
    ask = "source $argv[1]; complete --escape -C $argv[2]"
    done = subprocess.run(
        ["fish", "--no-config", "-c", ask, path, line],
        env=desk.env, cwd=desk.work, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    (offer,) = [one.partition("\t")[0] for one in done.stdout.splitlines()]
    before = line[: line.rindex(" ") + 1]
    subprocess.run(["fish", "--no-config", "-c", before + offer], env=desk.env, cwd=desk.work, timeout=60, check=True)
    return desk.got()


@pytest.mark.parametrize("shell", SHELLS)
def test_a_name_that_speaks_to_the_terminal_is_not_shown(
    shell: str, desk: Desk, open_shell: Callable[..., TypedShell], tmp_path: Path
) -> None:
    desk.answers({"sinfo -h -o": "good\nbad\x1b[2Jname"})
    if shell == "fish":
        assert set(Fish(completion_script(shell, tmp_path), desk.env, desk.work).complete("gsub -p ")) == {
            "good",
            "bad?[2Jname",
        }
        return
    terminal = open_shell(shell)
    assert terminal.complete("gsub -p ").offers == ("good",)
    assert b"\x1b[2J" not in terminal.terminal.seen


# --- Slurm is away ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", ["bash", "zsh"])
@pytest.mark.parametrize("hangs", [True, False])
def test_without_an_answer_nothing_is_offered_said_or_asked_again(
    shell: str, hangs: bool, desk: Desk, open_shell: Callable[..., TypedShell]
) -> None:
    desk.answers({})
    if hangs:
        (desk.home / "hang").touch()
    terminal = open_shell(shell)
    before = len(terminal.terminal.seen)
    assert [terminal.complete("gsub --partition=g").line for _ in range(3)] == ["gsub --partition=g"] * 3
    assert desk.asked().count("sinfo -h -o %R") == 1
    assert b"Unable" not in terminal.terminal.seen[before:] and b"erminated" not in terminal.terminal.seen[before:]


@pytest.mark.parametrize("shell", SHELLS)
def test_without_slurm_options_are_still_completed(
    shell: str, desk: Desk, open_shell: Callable[..., TypedShell], tmp_path: Path
) -> None:
    desk.env["PATH"] = str(_only(tmp_path / "tools", "bash", "zsh", "fish", "timeout", "date", "cat"))
    if shell == "fish":
        fish = Fish(completion_script(shell, tmp_path), desk.env, desk.work)
        assert (set(fish.complete("gsub --partit")), fish.complete("gsub --partition=g")) == ({"--partition"}, {})
        return
    terminal = open_shell(shell)
    assert terminal.complete("gsub --partit").line == "gsub --partition="
    assert terminal.complete("gsub --partition=g").line == "gsub --partition=g"


def _only(directory: Path, *programs: str) -> Path:
    directory.mkdir()
    for name in programs:
        if found := shutil.which(name):
            (directory / name).symlink_to(found)
    return directory


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_slurm_is_asked_once_for_several_tabs(shell: str, desk: Desk, open_shell: Callable[..., TypedShell]) -> None:
    desk.answers({"sinfo -h -o": "gpu\ncpu"})
    terminal = open_shell(shell)
    assert [terminal.complete("gsub -p ").offers for _ in range(5)] == [("cpu", "gpu")] * 5
    assert desk.asked().count("sinfo -h -o %R") == 1


@pytest.mark.parametrize("shell", SHELLS)
def test_a_template_of_ones_own_is_offered_with_the_shipped_ones(
    shell: str, desk: Desk, open_shell: Callable[..., TypedShell], tmp_path: Path
) -> None:
    own = tmp_path / ".config/slurmwrap/templates/pretrain.j2"
    own.parent.mkdir(parents=True)
    own.write_text("{# about: our runs #}\n{# tasks: node #}\n", encoding="utf-8")
    _real_gsub(desk)
    if shell == "fish":
        offers = set(Fish(completion_script(shell, tmp_path), desk.env, desk.work).complete("gsub --template "))
    else:
        offers = set(open_shell(shell).complete("gsub --template ").offers)
    assert offers == {"accelerate", "array", "deepspeed", "jax", "list", "pretrain", "srun", "torchrun"}


# --- the user's own settings of the shell -----------------------------------------------------------------------------

SETTINGS = {
    "bash": ["shopt -s failglob nullglob dotglob", "set -u", "set -f", "IFS=,", "set -o posix"],
    "zsh": ["setopt ksharrays", "setopt shwordsplit", "setopt nounset", "setopt noglob", "IFS=,", "setopt rematchpcre"],
}


@pytest.mark.parametrize(("shell", "setting"), [(shell, one) for shell, all_ in SETTINGS.items() for one in all_])
def test_unusual_settings_change_nothing(
    shell: str, setting: str, desk: Desk, open_shell: Callable[..., TypedShell]
) -> None:
    desk.answers({"sinfo -h -o": "gpu\ncpu"})
    terminal = open_shell(shell, setting + "\n")
    assert terminal.complete("gsub --partition=g").line.rstrip(", ") == "gsub --partition=gpu"
    assert terminal.complete("gsub --open-m").line == "gsub --open-mode="


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_ten_thousand_nodes_are_a_list_until_a_letter_is_typed(
    shell: str, desk: Desk, open_shell: Callable[..., TypedShell]
) -> None:
    names = [f"g{number}" for number in range(10_000)]
    desk.answers({"sinfo -h -o": "g[0-9999]", "scontrol show hostnames": "\n".join(names)})
    terminal = open_shell(shell)
    assert terminal.complete("gsub -w ").offers == ("g\\[0-9999\\]",)
    assert terminal.complete("gsub -w g123").offers == tuple(sorted(n for n in names if n.startswith("g123")))
