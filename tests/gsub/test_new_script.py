"""gsub --template and gsub new without Slurm: template lookup, generated scripts and refusals."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
from waiting import allow

from slurmwrap.config.load_config import Config, load
from slurmwrap.errors import ConfigError
from slurmwrap.gsub import gsub_script
from slurmwrap.gsub.gsub_main import main
from slurmwrap.gsub.new_script import get_template, is_new_command
from slurmwrap.host.run_command import run as run_command
from slurmwrap.package_files import shipped
from slurmwrap.prerun.static import static_stage
from slurmwrap.prerun.static.entry_points import list_entry_points
from slurmwrap.sbatch.job_request import JobRequest, Script

SHIPPED = sorted(p.stem for p in (shipped("templates") / "launch").glob("[a-z]*.j2"))
NO_SLURM = "gsub: Slurm could not be asked what its nodes are like: "


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """The environment of a user in a directory with train.py, without Slurm; the site's templates are in site/."""
    for name in ("work", "site", "home/.config/slurmwrap/templates"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "work/train.py").write_text("import sys\nprint(sys.argv)\n")
    (tmp_path / "config.toml").write_text(f'[submit]\ntemplates = "{tmp_path}/site"\n')
    return {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "HOME": str(tmp_path / "home"),
        "SLURM_CONF": str(tmp_path / "none.conf"),
        "SLURMWRAP_CONFIG": str(tmp_path / "config.toml"),
    }


@pytest.fixture
def gsub(tmp_path: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Call `gsub(*words)` in this process; the test fails if gsub would execute sbatch."""
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setattr("sys.argv", ["gsub"])
    for name in ("execv", "execve"):
        monkeypatch.setattr(os, name, lambda *words: pytest.fail(f"{words} was to take the place of gsub"))

    def call(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
        with mock.patch.dict(os.environ, {**environ, **more}, clear=True):
            return subprocess.CompletedProcess(words, main(words), *capsys.readouterr())

    return call


def generate(gsub, *words: str) -> str:
    done = gsub("new", "-o", "-", *words)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith(NO_SLURM)
    return done.stdout


def test_every_expected_template_is_shipped() -> None:
    assert SHIPPED == ["accelerate", "array", "deepspeed", "jax", "srun", "torchrun"]


@pytest.mark.parametrize("more", [(), ("--signal=USR1@300", "-t", "8:00:00", "-c", "4")])
@pytest.mark.parametrize("name", SHIPPED)
def test_a_generated_script_is_valid_and_the_pre_run_finds_its_program(gsub, environ, tmp_path, name, more) -> None:
    shape = ("-G1", "--array=0-3") if name == "array" else ("-N2", "-G16")
    arguments = ("--lr", "3e-4", "a b", "it's", "é\n\\n")
    script = generate(gsub, "--template", name, *shape, *more, "train.py", *arguments)
    (tmp_path / "made.sh").write_text(script)
    checked = [["bash", "-n"]] + ([["shellcheck", "--norc"]] if shutil.which("shellcheck") else [])
    for checker in checked:
        done = subprocess.run([*checker, str(tmp_path / "made.sh")], capture_output=True, text=True, timeout=allow(60))
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    (entry,) = list_entry_points(script, str(tmp_path / "work"), (), {}, lambda _: None)
    # these launchers are started in the background, so the entry point is less certain
    handed_on = bool(more) and name in ("torchrun", "accelerate", "deepspeed")
    assert (entry.path, entry.argv, entry.certain) == (str(tmp_path / "work/train.py"), arguments, not handed_on)
    request = JobRequest(script=Script(path=None, name="sbatch", content=script.encode()), chdir=str(tmp_path / "work"))
    path = {"PATH": environ["PATH"]}
    assert static_stage.check(request, run=run_command, environ=path, node_local=()) == ()
    assert max(len(line) for line in script.split("\n") if line.startswith("#")) <= 100
    assert ("pkill -USR1" in script) == handed_on


def test_new_writes_the_file_once_and_names_the_next_step(gsub, tmp_path: Path) -> None:
    words = ("new", "--template=torchrun", "-N2", "-G16", "train.py")
    first = gsub(*words)
    assert first.stdout == (
        "Wrote train.sbatch. Template torchrun: 2 nodes with 8 GPUs and 1 task each.\n"
        "Read it, then: gsub train.sbatch\n"
    )
    content = (tmp_path / "work/train.sbatch").read_text()
    assert content == generate(gsub, *words[1:])
    again = gsub(*words)
    assert (again.returncode, again.stdout) == (1, "")
    assert again.stderr.splitlines()[-2:] == [
        "gsub: error: train.sbatch is there already",
        "gsub: It stays as it is. Name another file with -o, or remove it.",
    ]
    assert gsub(*words[:-1], "-o", "other.sbatch", "train.py").returncode == 0
    assert (tmp_path / "work/other.sbatch").read_text() == content


def test_the_installed_program_writes_the_same_script(gsub, environ: dict[str, str], tmp_path: Path) -> None:
    words = ("new", "-o", "-", "--template=srun", "-N2", "-G16", "train.py")
    argv = [sys.executable, gsub_script.__file__, *words]
    done = subprocess.run(argv, cwd=tmp_path / "work", env=environ, capture_output=True, text=True, timeout=allow(60))
    expected = gsub(*words)
    assert (done.returncode, done.stdout, done.stderr) == (0, expected.stdout, expected.stderr)


def test_template_submits_the_script_that_new_writes(gsub) -> None:
    words = ("--template=srun", "-N2", "-G16", "-p", "gpu", "-t", "60", "train.py", "--lr", "1e-3")
    shown = gsub("--dry-run", *words, GSUB_PASS="1")  # GSUB_PASS: shows what would go to sbatch
    assert (shown.returncode, shown.stdout) == (0, generate(gsub, *words))


def test_a_script_named_new_is_submitted(gsub, tmp_path: Path) -> None:
    (tmp_path / "work/new").write_text("#!/bin/bash\n#SBATCH --gres=gpu:1\necho mine\n")
    done = gsub("--dry-run", "new", "--template", "torchrun", GSUB_PASS="1")
    assert (done.returncode, done.stdout) == (0, (tmp_path / "work/new").read_text())
    other = gsub("new", "--template", "torchrun", "-N2", "-G16", "train.py", GSUB_DRY_RUN="1", GSUB_PASS="1")
    assert other.stdout == done.stdout
    assert not (tmp_path / "work/train.sbatch").exists()


def test_new_without_arguments_prints_its_help(gsub, environ: dict[str, str], tmp_path: Path) -> None:
    alone, asked = gsub("new"), gsub("new", "--help")
    assert (alone.returncode, alone.stdout, alone.stderr) == (255, "", asked.stdout)
    assert (asked.returncode, asked.stderr) == (0, "")
    assert "gsub new --template torchrun -G 16 train.py" in asked.stdout
    (tmp_path / "sbatch").symlink_to(gsub_script.__file__)
    environ = {**environ, "PATH": "/usr/bin:/bin", "GSUB_DRY_RUN": "1"}
    as_sbatch = subprocess.run(
        [sys.executable, str(tmp_path / "sbatch"), "new"], cwd=tmp_path / "work", env=environ, capture_output=True,
        text=True, timeout=allow(60),
    )  # fmt: skip
    assert (as_sbatch.returncode, as_sbatch.stderr.splitlines()[0]) == (1, "gsub: error: Unable to open file new")


def test_a_script_named_new_on_path_is_submitted_unless_options_of_new_follow(gsub, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/new").write_text("#!/bin/bash\necho mine\n")
    path = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "GSUB_PASS": "1", "GSUB_DRY_RUN": "1"}
    assert gsub("new", **path).stdout == "#!/bin/bash\necho mine\n"
    assert gsub("new", "--list", **path).stdout.splitlines()[0].startswith("accelerate")


T16 = ("--template=torchrun", "-N2", "-G16")
REFUSED: list[tuple[tuple[str, ...], int, str, str]] = [
    (("--template=torchrum", "-G16", "train.py"), 255, "there is no template 'torchrum'", "Did you mean torchrun?"),
    (("--template=../../etc", "-G16", "train.py"), 255, "there is no template '../../etc'", "There are: "),
    (T16, 255, "there is no program for the template", "train.py"),
    ((*T16, "trian.py"), 1, "trian.py: no such file in", "Did you mean train.py?"),
    (("--template=torchrun", "train.py"), 255, "the call asks for no GPU", "-G 16"),
    (("--template=torchrun", "-G16", "train.py"), 255, "how many GPUs a node has is not known", "-N 2"),
    ((*T16, "job.sbatch"), 1, "job.sbatch is a batch script already", "gsub job.sbatch"),
    ((*T16, "notes"), 1, "notes is no Python program", "chmod +x notes"),
    ((*T16, "."), 1, ". is a directory", "Name the program"),
    (("--values=1,2", "-G1", "train.py"), 255, "--values is for --template=array", ""),
    (("--template=jax", "--values=1", "-G1", "train.py"), 255, "--values is for --template=array, not for jax", ""),
    (("--template=array", "--values-file=no.txt", "-G1", "train.py", "{}"), 255, "--values-file=no.txt: No such", ""),
    (("--template=srun", "-G16", "--bogus", "train.py"), 255, "unrecognized option '--bogus'", ""),
    (("--template=", "train.py"), 255, "Invalid --template specification: ''", "It takes a name."),
    (("new", "-G4", "train.py"), 255, "gsub new needs a template", "gsub new --template torchrun -G4 train.py."),
    (("new", "--", "x"), 255, "gsub new needs a template", "NAME is one of accelerate, array, deepspeed,"),
    (("new", *T16, "-o", "%x.out", "train.py"), 255, "-o %x.out: gsub new -o names the script", "--output=%x.out"),
]


@pytest.mark.parametrize(("words", "code", "message", "hint"), REFUSED)
def test_a_refusal_names_the_wrong_argument_and_a_fix(gsub, tmp_path: Path, words, code, message, hint) -> None:
    (tmp_path / "work/job.sbatch").write_text("#!/bin/bash\n#SBATCH -N2\n")
    (tmp_path / "work/notes").write_text("words\n")
    done = gsub(*words)
    assert (done.returncode, done.stdout) == (code, "")
    said = [line for line in done.stderr.splitlines() if not line.startswith(NO_SLURM)]
    assert said[0].startswith(f"gsub: error: {message}")
    assert hint in "".join(said[1:])


def test_a_gsub_line_in_a_script_cannot_set_template(gsub, tmp_path: Path) -> None:
    (tmp_path / "work/job.sh").write_text("#!/bin/bash\n#GSUB --template=torchrun\n#SBATCH --gres=gpu:1\n")
    done = gsub("job.sh")
    assert done.returncode == 255
    assert "job.sh:2: unrecognized option '--template=torchrun'" in done.stderr


def test_the_list_shows_each_template_with_its_origin_on_one_line(gsub, tmp_path: Path) -> None:
    (tmp_path / "site/pretrain.j2").write_text("{# about: our big runs #}\n{# tasks: node #}\n#!/bin/bash\n")
    lines = gsub("--template", "list").stdout.splitlines()
    assert [line.split()[0] for line in lines] == sorted([*SHIPPED, "pretrain"])
    assert lines[-3] == f"pretrain    our big runs (the site's: {tmp_path}/site/pretrain.j2)"
    assert gsub("new", "--list").stdout.splitlines() == lines


def test_user_templates_come_before_site_templates_before_shipped_ones(gsub, tmp_path: Path) -> None:
    text = "{# tasks: node #}\n#!/bin/bash\n{% for line in directives %}\n{{ line }}\n{% endfor %}\n"
    call = ("--template=torchrun", "-N2", "-G16", "train.py")
    (tmp_path / "site/torchrun.j2").write_text(text + "# the site's\n{{ run }}\n")
    assert generate(gsub, *call).endswith("#SBATCH --output=%x-%j.out\n# the site's\npython train.py\n")
    (tmp_path / "home/.config/slurmwrap/templates/torchrun.j2").write_text(text + "# mine\n")
    done = gsub("new", "-o", "-", *call)
    assert done.stdout.endswith("# mine\n")
    assert done.stderr.splitlines()[-1] == (
        f"gsub: the template is yours: {tmp_path}/home/.config/slurmwrap/templates/torchrun.j2"
    )


def test_a_site_can_replace_one_part_of_a_template(gsub, tmp_path: Path) -> None:
    head = "#!/bin/bash\n{% for line in directives %}\n{{ line }}\n{% endfor %}\nmodule load cuda\nset -euo pipefail\n"
    (tmp_path / "site/_head.j2").write_text(head)
    script = generate(gsub, "--template=jax", "-N2", "-G16", "train.py")
    assert "\nmodule load cuda\nset -euo pipefail\n" in script
    assert script.endswith("srun --kill-on-bad-exit=1 \\\n    python train.py\n")


def test_a_template_writable_by_others_is_not_used(gsub, tmp_path: Path) -> None:
    path = tmp_path / "site/torchrun.j2"
    path.write_text("{# tasks: node #}\nrm -rf ~\n")
    path.chmod(0o666)
    done = gsub("new", "--template=torchrun", "-N2", "-G16", "train.py")
    assert done.returncode == 78
    assert f"{path} is not used: others may write it (mode 0666)" in done.stderr
    assert not (tmp_path / "work/train.sbatch").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{# tasks: node #}\n{{ nosuch }}\n", "'nosuch' is undefined"),
        ("{# tasks: node #}\n\n{% if %}\n", "one.j2:3: "),
        ("{# about: x #}\n", "it does not declare which tasks it starts"),
        ('{# tasks: node #}\n{% include "gone.j2" %}\n', "there is no 'gone.j2' to include"),
        ("{# tasks: node #}\n{{ ''.__class__.__mro__ }}\n", "unsafe"),
    ],
)
def test_the_error_names_a_template_that_does_not_work(gsub, tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "site/one.j2").write_text(text)
    done = gsub("new", "--template=one", "-N2", "-G16", "train.py")
    assert done.returncode == 78
    assert f"{tmp_path}/site/one.j2" in done.stderr
    assert said in done.stderr


def test_a_gsub_option_after_the_program_is_pointed_out(gsub) -> None:
    done = gsub("new", "-o", "-", "--template=srun", "-N2", "-G16", "train.py", "--dry-run")
    assert done.stdout.endswith("python train.py --dry-run\n")
    assert done.stderr.splitlines()[-1] == (
        "gsub: --dry-run goes to train.py: gsub's own options stand before the program"
    )


def test_the_configured_template_directory_may_be_empty() -> None:
    assert load({"SLURMWRAP_SUBMIT_TEMPLATES": "", "HOME": "/nonexistent"}).submit.templates == ""
    assert Config().submit.templates == "/etc/slurmwrap/templates"


def test_a_template_of_another_user_is_refused(tmp_path: Path) -> None:
    if os.geteuid():
        pytest.skip("only root can give a file away")
    path = tmp_path / "x.j2"
    path.write_text("{# tasks: one #}\n")
    os.chown(path, 12345, 12345)
    with pytest.raises(ConfigError, match="belongs to uid 12345"):
        get_template("x", (("the site's", tmp_path),))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--template=torchrun", "--wrap=python train.py", "-G8"],
            [
                "gsub: error: --wrap does not go with --template",
                "The template makes the script, and --wrap would make another one.",
            ],
        ),
        (
            ["--template=array", "--values", "", "-G1", "train.py", "{}"],
            [
                "gsub: error: Invalid --values specification: ''",
                "It takes values with commas between them: --values=1e-4,3e-4,1e-3.",
            ],
        ),
    ],
)
def test_the_error_names_the_cause_and_not_its_consequences(gsub, words: list[str], said: list[str]) -> None:
    done = gsub(*words)
    assert (done.returncode, done.stdout) == (255, "")
    assert [line.removeprefix("gsub: ") if n else line for n, line in enumerate(done.stderr.splitlines())] == said


def test_an_unreadable_path_entry_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["gsub"])
    assert is_new_command(["new", "-G", "4", "train.py"], {"PATH": f"/{'x' * 300}:/nosuch"})


SBATCH_WITH_PYXIS = (
    "#!/bin/sh\necho\necho 'Options provided by plugins:'\necho '      --container-image=IMAGE  [pyxis] the image'\n"
)
CONTAINERS = {
    (
        "apptainer",
        "train.sif",
    ): 'srun --kill-on-bad-exit=1 apptainer exec --nv --bind "$PWD" --pwd "$PWD" train.sif torchrun \\',
    (
        "apptainer",
        "nvcr.io/nvidia/pytorch:25.01-py3",
    ): 'srun --kill-on-bad-exit=1 apptainer exec --nv --bind "$PWD" --pwd "$PWD"'
    " docker://nvcr.io/nvidia/pytorch:25.01-py3 torchrun \\",
    (
        "podman-hpc",
        "org/img:1",
    ): 'srun --kill-on-bad-exit=1 podman-hpc run --rm --gpu --network=host --ipc=host -v "$PWD:$PWD"'
    " -w \"$PWD\" -e 'SLURM_*' -e 'PYTHON*' -e MASTER_ADDR -e MASTER_PORT -e WORLD_SIZE -e RANK -e LOCAL_RANK"
    " org/img:1 torchrun \\",
    ("ch-run", "img"): 'srun --kill-on-bad-exit=1 ch-run --bind="$PWD:/mnt/0" --cd=/mnt/0 img -- torchrun \\',
    ("sbatch", "nvcr.io/nvidia/pytorch:25.01-py3"): "srun --kill-on-bad-exit=1"
    " --container-image='nvcr.io#nvidia/pytorch:25.01-py3' --container-mounts=\"$PWD:$PWD\""
    ' --container-workdir="$PWD" torchrun \\',
}


@pytest.mark.parametrize(("program", "image"), CONTAINERS)
def test_new_starts_the_program_in_a_container_by_the_runtime_of_the_site(
    gsub, environ: dict[str, str], tmp_path: Path, program: str, image: str
) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / program).write_text(SBATCH_WITH_PYXIS if program == "sbatch" else "#!/bin/sh\n")
    (programs / program).chmod(0o755)
    for name in ("train.sif",):
        (tmp_path / "work" / name).touch()
    words = ("new", "-o", "-", "--container", image, "-N2", "-G16", "train.py", "--lr", "1e-3")
    done = gsub(*words, PATH=f"{programs}:{Path(sys.executable).parent}")
    assert done.returncode == 0, done.stderr
    assert CONTAINERS[program, image] in done.stdout.splitlines()
    assert "#SBATCH --container" not in done.stdout
    (tmp_path / "made.sh").write_text(done.stdout)
    assert subprocess.run(["bash", "-n", str(tmp_path / "made.sh")], timeout=allow(60)).returncode == 0
    (entry,) = list_entry_points(done.stdout, str(tmp_path / "work"), (), {}, lambda _: None)
    assert (entry.path, entry.argv, entry.contained) == (str(tmp_path / "work/train.py"), ("--lr", "1e-3"), True)


@pytest.mark.parametrize("name", SHIPPED)
def test_every_template_starts_its_program_in_the_container(gsub, tmp_path: Path, name: str) -> None:
    (tmp_path / "apptainer").write_text("#!/bin/sh\n")
    (tmp_path / "apptainer").chmod(0o755)
    shape = ("-G1", "--array=0-3") if name == "array" else ("-N2", "-G16")
    words = ("new", "-o", "-", "--template", name, *shape, "--container=docker://img:1", "train.py")
    done = gsub(*words, PATH=f"{tmp_path}:{Path(sys.executable).parent}:/usr/bin:/bin")
    assert done.returncode == 0, done.stderr
    (entry,) = list_entry_points(done.stdout, str(tmp_path / "work"), (), {}, lambda _: None)
    assert (entry.path, entry.contained) == (str(tmp_path / "work/train.py"), True)


def test_an_image_that_no_runtime_of_the_site_can_start_is_refused(gsub, tmp_path: Path) -> None:
    (tmp_path / "work/train.sif").touch()
    done = gsub("new", "--container", "train.sif", "-N2", "-G16", "train.py", PATH=str(Path(sys.executable).parent))
    assert (done.returncode, done.stdout) == (255, "")
    assert "--container=train.sif: none of apptainer, singularity is on this machine's PATH" in done.stderr
    missing = gsub("new", "--container", "./none.sif", "-N2", "-G16", "train.py")
    assert "./none.sif: no such image" in missing.stderr


def test_an_oci_bundle_is_left_to_slurm(gsub, tmp_path: Path) -> None:
    (tmp_path / "work/bundle").mkdir()
    (tmp_path / "work/bundle/config.json").write_text("{}")
    assert "#SBATCH --container=bundle" in generate(
        gsub, "--container=bundle", "--template=srun", "-N2", "-G16", "train.py"
    )
