"""gsub on a real Slurm, as ordinary users: from pre-run to explanation, and errors for invalid input."""

from __future__ import annotations

import gzip
import pwd
import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from realslurm import USERS, Lab
from waiting import allow, wait_until

ALICE, BOB = USERS
GSUB = (sys.executable, "-m", "slurmwrap.gsub.gsub_main")
pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab_without_hooks"), pytest.mark.timeout(allow(300))]

GOOD = """\
#!/bin/bash
#SBATCH --job-name=good
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:8
#SBATCH --cpus-per-task=8
#SBATCH --mem=64000
#SBATCH --time=5
# a comment that stays
echo "running $0 with $* restart=${SLURM_RESTART_COUNT:-none}"
srun hostname
"""


def write(home: Path, name: str, text: str) -> str:
    path = home / name
    path.write_text(text)
    path.chmod(0o755)
    return name


def parse_job_id(done: Any) -> int:
    """The job id. stdout must contain only the line that sbatch prints."""
    assert done.returncode == 0, done.stderr
    found = re.fullmatch(r"Submitted batch job (\d+)\n", done.stdout)
    assert found, done.stdout
    return int(found[1])


def read_job_field(lab: Lab, job: int, name: str) -> str:
    text = lab.run(["scontrol", "show", "job", "-o", str(job)]).stdout
    found = re.search(rf"(?:^| ){name}=(\S*)", text)
    return found[1] if found else ""


@pytest.fixture
def home(lab: Lab, request: pytest.FixtureRequest) -> Path:
    """A new directory of alice."""
    name = re.sub(r"\W", "_", request.node.name)[:60] + f"_{time.monotonic_ns()}"
    path = Path(pwd.getpwnam(ALICE).pw_dir) / name
    lab.run(["mkdir", "-p", str(path)], user=ALICE)
    return path


def gsub(lab: Lab, home: Path, *words: str, user: str = ALICE, **more: Any) -> Any:
    return lab.run([*GSUB, *words], user=user, cwd=home, **more)


def list_job_ids(lab: Lab) -> set[str]:
    """The ids of all jobs of alice that Slurm knows."""
    return set(lab.run(["squeue", "-h", "-a", "-t", "all", "-u", ALICE, "-o", "%i"]).stdout.split())


def test_a_job_starts_after_its_pre_run_and_the_next_submission_has_no_pre_run(lab: Lab, home: Path) -> None:
    script = write(home, "good.sbatch", GOOD + f"# {time.time()}\n")
    done = gsub(lab, home, script, "--lr", "3", env={"SLURMWRAP_PRERUN_GRACE_S": "9000"})
    job, trial = parse_job_id(done), int(re.search(r"on one GPU, job (\d+)", done.stderr)[1])
    lab.wait_job(job, {"COMPLETED"}, timeout=120)
    assert read_job_field(lab, job, "StartTime") >= read_job_field(lab, trial, "StartTime")
    output = (home / f"slurm-{job}.out").read_text()
    assert "with --lr 3 restart=none" in output
    nodes = [line for line in output.splitlines() if re.fullmatch(r"n\d+", line)]
    assert len(set(nodes)) == 2
    again = gsub(lab, home, script, "--lr", "3")
    assert "pre-run" not in again.stderr
    lab.wait_job(parse_job_id(again), {"COMPLETED"}, timeout=60)


def test_explain_gives_reasons_and_only_directive_lines_change(lab: Lab, home: Path) -> None:
    script = write(home, "good.sbatch", GOOD)
    done = gsub(lab, home, "--explain", "--hold", script)
    job = parse_job_id(done)
    assert "switch" in done.stderr and "\033[" not in done.stderr
    stored = lab.run(["scontrol", "write", "batch_script", str(job), "-"], user=ALICE).stdout.splitlines()
    other = lab.run(["slurmwrap", "why", str(job)], user=BOB)
    lab.run(["scancel", str(job)], user=ALICE)
    mine = GOOD.splitlines()
    assert len(stored) == len(mine)
    assert all(a == b or b.startswith("#SBATCH") for a, b in zip(stored, mine, strict=True))
    assert other.returncode != 0 and "good.sbatch" not in other.stdout + other.stderr


def test_a_job_with_a_failed_pre_run_never_starts_and_why_names_the_error(lab: Lab, home: Path) -> None:
    write(home, "bad.py", "import sys\n\nvalues = {}\nprint(values['learning_rate'])\n")
    script = write(home, "bad.sbatch", GOOD.replace("srun hostname", "srun python3 bad.py"))
    job = parse_job_id(gsub(lab, home, script))
    lab.wait_job(job, {"CANCELLED"}, timeout=120)
    assert read_job_field(lab, job, "RunTime") == "00:00:00"
    comment = re.search(r"Comment=(.*?)(?: \w+=|$)", lab.run(["scontrol", "show", "job", "-o", str(job)]).stdout)
    assert comment and "pre-run failed" in comment[1]
    why = lab.run(["slurmwrap", "why", str(job)], user=ALICE, cwd=home).stdout
    assert "bad.py" in why and "KeyError" in why


def test_prerun_wait_exits_with_3_and_submits_nothing_after_a_failed_pre_run(lab: Lab, home: Path) -> None:
    script = write(home, "bad.sbatch", GOOD.replace("srun hostname", "srun python3 -c 'raise SystemExit(1/0)'"))
    done = gsub(lab, home, "--prerun=wait", script, timeout=120)
    assert (done.returncode, done.stdout) == (3, "")
    assert "ZeroDivisionError" in done.stderr


# Uses half a GiB; the pre-run keeps it until it was measured. The job requests 250 MiB per GPU.
HUNGRY = """\
#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:8
#SBATCH --cpus-per-task=8
#SBATCH --mem=2000
srun python3 -c "import os, time; x = bytearray(b'1') * (500 << 20); 'SLURMWRAP_PRERUN' in os.environ and time.sleep(4)"
"""


def test_prerun_wait_submits_with_the_memory_that_the_pre_run_measured(lab: Lab, home: Path) -> None:
    script = write(home, "hungry.sbatch", HUNGRY)
    job = parse_job_id(gsub(lab, home, "--prerun=wait", script, timeout=120))
    memory = read_job_field(lab, job, "MinMemoryNode")
    lab.wait_job(job, {"COMPLETED"}, timeout=60)
    assert memory.endswith("M") and 4000 < int(memory[:-1]) < 8000


def test_a_cancelled_pre_run_releases_its_job(lab: Lab, home: Path) -> None:
    script = write(home, "slow.sbatch", GOOD.replace("srun hostname", "sleep ${SLURMWRAP_PRERUN:+100}\nsrun hostname"))
    done = gsub(lab, home, script, env={"XDG_STATE_HOME": str(home / "state")})
    job = parse_job_id(done)
    trial = int(re.search(r"on one GPU, job (\d+)", done.stderr)[1])
    lab.wait_job(trial, {"RUNNING"}, timeout=60)
    reports = home / "state" / "slurmwrap" / "prerun"
    wait_until(lambda: list(reports.glob("*/progress.json")), "its supervisor is up")
    lab.run(["scancel", str(trial)], user=ALICE)
    lab.wait_job(job, {"COMPLETED"}, timeout=90)


def test_a_job_starts_without_a_pre_run_if_slurm_refuses_the_pre_run(lab: Lab, home: Path) -> None:
    script = write(home, "good.sbatch", GOOD)
    done = gsub(lab, home, script, env={"SLURMWRAP_PRERUN_PARTITION": "nosuch"})
    job = parse_job_id(done)
    assert "no pre-run: " in done.stderr and "starts without" in done.stderr
    lab.wait_job(job, {"COMPLETED"}, timeout=60)


def test_dry_run_prints_a_script_that_sbatch_accepts_and_submits_nothing(lab: Lab, home: Path) -> None:
    script = write(home, "good.sbatch", GOOD)
    before = list_job_ids(lab)
    done = gsub(lab, home, "--dry-run", "--mem=32000", script)
    assert done.returncode == 0, done.stderr
    assert list_job_ids(lab) <= before  # Slurm may forget old jobs
    write(home, "rendered.sbatch", done.stdout)
    assert lab.run(["sbatch", "--test-only", "rendered.sbatch"], user=ALICE, cwd=home).returncode == 0
    program = GOOD[GOOD.index("# a comment that stays") :]
    assert done.stdout.endswith(program)


def test_a_corrupt_input_is_blocked_and_the_next_job_that_reads_it_is_refused(lab: Lab, home: Path) -> None:
    (home / "data.gz").write_bytes(gzip.compress(bytes(range(256)) * 99)[:-20])
    write(home, "load.py", "import gzip, sys\ngzip.open(sys.argv[1]).read()\n")
    script = write(home, "load.sbatch", GOOD.replace("srun hostname", "srun python3 load.py data.gz"))
    job = parse_job_id(gsub(lab, home, script))
    lab.wait_job(job, {"CANCELLED"}, timeout=120)
    other = write(home, "other.sbatch", GOOD.replace("srun hostname", "srun python3 load.py data.gz --again"))
    done = gsub(lab, home, other)
    assert (done.returncode, done.stdout) == (5, "")
    assert "data.gz is blocked" in done.stderr and "--force" in done.stderr
    forced = parse_job_id(gsub(lab, home, "--force", "--prerun=off", "--hold", other))
    lab.run(["scancel", str(forced)], user=ALICE)
    (home / "data.gz").write_bytes(b"mended")
    free = parse_job_id(gsub(lab, home, "--prerun=off", "--hold", other))
    lab.run(["scancel", str(free)], user=ALICE)


# --- invalid input ---------------------------------------------------------------------------------------------------


def test_invalid_input_gives_a_clear_error_and_the_exit_code_of_sbatch(lab: Lab, home: Path) -> None:
    write(home, "good.sbatch", GOOD)
    write(home, "crlf.sbatch", GOOD.replace("\n", "\r\n"))
    write(home, "empty.sbatch", "")
    rows = [
        ("nosuch.sbatch", 1, "Unable to open file nosuch.sbatch"),
        ("--bogus good.sbatch", 255, "unrecognized option '--bogus'"),
        ("--prerun=maybe good.sbatch", 255, "maybe"),
        ("--dryrun good.sbatch", 255, "--dry-run"),
        ("crlf.sbatch", 1, "DOS line breaks"),
        ("empty.sbatch", 1, "empty"),
        ("-p nopart good.sbatch", 1, "invalid partition specified: nopart"),
        ("--gres=gpu:99 good.sbatch", 1, "Requested node configuration is not available"),
    ]
    wrong = []
    for words, code, message in rows:
        done = gsub(lab, home, *words.split())
        ours_alone = words.startswith(("--prerun", "--dryrun"))
        plain = code if ours_alone else lab.run(["sbatch", *words.split()], user=ALICE, cwd=home).returncode
        if (done.returncode, done.stdout, plain) != (code, "", code) or message not in done.stderr:
            wrong.append((words, done, plain))
    assert wrong == []


def test_a_job_without_gpus_is_submitted_unchanged(lab: Lab, home: Path) -> None:
    script = write(home, "cpu.sbatch", "#!/bin/sh\n#SBATCH -n1\n#SBATCH --mem=100\nhostname\n")
    done = gsub(lab, home, script)
    assert done.stderr == ""  # only the output of sbatch
    explained = gsub(lab, home, "--explain", script)
    assert "asks for no GPU. Submitted unchanged" in explained.stderr
    for one in (done, explained):
        lab.wait_job(parse_job_id(one), {"COMPLETED"}, timeout=60)


def test_a_missing_slurm_conf_is_named_in_the_error(lab: Lab, home: Path) -> None:
    script = write(home, "good.sbatch", GOOD)
    done = gsub(lab, home, script, env={"SLURM_CONF": "/nonexistent/slurm.conf"}, timeout=60)  # no retries
    assert done.returncode == 1 and done.stdout == ""
    assert "/nonexistent/slurm.conf" in done.stderr


def test_a_broken_configuration_is_named_and_the_job_is_submitted_unchanged(lab: Lab, home: Path) -> None:
    config = home / "broken.toml"
    config.write_text("[prerum]\n")
    config.chmod(0o644)
    script = write(home, "good.sbatch", GOOD)
    done = gsub(lab, home, script, env={"SLURMWRAP_CONFIG": str(config)})
    lab.wait_job(parse_job_id(done), {"COMPLETED"}, timeout=60)
    assert "unknown key 'prerum'" in done.stderr and "handed to sbatch unchanged" in done.stderr
