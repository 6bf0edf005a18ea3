"""Options of site plugins (SPANK) with a real loaded plugin: gsub compared with sbatch."""

from __future__ import annotations

import json
import pwd
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from dropin_compare import ALICE, GSUB, PLANNED
from realslurm import Lab, started

from slurmwrap.lab.lab_directories import LabDirectories

SHOWS = "#!/bin/sh\n#SBATCH --gres=gpu:2 -N2 --mem=100\n{}env | grep ^SITE_ | sort\n"
pytestmark = pytest.mark.lab


@pytest.fixture(scope="module")
def site(lab_scratch: Path) -> Iterator[Lab]:
    """A lab with the plugin site_plugin.c from this directory."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler (apt-get install gcc libc6-dev)")
    with started(lab_scratch / "plugins", "--nodes", "2", "--switches", "1", "--no-hooks") as lab:
        etc = LabDirectories(lab.dir).etc
        library = etc / "site.so"
        source = Path(__file__).with_name("site_plugin.c")
        argv = ["cc", "-shared", "-fPIC", f"-DVERSION={_version(lab)}", "-o", library, source]
        subprocess.run(argv, check=True)
        (etc / "plugstack.conf").write_text(f"required {library}\n")
        done = lab.run(["scontrol", "reconfigure"])
        assert done.returncode == 0, done.stderr
        assert "Options provided by plugins:" in lab.run(["sbatch", "--help"]).stdout
        yield lab


def _version(lab: Lab) -> int:
    """The release as Slurm's SLURM_VERSION_NUMBER."""
    version = lab.run(["sbatch", "--version"]).stdout
    found = re.search(r"(\d+)\.(\d+)\.(\d+)", version)
    assert found, version
    major, minor, micro = map(int, found.groups())
    return (major << 16) + (minor << 8) + micro


def script(home: Path, directives: str = "", name: str = "a.sh") -> str:
    (home / name).write_text(SHOWS.format(directives))
    return name


def submit(lab: Lab, home: Path, *words: str, **environ: str) -> int:
    done = lab.run(words, user=ALICE, cwd=home, env=environ)
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split()[-1])


def read_output(lab: Lab, home: Path, job: int) -> str:
    """The output of the completed job."""
    lab.wait_job(job, {"COMPLETED"})
    return (home / f"slurm-{job}.out").read_text()


def find_trial_dir(home: Path, job: int) -> Path:
    """The directory of the pre-run of a job submitted in this directory. Job numbers of other labs may be the same."""
    trials = (Path(pwd.getpwnam(ALICE).pw_dir) / ".local/state/slurmwrap/prerun").glob("*/spec.json")
    specs = {path.parent: json.loads(path.read_bytes()) for path in trials}
    (found,) = (path for path, spec in specs.items() if (spec["chdir"], spec["real_job"]) == (str(home), str(job)))
    return found


HOW = {
    "on the command line": (["--site-image=a b:1", "--site-trace"], "", {}),
    "apart": (["--site-image", "a b:1", "--site-trace"], "", {}),
    "abbreviated": (["--site-im", "a b:1", "--site-t"], "", {}),
    "in the script": ([], '#SBATCH --site-image="a b:1" --site-trace\n', {}),
    "apart in the script": ([], '#SBATCH --site-im\n#SBATCH "a b:1" --site-trace\n', {}),
    "said again": (["--site-image=a b:1"], "#SBATCH --site-image=other --site-trace\n", {}),
    "in the environment": (["--site-trace"], "", {"SLURM_SPANK__SLURM_SPANK_OPTION_site_site_image": "a b:1"}),
}


def test_the_job_and_its_pre_run_get_the_plugin_options(site: Lab, home: Path) -> None:
    jobs = {}
    for number, (how, (words, directives, environ)) in enumerate(HOW.items()):
        name = script(home, directives, f"{number}.sh")
        jobs[how] = submit(site, home, GSUB, *words, name, f"for {how}", **environ)
    expected = "SITE_IMAGE=<a b:1>\nSITE_LEVEL=none\nSITE_TRACE=yes\n"
    assert {how: read_output(site, home, job) for how, job in jobs.items()} == dict.fromkeys(HOW, expected)
    trials = {how: (find_trial_dir(home, job) / "output").read_text() for how, job in jobs.items()}
    assert trials == dict.fromkeys(HOW, expected)


@pytest.mark.parametrize("words", [["--site-level", "7", "--quiet"], ["-Q", "--site-l=7"], ["-HQ", "--site-level=7"]])
def test_sbatch_tells_which_plugin_options_take_a_value(site: Lab, home: Path, words: list[str]) -> None:
    done = site.run([*PLANNED, *words, script(home)], user=ALICE, cwd=home)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    (job,) = site.run(["squeue", "-h", "-t", "all", "-u", ALICE, "-S", "-i", "-o", "%i"]).stdout.split()[:1]
    site.run(["scontrol", "release", job])
    assert "SITE_LEVEL=7\n" in read_output(site, home, int(job))


@pytest.mark.parametrize("words", [["--site-level", "7"], ["--site-trace"]])
def test_a_call_with_plugin_options_is_planned(site: Lab, home: Path, words: list[str]) -> None:
    done = site.run([GSUB, "--dry-run", *words, script(home)], user=ALICE, cwd=home)
    said = "gsub: nothing submitted\ngsub: its pre-run would be: auto, a separate 1-GPU job; your job waits for it, "
    said += "10 minutes at most "
    assert (done.returncode, done.stderr.partition("(")[0]) == (0, said)


def test_a_passed_through_call_has_plugin_options_but_no_gsub_options(site: Lab, home: Path) -> None:
    (home / "cpu.sh").write_text("#!/bin/sh\nenv | grep ^SITE_ | sort\n")
    job = submit(site, home, GSUB, "--site-image", "a", "--no-tune", "--site-level", "7", "--no-place", "cpu.sh")
    assert read_output(site, home, job) == "SITE_IMAGE=<a>\nSITE_LEVEL=7\nSITE_TRACE=no\n"


REFUSED = (
    ["--nosuch", "a.sh"],
    ["--nosuch=1", "--site-trace", "a.sh"],
    ["--site-image=a", "--nosuch", "a.sh"],
    ["--site-", "a.sh"],
    ["--site-trace=1", "a.sh"],
    ["a.sh", "--site-image"],
    ["--site-image"],
    ["--site-image=a", "nosuch.sh"],
)


@pytest.mark.parametrize("directives", ["", "#SBATCH --site-nosuch\n"])
def test_calls_that_sbatch_refuses_are_refused_with_the_same_message(site: Lab, home: Path, directives: str) -> None:
    script(home, directives)
    wrong = []
    for words in REFUSED:
        theirs, ours = (site.run([*program, "-H", *words], user=ALICE, cwd=home) for program in (["sbatch"], PLANNED))
        answers = [(one.returncode, re.sub(r"job \d+", "job N", one.stdout), one.stderr) for one in (theirs, ours)]
        wrong += [] if answers[0] == answers[1] else [(words, *answers)]
    site.run(["scancel", "-u", ALICE])
    assert wrong == []


def test_the_help_shows_the_plugin_options_as_sbatch_does(site: Lab, home: Path) -> None:
    theirs, ours = (site.run([program, "--help"], user=ALICE, cwd=home) for program in ("sbatch", GSUB))
    assert "--site-image=NAME[:TAG]" in theirs.stdout
    assert ours.stdout.startswith(theirs.stdout)
