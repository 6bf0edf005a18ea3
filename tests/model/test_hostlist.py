"""Host lists equal the output of `scontrol show hostnames` and `scontrol show hostlist`."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurmwrap.model import hostlist
from slurmwrap.model.hostlist import expand, fold

# Captured with `scontrol show hostnames LIST` of Slurm 22.05.8; the suffixes from 24.11.5.
EXPANDED = {
    "": "",
    ",": "",
    "n1,,n2": "n1 n2",
    "n[1-3,05-07]": "n1 n2 n3 n05 n06 n07",
    "n[09-11]": "n09 n10 n11",
    "n[01-2]": "n01 n02",
    "gpu[9-11],x": "gpu9 gpu10 gpu11 x",
    "n1,n1,n2": "n1 n1 n2",
    "n[1-2],n[2-3]": "n1 n2 n2 n3",
    "n[1-2][3-4]": "n13 n14 n23 n24",
    "n[1-2]x[3-4]": "n1x3 n1x4 n2x3 n2x4",
    "r[1-2]c[1-2]n[01-02]": "r1c1n01 r1c1n02 r2c1n01 r2c1n02 r1c2n01 r1c2n02 r2c2n01 r2c2n02",
    "a[1-2]b[1-2]c[1-2]d[1-2]": "a1b1c1d1 a1b1c1d2 a2b1c1d1 a2b1c1d2 a1b2c1d1 a1b2c1d2 a2b2c1d1 a2b2c1d2 "
    "a1b1c2d1 a1b1c2d2 a2b1c2d1 a2b1c2d2 a1b2c2d1 a1b2c2d2 a2b2c2d1 a2b2c2d2",
    "n[1,3-4]-ib": "n1-ib n3-ib n4-ib",
    "gpu-[1,2][01-02]-ib": "gpu-101-ib gpu-102-ib gpu-201-ib gpu-202-ib",
}

# Captured with `scontrol show hostlist NAMES` of Slurm 22.05.8.
FOLDED = {
    "n3,n1,n2": "n[3,1-2]",
    "n9,n10": "n[9-10]",
    "n09,n10": "n[09-10]",
    "n1,n1": "n[1,1]",
    "n1,n2,m1,n3": "n[1-2],m1,n3",
    "r1c1,r1c2,r2c1": "r1c[1-2],r2c1",
    "n01,n1": "n[01,1]",
    "n1-ib,n2-ib": "n1-ib,n2-ib",
    "a1b2,a1b3": "a1b[2-3]",
    "n099,n100": "n[099-100]",
    "n99,n100": "n[99-100]",
    "login": "login",
    "n7": "n7",
}

REFUSED = ["n[1-a]", "a[x]", "n[1-3,05-07],gpu-[a,b][01-02]-ib", "n[3-1]", "n[]", "n[1", "n1]", "n[1-2,]", "n[1--2]"]
REFUSED += ["n[ 1-2]", "n 1", "n[[1]]", "n[1-2]]", "n[0-99999999999]", "n[١-٣]"]


@pytest.mark.parametrize(("text", "names"), EXPANDED.items())
def test_expand_gives_the_names_of_scontrol_show_hostnames(text: str, names: str) -> None:
    assert expand(text) == tuple(names.split())


@pytest.mark.parametrize(("names", "text"), FOLDED.items())
def test_fold_gives_the_list_of_scontrol_show_hostlist(names: str, text: str) -> None:
    assert fold(names.split(",")) == text


@pytest.mark.parametrize("text", REFUSED)
def test_an_invalid_host_list_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"host list|range"):
        expand(text)


def test_the_error_names_the_invalid_part() -> None:
    with pytest.raises(ValueError, match=r"'b' in 'gpu-\[1,b\]'"):
        expand("n1,gpu-[1,b],n2")


def test_fold_of_no_names_is_empty() -> None:
    assert fold(()) == ""


def test_a_list_may_have_as_many_names_as_the_limit_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    assert hostlist.MAX_NAMES == 1 << 20
    monkeypatch.setattr(hostlist, "MAX_NAMES", 100)
    assert len(expand("n[1-100]")) == len(expand("n[1-50],m[1-50]")) == len(expand("n[1-10]x[0-9]")) == 100
    for longer in ("n[1-101]", "n[1-50],m[1-51]", "n[0-10]x[0-9]"):
        with pytest.raises(ValueError, match=r"more than 100 names|not a range"):
            expand(longer)


_names = st.from_regex(r"[a-z]{1,3}(-?[0-9]{1,4}){0,3}(-ib)?", fullmatch=True)
_runs = st.builds(
    lambda prefix, first, count, width: [f"{prefix}{n:0{width}d}" for n in range(first, first + count)],
    st.sampled_from(["n", "gpu-", "r1c"]),
    st.integers(0, 1200),
    st.integers(1, 12),
    st.integers(1, 4),
)


@settings(max_examples=settings.default.max_examples // 3)
@given(st.lists(st.one_of(_names.map(lambda name: [name]), _runs), max_size=12))
def test_expand_restores_folded_names_with_order_and_duplicates(runs: list[list[str]]) -> None:
    names = tuple(name for run in runs for name in run)
    assert expand(fold(names)) == names


@settings(max_examples=settings.default.max_examples // 3)
@given(_runs)
def test_consecutive_names_fold_into_one_bracket(names: list[str]) -> None:
    assert fold(names).count("-") - names[0].count("-") <= 1
    assert "," not in fold(names)


@given(st.text(alphabet="n01-9[],x \n", max_size=20))
def test_any_text_expands_to_valid_names_or_is_refused(text: str) -> None:
    try:
        names = expand(text)
    except ValueError:
        return
    assert all(name and not set(name) & set("[], \n") for name in names)
