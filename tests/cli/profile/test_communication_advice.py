"""`slurmwrap profile advise` and the speeds of `profile show`, from an imported profile."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from slurmwrap.cli.profile.profile_command import app
from slurmwrap.cli.profile.profile_files import export_profiles
from slurmwrap.errors import UsageError
from slurmwrap.model.resource_profile import ModelLayer, ResourceProfile, RunSpeed

LAYERS = (
    ModelLayer(name="embed", kind="Embedding", mib=900.0, largest_mib=900.0, forward_s=0.001),
    *(ModelLayer(name=f"h.{n}.fc", kind="Linear", mib=10.0, largest_mib=10.0, forward_s=0.01) for n in range(10)),
)
KNOWN = ResourceProfile(
    key="lm", model_mib=1000.0, steps_per_s=5.0, preruns=1, source="prerun", measured_at=1.0, gpus_per_node=4,
    layers=LAYERS, speeds=tuple(RunSpeed(work="w", gpus=g, nodes=1, run_s=s) for g, s in ((1, 600.0), (4, 200.0))),
)  # fmt: skip


def run(*words: str) -> str:
    done = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_advice_and_speeds_of_an_imported_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("SLURMWRAP_CONFIG", "")
    file = tmp_path / "profiles.json"
    file.write_text(export_profiles([KNOWN, ResourceProfile(key="unknown", measured_at=1.0)]))
    run("import", str(file))
    text = run("advise", "lm", "--network", "10")
    assert "embed (Embedding): 90.0 % of the bytes" in text and "shard the embedding row-wise" in text
    assert "10 Gbit/s at 80 %, --network" in text
    found = json.loads(run("advise", "lm", "--json"))
    assert [(one["nodes"], one["gpus"]) for one in found["forecasts"]] == [(1, 4), (2, 8), (4, 16)]
    assert "4 GPUs: 3.0x of one (1 run)" in run("show", "lm")
    with pytest.raises(UsageError, match="size of the model of 'unknown' is not known"):
        run("advise", "unknown")
