"""gsub on a real Slurm, as ordinary users: the loop, and what bad input gets."""

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


def submitted(done: Any) -> int:
    """The job id; stdout holds sbatch's line and nothing else."""
    assert done.returncode == 0, done.stderr
    found = re.fullmatch(r"Submitted batch job (\d+)\n", done.stdout)
    assert found, done.stdout
    return int(found[1])


def field(lab: Lab, job: int, name: str) -> str:
    text = lab.run(["scontrol", "show", "job", "-o", str(job)]).stdout
    found = re.search(rf"(?:^| ){name}=(\S*)", text)
    return found[1] if found else ""


@pytest.fixture
def home(lab: Lab, request: pytest.FixtureRequest) -> Path:
    """A fresh directory of alice's."""
    name = re.sub(r"\W", "_", request.node.name)[:60] + f"_{time.monotonic_ns()}"
    path = Path(pwd.getpwnam(ALICE).pw_dir) / name
    lab.run(["mkdir", "-p", str(path)], user=ALICE)
    return path


def gsub(lab: Lab, home: Path, *words: str, user: str = ALICE, **more: Any) -> Any:
    return lab.run([*GSUB, *words], user=user, cwd=home, **more)


def ids(lab: Lab) -> set[str]:
    """All jobs of alice's that Slurm knows."""
    return set(lab.run(["squeue", "-h", "-a", "-t", "all", "-u", ALICE, "-o", "%i"]).stdout.split())


def test_a_good_job_starts_after_its_pre_run_and_ends_well_and_the_next_of_its_script_has_none(
    lab: Lab, home: Path
) -> None:
    script = write(home, "good.sbatch", GOOD + f"# {time.time()}\n")
    done = gsub(lab, home, script, "--lr", "3", env={"SLURMWRAP_PRERUN_GRACE_S": "9000"})
    job, trial = submitted(done), int(re.search(r"on one GPU, job (\d+)", done.stderr)[1])
    lab.wait_job(job, {"COMPLETED"}, timeout=120)
    assert field(lab, job, "StartTime") >= field(lab, trial, "StartTime")
    output = (home / f"slurm-{job}.out").read_text()
    assert "with --lr 3 restart=none" in output
    nodes = [line for line in output.splitlines() if re.fullmatch(r"n\d+", line)]
    assert len(set(nodes)) == 2
    again = gsub(lab, home, script, "--lr", "3")
    assert "pre-run" not in again.stderr
    lab.wait_job(submitted(again), {"COMPLETED"}, timeout=60)


def test_explain_gives_reasons_only_directive_lines_change_and_another_user_sees_nothing(lab: Lab, home: Path) -> None:
    script = write(home, "good.sbatch", GOOD)
    done = gsub(lab, home, "--explain", "--hold", script)
    job = submitted(done)
    assert "switch" in done.stderr and "\033[" not in done.stderr
    stored = lab.run(["scontrol", "write", "batch_script", str(job), "-"], user=ALICE).stdout.splitlines()
    other = lab.run(["slurmwrap", "why", str(job)], user=BOB)
    lab.run(["scancel", str(job)], user=ALICE)
    mine = GOOD.splitlines()
    assert len(stored) == len(mine)
    assert all(a == b or b.startswith("#SBATCH") for a, b in zip(stored, mine, strict=True))
    assert other.returncode != 0 and "good.sbatch" not in other.stdout + other.stderr


def test_a_failing_job_never_starts_and_its_comment_names_the_line(lab: Lab, home: Path) -> None:
    write(home, "bad.py", "import sys\n\nvalues = {}\nprint(values['learning_rate'])\n")
    script = write(home, "bad.sbatch", GOOD.replace("srun hostname", "srun python3 bad.py"))
    job = submitted(gsub(lab, home, script))
    lab.wait_job(job, {"CANCELLED"}, timeout=120)
    assert field(lab, job, "RunTime") == "00:00:00"
    comment = re.search(r"Comment=(.*?)(?: \w+=|$)", lab.run(["scontrol", "show", "job", "-o", str(job)]).stdout)
    assert comment and "pre-run failed" in comment[1]
    why = lab.run(["slurmwrap", "why", str(job)], user=ALICE, cwd=home).stdout
    assert "bad.py" in why and "KeyError" in why


def test_waiting_for_a_failing_pre_run_ends_with_3_and_submits_nothing(lab: Lab, home: Path) -> None:
    script = write(home, "bad.sbatch", GOOD.replace("srun hostname", "srun python3 -c 'raise SystemExit(1/0)'"))
    done = gsub(lab, home, "--prerun=wait", script, timeout=120)
    assert (done.returncode, done.stdout) == (3, "")
    assert "ZeroDivisionError" in done.stderr


# Half a GiB, held in the pre-run until it was seen, where the job asks for 250 MiB per GPU.
HUNGRY = """\
#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:8
#SBATCH --cpus-per-task=8
#SBATCH --mem=2000
srun python3 -c "import os, time; x = bytearray(b'1') * (500 << 20); 'SLURMWRAP_PRERUN' in os.environ and time.sleep(4)"
"""


def test_waiting_for_a_passing_pre_run_submits_with_what_it_measured(lab: Lab, home: Path) -> None:
    script = write(home, "hungry.sbatch", HUNGRY)
    job = submitted(gsub(lab, home, "--prerun=wait", script, timeout=120))
    memory = field(lab, job, "MinMemoryNode")
    lab.wait_job(job, {"COMPLETED"}, timeout=60)
    assert memory.endswith("M") and 4000 < int(memory[:-1]) < 8000


def test_a_cancelled_pre_run_lets_the_job_go(lab: Lab, home: Path) -> None:
    script = write(home, "slow.sbatch", GOOD.replace("srun hostname", "sleep ${SLURMWRAP_PRERUN:+100}\nsrun hostname"))
    done = gsub(lab, home, script, env={"XDG_STATE_HOME": str(home / "state")})
    job = submitted(done)
    trial = int(re.search(r"on one GPU, job (\d+)", done.stderr)[1])
    lab.wait_job(trial, {"RUNNING"}, timeout=60)
    reports = home / "state" / "slurmwrap" / "prerun"
    wait_until(lambda: list(reports.glob("*/progress.json")), "its supervisor is up")
    lab.run(["scancel", str(trial)], user=ALICE)
    lab.wait_job(job, {"COMPLETED"}, timeout=90)


def test_a_refused_pre_run_leaves_a_plain_job(lab: Lab, home: Path) -> None:
    script = write(home, "good.sbatch", GOOD)
    done = gsub(lab, home, script, env={"SLURMWRAP_PRERUN_PARTITION": "nosuch"})
    job = submitted(done)
    assert "no pre-run: " in done.stderr and "starts without" in done.stderr
    lab.wait_job(job, {"COMPLETED"}, timeout=60)


def test_dry_run_prints_a_script_that_plain_sbatch_accepts_and_submits_nothing(lab: Lab, home: Path) -> None:
    script = write(home, "good.sbatch", GOOD)
    before = ids(lab)
    done = gsub(lab, home, "--dry-run", "--mem=32000", script)
    assert done.returncode == 0, done.stderr
    assert ids(lab) <= before  # Slurm forgets old ones
    write(home, "rendered.sbatch", done.stdout)
    assert lab.run(["sbatch", "--test-only", "rendered.sbatch"], user=ALICE, cwd=home).returncode == 0
    program = GOOD[GOOD.index("# a comment that stays") :]
    assert done.stdout.endswith(program)


def test_a_corrupt_input_is_blocked_and_the_next_job_that_names_it_refused(lab: Lab, home: Path) -> None:
    (home / "data.gz").write_bytes(gzip.compress(bytes(range(256)) * 99)[:-20])
    write(home, "load.py", "import gzip, sys\ngzip.open(sys.argv[1]).read()\n")
    script = write(home, "load.sbatch", GOOD.replace("srun hostname", "srun python3 load.py data.gz"))
    job = submitted(gsub(lab, home, script))
    lab.wait_job(job, {"CANCELLED"}, timeout=120)
    other = write(home, "other.sbatch", GOOD.replace("srun hostname", "srun python3 load.py data.gz --again"))
    done = gsub(lab, home, other)
    assert (done.returncode, done.stdout) == (5, "")
    assert "data.gz is blocked" in done.stderr and "--force" in done.stderr
    forced = submitted(gsub(lab, home, "--force", "--prerun=off", "--hold", other))
    lab.run(["scancel", str(forced)], user=ALICE)
    (home / "data.gz").write_bytes(b"mended")
    free = submitted(gsub(lab, home, "--prerun=off", "--hold", other))
    lab.run(["scancel", str(free)], user=ALICE)


# --- what bad input gets ---------------------------------------------------------------------------------------------


def test_bad_input_gets_one_clear_error_and_sbatchs_exit_code(lab: Lab, home: Path) -> None:
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


def test_a_job_without_gpu_is_passed_on_unchanged(lab: Lab, home: Path) -> None:
    script = write(home, "cpu.sbatch", "#!/bin/sh\n#SBATCH -n1\n#SBATCH --mem=100\nhostname\n")
    done = gsub(lab, home, script)
    assert done.stderr == ""  # nothing of ours to say: what sbatch prints is all
    explained = gsub(lab, home, "--explain", script)
    assert "asks for no GPU. Submitted unchanged" in explained.stderr
    for one in (done, explained):
        lab.wait_job(submitted(one), {"COMPLETED"}, timeout=60)


def test_without_slurm_conf_the_error_names_it_at_once(lab: Lab, home: Path) -> None:
    script = write(home, "good.sbatch", GOOD)
    done = gsub(lab, home, script, env={"SLURM_CONF": "/nonexistent/slurm.conf"}, timeout=60)  # no retries
    assert done.returncode == 1 and done.stdout == ""
    assert "/nonexistent/slurm.conf" in done.stderr


def test_a_broken_configuration_is_named_and_the_job_submitted_unchanged(lab: Lab, home: Path) -> None:
    config = home / "broken.toml"
    config.write_text("[prerum]\n")
    config.chmod(0o644)
    script = write(home, "good.sbatch", GOOD)
    done = gsub(lab, home, script, env={"SLURMWRAP_CONFIG": str(config)})
    lab.wait_job(submitted(done), {"COMPLETED"}, timeout=60)
    assert "unknown key 'prerum'" in done.stderr and "handed to sbatch unchanged" in done.stderr
