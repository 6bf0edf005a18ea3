"""The differential test: the same calls with sbatch and gsub, and their jobs compared field by field.

The release is that of the installed sbatch; each case names the releases that support it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import dropin_cases
import pytest
from dropin_cases import Case
from dropin_compare import (
    ALICE,
    GSUB,
    PLANNED,
    Call,
    Fields,
    Pair,
    differences,
    list_job_records,
    list_jobs_of_call,
    submit,
)
from realslurm import Lab
from waiting import allow

from slurmwrap.sbatch.command_line import remove_quiet
from slurmwrap.sbatch.option_table import SBATCH, Release

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab_without_hooks"), pytest.mark.timeout(allow(600))]

WAYS: dict[str, Sequence[str]] = {
    "plain": (GSUB,),
    "planned": PLANNED,
    "placed": (GSUB, "--prerun=off", "--explain"),
}
TABLES = {"plain": dropin_cases.PLAIN, "planned": dropin_cases.PLANNED, "placed": dropin_cases.PLACED}
CASES = [(way, case) for way, cases in TABLES.items() for case in cases]
# Tested in every run; `make test-all` tests the others too.
SAMPLE = [
    *(("plain", case) for case in dropin_cases.PLAIN[::8]),
    *(("planned", case) for case in dropin_cases.PLANNED[::3]),
    *(("placed", case) for case in dropin_cases.PLACED[::2]),
]
# Fields of the job record that an option affects.
SHOWN = {
    "switches": {"Switches"},
    "exclude": {"ExcNodeList"},
    "nodelist": {"ReqNodeList"},
    "cpus-per-task": {"CPUs/Task", "NumCPUs", "MinCPUsNode", "TRES", "ReqTRES"},
    "mem": {"MinMemoryNode", "TRES", "ReqTRES"},
    "nodes": {"NumNodes", "NumCPUs", "NumTasks", "TRES", "ReqTRES"},
}


@pytest.fixture(scope="module")
def cluster(lab: Lab) -> Iterator[Lab]:
    """The lab with the feature and the reservation that cases use."""
    lab.run(["scontrol", "update", "NodeName=n[4-7]", "AvailableFeatures=slow", "ActiveFeatures=slow"])
    reservation = "ReservationName=held StartTime=2030-01-01 Duration=60 NodeCnt=2 Users=root," + ALICE
    assert lab.run(["scontrol", "create", *reservation.split()]).returncode == 0
    yield lab
    lab.run(["scontrol", "delete", "ReservationName=held"])
    lab.run(["scontrol", "update", "NodeName=n[4-7]", "AvailableFeatures=", "ActiveFeatures="])


def submit_with_both(lab: Lab, homes: Path, cases: Sequence[tuple[str, Case]]) -> list[Pair]:
    """Submit every case with sbatch and gsub, four at a time; read all jobs at the end and cancel them."""
    homes.mkdir()
    with ThreadPoolExecutor(4) as pool:
        pairs = list(pool.map(lambda one: _submit_pair(lab, homes / f"c{one[0]}", *one[1]), enumerate(cases)))
    jobs = list_job_records(lab)
    for pair in pairs:
        first, second = (list_jobs_of_call(jobs, call, pair.home, nth) for nth, call in enumerate(pair.calls))
        pair.jobs = (first, second)
    _read_scripts(lab, homes, pairs)
    lab.run(["scancel", f"--user={ALICE}"])
    return pairs


def _submit_pair(lab: Lab, home: Path, way: str, case: Case) -> Pair:
    _write_files(home, case)
    return Pair(case, home, [submit(lab, program, case, ALICE, home) for program in (("sbatch",), WAYS[way])])


def _write_files(home: Path, case: Case) -> None:
    """Write the files that cases use."""
    good = "#!/bin/sh\n#SBATCH -J good\ntrue\n"
    (home / "sub").mkdir(parents=True)
    (home / "bin").mkdir()
    texts = {
        "a.sh": case.text, "sub/b.sh": good, "bin/tool": good, "with space.sh": good,
        "empty.sh": "", "blank.sh": " \n\t\n",
        "plain.txt": "echo no interpreter\n", "crlf.sh": good.replace("\n", "\r\n"), "nul.sh": good + "\0\n",
        "unreadable.sh": good, "hosts.txt": "n1\nn2\nn3\n", "in.txt": "", "env.bin": "A=1\0B=2\0",
    }  # fmt: skip
    for name, text in texts.items():
        (home / name).write_text(text)
        (home / name).chmod(0o755)
    (home / "unreadable.sh").chmod(0)


def _read_scripts(lab: Lab, homes: Path, pairs: Sequence[Pair]) -> None:
    """Read the script that Slurm stored for each job, with one scontrol for all jobs."""
    files = {(number, nth): homes / f"script-{number}-{nth}" for number in range(len(pairs)) for nth in (0, 1)}
    asked = [
        f"write batch_script {jobs[0]['JobId']} {files[number, nth]}\n"
        for number, pair in enumerate(pairs)
        for nth, jobs in enumerate(pair.jobs)
        if jobs
    ]
    lab.run(["scontrol"], stdin="".join(asked))
    for number, pair in enumerate(pairs):
        paths = [files[number, nth] for nth in (0, 1)]
        pair.scripts = [path.read_text(errors="replace") for path in paths if path.exists()]


@pytest.mark.parametrize("part", ["sample", pytest.param("rest", marks=pytest.mark.slow)])
def test_gsub_submits_what_sbatch_submits(cluster: Lab, release: Release, lab_scratch: Path, part: str) -> None:
    cases = [
        (way, case) for way, case in CASES if case.known_to(release) and ((way, case) in SAMPLE) == (part == "sample")
    ]
    pairs = submit_with_both(cluster, lab_scratch / f"dropin-{part}", cases)
    wrong = {
        f"{way}: {case.name}": found
        for (way, case), pair in zip(cases, pairs, strict=True)
        if (found := _list_unreported_differences(way, pair))
    }
    assert wrong == {}
    assert sum(len(pair.scripts) == 2 for pair in pairs) > len(pairs) / 2


def _list_unreported_differences(way: str, pair: Pair) -> list[object]:
    """Differences between gsub and sbatch that gsub did not report."""
    theirs, ours = pair.calls
    reported = _parse_reported_changes(ours) if way == "placed" else {}
    compared = Call(ours.exit_code, ours.stdout, theirs.stderr) if way == "placed" else ours
    found: list[object] = []
    if compared.words() != theirs.words():
        found.append({"sbatch": theirs.words(), "gsub": compared.words()})
    if len(pair.jobs[0]) != len(pair.jobs[1]):
        found.append(f"{len(pair.jobs[0])} and {len(pair.jobs[1])} jobs")
    found += filter(
        None, (_find_unreported_fields(one, other, reported) for one, other in zip(*pair.jobs, strict=False))
    )
    if len(set(pair.scripts)) > 1:
        found.append({"scripts": pair.scripts})
    return found


def _parse_reported_changes(ours: Call) -> dict[str, str]:
    """Option → value of the additions that --explain reports."""
    return dict(re.findall(r"^\+ --([a-z-]+)=(.*)$", ours.stderr, re.MULTILINE))


def _find_unreported_fields(
    one: Fields, other: Fields, reported: dict[str, str]
) -> dict[str, tuple[str | None, str | None]]:
    """Fields with unreported differences. Newer releases store the command line: that of the user plus additions."""
    allowed = {key for option in reported for key in SHOWN[option]}
    found = {key: values for key, values in differences(one, other).items() if key not in allowed}
    line, changed = found.get("SubmitLine", (None, None))
    if line is not None and changed is not None and _words(changed, reported) == _words(line, {}):
        del found["SubmitLine"]
    return found


def _words(line: str, reported: dict[str, str]) -> list[str]:
    """A command line without reported additions, without --quiet (docs/dropin.md) and without `--`."""
    ours = {f"--{option}={value}" for option, value in reported.items()} | {"--"}
    return [word for word in remove_quiet(shlex.split(line)[1:]) if word not in ours]


def test_the_table_is_long_and_has_every_option(release: Release) -> None:
    assert len(CASES) > 400 and len(TABLES["planned"]) > 150
    words = " ".join(f"{case.words} {case.lines} {' '.join(case.environ)}" for _, case in CASES)
    missing = [
        option.name
        for option in SBATCH
        if option.known_to(release)
        and not re.search(rf"--{option.name}\b(?!-)", words)
        and not (option.short and re.search(rf"(?:^|\s)-{option.short}", words))
        and not any(variable in words.split() for variable in option.variables)
    ]
    # options such as --usage are in test_words; another cluster needs slurmdbd
    assert set(missing) == {"autocomplete", "cluster", "usage", "version"} & {
        option.name for option in SBATCH if option.known_to(release)
    }


def test_case_names_are_unique() -> None:
    names = [(way, case.name) for way, case in CASES]
    assert len(set(names)) == len(names)
