"""What becomes of each kind of hook that a site may have, on each release."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurmwrap.install.compose_hooks import Chain, Composition, compose
from slurmwrap.install.plan_installation import has_spank_plugins
from slurmwrap.install.safe_files import FileTree
from slurmwrap.install.slurm_conf import applied, reverted, settings_of

MAIN = "/etc/slurm/slurm.conf"
HOOKS = Path("/h")


def composed(conf: str, release: tuple[int, int] = (22, 5), more: str = "", **named: object) -> Composition:
    files = {MAIN: conf, "/etc/slurm/more.conf": more}
    settings = settings_of(MAIN, files.__getitem__)
    return compose(settings, directory=HOOKS, release=release, main=MAIN, **named)  # type: ignore[arg-type]


def after(conf: str, release: tuple[int, int] = (22, 5)) -> str:
    """slurm.conf with our lines, without the block's marks; taking them back is tried as well."""
    (edit,) = composed(conf, release).edits
    text = applied(conf, edit)
    assert reverted(text, edit, newline_at_end=conf.endswith("\n")) == conf
    return "".join(
        line for line in text.splitlines(keepends=True) if "BEGIN slurmwrap" not in line and "END" not in line
    )


def test_a_site_without_hooks_gets_ours_and_a_timeout() -> None:
    assert after("ClusterName=c\n") == (
        "ClusterName=c\nProlog=/h/prolog\nEpilog=/h/epilog\nEpilogSlurmctld=/h/epilog_slurmctld\n"
        "PrologFlags=Alloc\nPrologEpilogTimeout=60\n"
    )


def test_one_program_is_chained_where_slurm_takes_one() -> None:
    found = composed("Prolog=/site/p\nPrologFlags=X11\nPrologEpilogTimeout=300\n")
    assert found.chains == (Chain(name="prolog_site", first="prolog", site="/site/p"),)
    assert after("Prolog=/site/p\nPrologFlags=X11\nPrologEpilogTimeout=300\n") == (
        "# slurmwrap keeps: Prolog=/site/p\nPrologFlags=X11\nPrologEpilogTimeout=300\n"
        "Prolog=/h/prolog_site\nEpilog=/h/epilog\nEpilogSlurmctld=/h/epilog_slurmctld\n"
    )


def test_since_2411_the_sites_lines_stay_and_ours_come_before_them() -> None:
    conf = (
        "ClusterName=c\nEpilog=relative.sh\nProlog=/site/p\nProlog=/site/q\nPrologFlags=Alloc\nPrologEpilogTimeout=90\n"
    )
    assert after(conf, (24, 11)) == (
        "ClusterName=c\nProlog=/h/prolog\nEpilog=/h/epilog\nEpilogSlurmctld=/h/epilog_slurmctld\n"
        "Epilog=relative.sh\nProlog=/site/p\nProlog=/site/q\nPrologFlags=Alloc\nPrologEpilogTimeout=90\n"
    )


def test_hooks_that_an_included_file_sets_come_after_ours_too() -> None:
    found = composed("Include more.conf\n", (24, 11), more="Prolog=/site/p\n")
    (edit,) = found.edits
    assert applied("Include more.conf\n", edit).index("Prolog=/h/prolog") < applied("Include more.conf\n", edit).index(
        "Inc"
    )


@pytest.mark.parametrize("release", [(22, 5), (26, 5)])
@pytest.mark.parametrize(
    ("pattern", "name"),
    [("/d/*", "zz-slurmwrap"), ("/d/*.sh", "zz-slurmwrap.sh"), ("/d/prolog-*", "prolog-zz-slurmwrap")],
)
def test_into_a_directory_that_a_pattern_names_goes_a_file_of_ours(
    pattern: str, name: str, release: tuple[int, int]
) -> None:
    found = composed(f"Prolog={pattern}\n", release, names_in=(("/d", "50-site.sh"),))
    assert found.copies == ((Path("/d") / name, "prolog"),)
    assert not [line for edit in found.edits for line in edit.block if line.startswith("Prolog=")]


def test_a_file_that_slurm_runs_before_ours_is_named() -> None:
    found = composed("Prolog=/d/*\n", names_in=(("/d", "zzz"), ("/d", "10")))
    assert "so zzz before it." in found.remarks[0]


@pytest.mark.parametrize(
    ("conf", "told"),
    [
        ("Prolog=/a\nProlog=/b\n", "Prolog is set 2 times"),
        ("Prolog=/a,/b\n", "holds a comma; Slurm 22.05 takes one program"),
        ("Epilog=e.sh\n", "Epilog=e.sh is not a full path"),
        ("Prolog=/d[0-9]/*\n", "the directory for slurmwrap's file is not clear"),
        ("Prolog=/d/p?\n", "no name for slurmwrap's file would match"),
        ("Prolog=/a Epilog=/b\n", "Prolog is on a continued line or with other keys"),
        ("Prolog=\\\n/a\n", "Prolog is on a continued line or with other keys"),
    ],
)
def test_where_two_readings_are_possible_nothing_is_guessed(conf: str, told: str) -> None:
    found = composed(conf)
    assert [text for text in found.conflicts if told in text and MAIN in text]


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [("Serial", ["PrologFlags=Alloc,Serial"]), ("Contain", []), ("alloc,NoHold", []), ("X11,Serial", [])],
)
def test_the_prolog_runs_when_the_allocation_is_made(flags: str, wanted: list[str]) -> None:
    found = composed(f"PrologFlags={flags}\n")
    assert [new for edit in found.edits for _, new in edit.swaps] == wanted


@pytest.mark.parametrize("key", ["PrologEpilogTimeout", "PrologTimeout", "EpilogTimeout"])
def test_a_timeout_of_the_sites_is_never_touched_and_a_short_one_is_named(key: str) -> None:
    found = composed(f"{key}=8\n")
    assert not [line for edit in found.edits for line in edit.block if line.startswith(f"{key}=")]
    assert [text for text in found.remarks if f"{key}=8 is the site's and stays" in text]


@pytest.mark.parametrize(
    ("conf", "told"),
    [
        ("PrologFlags=RunInJob\n", "PrologFlags=RunInJob: with RunInJob"),
        ("Prolog=/site/p\n", "With Alloc the Prolog, yours too, runs on every node"),
        ("Prolog=/site/p\nPrologFlags=Serial\n", "gets Alloc as well. With Alloc the Prolog, yours too"),
    ],
)
def test_what_changes_for_the_sites_own_prolog_is_said(conf: str, told: str) -> None:
    assert [text for text in composed(conf).remarks if text.startswith(told) or told in text]


@pytest.mark.parametrize(
    ("plugstack", "included", "there"),
    [
        ("include plugstack.conf.d/*.conf\n", (), False),
        ("include plugstack.conf.d/*.conf\n", ("pyxis.conf",), True),
        ("include /etc/slurm/plugstack.conf.d/*.conf\n", ("README",), False),
        ("# required old.so\n", (), False),
        ("optional /usr/lib/slurm/x11.so\n", (), True),
    ],
)
def test_spank_plugins_are_noticed(plugstack: str, included: tuple[str, ...], there: bool, image: Path) -> None:
    etc = image / "etc/slurm"
    (etc / "plugstack.conf").write_text(plugstack)
    (etc / "plugstack.conf.d").mkdir(mode=0o755)
    for name in included:
        (etc / "plugstack.conf.d" / name).touch()
    assert has_spank_plugins(FileTree(root=image, trusted=frozenset({0})), Path("/etc/slurm/plugstack.conf")) is there


@pytest.mark.parametrize(
    ("conf", "spank"),
    [("PrologSlurmctld=/site/slow\n", False), ("PlugStackConfig=/site/plug.conf\n", False), ("", True)],
)
def test_no_timeout_is_set_where_it_would_end_the_sites_own_programs(conf: str, spank: bool) -> None:
    found = composed(conf, spank=spank)
    assert not [line for edit in found.edits for line in edit.block if "Timeout" in line]


@pytest.mark.parametrize(
    ("conf", "release", "restart"),
    [("", (22, 5), True), ("EpilogSlurmctld=/x\n", (22, 5), False), ("", (24, 11), False)],
)
def test_an_old_slurmctld_has_to_be_started_again_for_its_first_epilog(
    conf: str, release: tuple[int, int], restart: bool
) -> None:
    assert composed(conf, release).restart is restart


@pytest.mark.parametrize(
    ("conf", "wanted"),
    [
        ("", "CliFilterPlugins=lua"),
        ("CliFilterPlugins=lua\n", ""),
        ("CliFilterPlugins=syslog\n", "CliFilterPlugins=syslog,lua"),
    ],
)
def test_a_cli_filter_joins_those_that_there_are(conf: str, wanted: str) -> None:
    found = composed(conf, cli_filter=True)
    lines = [line for edit in found.edits for line in (*edit.block, *(new for _, new in edit.swaps))]
    assert [line for line in lines if line.startswith("CliFilter")] == ([wanted] if wanted else [])
