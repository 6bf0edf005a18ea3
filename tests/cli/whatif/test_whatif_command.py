"""slurmwrap whatif: reads a sacct dump, writes a page and prints a table."""

from __future__ import annotations

import fcntl
import gzip
import json
import os
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
from typer.testing import Result
from whatif.month import month

from slurmwrap.cli.whatif.whatif_output import format_study
from slurmwrap.errors import TraceError, UsageError
from slurmwrap.sim.trace.read_trace import read_load
from slurmwrap.sim.trace.sacct_dump import COMMAND
from slurmwrap.sim.whatif.cluster_shape import cluster_shape_from_dump
from slurmwrap.sim.whatif.whatif_replay import StudyOptions, make_whatif_study
from slurmwrap.sim.whatif.whatif_study import Study
from slurmwrap.store.deserialize import record_from_json

Run = Callable[..., Result]
DATA = Path(__file__).parents[2] / "data" / "sacct"
LAB, NODES = DATA / "22.05-lab.psv", DATA / "22.05-lab.nodes.txt"


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("dump") / "month.psv"
    path.write_text(month(jobs=120, nodes=2, seed=5), encoding="utf-8")
    return path


class TagCollector(HTMLParser):
    """Collects the tags of a page with their attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))


def test_the_command_writes_the_page_and_prints_the_table(slurmwrap: Run, dump: Path, tmp_path: Path) -> None:
    # In a separate folder: matplotlib keeps its font cache under HOME, which is tmp_path.
    page = tmp_path / "out" / "whatif.html"
    page.parent.mkdir()
    result = slurmwrap("whatif", "--sacct", str(dump), "-o", str(page))
    assert result.exit_code == 0, result.output
    assert re.search(r"Really happened .*\n +Plain Slurm, model .*\n +slurmwrap, model ", result.stdout)
    assert max(len(line) for line in result.stdout.splitlines() if not line.startswith("The page")) <= 80
    text = page.read_text(encoding="utf-8")
    assert text.startswith("<!DOCTYPE html>")
    headline = re.search(r'<p class="headline">([^<]*)</p>', text)
    assert headline is not None
    assert "queueing delay" in headline[1]
    assert list(page.parent.iterdir()) == [page]  # no temporary file is left


def test_the_page_has_no_links_or_scripts_and_every_chart_has_a_label(
    slurmwrap: Run, dump: Path, tmp_path: Path
) -> None:
    page = tmp_path / "p.html"
    slurmwrap("whatif", "--sacct", str(dump), "-o", str(page))
    tags = TagCollector(page.read_text(encoding="utf-8")).seen
    assert not {tag for tag, _ in tags} & {"script", "link", "img", "iframe", "object", "embed", "base", "form", "a"}
    assert not [name for _, attrs in tags for name in attrs if name in ("src", "href") or name.startswith("on")]
    assert "url(" not in page.read_text(encoding="utf-8")
    ids = [attrs["id"] for _, attrs in tags if "id" in attrs]
    charts = [attrs for tag, attrs in tags if tag == "svg" and attrs.get("role") == "img"]
    assert len(ids) == len(set(ids))
    assert len(charts) >= 6
    for chart in charts:
        assert "aria-label" in chart or set((chart["aria-labelledby"] or "").split()) <= set(ids)


def test_user_names_and_file_names_are_escaped_in_the_page(slurmwrap: Run, dump: Path, tmp_path: Path) -> None:
    hostile_name = '<script>alert(1)</script>"\u202e'
    text = dump.read_text(encoding="utf-8").replace("|user00|", f"|{hostile_name}|")
    (tmp_path / "<b>.psv").write_text(text, encoding="utf-8")
    page = tmp_path / "p.html"
    assert slurmwrap("whatif", "--sacct", str(tmp_path / "<b>.psv"), "-o", str(page)).exit_code == 0
    shown = page.read_text(encoding="utf-8")
    assert "&lt;script&gt;alert(1)" in shown
    assert "<script" not in shown
    assert "\u202e" not in shown
    assert "<b>" not in shown


def test_anonymous_replaces_every_user_name(slurmwrap: Run, dump: Path, tmp_path: Path) -> None:
    page = tmp_path / "p.html"
    slurmwrap("whatif", "--sacct", str(dump), "--anonymous", "-o", str(page))
    assert not re.search(r"user\d\d", page.read_text(encoding="utf-8"))
    assert ">u1<" in page.read_text(encoding="utf-8")


def test_anonymous_hides_the_values_of_a_malformed_line(slurmwrap: Run, dump: Path, tmp_path: Path) -> None:
    lines = dump.read_text(encoding="utf-8").splitlines()
    fields = lines[5].split("|")
    fields[8] = "secret"
    broken = tmp_path / "broken.psv"
    broken.write_text("\n".join([*lines, "|".join(fields)]) + "\n", encoding="utf-8")
    output = slurmwrap("whatif", "--sacct", str(broken), "--json").stdout
    assert "secret" in output
    assert "secret" not in slurmwrap("whatif", "--sacct", str(broken), "--anonymous", "--json").stdout


def test_output_to_a_fifo_is_written_into_it(slurmwrap: Run, dump: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 1 << 20)
        assert slurmwrap("whatif", "--sacct", str(dump), "-o", str(pipe)).exit_code == 0
        assert pipe.is_fifo()
        assert os.read(reader, 15) == b"<!DOCTYPE html>"
    finally:
        os.close(reader)


def test_output_to_a_symbolic_link_is_written_to_its_target(slurmwrap: Run, dump: Path, tmp_path: Path) -> None:
    page, link = tmp_path / "p.html", tmp_path / "link.html"
    link.symlink_to(page)
    assert slurmwrap("whatif", "--sacct", str(dump), "-o", str(link)).exit_code == 0
    assert link.is_symlink()
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_json_is_the_whole_study_and_writes_no_page(
    slurmwrap: Run, dump: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    study = record_from_json(Study, json.loads(slurmwrap("whatif", "--sacct", str(dump), "--json").stdout))
    assert [arm.name for arm in study.arms] == ["real", "slurm", "slurmwrap", "ordered"]
    assert list(tmp_path.iterdir()) == []


def test_a_gzipped_dump_gives_the_same_study(slurmwrap: Run, dump: Path, tmp_path: Path) -> None:
    packed = tmp_path / "month.psv.gz"
    packed.write_bytes(gzip.compress(dump.read_bytes()))
    plain, unpacked = (slurmwrap("whatif", "--sacct", str(path), "--json").stdout for path in (dump, packed))
    assert plain == unpacked


def test_a_real_dump_with_the_output_of_scontrol_show_node(slurmwrap: Run, tmp_path: Path) -> None:
    words = ("--sacct", str(LAB), "--nodes", str(NODES), "--since", "2026-11-21", "--json")
    study = record_from_json(Study, json.loads(slurmwrap("whatif", *words).stdout))
    assert (study.shape.source, study.shape.nodes, study.shape.gpus) == ("nodes", 4, 32)
    assert study.cpu_jobs == 2  # cpuonly, and the second component of the heterogeneous job
    assert {one.state: one.runs for one in study.waste.lost} == {
        "FAILED": 6,
        "CANCELLED": 2,
        "TIMEOUT": 1,
        "NODE_FAIL": 2,
        "OUT_OF_MEMORY": 1,
        "REQUEUED": 1,
    }
    assert {one.user: round(3600 * one.gpu_hours) for one in study.waste.users} == {"bo": 120, "ana": 114, "chen": 86}


def test_the_cluster_can_be_given_by_options(slurmwrap: Run, dump: Path) -> None:
    words = ("--servers", "2", "--gpus", "8", "--cpus", "128", "--mem-gb", "512")
    study = record_from_json(Study, json.loads(slurmwrap("whatif", "--sacct", str(dump), *words, "--json").stdout))
    assert (study.shape.source, study.shape.gpus) == ("options", 16)


@pytest.mark.parametrize(
    "words",
    [("--servers", "2"), ("--servers", "2", "--gpus", "0", "--cpus", "1", "--mem-gb", "1"), ("--since", "then")],
)
def test_invalid_options_are_refused_before_the_replay(slurmwrap: Run, dump: Path, words: tuple[str, ...]) -> None:
    result = slurmwrap("whatif", "--sacct", str(dump), *words)
    assert isinstance(result.exception, UsageError)


def test_a_malformed_dump_is_refused_with_the_line_and_no_page_is_written(
    slurmwrap: Run, dump: Path, tmp_path: Path
) -> None:
    bad = tmp_path / "bad.psv"
    lines = dump.read_text(encoding="utf-8").splitlines(keepends=True)[:10]
    bad.write_text("".join([*lines, "1|2\n", "3|4\n"]), encoding="utf-8")
    result = slurmwrap("whatif", "--sacct", str(bad), "-o", str(tmp_path / "p.html"))
    assert isinstance(result.exception, TraceError)
    assert result.exception.exit_code == 65
    assert "bad.psv:11: " in str(result.exception)
    assert [path.name for path in tmp_path.iterdir()] == ["bad.psv"]


def test_a_trace_that_is_no_sacct_dump_is_refused(slurmwrap: Run) -> None:
    trace = DATA.parent / "traces" / "tiresias_60.csv"
    result = slurmwrap("whatif", "--sacct", str(trace))
    assert isinstance(result.exception, TraceError)
    assert "no dump of sacct" in str(result.exception)


def test_an_unwritable_page_is_refused(slurmwrap: Run, dump: Path, tmp_path: Path) -> None:
    result = slurmwrap("whatif", "--sacct", str(dump), "-o", str(tmp_path / "no" / "p.html"))
    assert isinstance(result.exception, UsageError)
    assert "cannot write" in str(result.exception)


def test_a_narrow_terminal_gets_a_table_that_fits(dump: Path) -> None:
    load = read_load(dump)
    text = format_study(
        make_whatif_study(load, cluster_shape_from_dump(load), {}, StudyOptions()), Path("p.html"), width=60
    )
    assert max(len(line) for line in text.splitlines()) <= 60
    assert "slurmwrap, model" in text


def test_a_dump_without_node_names_needs_a_given_cluster(slurmwrap: Run, dump: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare.psv"
    text = dump.read_text(encoding="utf-8")
    bare.write_text(re.sub(r"gpu(\d\d|\[[^]]*\])", "None assigned", text), encoding="utf-8")
    result = slurmwrap("whatif", "--sacct", str(bare))
    assert isinstance(result.exception, TraceError)
    assert "bare.psv: no job with GPUs names the nodes" in str(result.exception)
    assert "--nodes" in result.exception.hint


def test_the_help_and_the_documentation_have_the_sacct_command(slurmwrap: Run) -> None:
    shown = re.sub(r"[\\\s]", "", slurmwrap("whatif", "--help").stdout)
    written = re.sub(r"[\\\s]", "", (DATA.parents[2] / "docs" / "whatif.md").read_text(encoding="utf-8"))
    wanted = re.sub(r"\s", "", COMMAND)
    assert wanted in shown
    assert wanted in written
