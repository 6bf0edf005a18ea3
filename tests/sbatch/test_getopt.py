"""Options are read as sbatch does with getopt_long; error messages are those of sbatch 22.05.8."""

from __future__ import annotations

import pytest

from slurmwrap.sbatch.command_line import BadOption, build_names, scan
from slurmwrap.sbatch.option_table import REQUIRED, SbatchOption


def options(*words: str, release=None) -> list[tuple[str, str | None]]:
    return [(one.option, one.value) for one in scan(words, build_names(release)).given]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["-N2"], [("nodes", "2")]),
        (["-N", "2"], [("nodes", "2")]),
        (["--nodes=2"], [("nodes", "2")]),
        (["--nodes", "2"], [("nodes", "2")]),
        (["--nod=2", "x"], None),  # nodefile, nodelist, nodes
        (["--part", "gpu"], [("partition", "gpu")]),
        (["--time-m=5"], [("time-min", "5")]),
        (["--time=5"], [("time", "5")]),  # exact, although --time-min begins with it
        (["--gpus-per-n", "8"], [("gpus-per-node", "8")]),
        (["-HN2"], [("hold", None), ("nodes", "2")]),
        (["-HsO"], [("hold", None), ("oversubscribe", None), ("overcommit", None)]),
        (["-HN", "2"], [("hold", None), ("nodes", "2")]),
        (["--exclusive"], [("exclusive", None)]),
        (["--exclusive=user"], [("exclusive", "user")]),
        (["--exclusive", "user"], [("exclusive", None)]),  # an optional value must be attached; "user" is the script
        (["-k"], [("no-kill", None)]),
        (["-koff"], [("no-kill", "off")]),
        (["-k", "off"], [("no-kill", None)]),
        (["--comment="], [("comment", "")]),
        (["--comment", "--hold"], [("comment", "--hold")]),
        (["--tasks-per-node=2"], [("ntasks-per-node", "2")]),
        (["--cluster=a"], [("clusters", "a")]),
        (["--hold", "--", "--requeue"], [("hold", None)]),
        (["-"], []),
        (["--pre=x"], [("prefer", "x")]),  # not gsub's --prerun
        (["--reb"], [("reboot", None)]),
    ],
)
def test_an_option_is_read_in_every_spelling(words: list[str], expected) -> None:
    if expected is None:
        with pytest.raises(BadOption, match="ambiguous"):
            options(*words)
    else:
        assert options(*words) == expected


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--bogus"], "unrecognized option '--bogus'"),
        (["--bog us=3"], "unrecognized option '--bog us=3'"),
        (["--exc"], "option '--exc' is ambiguous; possibilities: '--exclude' '--exclusive'"),
        (["--exc=n1"], "option '--exc=n1' is ambiguous; possibilities: '--exclude' '--exclusive'"),
        (
            ["--clus=a"],
            "option '--clus=a' is ambiguous; possibilities: '--cluster-constraint' '--cluster' '--clusters'",
        ),
        (["--hold=3"], "option '--hold' doesn't allow an argument"),
        (["--reb=1"], "option '--reboot' doesn't allow an argument"),
        (["--mem"], "option '--mem' requires an argument"),
        (["-c"], "option requires an argument -- 'c'"),
        (["-yN", "a.sh"], "invalid option -- 'y'"),
        (["--prerun"], "option '--prerun' requires an argument"),
        (["--dry-run=yes"], "option '--dry-run' doesn't allow an argument"),
    ],
)
def test_errors_have_the_wording_of_sbatch(words: list[str], message: str) -> None:
    with pytest.raises(BadOption) as caught:
        options(*words, release=(22, 5))
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("word", "meant"),
    [("--pre-run=off", "--prerun"), ("--dryrun", "--dry-run"), ("--expl", "--explain"), ("--retr", "--retry")],
)
def test_a_misspelt_gsub_option_is_refused_with_a_suggestion(word: str, meant: str) -> None:
    with pytest.raises(BadOption, match="unrecognized") as caught:
        options(word)
    assert f"'{meant}'" in caught.value.hint


def test_a_misspelt_sbatch_option_gets_no_suggestion() -> None:
    with pytest.raises(BadOption) as caught:
        options("--partitoin=gpu")
    assert caught.value.hint == ""


def test_an_abbreviation_is_read_as_in_the_given_release() -> None:
    assert options("--extr=1", release=(22, 5)) == [("extra-node-info", "1")]
    with pytest.raises(BadOption, match="'--extra' '--extra-node-info'"):
        options("--extr=1", release=(24, 11))
    with pytest.raises(BadOption, match="unrecognized"):
        options("--power=level", release=(24, 11))


def test_for_an_unknown_release_abbreviations_are_those_of_22_05() -> None:
    assert options("--cons=a100") == [("constraint", "a100")]  # not 25.11's --consolidate-segments
    assert options("--oom-kill-step=1", "--seg=4") == [("oom-kill-step", "1"), ("segment", "4")]


def test_an_option_of_a_site_plugin_is_read_like_an_option_of_sbatch() -> None:
    names = build_names(extra=[SbatchOption("container-image", "", REQUIRED)])
    assert [(o.option, o.value) for o in scan(["--container-im=torch"], names).given] == [("container-image", "torch")]


def test_reading_ends_at_the_first_word_that_is_no_option() -> None:
    found = scan(["-N2", "train.sh", "-c", "4"], build_names())
    assert (found.rest, len(found.given)) == (1, 1)


def test_the_position_of_a_value_is_recorded() -> None:
    attached, split, bundled = scan(["--gres=gpu:8", "-N", "2", "-HN2"], build_names()).given[:3]
    assert (attached.value_word, attached.value_at) == (0, 7)
    assert (split.value_word, split.value_at) == (2, 0)
    assert bundled.option == "hold"
