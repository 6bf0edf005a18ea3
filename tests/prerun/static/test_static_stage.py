"""The static stage on the login node."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from slurmwrap.host.run_command import run
from slurmwrap.model.finding import Finding, Severity
from slurmwrap.prerun.static import static_stage
from slurmwrap.sbatch.job_request import JobRequest, Script

Check = Callable[..., tuple[Finding, ...]]


@pytest.fixture
def check(open_dir: Path) -> Check:
    """Checks a script's text; the test's directory counts as shared, although /tmp is local to a node."""

    def inner(text: str, *args: str) -> tuple[Finding, ...]:
        script = Script(path="job.sbatch", name="job.sbatch", content=text.encode())
        request = JobRequest(script=script, args=args, chdir=str(open_dir))
        return static_stage.check(request, run=run, environ=dict(os.environ), node_local=("/dev/",))

    return inner


def get_single_finding(findings: tuple[Finding, ...]) -> Finding:
    assert len(findings) == 1, findings
    return findings[0]


def test_a_sound_script_has_no_finding(check: Check, open_dir: Path) -> None:
    (open_dir / "train.py").write_text("print('é \\d')\n", encoding="utf-8")
    (open_dir / "data").mkdir()
    text = (
        "#!/bin/bash\nsrun python train.py --data ./data --out /nonexistent/out --model org/model --resume ./none.pt\n"
    )
    assert check(text) == ()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("#!/bin/bash\nif true; then\n  echo\n", 4),
        ("#!/bin/sh\nfi\n", 2),
        ("#!/usr/bin/env bash\necho 'x\n", 2),
        ("#!/bin/bash -l\nfor i in 1 2; echo $i; done\n", 2),
    ],
)
def test_a_shell_syntax_error_is_an_error_with_its_line(check: Check, text: str, line: int) -> None:
    finding = get_single_finding(check(text))
    assert (finding.severity, finding.file, finding.line, finding.category) == (
        Severity.ERROR,
        "job.sbatch",
        line,
        "syntax_error",
    )


def test_extended_patterns_are_not_a_syntax_error(check: Check) -> None:
    assert check("#!/bin/bash\nshopt -s extglob\nls !(x)\n") == ()


def test_a_missing_program_is_an_error_with_the_nearest_name(check: Check, open_dir: Path) -> None:
    (open_dir / "train.py").touch()
    finding = get_single_finding(check("#!/bin/bash\n\nsrun torchrun --nproc_per_node 8 tarin.py\n"))
    assert finding == Finding(
        severity=Severity.ERROR,
        message=f"{open_dir}/tarin.py: no such file (started by torchrun)",
        file="job.sbatch",
        line=3,
        fix=f"correct the path; did you mean {open_dir}/train.py?",
        category="incorrect_inputs",
    )


def test_a_program_in_another_directory_is_suggested(check: Check, open_dir: Path) -> None:
    (open_dir / "src").mkdir()
    (open_dir / "src" / "train.py").touch()
    assert f"did you mean {open_dir}/src/train.py?" in get_single_finding(check("#!/bin/bash\npython train.py\n")).fix


def test_a_missing_program_that_the_script_may_create_is_a_warning(check: Check) -> None:
    assert get_single_finding(check("#!/bin/bash\ngit clone x .\npython train.py\n")).severity is Severity.WARNING


def test_python_that_does_not_compile_is_an_error_with_its_line(check: Check, open_dir: Path) -> None:
    (open_dir / "train.py").write_text("import torch\nprint(torch\n")
    finding = get_single_finding(check("#!/bin/bash\nsrun python train.py\nsrun python train.py --again\n"))
    assert (finding.severity, finding.file, finding.line) == (Severity.ERROR, str(open_dir / "train.py"), 2)
    assert finding.message == "SyntaxError: '(' was never closed: print(torch"


def test_syntax_that_the_python_of_the_job_may_accept_is_not_an_error(check: Check, open_dir: Path) -> None:
    python2 = open_dir / "python2"  # an interpreter that accepts everything
    python2.write_text("#!/bin/sh\nexit 0\n")
    python2.chmod(0o755)
    (open_dir / "old.py").write_text("print 'x'\n")
    assert check(f"#!/bin/bash\n{python2} old.py\n") == ()
    for unknown in ("/no/such/python", "$CONDA_PREFIX/bin/python"):
        assert get_single_finding(check(f"#!/bin/bash\n{unknown} old.py\n")).severity is Severity.WARNING


def test_a_batch_script_in_python_is_checked(check: Check) -> None:
    finding = get_single_finding(check("#!/usr/bin/env python3\ndef f(:\n    pass\n"))
    assert (finding.file, finding.line, finding.category) == ("job.sbatch", 2, "syntax_error")


def test_a_shell_script_that_is_started_is_checked_too(check: Check, open_dir: Path) -> None:
    (open_dir / "run.sh").write_text("#!/bin/bash\ndone\n")
    finding = get_single_finding(check("#!/bin/bash\nbash run.sh\n"))
    assert (finding.file, finding.line) == (str(open_dir / "run.sh"), 2)


def test_a_named_path_that_is_missing_is_a_warning(check: Check, open_dir: Path) -> None:
    (open_dir / "train.py").touch()
    finding = get_single_finding(
        check('#!/bin/bash\npython train.py "$@"\n', "--data", "/data/imagenet", "--save-dir=/data/new")
    )
    assert (finding.severity, finding.message) == (Severity.WARNING, "--data /data/imagenet: no such file or directory")


def test_an_unreadable_program_is_an_error(check: Check, open_dir: Path) -> None:
    (open_dir / "train.py").touch(mode=0o000)
    result = run_as_nobody(lambda: [(f.severity, f.category) for f in check("#!/bin/bash\npython train.py\n")])
    assert result == "[(<Severity.ERROR: 'error'>, 'permission_error')]"


def run_as_nobody(work: Callable[[], object]) -> str:
    """repr() of the result of `work` in a child process that lacks root's permission to read all files."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        if os.geteuid() == 0:
            os.setuid(65534)
        os.write(writer, repr(work()).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    with os.fdopen(reader) as stream:
        return stream.read()


def test_a_missing_file_in_a_node_local_directory_is_a_warning(open_dir: Path) -> None:
    script = Script(path="a", name="a", content=b"#!/bin/bash\npython train.py --data ./x\n")
    finding = get_single_finding(static_stage.check(JobRequest(script=script, chdir=str(open_dir)), run=run))
    assert (finding.severity, finding.file, finding.line) == (Severity.WARNING, "a", 2)


def test_the_check_of_any_script_ends(check: Check) -> None:
    for text in ("", "no shebang", "#!/bin/awk -f\n{", "#!", "#!/bin/bash\n" + "(" * 1000, "#!/bin/sh\n\0\n"):
        check(text)


def test_a_script_for_a_missing_shell_has_no_finding(open_dir: Path) -> None:
    script = Script(path="a", name="a", content=b"#!/bin/zsh\nif\n")

    def missing(argv: object, **options: object) -> object:
        return run(["/no/such/zsh"], timeout_s=1)

    assert static_stage.check(JobRequest(script=script, chdir=str(open_dir)), run=missing) == ()  # type: ignore[arg-type]
