"""slurmwrap profile: list, show, import, export, clear and plot; for one user and for the site."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import Result

from slurmwrap.cli.profile.profile_store import open_profile_store
from slurmwrap.errors import RefusedError, UsageError
from slurmwrap.model.resource_profile import CurvePoint, DataLoading, ResourceProfile
from slurmwrap.model.submission import Submission
from slurmwrap.profiling.job_key import derive_published_key, derive_site_key
from slurmwrap.profiling.merge_profiles import HALF_LIFE_S
from slurmwrap.protocols import Published
from slurmwrap.store.database import Database
from slurmwrap.store.published_files import FilePublisher
from slurmwrap.store.user_state_files import UserState

Run = Callable[..., Result]
SYNERGY = Path(__file__).parents[2] / "data" / "profiles" / "synergy_profiles.csv"
NOW = time.time()
MEASURED = ResourceProfile(
    key="train-a100x8-3f2a91c04be7", cpus_per_gpu=3.0, mem_mib_per_gpu=9001, steps_per_s=8.42, gpu_type="a100",
    gpus_per_node=8, runs=3, preruns=1, confidence=0.906, source="epilog", measured_at=NOW - 7200,
    cpu_curve=(CurvePoint(cpus=1, steps_per_s=1 / 3, spread=0.04, rounds=3), CurvePoint(cpus=3, steps_per_s=8.4)),
    cpu_curve_end="workers", curve_at=NOW - 90000, loader_workers=4, read_mib_per_s=152.25, model_mib=97.7, skew=0.083,
    gpu_mem_mib=20123, gpu_util=0.81, gpu_mem_util=0.32, sensitivity={"cpu": 1.41}, variant="0f", curve_variant="0f",
    cpus_busy=2.5,
)  # fmt: skip


@pytest.fixture
def user_db(tmp_path: Path) -> Path:
    return tmp_path / "slurmwrap" / "user.db"


def save_profiles(database: Path, *profiles: ResourceProfile) -> None:
    database.parent.mkdir(exist_ok=True)
    with Database.open(database) as store:
        for one in profiles:
            store.save_profile(one)


def load_profiles(database: Path) -> tuple[ResourceProfile, ...]:
    with Database.open(database, readonly=True) as store:
        return store.profiles()


def remove_minutes(text: str) -> str:
    """Remove the minutes of ages: NOW is the time of import, and other tests run before this one."""
    return re.sub(r"(\d h) \d\d min", r"\1", text)


def test_an_empty_list_says_that_no_profile_is_known(slurmwrap: Run) -> None:
    assert slurmwrap("profile", "list").stdout == "No profile is known.\n"
    assert json.loads(slurmwrap("profile", "list", "--json").stdout)["rows"] == []


def test_a_profile_is_listed_with_its_runs_confidence_and_source(slurmwrap: Run, user_db: Path) -> None:
    save_profiles(user_db, MEASURED)
    head, row = remove_minutes(slurmwrap("profile", "list").stdout).splitlines()
    assert head.split() == ["profile", "CPUs", "MiB", "steps/s", "runs", "sure", "age", "from"]
    assert row.split() == ["train-a100x8-3f2a91c04be7", "3", "9,001", "8.42", "3+1", "0.91", "2", "h", "epilog"]


def test_the_listed_confidence_decreases_with_age(slurmwrap: Run, user_db: Path) -> None:
    save_profiles(user_db, replace(MEASURED, measured_at=NOW - HALF_LIFE_S))
    (found,) = json.loads(slurmwrap("profile", "list", "--json").stdout)["rows"]
    assert found["confidence"] == 0.453
    assert "0.45 now; 0.91 when it was measured" in slurmwrap("profile", "show", "last").stdout


def test_profiles_that_differ_only_in_the_key_digest_share_a_line(slurmwrap: Run, user_db: Path) -> None:
    others = [replace(MEASURED, key=f"train-a100x8-{number:012x}") for number in range(5)]
    save_profiles(user_db, *others, replace(MEASURED, key="eval-a100x8-000000000000"))
    rows = slurmwrap("profile", "list").stdout.splitlines()[1:]
    assert [" ".join(row.split()[:2]) for row in rows] == ["eval-a100x8-000000000000 3", "train-a100x8-… (5)"]


@pytest.mark.parametrize(
    ("words", "keys"),
    [
        ((), ["new", "old", "weak"]),
        (("ne",), ["new"]),
        (("--source", "prerun"), ["weak"]),
        (("--since", "1d"), ["new"]),
        (("--min-confidence", "0.5"), ["new", "old"]),
    ],
)
def test_filters_restrict_the_list(slurmwrap: Run, user_db: Path, words: tuple[str, ...], keys: list[str]) -> None:
    old = replace(MEASURED, key="old", measured_at=NOW - 3 * 86400)
    weak = replace(MEASURED, key="weak", source="prerun", confidence=0.1, measured_at=NOW - 4 * 86400)
    save_profiles(user_db, replace(MEASURED, key="new", measured_at=NOW - 3600), old, weak)
    shown = json.loads(slurmwrap("profile", "list", "--json", *words).stdout)["rows"]
    assert [one["key"] for one in shown] == keys


def test_a_profile_is_shown_with_its_curve_at_80_columns(slurmwrap: Run, user_db: Path) -> None:
    save_profiles(user_db, MEASURED)
    shown = remove_minutes(slurmwrap("profile", "show", "train").stdout)
    assert max(map(len, shown.splitlines())) <= 80
    assert shown.splitlines()[:5] == [
        "train-a100x8-3f2a91c04be7",
        "  based on    3 complete runs, 1 pre-run; the newest 2 h ago (epilog)",
        "  confidence  0.91 now",
        "  CPUs        3 per GPU, the least within 5 % of the best speed",
        "  memory      9,001 MiB per GPU (peak)",
    ]
    curve = shown.splitlines()[shown.splitlines().index("CPU curve, measured 25 h ago") :]
    assert curve[1] == "  CPUs    steps/s"
    assert [line.split()[0] for line in curve[2:5]] == ["1", "3", "it"]
    assert curve[6:8] == ["Memory model", "  at least 11,826 MiB per GPU: the peak with a margin"]


def test_the_memory_model_shows_the_least_memory_for_the_storage_speed(slurmwrap: Run, user_db: Path) -> None:
    save_profiles(user_db, replace(MEASURED, dataset_mib=60_000.0))
    full = [line.split()[:2] for line in slurmwrap("profile", "show", "last").stdout.splitlines()[-6:]]
    assert (full[0], full[-1]) == (["11,826", "152.2"], ["71,826", "0.00"])  # storage speed that full speed needs
    slow = slurmwrap("profile", "show", "last", "--storage", "80").stdout.splitlines()
    (chosen,) = [line for line in slow[slow.index("Memory model") :] if "chosen" in line]
    assert chosen.split()[1] == "0.95"


def test_show_advises_to_copy_data_for_which_the_job_waits(slurmwrap: Run, user_db: Path) -> None:
    loading = DataLoading(
        workers=2,
        fetch_s=0.2,
        cpu_s=0.02,
        stall_s=0.18,
        compute_s=0.02,
        wait_s=0.08,
        batch_mib=10.0,
        batches=600,
        mount="/scratch",
    )
    save_profiles(user_db, replace(MEASURED, dataset_mib=6000.0, dataset_source="loader", loading=loading))
    shown = " ".join(slurmwrap("profile", "show", "last").stdout.split())
    assert "6,000 MiB per epoch (length of its loader)" in shown
    assert "a batch takes 200 ms to fetch, 90 % of it waiting, /scratch gives 56 MiB/s per reading process" in shown
    assert "it would be about 5 times faster: copy it to $TMPDIR" in shown
    assert "speed at 111 MiB/s of storage" in shown


def test_show_finds_the_profile_of_a_script_by_the_key_that_gsub_uses(
    slurmwrap: Run, user_db: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("named.sbatch").write_text("#!/bin/sh\n#GSUB --resource-profile mine\nsrun python train.py\n")
    Path("plain.sbatch").write_text("#!/bin/sh\n#SBATCH --gpus-per-node=a100:8 --nodes=1\nsrun python train.py\n")
    Path("train.py").write_text("")
    save_profiles(user_db, replace(MEASURED, key="mine"))
    assert slurmwrap("profile", "show", "named.sbatch").stdout.startswith("mine\n")
    error = slurmwrap("profile", "show", "plain.sbatch").exception
    assert isinstance(error, UsageError) and "there is no profile 'train-a100x8-" in str(error)


def test_a_cpu_bound_and_a_contradicted_curve_are_shown(slurmwrap: Run, user_db: Path) -> None:
    save_profiles(user_db, replace(MEASURED, cpus_per_gpu=8.0, cpu_bound=True, curve_doubts=1))
    shown = slurmwrap("profile", "show", "last").stdout
    assert "at least 8 per GPU, from the CPU time used: the curve is in doubt" in shown
    assert "a later measurement contradicts it: one more decides" in shown


def test_an_unknown_key_is_refused_with_similar_keys(slurmwrap: Run, user_db: Path) -> None:
    save_profiles(user_db, MEASURED, replace(MEASURED, key="train-a100x8-ffffffffffff"))
    for words, message, hint in [
        (("show", "trian-a100x8-3f2a91c04be7"), "there is no profile", "did you mean train-a100x8-3f2a91c04be7"),
        (("show", "train"), "2 keys begin with 'train'", "give more of it"),
        (("show", ""), "there is no profile ''", "slurmwrap profile list"),
        (("clear", "train"), "there is no profile 'train'", ""),
        (("export", "zzz"), "there is no profile 'zzz'", "slurmwrap profile list"),
    ]:
        error = slurmwrap("profile", *words).exception
        assert isinstance(error, UsageError)
        assert message in str(error) and hint in error.hint and error.exit_code == 1


def test_the_synergy_file_is_imported_and_gsub_finds_its_profiles(slurmwrap: Run, user_db: Path) -> None:
    assert slurmwrap("profile", "import", str(SYNERGY)).stdout == "12 of 12 profiles imported\n"
    found = UserState(user_db.parent).profile("alexnet")  # gsub --resource-profile alexnet reads this
    assert found is not None
    assert (found.cpus_per_gpu, found.source) == (12.0, "import")
    assert "an imported file" in slurmwrap("profile", "show", "alexnet").stdout


def test_import_keeps_known_profiles_unless_replace_is_given(slurmwrap: Run, user_db: Path) -> None:
    save_profiles(user_db, replace(MEASURED, key="alexnet"))
    assert slurmwrap("profile", "import", str(SYNERGY)).stdout == "11 of 12 profiles imported\n"
    assert load_profiles(user_db)[0].mem_mib_per_gpu == 9001
    assert slurmwrap("profile", "import", "--replace", str(SYNERGY)).stdout == "12 of 12 profiles imported\n"
    assert load_profiles(user_db)[0].mem_mib_per_gpu == 128_000


def test_an_export_can_be_imported_without_loss(slurmwrap: Run, user_db: Path, tmp_path: Path) -> None:
    odd = ResourceProfile(key="näme “odd”", steps_per_s=0.1 + 0.2, measured_at=1795246838.8801715)
    save_profiles(user_db, MEASURED, odd)
    before = load_profiles(user_db)
    file = tmp_path / "profiles.json"
    file.write_text(slurmwrap("profile", "export").stdout, encoding="utf-8")
    assert slurmwrap("profile", "clear", "--all").exit_code == 0
    assert slurmwrap("profile", "list").stdout == "No profile is known.\n"
    assert slurmwrap("profile", "import", str(file)).exit_code == 0
    assert load_profiles(user_db) == before
    (one,) = json.loads(slurmwrap("profile", "export", "train").stdout)["profiles"]
    assert one["key"] == MEASURED.key


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("hello\n", "line 1: there is no column 'model'"),
        ("model,cpus,mem_gb,throughput\nm,1,1,x\n", "line 2: cpus, mem_gb and throughput must be numbers"),
        ("{}", "it is JSON, but not an export of profiles"),
        ('{"slurmwrap_profiles": 9, "profiles": []}', "it was written by another version (9; this one knows 1)"),
        ('{"slurmwrap_profiles": 1, "profiles": [{}]}', "ResourceProfile.key is missing"),
        ('{"slurmwrap_profiles": 1, "profiles": [{"key": "k", "runs": "3"}]}', "ResourceProfile.runs"),
        ('{"slurmwrap_profiles": 1, "profiles": [{"key": "k", "confidence": 3}]}', "between 0 and 1"),
        ('{"slurmwrap_profiles": 1, "profiles": [{"key": "k", "cpus_per_gpu": -1}]}', "not positive"),
        ('{"slurmwrap_profiles": 1, "profiles": [{"key": "k\\u001b[31m"}]}', "cannot be a key"),
        ('{"slurmwrap_profiles": 1, "profiles": [{"key": "k"}, {"key": "k"}]}', "'k' is in it twice"),
        ('{"slurmwrap_profiles"', "Expecting"),
        ("[" * 100_000, ""),
    ],
)
def test_an_invalid_file_is_refused_and_changes_nothing(
    slurmwrap: Run, user_db: Path, tmp_path: Path, content: str, message: str
) -> None:
    save_profiles(user_db, MEASURED)
    file = tmp_path / "in"
    file.write_text(content)
    error = slurmwrap("profile", "import", str(file)).exception
    assert isinstance(error, UsageError) and error.exit_code == 1
    assert message in str(error)
    assert load_profiles(user_db) == (MEASURED,)


def test_an_unreadable_file_is_refused_with_its_reason(slurmwrap: Run, tmp_path: Path) -> None:
    assert "cannot read" in str(slurmwrap("profile", "import", str(tmp_path / "none")).exception)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00\x01")
    assert "not a text file with profiles" in str(slurmwrap("profile", "import", str(tmp_path / "binary")).exception)


def test_clear_removes_the_named_profile_and_needs_a_key_or_all(slurmwrap: Run, user_db: Path) -> None:
    save_profiles(user_db, MEASURED, replace(MEASURED, key="other"))
    assert slurmwrap("profile", "clear", "other").stdout == "removed: other\n"
    assert load_profiles(user_db) == (MEASURED,)
    both = slurmwrap("profile", "clear", "other", "--all").exception
    assert isinstance(both, UsageError) and both.exit_code == 255
    assert isinstance(slurmwrap("profile", "clear").exception, UsageError)
    assert load_profiles(user_db) == (MEASURED,)


def test_clear_with_one_unknown_key_removes_nothing(slurmwrap: Run, user_db: Path) -> None:
    save_profiles(user_db, MEASURED)
    assert isinstance(slurmwrap("profile", "clear", MEASURED.key, "none").exception, UsageError)
    assert load_profiles(user_db) == (MEASURED,)


def test_a_plot_without_matplotlib_names_the_extra_to_install(
    slurmwrap: Run, user_db: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_profiles(user_db, MEASURED)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)  # as if it were not installed
    error = slurmwrap("profile", "show", "last", "--plot", str(tmp_path / "curve.png")).exception
    assert isinstance(error, UsageError)
    assert (error.hint, error.exit_code) == ("pip install 'slurmwrap[plot]'", 1)
    wrong = slurmwrap("profile", "show", "last", "--plot", str(tmp_path / "curve.pdf")).exception
    assert ".svg or .png" in str(wrong)


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_a_plot_is_written(slurmwrap: Run, user_db: Path, tmp_path: Path, ending: str) -> None:
    pytest.importorskip("matplotlib", reason="the extra 'plot' is not installed")
    save_profiles(user_db, MEASURED)
    path = tmp_path / f"curve.{ending}"
    assert slurmwrap("profile", "show", "last", "--plot", str(path)).exit_code == 0
    assert path.read_bytes()[:5] in (b"\x89PNG\r", b"<?xml")


def test_a_profile_without_a_cpu_curve_cannot_be_plotted(slurmwrap: Run, user_db: Path, tmp_path: Path) -> None:
    save_profiles(user_db, replace(MEASURED, cpu_curve=()))
    error = slurmwrap("profile", "show", "last", "--plot", str(tmp_path / "curve.png")).exception
    assert "has no CPU curve to draw" in str(error)


def save_submissions(database: Path, key: str, script: str, *at: float) -> None:
    with Database.open(database) as store:
        for number, moment in enumerate(at):
            store.save_submission(
                Submission(
                    cluster="lab", job_id=number, uid=os.geteuid(), user="ada", at=moment, script_path=script,
                    name="train.sbatch", profile_key=key,
                )
            )  # fmt: skip


def test_profiles_are_listed_with_the_script_that_used_them_last(slurmwrap: Run, user_db: Path) -> None:
    other = replace(MEASURED, key="train-a100x8-ffffffffffff", runs=0, preruns=1, measured_at=NOW - 9000)
    save_profiles(user_db, MEASURED, other)
    save_submissions(user_db, MEASURED.key, "/home/ada/vit/train.sbatch", NOW - 90000, NOW - 7200)
    save_submissions(user_db, other.key, "/home/ada/gpt/a_script_with_a_long_name.sbatch", NOW - 8000)
    head, *rows = remove_minutes(slurmwrap("profile", "list").stdout).splitlines()
    assert head.split() == ["script", "CPUs", "MiB", "steps/s", "runs", "sure", "used", "profile"]
    assert [row.split()[0] for row in rows] == ["vit/train.sbatch", "a_script_wi…_name.sbatch"]
    assert max(map(len, rows)) <= 80
    (one,) = json.loads(slurmwrap("profile", "list", "vit/", "--json").stdout)["rows"]
    assert (one["key"], one["script"], one["submissions"]) == (MEASURED.key, "/home/ada/vit/train.sbatch", 2)
    assert remove_minutes(slurmwrap("profile", "show", MEASURED.key).stdout).splitlines()[1:3] == [
        "  script      /home/ada/vit/train.sbatch",
        "  used        2 submissions, the last 2 h ago",
    ]


def test_the_shown_profile_is_the_profile_that_gsub_uses(slurmwrap: Run, user_db: Path, tmp_path: Path) -> None:
    """The site's profile is used where it is based on more runs, or where the user's own database has none."""
    uid = os.geteuid()
    save_profiles(user_db, replace(MEASURED, key="mine", runs=1), replace(MEASURED, key="kept", runs=9))
    save_submissions(user_db, "sites", "/home/ada/new.sbatch", NOW - 60)
    site = [
        replace(MEASURED, key=derive_published_key(derive_site_key(whose, key)), runs=5)
        for whose, key in ((uid, "mine"), (uid, "kept"), (uid, "sites"), (uid + 1, "others"))
    ]
    folder = tmp_path / "published"
    folder.mkdir(mode=0o755)
    FilePublisher(folder, "", seal=lambda *_, **__: b"").publish(Published(profiles=tuple(site)))
    (tmp_path / "config.toml").write_text(f'[site]\npublished = "{folder}"\n')
    environ = {"SLURMWRAP_CONFIG": str(tmp_path / "config.toml")}
    profile_store = open_profile_store(False, {**environ, "XDG_STATE_HOME": str(tmp_path), "HOME": str(tmp_path)})
    assert {one.key: one.runs for one in profile_store.profiles()} == {"mine": 5, "kept": 9, "sites": 5}
    assert {one.key: one.runs for one in profile_store.stored()} == {"mine": 1, "kept": 9}


# --- the site


def test_profiles_of_the_site_are_listed_with_their_user(slurmwrap: Run, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("the site's database is root's and SlurmUser's")
    save_profiles(
        tmp_path / "site" / "site.db", replace(MEASURED, key=f"0:{MEASURED.key}", measured_at=time.time() - 7200)
    )
    (row,) = slurmwrap("profile", "list", "--site", site=True).stdout.splitlines()[1:]
    assert row.startswith("root:train-a100x8-3f2a91c04be7")
    # root's own profiles are stored separately.
    assert slurmwrap("profile", "list", site=True).stdout == "No profile is known.\n"
    assert json.loads(slurmwrap("profile", "show", "train", "--site", "--json", site=True).stdout)["runs"] == 3


def test_import_for_the_site_needs_a_user(slurmwrap: Run, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("the site's database is root's and SlurmUser's")
    (tmp_path / "site").mkdir()
    whose = slurmwrap("profile", "import", "--site", str(SYNERGY), site=True).exception
    assert isinstance(whose, UsageError) and whose.hint == "name the user: --user NAME"
    assert slurmwrap("profile", "import", "--site", "--user", "root", str(SYNERGY), site=True).exit_code == 0
    assert load_profiles(tmp_path / "site" / "site.db")[0].key == "0:alexnet"


def test_a_user_may_not_list_profiles_of_the_site(slurmwrap: Run) -> None:
    assert isinstance(slurmwrap("profile", "list", "--site").exception, RefusedError)
