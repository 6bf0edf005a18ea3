"""How slurmwrap's hooks are combined with each kind of site hook, on each release of Slurm."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurmwrap.install.compose_hooks import Chain, Composition, compose
from slurmwrap.install.plan_installation import has_spank_plugins
from slurmwrap.install.safe_files import FileTree
from slurmwrap.install.slurm_conf import applied, reverted, settings_of

MAIN = "/etc/slurm/slurm.conf"
HOOKS = Path("/h")


def compose_conf(conf: str, release: tuple[int, int] = (22, 5), more: str = "", **named: object) -> Composition:
    files = {MAIN: conf, "/etc/slurm/more.conf": more}
    settings = settings_of(MAIN, files.__getitem__)
    return compose(settings, directory=HOOKS, release=release, main=MAIN, **named)  # type: ignore[arg-type]


def edit_conf(conf: str, release: tuple[int, int] = (22, 5)) -> str:
    """slurm.conf with slurmwrap's lines, without the marks of the block. Checks that the edit can be reverted."""
    (edit,) = compose_conf(conf, release).edits
    text = applied(conf, edit)
    assert reverted(text, edit, newline_at_end=conf.endswith("\n")) == conf
    return "".join(
        line for line in text.splitlines(keepends=True) if "BEGIN slurmwrap" not in line and "END" not in line
    )


def test_a_site_without_hooks_gets_slurmwraps_hooks_and_a_timeout() -> None:
    assert edit_conf("ClusterName=c\n") == (
        "ClusterName=c\nProlog=/h/prolog\nEpilog=/h/epilog\nEpilogSlurmctld=/h/epilog_slurmctld\n"
        "PrologFlags=Alloc\nPrologEpilogTimeout=60\n"
    )


def test_a_site_hook_is_chained_where_slurm_allows_only_one_program() -> None:
    found = compose_conf("Prolog=/site/p\nPrologFlags=X11\nPrologEpilogTimeout=300\n")
    assert found.chains == (Chain(name="prolog_site", first="prolog", site="/site/p"),)
    assert edit_conf("Prolog=/site/p\nPrologFlags=X11\nPrologEpilogTimeout=300\n") == (
        "# slurmwrap keeps: Prolog=/site/p\nPrologFlags=X11\nPrologEpilogTimeout=300\n"
        "Prolog=/h/prolog_site\nEpilog=/h/epilog\nEpilogSlurmctld=/h/epilog_slurmctld\n"
    )


def test_from_24_11_on_slurmwraps_lines_are_inserted_before_the_sites_lines() -> None:
    conf = (
        "ClusterName=c\nEpilog=relative.sh\nProlog=/site/p\nProlog=/site/q\nPrologFlags=Alloc\nPrologEpilogTimeout=90\n"
    )
    assert edit_conf(conf, (24, 11)) == (
        "ClusterName=c\nProlog=/h/prolog\nEpilog=/h/epilog\nEpilogSlurmctld=/h/epilog_slurmctld\n"
        "Epilog=relative.sh\nProlog=/site/p\nProlog=/site/q\nPrologFlags=Alloc\nPrologEpilogTimeout=90\n"
    )


def test_slurmwraps_hooks_precede_hooks_of_an_included_file() -> None:
    found = compose_conf("Include more.conf\n", (24, 11), more="Prolog=/site/p\n")
    (edit,) = found.edits
    assert applied("Include more.conf\n", edit).index("Prolog=/h/prolog") < applied("Include more.conf\n", edit).index(
        "Inc"
    )


@pytest.mark.parametrize("release", [(22, 5), (26, 5)])
@pytest.mark.parametrize(
    ("pattern", "name"),
    [("/d/*", "zz-slurmwrap"), ("/d/*.sh", "zz-slurmwrap.sh"), ("/d/prolog-*", "prolog-zz-slurmwrap")],
)
def test_a_hook_file_is_added_to_a_directory_that_a_pattern_names(
    pattern: str, name: str, release: tuple[int, int]
) -> None:
    found = compose_conf(f"Prolog={pattern}\n", release, names_in=(("/d", "50-site.sh"),))
    assert found.copies == ((Path("/d") / name, "prolog"),)
    assert not [line for edit in found.edits for line in edit.block if line.startswith("Prolog=")]


def test_a_site_file_that_slurm_runs_before_slurmwraps_is_named() -> None:
    found = compose_conf("Prolog=/d/*\n", names_in=(("/d", "zzz"), ("/d", "10")))
    assert "so zzz before it." in found.remarks[0]


@pytest.mark.parametrize(
    ("conf", "message"),
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
def test_ambiguous_hook_settings_are_reported_as_conflicts(conf: str, message: str) -> None:
    found = compose_conf(conf)
    assert [text for text in found.conflicts if message in text and MAIN in text]


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [("Serial", ["PrologFlags=Alloc,Serial"]), ("Contain", []), ("alloc,NoHold", []), ("X11,Serial", [])],
)
def test_prolog_flags_get_alloc_unless_they_already_imply_it(flags: str, wanted: list[str]) -> None:
    found = compose_conf(f"PrologFlags={flags}\n")
    assert [new for edit in found.edits for _, new in edit.swaps] == wanted


@pytest.mark.parametrize("key", ["PrologEpilogTimeout", "PrologTimeout", "EpilogTimeout"])
def test_a_short_timeout_of_the_site_is_kept_and_reported(key: str) -> None:
    found = compose_conf(f"{key}=8\n")
    assert not [line for edit in found.edits for line in edit.block if line.startswith(f"{key}=")]
    assert [text for text in found.remarks if f"{key}=8 is the site's and stays" in text]


@pytest.mark.parametrize(
    ("conf", "message"),
    [
        ("PrologFlags=RunInJob\n", "PrologFlags=RunInJob: with RunInJob"),
        ("Prolog=/site/p\n", "With Alloc the Prolog, yours too, runs on every node"),
        ("Prolog=/site/p\nPrologFlags=Serial\n", "gets Alloc as well. With Alloc the Prolog, yours too"),
    ],
)
def test_changes_for_the_sites_own_prolog_are_reported(conf: str, message: str) -> None:
    assert [text for text in compose_conf(conf).remarks if text.startswith(message) or message in text]


@pytest.mark.parametrize(
    ("plugstack", "included", "expected"),
    [
        ("include plugstack.conf.d/*.conf\n", (), False),
        ("include plugstack.conf.d/*.conf\n", ("pyxis.conf",), True),
        ("include /etc/slurm/plugstack.conf.d/*.conf\n", ("README",), False),
        ("# required old.so\n", (), False),
        ("optional /usr/lib/slurm/x11.so\n", (), True),
    ],
)
def test_spank_plugins_are_detected(plugstack: str, included: tuple[str, ...], expected: bool, image: Path) -> None:
    etc = image / "etc/slurm"
    (etc / "plugstack.conf").write_text(plugstack)
    (etc / "plugstack.conf.d").mkdir(mode=0o755)
    for name in included:
        (etc / "plugstack.conf.d" / name).touch()
    assert (
        has_spank_plugins(FileTree(root=image, trusted=frozenset({0})), Path("/etc/slurm/plugstack.conf")) is expected
    )


@pytest.mark.parametrize(
    ("conf", "spank"),
    [("PrologSlurmctld=/site/slow\n", False), ("PlugStackConfig=/site/plug.conf\n", False), ("", True)],
)
def test_no_timeout_is_set_that_could_end_the_sites_own_programs(conf: str, spank: bool) -> None:
    found = compose_conf(conf, spank=spank)
    assert not [line for edit in found.edits for line in edit.block if "Timeout" in line]


@pytest.mark.parametrize(
    ("conf", "release", "restart"),
    [("", (22, 5), True), ("EpilogSlurmctld=/x\n", (22, 5), False), ("", (24, 11), False)],
)
def test_an_old_slurmctld_must_be_restarted_for_its_first_epilog(
    conf: str, release: tuple[int, int], restart: bool
) -> None:
    assert compose_conf(conf, release).restart is restart


@pytest.mark.parametrize(
    ("conf", "wanted"),
    [
        ("", "CliFilterPlugins=lua"),
        ("CliFilterPlugins=lua\n", ""),
        ("CliFilterPlugins=syslog\n", "CliFilterPlugins=syslog,lua"),
    ],
)
def test_the_cli_filter_is_appended_to_existing_filters(conf: str, wanted: str) -> None:
    found = compose_conf(conf, cli_filter=True)
    lines = [line for edit in found.edits for line in (*edit.block, *(new for _, new in edit.swaps))]
    assert [line for line in lines if line.startswith("CliFilter")] == ([wanted] if wanted else [])
