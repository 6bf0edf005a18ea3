"""Static checks of containers: images, bound directories, the Python inside, and programs by the host's path."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurmwrap.host.run_command import run
from slurmwrap.model.finding import Severity
from slurmwrap.prerun.static import static_stage
from slurmwrap.prerun.static.container_checks import find_python_fault
from slurmwrap.prerun.static.entry_points import list_entry_points
from slurmwrap.sbatch.job_request import JobRequest, Script


def check(folder: Path, script: str) -> list[str]:
    request = JobRequest(
        script=Script(path=None, name="job.sbatch", content=f"#!/bin/bash\n{script}\n".encode()), chdir=str(folder)
    )
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(folder)}
    found = static_stage.check(request, run=run, environ=environ, node_local=())
    assert all(one.severity is Severity.WARNING for one in found)
    return [one.message.replace(str(folder), "DIR") for one in found]


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("print(1)\n")
    (tmp_path / "train.sif").touch()
    for name in ("rootfs/usr/bin", "bare/usr/bin", "data"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "rootfs/usr/bin/python3.11").touch()
    return tmp_path


SOUND = (
    "apptainer exec --nv -B $PWD/data:/data train.sif python train.py",
    "IMG=$PWD/train.sif; singularity exec -B data $IMG python train.py",
    "ch-run -b $PWD/data:/mnt/0 ./rootfs -- python train.py",
    "docker run -v $PWD:/w -w /w -v named:/n lab/img:1 python train.py",
    "srun --container-image=lab/img:1 --container-mounts=$PWD:/w --container-workdir=/w python train.py",
    "docker run -v $PWD:/w lab/img:1 bash -c 'cd /w && python train.py && python /opt/other.py'",
    "apptainer pull new.sif docker://lab/img:1",
)


@pytest.mark.parametrize("script", SOUND)
def test_a_sound_container_has_no_finding(script: str, job: Path) -> None:
    assert check(job, script) == []


FAULTY = {
    "apptainer exec --nv $PWD/tarin.sif python train.py": "DIR/tarin.sif: no such image",
    "srun --container-image=./none.sqsh python /w/x.py": "DIR/none.sqsh: no such image",
    "podman run -v $PWD/dta:/data lab/img:1 python /opt/x.py": "DIR/dta"
    ": no such file or directory (bound into a container)",
    "ch-run ./bare -- python train.py": "DIR/bare: there is no Python in this image",
    "docker run -v $PWD:/w lab/img:1 python /w/tarin.py": "DIR/tarin.py: no such file (started by python)",
    "srun --container-image=i --container-mounts=$PWD:/w bash -c 'cd /w; python tarin.py'": "DIR/tarin.py"
    ": no such file (started by python)",
}


@pytest.mark.parametrize("script", FAULTY)
def test_a_fault_of_a_container_is_a_warning(script: str, job: Path) -> None:
    assert check(job, script) == [FAULTY[script]]


@pytest.mark.parametrize(
    ("names", "fault"),
    [
        (("python3.11", "python3"), ""),
        (("python3",), ""),
        (("python3.5", "python3"), "its newest Python is 3.5, and the step counter needs 3.6"),
        (("python2.7",), "its newest Python is 2.7, and the step counter needs 3.6"),
        (("bash",), "there is no Python in this image"),
    ],
)
def test_the_python_of_a_directory_is_judged_by_the_names_of_its_programs(
    names: tuple[str, ...], fault: str, tmp_path: Path
) -> None:
    (tmp_path / "usr/bin").mkdir(parents=True)
    for name in names:
        (tmp_path / "usr/bin" / name).touch()
    assert find_python_fault(str(tmp_path)) == fault


def test_an_empty_directory_and_an_oci_bundle_are_told_apart(tmp_path: Path) -> None:
    assert find_python_fault(str(tmp_path)) == ""
    (tmp_path / "rootfs/usr/bin").mkdir(parents=True)
    (tmp_path / "config.json").write_text("{}")
    assert find_python_fault(str(tmp_path)) == "there is no Python in this image"


def test_a_program_in_a_bound_directory_has_its_path_on_the_host() -> None:
    script = (
        "#!/bin/bash\nsrun --container-image=i --container-mounts=/h/p:/w --container-workdir=/w python a.py\n"
        "docker run -v /h/q:/w -w /w img bash -c 'python b.py; python /opt/c.py'\n"
    )
    found = list_entry_points(script, "/job", (), {}, lambda _: None)
    assert [(one.path, one.contained, one.bound) for one in found] == [
        ("/h/p/a.py", True, True),
        ("/h/q/b.py", True, True),
        ("/opt/c.py", True, False),
    ]
