"""Trials that go on after their steps with shortened epochs, with a fake torch."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

from slurmwrap.diagnosis.classifier import diagnose_run
from slurmwrap.model.trial_result import StepReading, TrialResult
from slurmwrap.model.verdict import Outcome, Verdict
from slurmwrap.prerun.trial.rehearsal_timer import REQUEST_S, RehearsalTimer
from slurmwrap.prerun.trial.trial_spec import TrialSpec
from slurmwrap.prerun.verdict.judge_trial import judge

Trial = Callable[..., TrialResult]
MakeSpec = Callable[..., TrialSpec]
TRAIN = """
import os, torch.optim
optimizer = torch.optim.SGD()
start = 0
if os.path.exists('last'):
    start = int(open('last').read())
    print('resumes at', start, 'restart', os.environ.get('SLURM_RESTART_COUNT'))
    RESUME
for epoch in range(start, 10 ** 6):
    for batch in range(10 ** 6):
        optimizer.step()
    print('validates', epoch)
    VALIDATE
    open('last', 'w').write(str(epoch + 1))
print('final')
FINAL
"""
SCRIPT = "#!/bin/bash\npython train.py || exit 1\necho the script ends\n"


def write_program(job: Path, **parts: str) -> None:
    text = TRAIN
    for part in ("RESUME", "VALIDATE", "FINAL"):
        text = text.replace(part, parts.get(part.lower(), "pass"))
    (job / "train.py").write_text(text)


def judge_result(make_spec: MakeSpec, result: TrialResult) -> Verdict:
    return judge(make_spec(SCRIPT), result, diagnose_run)


def test_a_sound_program_is_executed_to_its_end_and_leaves_no_file(
    trial: Trial, make_spec: MakeSpec, job: Path
) -> None:
    write_program(job)
    result = trial(SCRIPT, rehearse_s=60.0)
    assert (result.layer, result.exit_code, result.steps) == ("exit", 0, 3)
    assert result.logs[0].text.splitlines() == ["validates 0", "validates 1", "final", "the script ends"]
    assert not (job / "last").exists()
    verdict = judge_result(make_spec, result)
    assert verdict.outcome is Outcome.PASS
    assert verdict.reason.endswith("then the script ran to its end with shortened epochs")


def test_an_error_in_the_validation_stops_the_job(trial: Trial, make_spec: MakeSpec, job: Path) -> None:
    write_program(job, validate="print(acuracy)")
    verdict = judge_result(make_spec, trial(SCRIPT, rehearse_s=60.0))
    assert verdict.outcome is Outcome.FAIL
    assert verdict.reason == "train.py:13: NameError: name 'acuracy' is not defined (after 3 optimizer steps)"


def test_an_error_at_the_end_stops_the_job(trial: Trial, make_spec: MakeSpec, job: Path) -> None:
    write_program(job, final="open('missing/final.txt', 'w')")
    verdict = judge_result(make_spec, trial(SCRIPT, rehearse_s=60.0))
    assert verdict.outcome is Outcome.FAIL
    assert "missing/final.txt" in verdict.reason


def test_without_a_rehearsal_or_an_overlay_the_program_ends_in_its_steps(trial: Trial, job: Path) -> None:
    write_program(job, validate="print(acuracy)")
    for fields in ({}, {"rehearse_s": 60.0, "overlay": "off"}):
        result = trial(SCRIPT, **fields)
        assert (result.layer, result.steps, result.rehearsal) == ("step", 3, None)


def test_the_program_is_started_again_and_finds_its_checkpoint(trial: Trial, make_spec: MakeSpec, job: Path) -> None:
    write_program(job)
    result = trial(SCRIPT, rehearse_s=60.0, resumes=True)
    assert (result.layer, result.exit_code) == ("exit", 0)
    assert result.rehearsal is not None
    assert result.rehearsal.resumed
    assert judge_result(make_spec, result).reason.endswith("; started again, it resumed")


def test_a_program_after_the_training_cannot_connect_to_another_machine(trial: Trial, job: Path) -> None:
    write_program(job)
    upload = "import socket; print(socket.socket().connect_ex(('192.0.2.1', 80)))"
    (job / "upload.py").write_text(upload + "\nsocket.create_connection(('192.0.2.1', 80), timeout=5)\n")
    result = trial("#!/bin/bash\npython train.py\npython upload.py\n", rehearse_s=60.0)
    assert f"{errno.ENETUNREACH}\n" in result.logs[0].text
    assert "a slurmwrap pre-run makes no new connections" in result.logs[0].text
    assert result.rehearsal is not None
    assert result.rehearsal.refused == ("192.0.2.1",)


def test_the_second_run_sends_nothing_away_either(trial: Trial, tmp_path: Path, job: Path) -> None:
    write_program(job, resume="raise SystemExit(0)")
    tool = job / "tools" / "ssh"
    tool.parent.mkdir()
    tool.write_text(f"#!/bin/sh\necho $* >> {tmp_path}/sent\n")
    tool.chmod(0o755)
    result = trial(f"{SCRIPT}PATH={tool.parent}:$PATH\nssh host upload\n", rehearse_s=60.0, resumes=True)
    assert result.rehearsal is not None
    assert result.rehearsal.resumed
    assert not (tmp_path / "sent").exists()


def test_an_error_after_a_restart_stops_the_job(trial: Trial, make_spec: MakeSpec, job: Path) -> None:
    write_program(job, resume="optimizer.load_state_dict({})")
    result = trial(SCRIPT, rehearse_s=60.0, resumes=True)
    assert "resumes at 2 restart 1" in result.logs[0].text
    verdict = judge_result(make_spec, result)
    assert verdict.outcome is Outcome.FAIL
    assert "load_state_dict" in verdict.reason


def test_arguments_are_added_when_the_script_is_started_again(trial: Trial, job: Path) -> None:
    write_program(job, final="pass", resume="print(unknown)")
    script = (
        '#!/bin/bash\n[[ "$*" == "a --resume last" ]] || rm -f last\necho "called with $*"\n'
        + SCRIPT.partition("\n")[2]
    )
    result = trial(script, "a", rehearse_s=60.0, resumes=True, resume_args=("--resume", "last"))
    assert "called with a --resume last\nresumes at 2" in result.logs[0].text
    assert (result.layer, result.exit_code) == ("exit", 1)


def test_what_takes_too_long_is_ended_and_passes(trial: Trial, make_spec: MakeSpec, job: Path) -> None:
    write_program(job, validate="import time; time.sleep(3600)")
    result = trial(SCRIPT, rehearse_s=0.5)
    assert result.rehearsal is not None
    assert (result.layer, result.rehearsal.stopped_by) == ("step", "time")
    assert judge_result(make_spec, result).outcome is Outcome.PASS


def test_programs_that_send_something_away_are_left_out_after_the_steps(trial: Trial, job: Path) -> None:
    write_program(job)
    tools = job / "tools"
    tools.mkdir()
    for name in ("ssh", "aws", "rsync"):
        (tools / name).write_text(f"#!/bin/sh\necho really {name}\n")
        (tools / name).chmod(0o755)
    script = f"#!/bin/bash\nPATH={tools}:$PATH\nssh host before\npython train.py\nssh host after\naws s3 cp a b\n"
    result = trial(script + "rsync -a out/ host:out\nmail -s done me < /dev/null\n", rehearse_s=60.0)
    assert "really ssh" in result.logs[0].text.partition("validates")[0]
    assert "really" not in result.logs[0].text.partition("final")[2]
    assert result.refused == ("ssh host after", "aws s3 cp a b", "rsync -a out/ host:out", "mail -s done me")
    assert (result.layer, result.exit_code) == ("exit", 0)


def test_a_profiled_program_rehearses_when_its_profile_is_done_or_not_at_all(make_spec: MakeSpec) -> None:
    spec = make_spec(SCRIPT, rehearse_s=60.0, profile_s=30.0)
    Path(spec.step_dir).mkdir()
    timer = RehearsalTimer(spec, {"SLURMWRAP_REHEARSE": "on_request"})
    steps = StepReading(count=5, source="optimizer")
    assert timer.look(1.0, "", steps) == ""
    assert not Path(spec.step_dir, "rehearse").exists()
    assert timer.look(2.0, "step", steps) == ""
    assert Path(spec.step_dir, "rehearse").exists()
    assert timer.look(2.0 + REQUEST_S, "step", steps) == "step"
    Path(spec.step_dir, "rehearsal").write_text("begin\n")
    assert timer.look(20.0, "step", steps) == ""
    assert (timer.look(80.0, "", steps), timer.stopped_by) == ("step", "time")
