"""The values of --stop-at, and the signal of sbatch's --signal."""

from __future__ import annotations

import pytest

from slurmwrap.errors import UsageError
from slurmwrap.sbatch.parse_request import parse_request
from slurmwrap.sbatch.stop_option import Plateau, parse_plateau, parse_signal


@pytest.mark.parametrize(
    ("text", "gain", "share"),
    [("plateau", 0.001, 0.2), ("plateau:0.1%/20%", 0.001, 0.2), ("plateau:2%/5.5%", 0.02, 0.055)],
)
def test_a_plateau_has_a_gain_and_a_share(text: str, gain: float, share: float) -> None:
    found = parse_plateau(text)
    assert (found.gain, found.share) == pytest.approx((gain, share))
    assert Plateau() == parse_plateau("plateau")


@pytest.mark.parametrize(
    "text",
    ["", "plateau:", "plateau:1/20", "plateau:0%/20%", "plateau:1%/100%", "plateau:-1%/2%", "plateau:1%/20%x",
     "plateau:\u0661%/20%", "plateau:1e1%/20%", "Plateau", "loss<2"],
)  # fmt: skip
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no plateau|has a share"):
        parse_plateau(text)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("USR1", ("USR1", False)), ("SIGTERM@300", ("TERM", False)), ("B:USR1@90", ("USR1", True)),
        ("R:10@60", ("10", False)), ("RB:usr2", ("USR2", True)), ("", None), ("B:", None), ("USR1;id", None),
        ("USR1@soon", None),
    ],
)  # fmt: skip
def test_the_signal_of_a_job(text: str, found: tuple[str, bool] | None) -> None:
    assert parse_signal(text) == found


def parse(*argv: str, script: str = "#!/bin/bash\n", **environ: str) -> tuple[str, str]:
    request = parse_request(
        (*argv, "job.sh"), environ=environ, cwd="/", read_script=lambda path: script.encode(), read_stdin=lambda: b""
    )
    return request.own.stop_at, request.own.stop_when


def test_gsub_takes_them_from_the_command_line_the_script_and_the_environment() -> None:
    assert parse() == ("", "")
    assert parse("--stop-at=plateau", "--stop-when=diverged") == ("plateau", "diverged")
    lines = "#!/bin/bash\n#GSUB --stop-at=plateau:0.1%/20% --stop-when diverged\n"
    assert parse(script=lines) == ("plateau:0.1%/20%", "diverged")
    assert parse("--stop-at=plateau:1%/10%", script=lines)[0] == "plateau:1%/10%"
    assert parse(GSUB_STOP_AT="plateau:1%/10%") == ("plateau:1%/10%", "")


@pytest.mark.parametrize("word", ["--stop-at=plateau:1", "--stop-at=", "--stop-when=slow"])
def test_gsub_refuses_other_values_and_says_what_it_takes(word: str) -> None:
    with pytest.raises(UsageError, match=r"Invalid --stop-(at|when) specification") as refused:
        parse(word)
    assert "plateau" in refused.value.hint or "diverged" in refused.value.hint
