"""Commands of a script that failed, found in the output of its shell."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from slurmwrap.model.verdict import FailedCommand
from slurmwrap.prerun.verdict.failed_commands import describe_failed_commands, find_failed_commands

LINES = """\
module load cuda
cd nosuch
cp model.pt models/best.pt
echo x > out/log.txt
command -v nosuch-tool || true
cp a b 2>/dev/null || true
echo "train.py: line 3: module: command not found"
echo "mail: command not found"
"""


@pytest.mark.parametrize(
    ("shell", "messages"),
    [
        (
            "bash",
            [
                (2, "module: command not found"),
                (3, "cd: nosuch: No such file or directory"),
                (4, "cp: cannot stat 'model.pt': No such file or directory"),
                (5, "out/log.txt: No such file or directory"),
            ],
        ),
        (
            "dash",
            [
                (2, "module: not found"),
                (3, "cd: can't cd to nosuch"),
                (4, "cp: cannot stat 'model.pt': No such file or directory"),
                (5, "cannot create out/log.txt: Directory nonexistent"),
            ],
        ),
    ],
)
def test_error_messages_of_the_shell_are_found_with_their_lines(
    shell: str, messages: list[tuple[int, str]], tmp_path: Path
) -> None:
    script = tmp_path / "script"
    script.write_text(f"#!/bin/{shell}\n{LINES}")
    command, path = [f"/bin/{shell}", str(script)], {"PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        command,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=path,
        text=True,
    )
    found = find_failed_commands(
        done.stdout, script.read_text(), names={str(script): "job.sbatch"}, is_file=lambda path: False
    )
    assert found == tuple(FailedCommand(file="job.sbatch", line=line, text=text) for line, text in messages)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("/etc/profile.d/x.sh: line 3: foo: command not found", ("/etc/profile.d/x.sh", 3, "foo: command not found")),
        ("train.py: line 3: foo: command not found", None),
        ("/t/script: line 1: warning: setlocale: LC_ALL: cannot change locale (de_DE)", None),
        ("/t/script: line 2:  4711 Terminated              python train.py", None),
        ("/t/script: Zeile 2: module: Kommando nicht gefunden.", ("job", 2, "module: Kommando nicht gefunden.")),
        ("conda: command not found", ("job", 2, "conda: command not found")),
        ("torchrun: command not found", None),
        ("slurmwrap: this is a pre-run: 'sbatch next.sh' is left out", None),
        ("slurmstepd: error: execve(): pyhton: No such file", ("job", 0, "execve(): pyhton: No such file")),
        ("CondaError: Run 'conda init'", ("job", 0, "CondaError: Run 'conda init'")),
    ],
)  # fmt: skip
def test_only_error_messages_of_a_shell_count(line: str, found: tuple[str, int, str] | None) -> None:
    script = "#!/bin/bash\nconda activate a && module load b\npython train.py\n"
    seen = find_failed_commands(f"{line}\n", script, names={"/t/script": "job"}, is_file=lambda path: path[0] == "/")
    assert [(command.file, command.line, command.text) for command in seen] == ([] if found is None else [found])


def test_of_more_than_three_failed_commands_the_rest_is_counted() -> None:
    many = tuple(FailedCommand(file="job", line=n, text=f"x{n}: command not found") for n in range(1, 6))
    assert describe_failed_commands(many, passed=True) == (
        "passed, but 5 commands of the script failed: line 1: x1: command not found; line 2: x2: command not found; "
        "line 3: x3: command not found; and 2 more",
    )
