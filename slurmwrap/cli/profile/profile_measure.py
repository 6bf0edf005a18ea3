"""`slurmwrap profile measure`: the pre-run of one job and nothing else, with the CPU curve behind its first steps."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from slurmwrap import config as configuration
from slurmwrap.console import Console
from slurmwrap.errors import PrerunFailed, PrerunInconclusive
from slurmwrap.fast_dataclasses import replace
from slurmwrap.gsub import process_env, submit
from slurmwrap.gsub.prerun_submission import run_prerun_first
from slurmwrap.gsub.remember import find_known_profile
from slurmwrap.model.resource_profile import ResourceProfile
from slurmwrap.model.verdict import Outcome
from slurmwrap.sbatch.parse import parse_request
from slurmwrap.sbatch.passthrough import find_passthrough_reason, find_prerun_reason

_CODES = {Outcome.PASS: 0, Outcome.FAIL: PrerunFailed.exit_code, Outcome.INCONCLUSIVE: PrerunInconclusive.exit_code}


def measure_profile(words: Sequence[str], seconds: float, voice: Console) -> tuple[ResourceProfile | None, int]:
    """(what is now known of the job, exit code as of gsub --prerun=only). `seconds` are for the curve."""
    environ = dict(os.environ)
    request = parse_request(
        list(words),
        environ=environ,
        cwd=str(Path.cwd()),
        read_script=lambda path: Path(path).read_bytes(),
        read_stdin=sys.stdin.buffer.read,
    )
    reason = find_prerun_reason(environ) or find_passthrough_reason(request, at_terminal=process_env.is_at_terminal())
    if reason is not None:
        raise PrerunInconclusive(f"nothing can be measured: {reason}")
    request = replace(request, own=replace(request.own, prerun="only", json=False))
    desk = submit.open_desk(configuration.load(environ), environ, voice)
    prepared = replace(submit.prepare_and_warn(request, desk, voice), profile_s=seconds)
    verdict = run_prerun_first(prepared, desk, voice)
    voice.say(f"{verdict.outcome.value}: {verdict.reason}")
    submit.refresh(desk, voice)
    return find_known_profile(prepared.profile_key, desk), _CODES[verdict.outcome]
