"""What gsub says and how it ends, next to sbatch: the two run side by side, not compared with what we remember."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from dropin_compare import ALICE, GSUB, PLANNED
from realslurm import Lab

SBATCH = shutil.which("sbatch") or "sbatch"
pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]


def both(lab: Lab, home: Path, *words: str, ours: Sequence[str] = PLANNED, **more: str) -> list[tuple[int, str, str]]:
    """(exit code, stdout, stderr) of sbatch and of gsub, at once; job ids and times taken out."""

    def run(program: Sequence[str]) -> tuple[int, str, str]:
        done = lab.run([*program, *words], user=ALICE, cwd=home, env=more, timeout=120)
        return done.returncode, _anonymous(done.stdout), _anonymous(done.stderr)

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(run, (("sbatch",), ours)))


def _anonymous(text: str) -> str:
    return re.sub(r"\b[jJ]ob \d+|^\d+$", "job N", re.sub(r"\d{4}-\d\d-\d\dT[\d:]+", "TIME", text), flags=re.MULTILINE)


def script(home: Path, body: str, first: str = "#!/bin/bash", name: str = "a.sh") -> str:
    path = home / name
    path.write_text(f"{first}\n#SBATCH --gres=gpu:1 --mem=100\n{body}\n")
    path.chmod(0o755)
    return name


# --- sbatch's own answers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["--hel"], ["-Hh"]])
def test_help_is_sbatchs_own_and_then_ours(lab: Lab, home: Path, words: list[str]) -> None:
    theirs, ours = both(lab, home, *words, ours=(GSUB,))
    assert theirs[0] == ours[0] == 0
    assert ours[1].startswith(theirs[1]) and ours[1] != theirs[1]
    assert "gsub" in ours[1].removeprefix(theirs[1]) and ours[2] == theirs[2]


@pytest.mark.parametrize("words", [["--usage"], ["-N2", "--usage", "x"]])
def test_the_usage_on_stdout_is_sbatchs_alone_and_ours_is_on_stderr(lab: Lab, home: Path, words: list[str]) -> None:
    theirs, ours = both(lab, home, *words, ours=(GSUB,))
    assert ours[:2] == theirs[:2]
    assert ours[2] == "gsub [sbatch's options] [gsub's options] SCRIPT [ARGUMENTS]; gsub --help tells its own\n"


@pytest.mark.parametrize("words", [["--version"], ["-V"], ["--vers", "nosuch.sh"]])
def test_the_version_on_stdout_is_sbatchs_alone_and_ours_is_on_stderr(lab: Lab, home: Path, words: list[str]) -> None:
    theirs, ours = both(lab, home, *words, ours=(GSUB,))
    assert ours[:2] == theirs[:2]
    assert re.fullmatch(r"gsub of slurmwrap \d+\.\d+\.\d+\n", ours[2])


def test_help_says_what_gsub_is_where_there_is_no_slurm(lab: Lab, home: Path) -> None:
    done = lab.run([GSUB, "--help"], user=ALICE, cwd=home, env={"PATH": "/nonexistent"})
    assert (done.returncode, "--prerun=MODE" in done.stdout) == (127, True)


# --- under whatever name ---------------------------------------------------------------------------------------------


def test_a_link_named_sbatch_in_front_of_path_does_the_same(lab: Lab, home: Path) -> None:
    (home / "bin").mkdir()
    (home / "bin" / "sbatch").symlink_to(GSUB)
    name = script(home, "true")
    for words in (("--hold", name), ("--bogus", name), ("nosuch.sh",)):
        linked = lab.run(["sbatch", *words], user=ALICE, cwd=home, env={"PATH": f"{home}/bin:{os.environ['PATH']}"})
        plain = lab.run(["sbatch", *words], user=ALICE, cwd=home)
        assert (linked.returncode, _anonymous(linked.stdout)) == (plain.returncode, _anonymous(plain.stdout))
        said = [line for line in linked.stderr.splitlines(keepends=True) if not line.startswith("gsub: ")]
        assert "".join(said) == plain.stderr
    lab.run(["scancel", f"--user={ALICE}"])


@pytest.mark.parametrize("words", [["--bogus"], ["-p", "nopart"], ["nosuch.sh"], ["--mem=x", "a.sh"]])
def test_errors_begin_with_sbatch_whatever_its_file_is_called(lab: Lab, home: Path, words: list[str]) -> None:
    (home / "slurms-own").symlink_to(SBATCH)
    script(home, "true")
    theirs, ours = both(lab, home, *words, GSUB_SBATCH=str(home / "slurms-own"))
    if "a.sh" not in words and "nosuch.sh" not in words:
        theirs, ours = both(lab, home, *words, "a.sh", GSUB_SBATCH=str(home / "slurms-own"))
    assert ours == theirs
    assert theirs[2].startswith("sbatch: ")


# --- refused ---------------------------------------------------------------------------------------------------------


def test_a_script_that_slurm_finds_too_long_is_refused_in_its_words(lab: Lab, home: Path) -> None:
    name = script(home, "# " + "x" * 5_000_000)
    theirs, ours = both(lab, home, name)
    assert ours == theirs
    assert theirs[0] == 1 and "too long" in theirs[2]


def test_an_error_of_the_users_is_told_and_not_one_about_our_own_options(lab: Lab, home: Path) -> None:
    name = script(home, "true")
    theirs, ours = both(lab, home, "--bogus", "--also-bogus", name)
    assert ours == theirs
    assert "--bogus" in theirs[2] and "prerun" not in ours[2]


def test_where_the_working_directory_is_gone_sbatch_decides(lab: Lab, home: Path) -> None:
    gone = 'mkdir gone && cd gone && rmdir ../gone && exec "$@"'
    words = ("sh", "-c", gone, "-")
    name = str(home / script(home, "true"))
    theirs, ours = (
        lab.run([*words, *one, "--hold", name], user=ALICE, cwd=home) for one in (("sbatch",), PLANNED)
    )  # fmt: skip
    lab.run(["scancel", f"--user={ALICE}"])
    assert (ours.returncode, _anonymous(ours.stdout), ours.stderr) == (
        theirs.returncode, _anonymous(theirs.stdout), theirs.stderr,
    )  # fmt: skip


@pytest.mark.parametrize("words", [(f"--uid={ALICE}",), (f"--uid={ALICE}", f"--gid={ALICE}"), ("--uid=nosuch",)])
def test_root_submits_for_somebody_else_as_with_sbatch(lab: Lab, home: Path, words: tuple[str, ...]) -> None:
    name = script(home, "true")
    done = [lab.run([*one, "--hold", *words, name], cwd=home) for one in (("sbatch",), PLANNED)]
    jobs = [re.findall(r"\d+", one.stdout) for one in done]
    users = [
        re.findall(r"UserId=\S+ GroupId=\S+", lab.run(["scontrol", "show", "job", *job]).stdout) for job in jobs if job
    ]
    lab.run(["scancel", *(job[0] for job in jobs if job)])
    theirs, ours = ((one.returncode, _anonymous(one.stdout), one.stderr) for one in done)
    assert ours == theirs
    assert users == [users[0]] * 2 if users else theirs[0] != 0


# --- --wait ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "options", "code"),
    [
        ("exit 0", (), 0),
        ("exit 7", (), 7),
        ("kill -9 $$", (), 1),
        ("exit $SLURM_ARRAY_TASK_ID", ("--array=0-2",), 2),
        ("exit 3", ("--parsable",), 3),
        ("exit 4", ("-Q",), 4),
    ],
)
def test_wait_ends_with_the_jobs_exit_code(
    lab: Lab, home: Path, body: str, options: tuple[str, ...], code: int
) -> None:
    name = script(home, body)
    theirs, ours = both(lab, home, "-W", *options, name)
    assert ours == theirs
    assert theirs[0] == code


@pytest.mark.parametrize("option", ["-Q", "--parsable"])
def test_a_pre_run_before_a_wait_says_nothing_where_few_words_are_asked_for(lab: Lab, home: Path, option: str) -> None:
    name = script(home, f"exit 5  # {home.name} {option}: no other call's pre-run speaks for it")
    theirs, ours = both(lab, home, "-W", option, "--gres=gpu:2", name, ours=(GSUB,))
    assert ours == theirs
    known = lab.run([str(Path(GSUB).parent / "slurmwrap"), "prerun", "list", "--json"], user=ALICE, cwd=home)
    assert name in known.stdout, known.stderr  # there was one


def test_wait_names_the_job_at_once_and_not_at_its_end(lab: Lab, home: Path) -> None:
    process = _start(lab, home, [*PLANNED, "-W", script(home, "sleep 60")])
    assert process.stdout is not None
    line = process.stdout.readline()
    job = re.fullmatch(r"Submitted batch job (\d+)\n", line)
    assert job and process.poll() is None
    why = lab.run([str(Path(GSUB).parent / "slurmwrap"), "why", job[1]], user=ALICE, cwd=home)
    lab.run(["scancel", job[1]])
    process.communicate(timeout=60)
    assert why.returncode == 0, why.stderr  # it is remembered while it is waited for


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_waiting_ends_gsub_as_it_ends_sbatch_and_leaves_the_job(
    lab: Lab, home: Path, number: signal.Signals
) -> None:
    name = script(home, "sleep 60")
    ended = []
    for program in ((SBATCH,), PLANNED):
        process = _start(lab, home, [*program, "-W", name])
        assert process.stdout is not None
        job = process.stdout.readline().split()[-1]
        os.killpg(process.pid, number) if number is signal.SIGINT else process.send_signal(number)
        process.communicate(timeout=30)
        ended.append((process.returncode, lab.states(job)[0] in ("PENDING", "RUNNING", "CONFIGURING")))
        left = _children_of(home)
        lab.run(["scancel", job])
        assert left == []
    assert ended == [(-number, True)] * 2


def _start(lab: Lab, home: Path, words: Sequence[str]) -> subprocess.Popen[str]:
    """A call of alice's in a process group of its own, as a shell would start it."""
    import pwd

    account = pwd.getpwnam(ALICE)
    environ = {**lab.env, "PATH": os.environ["PATH"], "HOME": account.pw_dir, "USER": ALICE}
    return subprocess.Popen(
        words, cwd=home, env=environ, user=account.pw_uid, group=account.pw_gid, extra_groups=[], text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, process_group=0,
    )  # fmt: skip


def _children_of(home: Path) -> list[str]:
    """sbatch processes that still wait in `home`."""
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


# --- jobs that depend on ours ----------------------------------------------------------------------------------------


def test_a_job_that_depends_on_ours_waits_for_the_real_one_while_its_pre_run_runs(lab: Lab, home: Path) -> None:
    name = script(home, '[ -n "$SLURMWRAP_PRERUN" ] && sleep 4\necho real >> order')
    first = lab.run([GSUB, "--gres=gpu:2", "--prerun=gate", name], user=ALICE, cwd=home)
    job, trial = re.findall(r"job (\d+)", first.stdout)[0], re.findall(r"on one GPU, job (\d+)", first.stderr)[0]
    after = lab.submit(f"--dependency=afterok:{job}", "--mem=100", "--wrap=echo after >> order", user=ALICE, cwd=home)
    lab.wait_job(trial, {"RUNNING"}, timeout=60)
    assert (lab.states(job), lab.states(after)) == (["PENDING"], ["PENDING"])
    lab.wait_job(after, {"COMPLETED"}, timeout=120)
    assert (home / "order").read_text().split() == ["real", "after"]
