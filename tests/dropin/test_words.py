"""Output and exit codes of gsub compared with sbatch: both programs run, no expected texts are stored."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import signal
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from dropin_compare import ALICE, GSUB, PLANNED
from readypython import SLURMWRAP
from realslurm import Lab
from waiting import wait_for, wait_until

SBATCH = shutil.which("sbatch") or "sbatch"
pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab_without_hooks")]


def run_both(
    lab: Lab, home: Path, *words: str, ours: Sequence[str] = PLANNED, **more: str
) -> list[tuple[int, str, str]]:
    """(exit code, stdout, stderr) of sbatch and gsub, run at the same time, without job ids and times."""

    def run(program: Sequence[str]) -> tuple[int, str, str]:
        done = lab.run([*program, *words], user=ALICE, cwd=home, env=more)
        return done.returncode, _remove_ids_and_times(done.stdout), _remove_ids_and_times(done.stderr)

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(run, (("sbatch",), ours)))


def _remove_ids_and_times(text: str) -> str:
    return re.sub(r"\b[jJ]ob \d+|^\d+$", "job N", re.sub(r"\d{4}-\d\d-\d\dT[\d:]+", "TIME", text), flags=re.MULTILINE)


def script(home: Path, body: str, first: str = "#!/bin/bash", name: str = "a.sh") -> str:
    path = home / name
    path.write_text(f"{first}\n#SBATCH --gres=gpu:1 --mem=100\n{body}\n")
    path.chmod(0o755)
    return name


# --- sbatch's own answers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [["--help"], ["-Hh"]])
def test_help_is_sbatchs_help_followed_by_gsubs(lab: Lab, home: Path, words: list[str]) -> None:
    theirs, ours = run_both(lab, home, *words, ours=(GSUB,))
    assert theirs[0] == ours[0] == 0
    assert ours[1].startswith(theirs[1]) and ours[1] != theirs[1]
    assert "gsub" in ours[1].removeprefix(theirs[1]) and ours[2] == theirs[2]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["-N2", "--usage", "x"],
            r"gsub \[sbatch's options\] \[gsub's options\] SCRIPT \[ARGUMENTS\]; gsub --help lists its own\n",
        ),
        (["-V"], r"gsub of slurmwrap \d+\.\d+\.\d+\n"),
        (["--vers", "nosuch.sh"], r"gsub of slurmwrap \d+\.\d+\.\d+\n"),
    ],
)
def test_usage_and_version_are_sbatchs_on_stdout_and_gsubs_on_stderr(
    lab: Lab, home: Path, words: list[str], said: str
) -> None:
    theirs, ours = run_both(lab, home, *words, ours=(GSUB,))
    assert ours[:2] == theirs[:2]
    assert re.fullmatch(said, ours[2])


def test_without_slurm_help_describes_gsub(lab: Lab, home: Path) -> None:
    done = lab.run([GSUB, "--help"], user=ALICE, cwd=home, env={"PATH": "/nonexistent"})
    assert (done.returncode, "--prerun=MODE" in done.stdout) == (127, True)


# --- under another name -----------------------------------------------------------------------------------------------


def test_a_link_named_sbatch_at_the_front_of_path_behaves_like_sbatch(lab: Lab, home: Path) -> None:
    (home / "bin").mkdir()
    (home / "bin" / "sbatch").symlink_to(GSUB)
    name = script(home, "true")
    for words in (("--hold", name), ("--bogus", name), ("nosuch.sh",)):
        linked = lab.run(["sbatch", *words], user=ALICE, cwd=home, env={"PATH": f"{home}/bin:{os.environ['PATH']}"})
        plain = lab.run(["sbatch", *words], user=ALICE, cwd=home)
        assert (linked.returncode, _remove_ids_and_times(linked.stdout)) == (
            plain.returncode,
            _remove_ids_and_times(plain.stdout),
        )
        said = [line for line in linked.stderr.splitlines(keepends=True) if not line.startswith("gsub: ")]
        assert "".join(said) == plain.stderr
    lab.run(["scancel", f"--user={ALICE}"])


@pytest.mark.parametrize("words", [["--bogus"], ["-p", "nopart"], ["nosuch.sh"], ["--mem=x", "a.sh"]])
def test_error_messages_begin_with_sbatch_for_any_file_name(lab: Lab, home: Path, words: list[str]) -> None:
    (home / "slurms-own").symlink_to(SBATCH)
    script(home, "true")
    theirs, ours = run_both(lab, home, *words, GSUB_SBATCH=str(home / "slurms-own"))
    if "a.sh" not in words and "nosuch.sh" not in words:
        theirs, ours = run_both(lab, home, *words, "a.sh", GSUB_SBATCH=str(home / "slurms-own"))
    assert ours == theirs
    assert theirs[2].startswith("sbatch: ")


# --- refusals --------------------------------------------------------------------------------------------------------


def test_a_script_that_is_too_long_is_refused_with_slurms_message(lab: Lab, home: Path) -> None:
    name = script(home, "# " + "x" * 5_000_000)
    theirs, ours = run_both(lab, home, name)
    assert ours == theirs
    assert theirs[0] == 1 and "too long" in theirs[2]


def test_an_unknown_option_is_reported_as_by_sbatch(lab: Lab, home: Path) -> None:
    name = script(home, "true")
    theirs, ours = run_both(lab, home, "--bogus", "--also-bogus", name)
    assert ours == theirs
    assert "--bogus" in theirs[2] and "prerun" not in ours[2]


def test_without_a_working_directory_sbatch_decides(lab: Lab, home: Path) -> None:
    gone = 'mkdir gone && cd gone && rmdir ../gone && exec "$@"'
    words = ("sh", "-c", gone, "-")
    name = str(home / script(home, "true"))
    theirs, ours = (
        lab.run([*words, *one, "--hold", name], user=ALICE, cwd=home) for one in (("sbatch",), PLANNED)
    )  # fmt: skip
    lab.run(["scancel", f"--user={ALICE}"])
    assert (ours.returncode, _remove_ids_and_times(ours.stdout), ours.stderr) == (
        theirs.returncode, _remove_ids_and_times(theirs.stdout), theirs.stderr,
    )  # fmt: skip


@pytest.mark.parametrize("words", [(f"--uid={ALICE}",), (f"--uid={ALICE}", f"--gid={ALICE}"), ("--uid=nosuch",)])
def test_root_submits_for_another_user_as_with_sbatch(lab: Lab, home: Path, words: tuple[str, ...]) -> None:
    name = script(home, "true")
    done = [lab.run([*one, "--hold", *words, name], cwd=home) for one in (("sbatch",), PLANNED)]
    jobs = [re.findall(r"\d+", one.stdout) for one in done]
    users = [
        re.findall(r"UserId=\S+ GroupId=\S+", lab.run(["scontrol", "show", "job", *job]).stdout) for job in jobs if job
    ]
    lab.run(["scancel", *(job[0] for job in jobs if job)])
    theirs, ours = ((one.returncode, _remove_ids_and_times(one.stdout), one.stderr) for one in done)
    assert ours == theirs
    assert users == [users[0]] * 2 if users else theirs[0] != 0


# --- --wait ----------------------------------------------------------------------------------------------------------


def test_wait_returns_the_exit_code_of_the_job(lab: Lab, home: Path) -> None:
    rows = {
        "exit 0": ((), 0),
        "exit 7": ((), 7),
        "kill -9 $$": ((), 1),
        "exit $SLURM_ARRAY_TASK_ID": (("--array=0-2",), 2),
        "exit 3": (("--parsable",), 3),
        "exit 4": (("-Q",), 4),
    }
    names = [script(home, body, name=f"{number}.sh") for number, body in enumerate(rows)]
    calls = [(*options, name) for name, (options, _) in zip(names, rows.values(), strict=True)]
    with ThreadPoolExecutor(len(rows)) as pool:  # all wait at once
        done = dict(zip(rows, pool.map(lambda words: run_both(lab, home, "-W", *words), calls), strict=True))
    assert {body: ours for body, (_, ours) in done.items()} == {body: theirs for body, (theirs, _) in done.items()}
    assert {body: theirs[0] for body, (theirs, _) in done.items()} == {body: code for body, (_, code) in rows.items()}


def test_a_pre_run_before_wait_prints_nothing_with_quiet_or_parsable(lab: Lab, home: Path) -> None:
    options = ("-Q", "--parsable")
    # unique names, so that no pre-run is shared
    names = [script(home, f"exit 5  # {home.name} {option}", name=f"of{home.name}{option}.sh") for option in options]
    with ThreadPoolExecutor(len(options)) as pool:
        calls = [("-W", option, "--gres=gpu:2", name) for option, name in zip(options, names, strict=True)]
        done = list(pool.map(lambda words: run_both(lab, home, *words, ours=(GSUB,)), calls))
    assert [ours for _, ours in done] == [theirs for theirs, _ in done]
    known = lab.run([SLURMWRAP, "prerun", "list", "--json"], user=ALICE, cwd=home)
    assert [name for name in names if name not in known.stdout] == [], known.stderr  # each job had a pre-run


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_during_wait_ends_gsub_like_sbatch_and_keeps_the_job(
    lab: Lab, home: Path, number: signal.Signals
) -> None:
    """gsub prints and records the job id before it waits. The job is held, so it cannot end in the meantime."""
    name = script(home, "true")
    ended = []
    for program in ((SBATCH,), PLANNED):
        process = _start(lab, home, [*program, "-W", "--hold", name])
        assert process.stdout is not None
        job = process.stdout.readline().split()[-1]
        assert process.poll() is None
        if program == PLANNED:
            why = lab.run([SLURMWRAP, "why", job], user=ALICE, cwd=home)
            assert why.returncode == 0, why.stderr
        wait_until(lambda: _children_of(home), "it waits as sbatch -W does", pause=0.3)
        os.killpg(process.pid, number) if number is signal.SIGINT else process.send_signal(number)
        process.communicate()
        ended.append((process.returncode, lab.states(job)))
        left = wait_for(lambda: _children_of(home), lambda found: not found, 20, 0.3)
        lab.run(["scancel", job])
        assert left == []
    assert ended == [(-number, ["PENDING"])] * 2


def _start(lab: Lab, home: Path, words: Sequence[str]) -> subprocess.Popen[str]:
    """Start a call of alice in its own process group, as a shell does.

    Signals have default handlers, even if the tests were started in the background or with nohup.
    """
    account = pwd.getpwnam(ALICE)
    environ = {**lab.env, "PATH": os.environ["PATH"], "HOME": account.pw_dir, "USER": ALICE}
    argv = ["env", "--default-signal", *words]
    return subprocess.Popen(
        argv, cwd=home, env=environ, user=account.pw_uid, group=account.pw_gid, extra_groups=[], text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, process_group=0,
    )  # fmt: skip


def _children_of(home: Path) -> list[str]:
    """Ids of sbatch processes that still wait in `home`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                here = (entry / "cwd").readlink() == home
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            found += [entry.name] if here and b"-W" in words else []
    return found


# --- dependent jobs --------------------------------------------------------------------------------------------------


def test_a_dependent_job_waits_for_the_real_job_and_not_for_its_pre_run(lab: Lab, home: Path) -> None:
    name = script(home, 'while [ -n "$SLURMWRAP_PRERUN" ] && [ ! -e go ]; do sleep 0.1; done\necho real >> order')
    first = lab.run([GSUB, "--gres=gpu:2", "--prerun=gate", name], user=ALICE, cwd=home)
    job, trial = re.findall(r"job (\d+)", first.stdout)[0], re.findall(r"on one GPU, job (\d+)", first.stderr)[0]
    after = lab.submit(f"--dependency=afterok:{job}", "--mem=100", "--wrap=echo after >> order", user=ALICE, cwd=home)
    lab.wait_job(trial, {"RUNNING"})
    assert (lab.states(job), lab.states(after)) == (["PENDING"], ["PENDING"])
    (home / "go").touch()
    lab.wait_job(after, {"COMPLETED"}, timeout=120)
    assert (home / "order").read_text().split() == ["real", "after"]
