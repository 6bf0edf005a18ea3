"""The options that `slurmwrap.sbatch` parses from command lines and scripts, compared with the installed sbatch.

`sbatch -v --test-only` prints the options that it parsed, before anything is scheduled.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from slurmwrap.errors import SlurmwrapError
from slurmwrap.sbatch.command_line import BadOption, build_names, scan
from slurmwrap.sbatch.option_table import BASE, SBATCH
from slurmwrap.sbatch.parse_request import parse_request

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab_without_hooks")]

# Options whose values sbatch prints unchanged.
VERBATIM = ("account", "comment", "constraint", "exclude", "job-name", "licenses", "partition", "qos", "wckey")

CASES: list[tuple[str, tuple[str, ...], dict[str, str]]] = [
    # (lines of the script, words before its name, environment)
    ("#SBATCH -N2 --comment=a#b -J x", (), {}),
    ('#SBATCH --comment="" -J x', (), {}),
    ('#SBATCH --comment "" -J x\n#SBATCH -N3', (), {}),
    (r"#SBATCH -J a\ b", (), {}),
    (r'#SBATCH -J "a\\ b\"c"', (), {}),
    ("""#SBATCH --comment='q"x'd"e f" """, (), {}),
    ("#SBATCH -J\n#SBATCH name", (), {}),
    ("#SBATCH--nodes=2\n#SBATCHX", (), {}),
    ("#SBATCH foo", (), {}),
    ("#SBATCH -N2 foo -J x", (), {}),
    ("#SBATCH -N2 -- foo", (), {}),
    ("#SBATCH -N2 --\n#SBATCH -J x", (), {}),
    (" #SBATCH -N2\n##SBATCH -n5\n#SLURM -J x", (), {}),
    ('#SBATCH "--comment=a', (), {}),
    ("#SBATCH -N2 : -J x", (), {}),
    ("#SBATCH --bogus", (), {}),
    ("#SBATCH --exc=n1", (), {}),
    (r"#SBATCH -J x\#y", (), {}),
    ("#SBATCH -J trail\\\\\n#SBATCH -N2", (), {}),
    ("#SBATCH --help --wrap=foo -J x", (), {}),
    ("#SBATCH -N2\n\t  # c\n\n#SBATCH -n4\nset -e\n#SBATCH -c3", (), {}),
    ("#SBATCH -N2 hetjob -n2 -J x", (), {}),
    ('#SBATCH -J "hetjob" -N2', (), {}),
    (r"#SBATCH --comment=\ -n4", (), {}),
    (r"#SBATCH --comment \ x -n4", (), {}),
    ("#SBATCH -n4 \\\n#SBATCH -N2", (), {}),
    ("#SBATCH\t-N2\f-n\v4\r-J\rz", (), {}),
    ("#GSUB --prerun=off\n#SBATCH -J x", (), {}),
    ("", ("-HN2", "-qfoo", "--part", "gpu", "-koff", "--exclusive=user"), {}),
    ("", ("--tas=2", "--cluster-c=x", "--wck", "a b", "-s"), {}),
    ("", ("-y",), {}),
    ("", ("--hold=3",), {}),
    ("", ("--clus=a",), {}),
    ("", ("--n=1",), {}),
    ("", ("--time=1:2:3:4",), {}),
    ("", ("--time= 3",), {}),
    ("", ("--mem=1x",), {}),
    ("", ("--mem=3gb", "--nodes= 3 ", "--ntasks=+4"), {}),
    ("", ("-c", "0"), {}),
    ("", ("-N", "4-2"), {}),
    ("", ("-N", "x"), {}),
    ("", ("--wrap=x",), {}),
    ("#SBATCH -p script --wait", ("-p", "line"), {"SBATCH_PARTITION": "env", "SBATCH_WAIT": "0"}),
    ("#SBATCH -p script --wait", (), {"SBATCH_PARTITION": "env", "SBATCH_WAIT": "2"}),
    ("#SBATCH --requeue", (), {"SBATCH_NO_REQUEUE": "1"}),
    ("", (), {"SBATCH_EXCLUSIVE": "", "SBATCH_QOS": "", "SBATCH_JOB_NAME": "e n"}),
    ("#SBATCH --mem=1G", (), {"SBATCH_MEM_PER_NODE": "3G"}),
]  # fmt: skip


def parse_sbatch_options(stderr: str) -> dict[str, str] | None:
    """The table of options that sbatch -v prints; None if sbatch ended before that."""
    table = re.search(r"-{20} -{20}\n(.*?)sbatch: -{20} -{20}\n", stderr, re.DOTALL)
    return dict(re.findall(r"^sbatch: ([a-z-]+) *: (.*)$", table[1], re.MULTILINE)) if table else None


def test_the_option_table_equals_that_of_the_installed_sbatch(lab, release) -> None:
    listed = re.findall(r"'--([a-z-]+)'", lab.run(["sbatch", "--=x"]).stderr)
    ours = [option.name for option in SBATCH if option.known_to(release)]
    assert listed == ours
    assert release >= BASE


def test_scripts_and_command_lines_are_parsed_as_sbatch_parses_them(lab, release, tmp_path: Path) -> None:
    wrong = []
    for lines, argv, environ in CASES:
        (tmp_path / "a.sh").write_text(f"#!/bin/sh\n{lines}\ntrue\n")
        result = lab.run(["sbatch", "-v", "--test-only", *argv, tmp_path / "a.sh"], cwd=tmp_path, env=environ)
        if difference := find_difference(result, argv, environ, tmp_path / "a.sh", release):
            wrong.append((lines, argv, environ, difference))
    assert wrong == []


def find_difference(result, argv, environ, script: Path, release) -> object:
    """The difference between the options that slurmwrap and sbatch parsed; None if they are equal."""
    theirs = parse_sbatch_options(result.stderr)
    try:
        ours = parse_request(
            [*argv, str(script)],
            environ=environ,
            cwd=str(script.parent),
            read_script=lambda path: Path(path).read_bytes(),
            read_stdin=lambda: b"",
            release=release,
        )
    except SlurmwrapError as error:
        message = re.sub(r"^a\.sh(:\d+)?: (?!line)", "", str(error)).partition(" (")[0]
        alike = theirs is None and result.returncode == error.exit_code and message in result.stderr
        return None if alike else (str(error), result.stderr)
    if theirs is None:
        return result.stderr
    values = (
        {name: ours.value(name) for name in VERBATIM if ours.setting(name)},
        {name: value for name, value in theirs.items() if name in VERBATIM},
    )
    unset = {name for name, value in theirs.items() if value == "unset"}
    names = {"hold", "wait", "exclusive", "nodes", "ntasks", "mem"}
    flags = {name for name in names if ours.setting(name)}, names & (set(theirs) - unset)
    return None if values[0] == values[1] and flags[0] == flags[1] else (values, flags)


def find_refusal(word: str, release: tuple[int, int]) -> str | None:
    """The error message of slurmwrap for one word on the command line; None if it is accepted."""
    try:
        scan([word], build_names(release))
    except BadOption as bad:
        return str(bad)
    return None


def test_every_short_abbreviation_is_parsed_as_sbatch_parses_it(lab, release) -> None:
    """Each abbreviation is tried without a value (an error if one is needed) and with one (an error for a flag)."""
    prefixes = sorted({option.name[:length] for option in SBATCH if option.known_to(release) for length in (1, 2, 3)})
    ours = {word: find_refusal(word, release) for prefix in prefixes for word in (f"--{prefix}", f"--{prefix}=x")}
    refusals = {word: text for word, text in ours.items() if text is not None}
    answers = {word: lab.run(["sbatch", word]).stderr for word in refusals}
    assert {word: text for word, text in refusals.items() if text not in answers[word]} == {}
    assert len(refusals) > 200
