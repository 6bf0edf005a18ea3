"""The program of the pre-run job: the verdict for a trial that ended for an external reason."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from slurmwrap.gsub import prerun_job
from slurmwrap.gsub.prerun_job import JobGone, PrerunFiles, PrerunTerminated
from slurmwrap.model.placement_plan import PlacementPlan
from slurmwrap.model.trial_result import TrialResult
from slurmwrap.prerun.trial.trial_spec import TrialSpec, spec_to_json
from slurmwrap.sbatch.job_request import JobRequest, Script
from slurmwrap.store.serialize import to_json_dict


@pytest.mark.parametrize("ends", [PrerunTerminated(), JobGone("job 81 started"), None])
def test_an_inconclusive_verdict_records_how_long_the_trial_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: BaseException | None
) -> None:
    clock = [1000.0]

    def trial(*_: object, **__: object) -> TrialResult:
        clock[0] += 590.0
        if ends is not None:
            raise ends
        return TrialResult(layer="supervisor", error="the pre-run could not be prepared")

    monkeypatch.setattr(prerun_job, "run_trial", trial)
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    spec = TrialSpec(trial_dir=str(tmp_path), script=str(tmp_path / "script"))
    request = JobRequest(script=Script(path=None, name="wrap", content=b""))
    judged = prerun_job._judge_prerun(PrerunFiles(tmp_path, spec, request, PlacementPlan(), "now", (), None, 600.0))
    found = (judged.verdict.outcome.value, judged.verdict.seconds, judged.stopped)
    assert found == ("inconclusive", 590.0, isinstance(ends, PrerunTerminated))


def test_files_of_an_earlier_version_are_read_without_grace_period(tmp_path: Path) -> None:
    spec = TrialSpec(trial_dir=str(tmp_path), script=str(tmp_path / "script"))
    request = JobRequest(script=Script(path=None, name="wrap", content=b""))
    (tmp_path / "spec.json").write_text(json.dumps(spec_to_json(spec)))
    plain = {"request": to_json_dict(request), "plan": to_json_dict(PlacementPlan()), "release_at": "now"}
    (tmp_path / "waiting.json").write_text(json.dumps(plain))
    assert PrerunFiles.read(tmp_path) == PrerunFiles(tmp_path, spec, request, PlacementPlan(), "now", (), None, 0.0)
