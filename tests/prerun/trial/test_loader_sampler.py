"""The costs of a batch, from the sums that the processes of a real torch DataLoader write, and from written ones."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from waiting import allow

from slurmwrap.inject import slurmwrap_loader_times, slurmwrap_step
from slurmwrap.prerun.trial.loader_sampler import LoaderSampler

JOB = """
import os, sys, time, torch
from torch.utils.data import DataLoader, Dataset
class Files(Dataset):
    def __len__(self):
        return 40
    def __getitem__(self, index):
        time.sleep(0.02)  # as if storage were slow
        with open(sys.argv[1], "rb") as stream:
            return len(stream.read())
for batch in DataLoader(Files(), batch_size=2, num_workers=2):
    assert batch.tolist() == [100_000, 100_000]
for batch in DataLoader([1.0, 2.0, 3.0], batch_size=1):  # a validation with fewer batches
    pass
"""


@pytest.mark.torch
def test_a_real_loader_with_workers_is_measured(tmp_path: Path) -> None:
    steps, data = tmp_path / "steps", tmp_path / "data.bin"
    steps.mkdir()
    data.write_bytes(bytes(100_000))
    environ = {**os.environ, "SLURMWRAP_STEP_DIR": str(steps), "SLURMWRAP_PRERUN": "1"}
    environ["PYTHONPATH"] = str(Path(slurmwrap_step.__file__).parent)
    argv = [sys.executable, "-W", "ignore", "-c", JOB, str(data)]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=allow(120), check=False)
    assert (done.returncode, done.stderr) == (0, "")
    sampler = LoaderSampler(str(steps))
    sampler.look(1.0)
    found = sampler.summarize()
    assert found is not None
    assert (found.workers, found.batches) == (2, 20)
    # The program's own code that is read in between is less than the data.
    assert found.batch_mib == pytest.approx(200_000 / (1 << 20), rel=0.2)
    assert found.fetch_s >= found.stall_s >= 0.03


def write_sums(folder: Path, batches: int, *, fetch_s: float, dataset: int = 7) -> None:
    fetched = (dataset, batches, batches * fetch_s, batches * 0.01, batches * 0.02, batches << 20, 0)
    (folder / "12.fetch").write_text(" ".join(map(str, fetched)) + "\n")
    (folder / "11.loader").write_text(f"{dataset} {batches} {batches * 0.5} {batches * 0.25} 100 1\n")


@pytest.mark.parametrize("batches, compute_s", [(2, 5.0), (3, 0.5), (4, 0.6)])
def test_the_first_step_is_left_out_once_there_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batches: int, compute_s: float
) -> None:
    """The device takes 5 s in the first step, then 0.5 s and 0.7 s; each batch takes 0.1 s."""
    times = iter([0.0, 0.1, 5.1, 5.2, 5.7, 5.8, 6.5, 6.6])
    monkeypatch.setattr(slurmwrap_loader_times, "_clock", lambda: next(times))
    state = [7, 20, 2, -slurmwrap_loader_times.SKIPPED, 0.0, 0.0, 0.0]
    iterator, most = SimpleNamespace(_slurmwrap_times=state), [0, 0]
    file = slurmwrap_loader_times.SumsFile(str(tmp_path), "loader")
    for _ in range(batches):
        asked = slurmwrap_loader_times._clock()
        slurmwrap_loader_times._note_batch(iterator, asked, file, most)
    (tmp_path / "1.fetch").write_text("7 1 0.1 0.1 0 0 0\n")
    sampler = LoaderSampler(str(tmp_path))
    sampler.look(0.0)
    found = sampler.summarize()
    assert found is not None
    assert (found.compute_s, found.wait_s) == (pytest.approx(compute_s), pytest.approx(0.1))


def test_costs_are_those_between_two_times_if_there_were_batches(tmp_path: Path) -> None:
    sampler = LoaderSampler(str(tmp_path))
    sampler.look(0.0)
    assert sampler.summarize() is None
    write_sums(tmp_path, 10, fetch_s=1.0)  # a slow beginning
    (tmp_path / "13.fetch").write_text("8 1000 1000 0 0 0 0\n")  # of another dataset
    sampler.look(1.0)
    write_sums(tmp_path, 20, fetch_s=0.55)
    sampler.look(2.0)
    whole, window = sampler.summarize(), sampler.summarize(1.0, 2.0)
    assert whole is not None
    assert window is not None
    assert (whole.fetch_s, window.fetch_s) == (pytest.approx(0.55), pytest.approx(0.1))
    # Neither on a CPU nor in the run queue.
    assert (window.cpu_s, window.stall_s) == (pytest.approx(0.01), pytest.approx(0.07))
    assert (window.compute_s, window.wait_s) == (0.25, 0.5)
    assert (window.batch_mib, window.batches, window.workers) == (1.0, 100, 1)
    assert sampler.summarize(5.0, 6.0) == whole


@pytest.mark.parametrize("text", ["", "x y\n", "1 2 3\n", "1 2 3 4 5 nonsense\n"])
def test_a_changed_file_gives_no_costs(tmp_path: Path, text: str) -> None:
    write_sums(tmp_path, 10, fetch_s=1.0)
    (tmp_path / "11.loader").write_text(text)
    sampler = LoaderSampler(str(tmp_path))
    sampler.look(0.0)
    assert sampler.summarize() is None
