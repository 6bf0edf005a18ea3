"""Take the screenshots in docs/images with Chromium: of the report, for a night of a synthetic site, and of `job`.

    python .ci/screenshots.py [--database FILE.db] [--out docs/images] [--only job]

Without --database, a database is made (bench/synthetic_year; this takes some minutes).
"""

from __future__ import annotations

import argparse
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from datetime import UTC
from pathlib import Path
from typing import Any

from slurmwrap.cli.record_access import RecordSource
from slurmwrap.cli.report import build_report_of_night, render_report
from slurmwrap.config.load_config import Config
from slurmwrap.model.evidence import RunKey
from slurmwrap.model.job_run import JobRun
from slurmwrap.model.resource_profile import Measurement
from slurmwrap.model.running_job import HOST, GpuUse
from slurmwrap.report.job_report.efficiency_page import render_job_page
from slurmwrap.report.job_report.job_efficiency import JobEfficiency, advise_request, measure_run

HERE = Path(__file__).resolve().parent.parent
LARGEST = 250_000  # bytes of a picture
DAY = 86_400
PHILLY_FAILED = 0.178  # of all GPU time (Jeon et al. 2019)
# name: width, height, colour scheme, section at the top of the picture ("": top of the page)
SHOTS = {
    "report-desktop": (1280, 1500, "light", ""),
    "report-tablet": (768, 1150, "light", ""),
    "report-phone": (390, 1300, "light", ""),
    "report-dark": (1280, 1500, "dark", ""),
    "report-saved": (1280, 900, "light", "saved"),
    "report-nodes": (1280, 900, "light", "nodes"),
}


JOB_SHOTS = {"job-use": (1100, 1420, "light", "")}


def main() -> None:
    """Make the page, then the pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", type=Path)
    parser.add_argument("--only", choices=("job",), help="make only the picture of slurmwrap job --html")
    parser.add_argument("--out", type=Path, default=HERE / "docs" / "images")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "job.html"
        page.write_text(_job_page(), encoding="utf-8")
        _shoot(page, asked.out, JOB_SHOTS)
        if asked.only:
            return
        database = asked.database or _made(Path(folder) / "site.db")
        page = Path(folder) / "page.html"
        page.write_text(_page(database), encoding="utf-8")
        asked.out.mkdir(parents=True, exist_ok=True)
        _shoot(page, asked.out, SHOTS)


def _made(path: Path) -> Path:
    subprocess.run(
        [sys.executable, HERE / "bench" / "synthetic_year", "--days", "60", "--jobs-per-day", "1500", "--seed", "8",
         "--until", "1795327200", "--quiet", "--out", path], check=True,
    )  # fmt: skip
    return path


def _page(database: Path) -> str:
    """Return the HTML report of a typical night.

    Of the last three weeks, it takes the day whose share of failures is closest to Philly's, among days with open tasks
    and enough stopped jobs for an estimate. Without this choice, a single large job could account for half of a small
    site's night.
    """
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as connection:
        (last,) = connection.execute("SELECT max(end_time) FROM attempts").fetchone()
    place = RecordSource(database=database, site=True, uid=0)
    ends = [float(last + 1 - day * DAY) for day in range(21)]
    nights = [build_report_of_night(place, Config(), until - DAY, until) for until in ends]
    telling = [one for one in nights if one.to_do and one.preruns.saved.gpu_hours is not None] or nights
    chosen = min(telling, key=lambda one: abs(one.headline.failed_gpu_hours / one.headline.gpu_hours - PHILLY_FAILED))
    return render_report(chosen, "html", UTC)


def _job_page() -> str:
    """Return the page of an invented job: three of its four GPUs work, with a validation every hour."""
    key = RunKey(cluster="lab", job_id=81, submit_time=1_795_300_000)
    began, minutes = 1_795_300_120, 250
    busy = [25.0 if minute % 60 > 53 else 88.0 + 7 * ((minute * 7919) % 10) / 10 for minute in range(minutes)]
    series = {
        0: (busy, [61_000] * minutes),
        1: ([value - 2 for value in busy], [60_200] * minutes),
        2: ([value - 5 for value in busy], [58_900] * minutes),
        3: ([0.0] * minutes, [0] * minutes),
        HOST: ([620.0 if use > 50 else 1450.0 for use in busy], [30_000 + 70 * minute for minute in range(minutes)]),
    }
    uses = [
        GpuUse(
            attempt=key, node="n17", gpu=gpu, began=float(began), interval_s=60.0, use_pct=tuple(use),
            mem_mib=tuple(mem), processes=tuple(int(value > 0) for value in use),
            mem_total_mib=0 if gpu == HOST else 81_559,
            energy_j=None if gpu == HOST else 60.0 * sum(90 + 4.4 * value for value in use),
        )
        for gpu, (use, mem) in series.items()
    ]  # fmt: skip
    run = JobRun(
        attempt=key, address="81", name="train", user="ada", uid=1001, state="COMPLETED", nodes=("n17",), gpus=4,
        cpus=32, start_time=began, end_time=began + 60 * minutes, time_limit_s=24 * 3600, mem_mib_per_node=262_144,
        measurement=Measurement(cpu_s=7.0 * 60 * minutes, mem_peak_mib=47_500),
    )  # fmt: skip
    measured = measure_run(run, uses, None, 0.0)
    job = JobEfficiency(address="81", runs=(measured,), advice=advise_request([measured], {}))
    return render_job_page(job, {key: uses}, UTC, made_by="slurmwrap")


def _shoot(page: Path, out: Path, shots: dict[str, tuple[int, int, str, str]]) -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name, shot in shots.items():
            _picture(browser, page, out / f"{name}.png", *shot)
        browser.close()


def _picture(browser: Any, page: Path, path: Path, width: int, height: int, scheme: str, section: str) -> None:
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    shown = context.new_page()
    shown.goto(page.as_uri())
    if section:
        shown.evaluate(f"document.getElementById('{section}').scrollIntoView({{behavior: 'instant'}})")
    shown.screenshot(path=path)
    context.close()
    _smaller(path)
    size = path.stat().st_size
    print(f"{path}: {width} x {height}, {size / 1000:.0f} kB")
    assert size < LARGEST, path


def _smaller(path: Path) -> None:
    """Reduce the picture to 256 colours, which are enough for text and bars."""
    from PIL import Image  # comes with matplotlib

    with Image.open(path) as image:
        small = image.convert("RGB").quantize(256, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    small.save(path, optimize=True)


if __name__ == "__main__":
    main()
