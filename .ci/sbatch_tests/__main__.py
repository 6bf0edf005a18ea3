"""Run Slurm's own test programs for sbatch, with sbatch and then with gsub in its place: `make sbatch-tests SUITE=...`.

SUITE is the folder `testsuite` of Slurm's sources, preferably of the installed release. It is copied, and each lab
works on a separate copy; none of it is part of this project. Every test that concerns sbatch runs on a real Slurm with
simulated GPUs, first with sbatch, then with gsub. If gsub does worse, both run again, twice; only a test that failed
every time with gsub and not with sbatch counts. Must run as root. Exit code 0: gsub passed every test that sbatch
passed; 1: it did not; 2: there is nothing to run.

    ... .ci/sbatch_tests --suite ~/slurm/testsuite --labs 4 --only 'test17[.]'
    ... --set SBATCH_GPUS_PER_NODE=1 --set GSUB_PRERUN=off       every job asks for a GPU: gsub plans and renders it
    ... --set SBATCH_GPUS_PER_NODE=1 --set GSUB_PRERUN=auto      and makes a pre-run before it releases the job
    ... --auto-config                 Python tests alone, on a Slurm that each test configures and starts for itself
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from sbatch_tests.lab import Lab
from sbatch_tests.outcomes import Compared, compare, summary
from sbatch_tests.own_slurm import OwnSlurm
from sbatch_tests.place import Place, Settings, Stopped
from sbatch_tests.suite import SYSTEM_PATH, folder_of, tests_of

_NEEDED = ("expect", "sbatch", "slurmctld", "slurmd", "munged", "unshare")
_ONE_AT_A_TIME = threading.Lock()  # held while MariaDB's tables are created


def main() -> int:
    """Run all tests; see the module's docstring."""
    settings, only, count, report = _command_line()
    names = tests_of(settings.suite, only, python_alone=settings.auto_config)
    missing = [name for name in _NEEDED if shutil.which(name, path=SYSTEM_PATH) is None]
    if missing or not names or os.getuid() != 0:
        why = f"needs {', '.join(missing)}: apt-get install expect" if missing else "needs root"
        print("sbatch_tests:", why if names else f"no tests of sbatch under {settings.suite}", file=sys.stderr)
        return 2
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    for name in names:
        waiting.put(name)
    done: list[Compared] = []
    kind = OwnSlurm if settings.auto_config else Lab
    places = [kind(settings, number) for number in range(count)]
    threads = [threading.Thread(target=_work, args=(place, waiting, done)) for place in places]
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: [place.stop() for place in places])
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(summary(done))
    if report:
        report.write_text(json.dumps([asdict(one) for one in done], indent=1))
    return 1 if any(one.counts for one in done) or not waiting.empty() else 0


def _work(place: Place, waiting: queue.SimpleQueue[str], done: list[Compared]) -> None:
    """Run tests from the queue in one place."""
    try:
        with _ONE_AT_A_TIME:
            place.up()
        while True:
            for one in compare(place.run, waiting.get_nowait()):
                done.append(one)
                print(one, flush=True)
    except (queue.Empty, Stopped):
        pass
    except subprocess.CalledProcessError as error:
        print(f"sbatch_tests: {place.home} is given up: {error}", file=sys.stderr)
    finally:
        place.down()


def _command_line() -> tuple[Settings, str, int, Path | None]:
    add = (parser := argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )).add_argument  # fmt: skip
    add("--suite", type=Path, required=True, help="the folder `testsuite` of Slurm's sources, or the one above it")
    add("--only", default="", help="a regular expression that the names of the tests match")
    add("--labs", type=int, default=2, help="so many work at once")
    add(
        "--dir",
        type=Path,
        default=Path("/var/tmp/sbatch-tests"),
        help="a folder that is not there yet; logs stay in it",
    )
    add("--base-port", type=int, default=30000, help="the first lab's; the next takes those 20 above it")
    add("--lab-option", action="append", default=[], help="for `slurmwrap lab up`: --lab-option=--accounting")
    add("--conf", action="append", default=[], metavar="NAME=VALUE", help="in slurm.conf, for tests that need it")
    add("--set", action="append", default=[], metavar="NAME=VALUE", help="in the environment of both programs")
    add("--user", default="root", help="who runs the tests")
    add("--other-user", default="", help="an ordinary user, for the tests that root runs as somebody else, with sudo")
    add("--limit", type=int, default=600, help="seconds that one test may take")
    add("--auto-config", action="store_true", help="see above")
    add("--json", type=Path, help="a file for the outcomes")
    given = parser.parse_args()
    settings = Settings(
        suite=folder_of(given.suite),
        directory=given.dir.resolve(),
        base_port=given.base_port,
        lab_options=tuple(given.lab_option),
        conf=_pairs(given.conf),
        environ=_pairs(given.set),
        user=given.user,
        other_user=given.other_user,
        limit_s=given.limit,
        auto_config=given.auto_config,
    )
    re.compile(given.only)
    return settings, given.only, given.labs, given.json


def _pairs(words: Sequence[str]) -> tuple[tuple[str, str], ...]:
    return tuple((name, value) for name, _, value in (word.partition("=") for word in words))


if __name__ == "__main__":
    sys.exit(main())
