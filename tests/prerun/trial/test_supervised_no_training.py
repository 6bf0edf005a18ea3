"""Trials of programs without training end early; trials of programs that may train do not."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from waiting import allow

from slurmwrap.diagnosis.classifier import diagnose_run
from slurmwrap.model.trial_result import TrialResult
from slurmwrap.model.verdict import Outcome, Verdict
from slurmwrap.prerun.trial.trial_spec import TrialSpec
from slurmwrap.prerun.verdict.judge_trial import judge

Trial = Callable[..., TrialResult]
SPEC = TrialSpec(trial_dir="/t", script="/t/slurm_script", steps=3)
SOON_S = 1.0  # as prerun.no_training_s


def write_program(job: Path, text: str, name: str = "main.py") -> None:
    (job / name).write_text(textwrap.dedent(text))


def judge_result(result: TrialResult) -> Verdict:
    return judge(SPEC, result, diagnose_run)


def test_an_evaluation_ends_with_a_lasting_inconclusive_verdict(trial: Trial, job: Path) -> None:
    write_program(job, "import torch.optim, time\ntime.sleep(600)\n", "evaluate.py")
    result = trial("#!/bin/bash\npython evaluate.py\n", no_training_s=SOON_S)
    found = judge_result(result)
    assert (result.layer, found.outcome, found.layer, found.lasting) == (
        "no_training", Outcome.INCONCLUSIVE, "no_training", True,
    )  # fmt: skip
    assert "torch is used without an optimizer, and nothing in its code trains; nothing failed" in found.reason


def test_an_error_before_no_training_s_is_a_failure(trial: Trial, job: Path) -> None:
    write_program(job, "import json\njson.loads('{')\n", "evaluate.py")
    found = judge_result(trial("#!/bin/bash\npython evaluate.py\n", no_training_s=allow(20.0)))
    assert (found.outcome, found.layer) == (Outcome.FAIL, "exit")


def test_a_crash_that_the_script_survives_is_reported_but_not_lasting(trial: Trial, job: Path) -> None:
    write_program(job, "import json\njson.loads('{')\n", "evaluate.py")
    found = judge_result(trial("#!/bin/bash\npython evaluate.py\nsleep 60\n", no_training_s=allow(2.0)))
    assert (found.outcome, found.lasting) == (Outcome.INCONCLUSIVE, False)
    assert "a traceback was printed: JSONDecodeError" in found.reason


def test_a_program_with_a_long_preparation_is_not_ended(trial: Trial, job: Path) -> None:
    write_program(
        job,
        """
        import time, torch.optim
        time.sleep(3)
        optimizer = torch.optim.SGD()
        for _ in range(9): optimizer.step()
        """,
    )
    assert trial("#!/bin/bash\npython main.py\n", no_training_s=SOON_S).steps == 3


def test_a_training_that_the_script_analysis_cannot_see_is_not_ended(trial: Trial, job: Path) -> None:
    before = f"import time, torch.optim\ntime.sleep({allow(6.0)})\n"
    write_program(job, before + "o = torch.optim.SGD()\nfor _ in range(9): o.step()\n")
    (job / "launch").write_text('#!/bin/sh\nexec "$@"\n')  # its name does not look like that of a script
    (job / "launch").chmod(0o755)
    assert trial("#!/bin/bash\n./launch python main.py\n", no_training_s=allow(5.0)).layer == "step"


def test_printed_steps_of_a_program_without_countable_steps_are_a_pass(trial: Trial) -> None:
    script = '#!/bin/bash\nfor ((i = 1; ; i++)); do echo "step $i loss=0.5"; sleep 0.02; done\n'
    result = trial(script, no_training_s=allow(5.0))
    assert (result.layer, result.step_source) == ("step", "text")


def test_a_server_is_recognized_by_its_port(trial: Trial, job: Path) -> None:
    write_program(job, "import socket, time\ns = socket.create_server(('127.0.0.1', 0))\ntime.sleep(600)\n")
    result = trial("#!/bin/bash\npython main.py\n", no_training_s=600.0, time_limit_s=600.0)
    assert "a server waits for its clients" in result.no_training


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("python main.py > out/log.txt; echo done", "out/log.txt: No such file or directory"),
        ("python main.py &", "ran in the background"),
    ],
)
def test_a_script_that_ends_without_its_program_is_inconclusive(trial: Trial, job: Path, line: str, said: str) -> None:
    write_program(job, "import time\ntime.sleep(600)\n")
    found = judge_result(trial(f"#!/bin/bash\n{line}\n"))
    assert (found.outcome, found.layer, found.lasting) == (Outcome.INCONCLUSIVE, "exit", False)
    assert said in found.reason


def test_a_program_that_ran_to_its_end_is_a_pass(trial: Trial, job: Path) -> None:
    write_program(job, "print(1)\n")
    found = judge_result(trial("#!/bin/bash\npython main.py > log.txt &\nwait\n"))
    assert (found.outcome, found.reason) == (Outcome.PASS, "the script ran to its end; no optimizer step was seen")
