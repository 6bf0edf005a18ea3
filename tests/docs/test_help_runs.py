"""The examples of every command's --help, run on a lab.

`make docs-test` runs them; test_pages.py checks in every run that their options exist. Job ids, node names and file
names of the examples are replaced by existing ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from doc_pages import ROOT
from doc_session import Session
from docs_commands import each, examples, gsub, slurmwrap

pytestmark = [pytest.mark.lab, pytest.mark.torch, pytest.mark.slow]

# Names in the examples and their replacements.
STAND_INS = (
    (r"\b77_2\b", "{array}_2"),
    (r"\b77\b", "{array}"),
    (r"\b81\b", "{job}"),
    (r"\bslurm-4711\.out\b", "job.out"),
    (r"\b4711\b", "{prerun}"),
    (r"\bn17\b", "n3"),
    (r"n\[01-04\]", "n[4-7]"),
    (r"/shared/slurmwrap", "{shared}"),
    (r"next\.sbatch", "train.sbatch"),
    (r"\bsite-before-upgrade\.db\b", "/root/site-before-upgrade.db"),  # root writes none into a user's directory
    (r"gsub new", "gsub new -o new.sbatch"),
)
FILES = {
    "trace.csv": "tests/data/traces/synergy_static100.csv",
    "static100.csv": "tests/data/traces/synergy_static100.csv",
    "philly480.csv": "tests/data/traces/philly480_window.csv",
    "profiles.csv": "tests/data/profiles/synergy_profiles.csv",
    "month.psv": "tests/data/sacct/24.11-made.psv",
    "jobs.jsonl": "tests/data/diagnosis/cases.jsonl",
    "labelled.jsonl": "tests/data/diagnosis/labelled.jsonl",
}
# Commands of administrators, run as root.
ROOTS = (
    *("slurmwrap db", "slurmwrap incidents", "slurmwrap lab kernel", "slurmwrap metrics", "slurmwrap nodes"),
    "slurmwrap spool",
)
# Beginning of an example -> why it is not run here.
NOT_HERE = {
    "slurmwrap doctor --test-notify": "needs a webhook: tests/cli has one",
    "slurmwrap hooks": "tests/slurm/test_install_lab.py runs them on a lab of its own",
    "slurmwrap reconcile --watch": "a service: it ends with SIGTERM",
    "slurmwrap db serve": "a server: it ends with Ctrl-C",
    "slurmwrap lab up": "docs/lab.md runs it",
    "slurmwrap lab down": "docs/lab.md runs it",
    "slurmwrap cancel": "needs a packed array: tests/slurm/test_pack_lab.py has one",
    "slurmwrap convergence": "needs a training: tests/cli has one",
    "slurmwrap profile measure": "takes minutes",
    "SLURM_TIME_FORMAT=%s sacct": "needs slurmdbd",
    "slurmwrap simulate philly480.csv": "takes minutes: bench/evaluation does",
    "slurmwrap simulate synergy-dynamic": "takes minutes: bench/evaluation does",
    "slurmwrap report --mail": "needs a mail server: tests/cli has one",
    "slurmwrap incidents show": "needs an incident: tests/cli has one",
    "slurmwrap incidents close": "needs an incident: tests/cli has one",
    "slurmwrap jobs clear": "needs a retry: tests/cli has one",
    "slurmwrap nodes repaired": "needs a drain by slurmwrap: docs/nodes.md has one",
    "slurmwrap why 81 -M": "needs two clusters: tests/slurm/test_clusters_lab.py has them",
    "slurmwrap history -M": "needs two clusters: tests/slurm/test_clusters_lab.py has them",
    "slurmwrap report -M": "needs two clusters: tests/slurm/test_clusters_lab.py has them",
    "slurmwrap db check /var": "needs yesterday's backup",
    "slurmwrap off": "other examples need slurmwrap: tests/slurm/test_limit_lab.py has one",
    "slurmwrap on": "other examples need slurmwrap: tests/slurm/test_limit_lab.py has one",
    "slurmwrap classify rank*.log": "needs a journal",
}
# Beginning of an example -> allowed exit codes, if not only 0.
CODES = {
    "slurmwrap doctor": (0, 1),  # the checks of a lab give warnings
    "slurmwrap watch": (0, 1),  # the job that is watched failed
    "slurmwrap inputs clear": (0, 1),  # there may be nothing to clear
    "slurmwrap inputs show": (0, 1),
    "slurmwrap metrics | grep": (0, 1),  # no node is suspect
}


def list_examples() -> Iterator[str]:
    """Every example of the help texts once."""
    every = [line for one in each(slurmwrap()) for line in examples(one)]
    every += [
        row.typed for part in gsub() for row in part.rows if row.typed.startswith("gsub ") and "[" not in row.typed
    ]
    yield from dict.fromkeys(every)


@pytest.fixture(scope="module")
def reader(lab_users: tuple[str, str], lab_scratch: Path) -> Iterator[tuple[Session, dict[str, str]]]:
    """A session with a lab, files, a failed job, an array, a job cancelled by its pre-run, and one that passed it."""
    session = Session(lab_scratch / "help", lab_users[0])
    try:
        session.start_lab()
        for name, source in FILES.items():
            session.run(session.with_files(f"cp @{source} {name}"), as_root=False)
        session.run(
            'mkdir data && python -c \'open("data/train.h5", "w")\' && cp data/train.h5 data/old.h5', as_root=False
        )
        session.run(r"printf '#!/bin/sh\n#SBATCH -G1 -c1 --mem=100\ntrue\n' > sweep.sbatch", as_root=False)
        session.run("gsub --prerun=off -G1 -o job.out --wrap 'echo ValueError: no; exit 1'", as_root=False)
        session.run("gsub --prerun=off -G1 --array=1-2 --wrap 'exit 1'", as_root=False)
        session.run("gsub examples/buggy/train.sbatch", as_root=False)
        session.run("gsub --prerun=only train.sbatch", as_root=False)
        session.run("mkdir -p -m 700 /var/backups/slurmwrap /var/lib/prometheus/node-exporter", as_root=True)
        session.settle()
        yield session, {"job": "1", "array": "2", "prerun": "4", "shared": str(session.home / "shared")}
    finally:
        session.end()


@pytest.mark.parametrize("example", list(list_examples()))
def test_an_example_of_a_help_text_succeeds(example: str, reader: tuple[Session, dict[str, str]]) -> None:
    if reason := next((why for start, why in NOT_HERE.items() if example.startswith(start)), ""):
        pytest.skip(reason)
    session, names = reader
    command = example
    for sign, name in STAND_INS:
        command = re.sub(sign, name.format(**names), command)
    done = session.run(command.replace("user ada", f"user {session.user}"), as_root=example.startswith(ROOTS))
    allowed = next((codes for start, codes in CODES.items() if example.startswith(start)), (0,))
    assert done.code in allowed, done.output


def test_exceptions_name_existing_examples_and_files() -> None:
    lines = list(list_examples())
    assert [start for start in (*NOT_HERE, *CODES) if not any(line.startswith(start) for line in lines)] == []
    assert [source for source in FILES.values() if not (ROOT / source).exists()] == []
