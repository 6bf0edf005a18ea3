"""Options of site plugins, parsed from the output of sbatch --help."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurmwrap.sbatch.option_table import OPTIONAL, REQUIRED, SbatchOption
from slurmwrap.slurm.plugin_options import (
    PluginOptions,
    find_options_written_apart,
    list_directive_words,
    parse_option_names,
)

# Layout of src/common/spank.c: an option too long for its column has its own line after an empty one.
HELP = """\
Usage: sbatch [OPTIONS(0)...] [ : [OPTIONS(N)...]] script(0) [args(0)...]

Parallel run options:
      --gres=list             required generic resources

Options provided by plugins:

      --container-image=[USER@][REGISTRY#]IMAGE[:TAG]|PATH
                              [pyxis] the image to use for the container
                              filesystem, see --container-save

      --container-mounts=SRC:DST[:FLAGS][,SRC:DST...]
                              [pyxis] bind mount[s] inside the container.
      --container-writable    [pyxis] make the container filesystem writable
      --retry                 a name that gsub has too

GPU scheduling options:
      --cpus-per-gpu=n        number of CPUs required per allocated GPU
"""
NAMES = ("container-image", "container-mounts", "container-writable")
SBATCH = """\
#!/bin/sh
echo "$*" >> {asked}
[ -z "$COLUMNS" ] || exit 9
case "$1" in
--container-image | --container-mounts) cat; echo "sbatch: error: Batch script is empty!" >&2; exit 1 ;;
esac
cat {help}
"""


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """A fake sbatch that records its arguments."""
    (tmp_path / "help").write_text(HELP)
    (tmp_path / "sbatch").write_text(SBATCH.format(asked=tmp_path / "asked", help=tmp_path / "help"))
    (tmp_path / "sbatch").chmod(0o755)
    return {"PATH": f"{tmp_path}:/usr/bin:/bin", "COLUMNS": "40"}


def test_plugin_options_are_read_from_their_section_without_gsubs_own() -> None:
    assert parse_option_names(HELP) == NAMES
    assert parse_option_names(HELP.replace("provided by plugins", "of ours")) == ()


def test_only_options_with_a_separate_value_are_queried_and_only_once(environ: dict[str, str], tmp_path: Path) -> None:
    plugins = PluginOptions(environ)
    image, mounts, writable = (SbatchOption(name, "", REQUIRED) for name in NAMES)
    writable = SbatchOption("container-writable", "", OPTIONAL)
    words = ["--container-image", "a#b", "--container-mounts=/a:/b", "--container-w", "a.sh"]
    loose = SbatchOption("container-mounts", "", OPTIONAL)
    assert plugins.used_in(words) == plugins.used_in(words) == (image, loose, writable)
    assert (tmp_path / "asked").read_text() == "--help\n--container-image --help\n--container-writable --help\n"
    assert plugins.used_in(["--container-mounts", "/a:/b"]) == (
        SbatchOption(image.name, "", OPTIONAL),
        mounts,
        writable,
    )


@pytest.mark.parametrize("program", ["#!/bin/sh\nexit 1\n", "#!/bin/sh\necho 'Usage: sbatch'\n", None])
def test_without_an_answer_of_sbatch_there_are_no_plugin_options(
    environ: dict[str, str], tmp_path: Path, program: str | None
) -> None:
    (tmp_path / "sbatch").unlink()
    if program is not None:
        (tmp_path / "sbatch").write_text(program)
        (tmp_path / "sbatch").chmod(0o755)
    plugins = PluginOptions({**environ, "PATH": str(tmp_path)})
    assert (plugins.names, plugins.used_in(["--container-image", "x"])) == ((), ())


def test_words_that_may_be_plugin_options_are_found() -> None:
    assert find_options_written_apart(["--container-im", "--", "-N", "--container-mounts=x"], NAMES) == {
        "container-image"
    }
    assert find_options_written_apart(["--container"], NAMES) == set(NAMES)


def test_words_of_directive_lines_are_listed() -> None:
    script = b"#!/bin/sh\n#SBATCH--a=1 '--b' 2 -N1\n#GSUB --explain\n# --c\necho --d\n"
    assert list_directive_words(script) == ("--a=1", "--b", "--explain")
