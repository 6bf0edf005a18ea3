"""Command lines of container runtimes: their options, the image, the command inside, and what is bound."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess

import pytest

from slurmwrap.prerun.static.command_wrappers import unwrap_command
from slurmwrap.prerun.static.container_calls import (
    RUNTIMES,
    BoundPath,
    find_container_view,
    join_call,
    list_bound_paths,
    map_to_host,
    parse_container_call,
)
from slurmwrap.prerun.static.shell_words import UNKNOWN

CALLS = {
    "apptainer exec --nv -B /a:/b,/c img.sif python t.py -v": ("img.sif", "python t.py -v"),
    "apptainer -q exec -eC --pwd /w --env A=1,B=2 img.sif python t.py": ("img.sif", "python t.py"),
    "singularity run --nv -B/a:/b -H ~ ../x.sif /opt/python t.py": ("../x.sif", "/opt/python t.py"),
    "singularity exec --bind=/a docker://org/img:1 bash -c 'a b'": ("docker://org/img:1", "bash -c 'a b'"),
    "docker run --rm -it --gpus all -v $PWD:/w -w /w org/img:1 python t.py --rm": ("org/img:1", "python t.py --rm"),
    "docker --context x container run -itv /a:/b img sh": ("img", "sh"),
    "podman run --rm --ipc=host --userns keep-id -e A -v/a:/b:ro img": ("img", ""),
    "podman --root /r --log-level=error run --device nvidia.com/gpu=all img python t.py": ("img", "python t.py"),
    "podman-hpc run --gpu --rm --volume /a:/b --shm-size 4g img python t.py": ("img", "python t.py"),
    "ch-run -w -b /a:/mnt/0 --set-env=A=1 --cd /mnt/0 /img -- python t.py --": ("/img", "python t.py --"),
    "bwrap --ro-bind /i / --setenv A 1 --proc /proc --dev /dev --bind /a /w -- python t.py": ("", "python t.py"),
    "bwrap --unshare-all --symlink usr/bin /bin --perms 0700 --tmpfs /tmp sh": ("", "sh"),
    "enroot start --rw -m /a:/b -e A=1 name python t.py": ("name", "python t.py"),
    "shifter --image=org/img:1 -V /a:/b python -u t.py": ("", "python -u t.py"),
    "sarus run --mount=type=bind,source=/a,destination=/b org/img:1 python t.py": ("org/img:1", "python t.py"),
}


@pytest.mark.parametrize("line", CALLS)
def test_the_image_and_the_command_inside_are_found_and_the_call_can_be_joined_again(line: str) -> None:
    words = shlex.split(line)
    call = parse_container_call(words)
    assert call is not None
    assert (call.image, shlex.join(call.command)) == (CALLS[line][0], shlex.join(shlex.split(CALLS[line][1])))
    assert [words[0], *join_call(call)] == words
    assert unwrap_command(words) == (shlex.split(CALLS[line][1]), True)


@pytest.mark.parametrize(
    "line", ["apptainer pull x.sif docker://x", "podman build .", "docker ps", "singularity", "ls"]
)
def test_calls_that_start_no_container_are_left_alone(line: str) -> None:
    words = shlex.split(line)
    assert parse_container_call(words) is None
    assert unwrap_command(words) == (words, False)


@pytest.mark.parametrize(
    ("line", "image"),
    [
        (["docker", "run", UNKNOWN, UNKNOWN, "-v", "/a:/b", UNKNOWN, "img:1", "python", "t.py"], "img:1"),
        (["apptainer", "exec", UNKNOWN, "img.sif", "python", "t.py"], "img.sif"),
        (["apptainer", "exec", UNKNOWN, "python", "t.py"], UNKNOWN),
    ],
)
def test_options_in_a_variable_are_not_taken_for_the_image(line: list[str], image: str) -> None:
    call = parse_container_call(line)
    assert call is not None
    assert (call.image, call.command) == (image, ("python", "t.py"))


BOUND = {
    "apptainer exec -B /a,/c:/d:ro --mount type=bind,src=/m,dst=/n i.sif x": "/a=/a /c=/d:ro /m=/n",
    "docker run -v /a:/b -v ./x:/y:ro,z -v named:/n --mount type=volume,src=v,dst=/w i x": "/a=/b /cwd/x=/y:ro",
    "podman run --mount type=bind,source=/a,target=/b,ro=true i x": "/a=/b:ro",
    "ch-run -b /a -b b:/mnt/1 /img -- x": "/a=/a /cwd/b=/mnt/1",
    "bwrap --ro-bind /i / --bind-try /a /b x": "/i=/:ro /a=/b",
    "enroot start -m /a:/b:ro,x-create=dir n x": "/a=/b:ro",
    "sarus run --mount=type=bind,source=/a,destination=/b i x": "/a=/b",
    "shifter --volume=/a:/b;/c:/d x": "/a=/b /c=/d",
}


@pytest.mark.parametrize("line", BOUND)
def test_bound_paths_have_absolute_sources_and_no_named_volume_is_among_them(line: str) -> None:
    call = parse_container_call(line.split())
    assert call is not None
    found = [f"{b.source}={b.target}{':ro' if b.read_only else ''}" for b in list_bound_paths(call, "/cwd")]
    assert " ".join(found) == BOUND[line]


def test_a_path_inside_is_mapped_by_the_longest_bound_directory() -> None:
    bound = (
        BoundPath(source="/h", target="/"),
        BoundPath(source="/h/p", target="/w"),
        BoundPath(source="/x", target="/w/o"),
    )
    paths = ("/w/train.py", "/w", "/w/o/1.log", "/etc/x")
    assert [map_to_host(p, bound) for p in paths] == ["/h/p/train.py", "/h/p", "/x/1.log", "/h/etc/x"]
    assert map_to_host("/opt/x", bound[1:]) == ""


@pytest.mark.parametrize(
    ("line", "view"),
    [
        (
            "srun -N2 --container-image=i --container-mounts=/h:/w:ro --container-workdir=/w python t.py",
            ("/h", "/w", "/w"),
        ),
        ("srun apptainer exec --pwd /w -W /scratch -B /h:/w i.sif python t.py", ("/h", "/w", "/w")),
        ("srun --mpi=pmix docker run -w /w -v /h:/w i python t.py", ("/h", "/w", "/w")),
    ],
)
def test_the_view_inside_is_found_through_launchers(line: str, view: tuple[str, str, str]) -> None:
    bound, workdir = find_container_view(line.split(), "/cwd")
    assert [(one.source, one.target) for one in bound] == [view[:2]]
    assert workdir == view[2]


@pytest.mark.parametrize(("program", "name"), [("podman", "podman"), ("docker", "docker")])
def test_the_options_with_a_value_are_those_of_the_installed_program(program: str, name: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    text = subprocess.run([program, "run", "--help"], capture_output=True, text=True, check=True).stdout
    rows = re.findall(r"^ +(?:-(\w), )?--([\w-]+)(?: ([\w<\[]\S*))?(?:  |\n)", text, re.MULTILINE)
    assert len(rows) > 80
    table = RUNTIMES[name].valued
    wrong = {
        long
        for short, long, value in rows
        if (long in table) != bool(value) or (short and (short in table) != bool(value))
    }
    assert wrong == set()
