"""From a call to a JobRequest: precedence, gsub's options and errors for bad input."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from slurmwrap.errors import ScriptError, SlurmwrapError, UnknownOption, UsageError
from slurmwrap.sbatch.job_request import GsubOptions, JobRequest, Origin, SbatchSetting
from slurmwrap.sbatch.parse_request import parse_request

SCRIPT = b"#!/bin/bash\n#SBATCH --gres=gpu:a100:8 --mem=500G\n#SBATCH -p gpu\n\nsrun python train.py\n"


def call(
    *argv: str,
    files: Mapping[str, bytes | OSError] | None = None,
    environ: Mapping[str, str] | None = None,
    stdin: bytes | None = None,
    script: bytes = SCRIPT,
) -> JobRequest:
    """A call of gsub in /home/a, which contains train.sbatch."""
    known = {"/home/a/train.sbatch": script, **(files or {})}

    def read_script(path: str) -> bytes:
        found = known.get(path, FileNotFoundError(2, "No such file or directory"))
        if isinstance(found, OSError):
            raise found
        return found

    def read_stdin() -> bytes:
        assert stdin is not None, "standard input must not be touched"
        return stdin

    return parse_request(argv, environ=environ or {}, cwd="/home/a", read_script=read_script, read_stdin=read_stdin)


def refused(*argv: str, **call_with) -> SlurmwrapError:
    with pytest.raises(SlurmwrapError) as caught:
        call(*argv, **call_with)
    return caught.value


# --- sbatch's options


def test_settings_have_value_origin_and_place_in_rising_precedence() -> None:
    request = call("--mem=200G", "-H", "train.sbatch", "--lr", "3", environ={"SBATCH_PARTITION": "long", "HOME": "/h"})
    script = {"origin": Origin.SCRIPT, "where": "train.sbatch:2", "line": 2}
    assert request.settings == (
        SbatchSetting(option="gres", value="gpu:a100:8", **script, span=(20, 37), prefix="--gres="),
        SbatchSetting(option="mem", value="500G", **script, span=(38, 48), prefix="--mem="),
        SbatchSetting(
            option="partition", value="gpu", origin=Origin.SCRIPT, where="train.sbatch:3", line=3, span=(60, 63)
        ),
        SbatchSetting(option="partition", value="long", origin=Origin.ENVIRONMENT, where="SBATCH_PARTITION"),
        SbatchSetting(option="mem", value="200G", origin=Origin.COMMAND_LINE, where="command line"),
        SbatchSetting(option="hold", value=None, origin=Origin.COMMAND_LINE, where="command line"),
    )
    assert (request.value("mem"), request.value("partition"), request.args) == ("200G", "long", ("--lr", "3"))
    assert request.environ == {"SBATCH_PARTITION": "long"}
    assert request.job_name == "train.sbatch"


def test_an_option_may_take_its_value_from_the_next_line() -> None:
    request = call("train.sbatch", script=b"#!/bin/sh\n#SBATCH -J\n#SBATCH name\n")
    assert request.settings == (
        SbatchSetting(
            option="job-name", value="name", origin=Origin.SCRIPT, where="train.sbatch:3", line=3, span=(29, 33)
        ),
    )


@pytest.mark.parametrize(
    ("argv", "environ", "partition"),
    [
        ((), {}, "auto"),
        ((), {"SBATCH_PARTITION": "long"}, "long"),
        (("-p", "short"), {"SBATCH_PARTITION": "long"}, "short"),
    ],
)
def test_a_gsub_line_leaves_the_partition_to_gsub_whatever_the_sbatch_lines_name(
    argv: tuple[str, ...], environ: dict[str, str], partition: str
) -> None:
    script = b"#!/bin/sh\n#GSUB --partition=auto --prerun=off\n#SBATCH -p gpu\n"
    request = call(*argv, "train.sbatch", script=script, environ=environ)
    assert (request.value("partition"), request.own.prerun) == (partition, "off")


def test_options_for_the_command_line_only_are_ignored_in_a_script() -> None:
    request = call("train.sbatch", script=b"#!/bin/sh\n#SBATCH --help -v --wrap=x -N2\n")
    assert [setting.option for setting in request.settings] == ["nodes"]


@pytest.mark.parametrize(
    ("variable", "value", "held"),
    [
        ("SBATCH_WAIT", "", True),
        ("SBATCH_WAIT", "yes", True),
        ("SBATCH_WAIT", "2", True),
        ("SBATCH_WAIT", "0", False),
        ("SBATCH_WAIT", "no", False),
        ("SBATCH_WAIT", "true", False),
    ],
)
def test_the_variable_of_a_flag_sets_or_clears_it(variable: str, value: str, held: bool) -> None:
    request = call("train.sbatch", script=b"#!/bin/sh\n#SBATCH --wait\n", environ={variable: value})
    assert (request.setting("wait") is not None) is held


def test_sbatch_no_requeue_0_clears_requeue_too() -> None:
    script = b"#!/bin/sh\n#SBATCH --requeue\n"
    assert call("train.sbatch", script=script, environ={"SBATCH_NO_REQUEUE": "0"}).settings == ()


def test_of_two_variables_for_one_option_the_one_that_sbatch_reads_last_wins() -> None:
    environ = {"SBATCH_HINT": "compute_bound", "SLURM_HINT": "nomultithread", "SLURM_CLUSTERS": "b"}
    request = call("train.sbatch", environ={**environ, "SBATCH_CLUSTERS": "a"})
    assert (request.value("hint"), request.value("clusters")) == ("compute_bound", "b")


def test_an_empty_variable_sets_an_option_without_its_optional_value() -> None:
    found = call("train.sbatch", environ={"SBATCH_EXCLUSIVE": ""}).setting("exclusive")
    assert found == SbatchSetting(option="exclusive", value=None, origin=Origin.ENVIRONMENT, where="SBATCH_EXCLUSIVE")


@pytest.mark.parametrize(
    ("argv", "path", "expected"),
    [
        ((), "hosts", [("nodelist", "./hosts")]),
        ((), "/data/hosts", [("nodelist", "/data/hosts")]),
        (("--nodelist=n1",), "hosts", [("nodelist", "n1")]),
        (("--nodefile=mine",), "hosts", [("nodefile", "mine")]),
    ],
)
def test_slurm_hostfile_names_the_nodes_if_nothing_else_does(
    argv: tuple[str, ...], path: str, expected: list[tuple[str, str]]
) -> None:
    settings = call(*argv, "train.sbatch", environ={"SLURM_HOSTFILE": path}).settings
    assert [(one.option, one.value) for one in settings if one.option in ("nodelist", "nodefile")] == expected


def test_chdir_is_relative_to_the_directory_of_the_call() -> None:
    assert call("train.sbatch").chdir == "/home/a"
    assert call("train.sbatch", script=b"#!/bin/sh\n#SBATCH -D runs\n").chdir == "/home/a/runs"
    assert call("-D", "/data", "train.sbatch").chdir == "/data"


# --- where the script comes from


def test_a_script_is_looked_up_in_the_directory_then_on_path() -> None:
    files = {"/opt/bin/p.sh": b"#!/bin/sh\n# PATH\n", "/opt/bin/train.sbatch": b"#!/bin/sh\n# other\n"}
    environ = {"PATH": "/bin:/opt/bin"}
    assert call("p.sh", files=files, environ=environ).script.path == "/opt/bin/p.sh"
    assert call("train.sbatch", files=files, environ=environ).script.path == "/home/a/train.sbatch"
    assert str(refused("./p.sh", files=files, environ=environ)) == "Unable to open file ./p.sh"


def test_the_chdir_directory_of_the_command_line_is_searched_first() -> None:
    files = {"/home/a/d/train.sbatch": b"#!/bin/sh\n"}
    assert call("-D", "d", "train.sbatch", files=files).script.path == "/home/a/d/train.sbatch"
    assert call("-D", "d", "train.sbatch").script.path == "/home/a/train.sbatch"


def test_wrap_makes_the_same_script_as_sbatch() -> None:
    request = call("-G1", "--wrap", "echo $HOME")
    assert request.script.content == b"#!/bin/sh\n# This script was created by sbatch --wrap.\n\necho $HOME\n"
    assert (request.script.path, request.job_name, request.script.from_stdin) == (None, "wrap", False)


def test_a_script_on_standard_input_is_read_once_and_marked() -> None:
    request = call("-G1", stdin=SCRIPT)
    assert (request.script.content, request.job_name, request.script.from_stdin) == (SCRIPT, "sbatch", True)
    assert request.settings[0].where == "stdin:2"


@pytest.mark.parametrize("argv", [("--help",), ("-V",), ("--usage", "x.sh"), ("--help", ":", "-N2", "x.sh")])
def test_nothing_is_read_for_help_and_version(argv: tuple[str, ...]) -> None:
    assert call(*argv).script.content == b""


def test_the_first_component_is_parsed_and_the_others_are_kept() -> None:
    script = b"#!/bin/sh\n#SBATCH --mem=1G\n"
    request = call("-N1", "--prerun=wait", ":", "-N2", "--json", ":", "-N3", "train.sbatch", ":", "x", script=script)
    assert (request.hetjob, request.value("nodes"), request.value("mem")) == (True, "1", "1G")
    assert request.components == (":", "-N2", ":", "-N3")
    assert (request.script.content, request.args) == (script, (":", "x"))
    assert (request.own.prerun, request.own.json) == ("wait", True)


def test_a_second_component_in_the_script_makes_a_heterogeneous_job() -> None:
    request = call("train.sbatch", script=b"#!/bin/sh\n#SBATCH -N1\n#SBATCH hetjob\n#SBATCH -N2 --bogus\n")
    assert (request.hetjob, request.value("nodes")) == (True, "1")


# --- gsub's options


def test_gsub_options_rank_script_environment_command_line() -> None:
    script = b"#!/bin/sh\n#GSUB --prerun=off --no-tune\n#GSUB --resource-profile bert # the big one\n"
    assert call("train.sbatch", script=script).own == GsubOptions(prerun="off", tune=False, resource_profile="bert")
    environ = {"GSUB_PRERUN": "gate", "GSUB_TUNE": "yes", "GSUB_RETRY": "1", "GSUB_PLACE": "", "GSUB_DRY_RUN": "no"}
    assert call("train.sbatch", script=script, environ=environ).own == GsubOptions(
        prerun="gate", retry=True, resource_profile="bert"
    )
    argv = ("--prerun", "only", "--no-retry", "--no-place", "--explain", "--force", "--json", "--dry-run")
    assert call(*argv, "train.sbatch", script=script, environ=environ).own == GsubOptions(
        prerun="only",
        retry=False,
        place=False,
        explain=True,
        force=True,
        json=True,
        dry_run=True,
        resource_profile="bert",
    )


@pytest.mark.parametrize(
    ("words", "lines", "environ", "steps"),
    [
        ((), b"", {}, None),
        ((), b"#GSUB --prerun-steps=60\n", {}, 60),
        ((), b"#GSUB --prerun-steps 60\n", {"GSUB_PRERUN_STEPS": "50"}, 50),
        (("--prerun-steps", "70"), b"#GSUB --prerun-steps=60\n", {"GSUB_PRERUN_STEPS": "50"}, 70),
    ],
)
def test_prerun_steps_ranks_script_environment_command_line(
    words: tuple[str, ...], lines: bytes, environ: dict[str, str], steps: int | None
) -> None:
    found = call(*words, "train.sbatch", script=b"#!/bin/sh\n" + lines, environ=environ)
    assert found.own.prerun_steps == steps


def test_too_many_prerun_steps_are_refused() -> None:
    found = refused("--prerun-steps=1000001", "train.sbatch")
    assert (str(found), found.hint) == (
        "Invalid --prerun-steps specification: '1000001'",
        "It takes a number from 1 to 1000000.",
    )


# --- bad input


def lines(*directives: str) -> bytes:
    return "\n".join(["#!/bin/sh", *directives, ""]).encode()


@pytest.mark.parametrize(
    ("argv", "call_with", "message", "code"),
    [
        (["--bogus"], {}, "unrecognized option '--bogus'", 255),
        ([], {"script": lines("", "#SBATCH --bogus")}, "train.sbatch:3: unrecognized option '--bogus'", 255),
        (
            [],
            {"script": lines("#SBATCH -N2", "#SBATCH foo")},
            "train.sbatch:3: Invalid directive found in batch script: foo",
            255,
        ),
        ([], {"script": lines('#SBATCH -J "a')}, 'train.sbatch: line 2: Unmatched `"` in [ "a]', 1),
        ([], {"script": lines("#GSUB --nodes=2")}, "train.sbatch:2: unrecognized option '--nodes=2'", 255),
        (
            [],
            {"script": lines("#GSUB --partition=gpu")},
            "train.sbatch:2: Invalid --partition specification: 'gpu'",
            255,
        ),
        ([], {"script": lines("#GSUB --prerun=maybe")}, "train.sbatch:2: Invalid --prerun specification: 'maybe'", 255),
        (["--prerun="], {}, "Invalid --prerun specification: ''", 255),
        (["--prerun"], {}, "--prerun needs a mode: --prerun=auto|wait|gate|off|only|profile", 255),
        (["--prerun-gpus"], {}, "Invalid --prerun-gpus specification: 'train.sbatch'", 255),
        ([], {"environ": {"GSUB_PRERUN": "x"}}, "GSUB_PRERUN: Invalid --prerun specification: 'x'", 255),
        ([], {"environ": {"GSUB_RETRY": "maybe"}}, "GSUB_RETRY: 'maybe' is neither yes nor no", 255),
        (["-t", "soon"], {}, "Invalid --time specification (command line: --time=soon)", 255),
        (
            [],
            {"script": lines("#SBATCH -c many")},
            'Invalid numeric value "many" for --cpus-per-task. (train.sbatch:2: --cpus-per-task=many)',
            1,
        ),
        (["--wrap=x"], {}, "Script arguments not permitted with --wrap option", 1),
    ],
)
def test_a_bad_option_is_a_usage_error_with_its_place(argv, call_with, message: str, code: int) -> None:
    error = refused(*argv, "train.sbatch", **call_with)
    unknown = "unrecognized" in message and "--nodes" not in message  # may belong to a site plugin; not on a #GSUB line
    kind = UnknownOption if unknown else UsageError
    assert (type(error), str(error), error.exit_code) == (kind, message, code)


@pytest.mark.parametrize("line", ["--nodes=2", "word", '--prerun="off', "--prerun", ":", "--json=1"])
def test_a_bad_gsub_line_has_a_hint(line: str) -> None:
    error = refused("train.sbatch", script=f"#!/bin/sh\n#GSUB {line}\n".encode())
    assert isinstance(error, UsageError) and error.hint


def test_a_gsub_option_on_an_sbatch_line_is_refused_with_a_hint() -> None:
    error = refused("train.sbatch", script=b"#!/bin/sh\n#SBATCH --retry\n")
    assert (str(error), error.hint) == (
        "train.sbatch:2: unrecognized option '--retry'",
        "gsub's own options go on a #GSUB line.",
    )


NO_FILE = "There is no such file in the working directory or in PATH."
DENIED, FOLDER = PermissionError(13, "Permission denied"), IsADirectoryError(21, "Is a directory")
NO_INTERPRETER = "The first line must start with #! followed by the path to an interpreter."
DOS = "Batch script contains DOS line breaks (\\r\\n) instead of expected UNIX line breaks (\\n)."
NULL = "The Slurm controller does not allow scripts that contain a NULL character '\\0'."


@pytest.mark.parametrize(
    ("name", "content", "message", "hint"),
    [
        ("no.sh", None, "Unable to open file no.sh", NO_FILE),
        ("/x", DENIED, "Unable to open file /x", "It is there, but you may not read it: /x"),
        ("./d", FOLDER, "./d: Batch script is empty!", "It is a directory; name the script in it."),
        ("a", b"", "a: Batch script is empty!", "Give a script, or a command with --wrap."),
        ("", b"", "stdin: Batch script is empty!", "Give a script, or a command with --wrap."),
        ("a", b" \n\t\n", "a: Batch script contains only whitespace!", ""),
        ("a", b"echo hi\n", f"a: This does not look like a batch script.  {NO_INTERPRETER}", "For instance: #!/bin/sh"),
        ("a", b"#!/bin/sh\r\necho\r\n", f"a: {DOS}", "sed -i 's/\\r$//' a"),
        ("a", b"#!/bin/sh\n\0", f"a: {NULL}", ""),
    ],
)
def test_a_bad_script_is_refused_in_sbatchs_wording_with_a_hint(name: str, content, message: str, hint: str) -> None:
    if name:
        path = name if name.startswith("/") else f"/home/a/{name}"
        error = refused(name, files={} if content is None else {path: content})
    else:
        error = refused(stdin=content)
    assert (type(error), error.exit_code, str(error), error.hint) == (ScriptError, 1, message, hint)
