"""NightReports for the tests of the report's pages: a full night, and one with hostile text in every name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any

from slurmwrap.model.decision import BlockedInput
from slurmwrap.report import night_report as r

UNTIL = 1_795_327_200.0  # 2026-11-22 06:00 UTC
DAY = 86400.0
HOSTILE = "<script>alert(1)</script>]]>\x1b[31m\u202eevil\u2066 \U0001f9e8 | `x` [a](javascript:0) \udc80\n\r\t\x00=1+1"

_CATEGORIES = (
    ("gpu_hardware", "IF", 14, 9, 6, 6120.0, 21400.0, 60100.0, 812.4, (0, 1, 6, 7), 6, 388.1),
    ("traceback_from_crash", "U", 61, 52, 19, 340.0, 9800.0, 22100.0, 401.7, (30, 14, 12, 5), 58, 420.2),
    ("nccl_error", "AE", 9, 7, 5, 4210.0, 15200.0, 30400.0, 377.9, (0, 0, 3, 6), 2, 51.0),
    ("gpu_oom", "U", 38, 31, 14, 95.0, 620.0, 2100.0, 96.3, (21, 9, 8, 0), 44, 130.7),
    ("incorrect_inputs", "U", 22, 17, 8, 61.0, 300.0, 900.0, 41.8, (12, 6, 4, 0), 22, 40.0),
    ("cpu_oom", "U", 11, 9, 5, 2400.0, 7200.0, 9100.0, 33.2, (5, 4, 2, 0), 9, 21.5),
    ("import_error", "U", 27, 26, 17, 11.0, 35.0, 61.0, 4.1, (20, 5, 2, 0), 31, 6.0),
    ("no_signature", "", 6, 6, 4, 800.0, 4000.0, 6000.0, 19.9, (4, 1, 1, 0), 5, 12.0),
    ("syntax_error", "U", 17, 16, 11, 4.0, 9.0, 15.0, 0.9, (15, 1, 1, 0), 12, 0.7),
)

_USERS = (
    "petrov",
    "mlin",
    "okoye",
    "haas",
    "dsouza",
    "ada",
    "yilmaz",
    "ferrari",
    "nakamura",
    "osei",
    "lindqvist",
    "moreau",
)


def _category(row: tuple[Any, ...]) -> r.CategoryRow:
    name, domain, runs, jobs, users, p50, p90, p95, hours, demand, runs_before, hours_before = row
    return r.CategoryRow(
        category=name, domain=domain, attempts=runs, jobs=jobs, users=users, median_run_s=p50, p90_run_s=p90,
        p95_run_s=p95, gpu_hours=hours, share=hours / 11_840.5, demand=demand, attempts_before=runs_before,
        gpu_hours_before=hours_before,
    )  # fmt: skip


def _runtimes() -> tuple[r.Bin, ...]:
    failed = (8, 19, 31, 40, 28, 24, 20, 16, 10, 6, 2, 1)
    completed = (1, 4, 9, 26, 80, 160, 240, 310, 280, 190, 60, 12)
    edges = [3 * 3.2**i for i in range(13)]
    return tuple(
        r.Bin(low_s=edges[i], high_s=edges[i + 1], failed=failed[i], completed=completed[i], cancelled=i)
        for i in range(12)
    )


def _held() -> tuple[r.Moment, ...]:
    return tuple(
        r.Moment(
            at=UNTIL - DAY + 3600 * i, seconds=3600.0, completed=330 + 60 * ((i * 7) % 5), cancelled=20 + (i * 5) % 17,
            failed=40 + 30 * ((i * 3) % 4) + (260 if i in (14, 15) else 0),
        )
        for i in range(24)
    )  # fmt: skip


def _to_do() -> tuple[r.ToDo, ...]:
    reason = "'slurmwrap: Xid 79 (GPU has fallen off the bus), 3 strikes, jobs 8123 8150 8177'"
    return (
        r.ToDo(
            why="gpu[017-019]: the kernel reported Xid 79 (fell off the bus); reset or replace the GPU",
            command=f"scontrol update NodeName='gpu[017-019]' State=DRAIN Reason={reason}",
        ),
        r.ToDo(
            why="drained by slurmwrap; once it is repaired",
            command="slurmwrap nodes repaired gpu004 --resume",
        ),
    )


def full() -> r.NightReport:
    """A busy night of a site with 400 GPUs: something in every section."""
    head = r.Headline(
        jobs=1498, attempts=1602, users=74, gpu_hours=11_840.5, failed_attempts=205, failed_gpu_hours=1788.2,
        cancelled_attempts=88, unjudged_attempts=3, gsub_jobs=1120,
    )  # fmt: skip
    before = replace(head, jobs=1377, attempts=1441, gpu_hours=10_911.0, failed_attempts=189, failed_gpu_hours=1070.2)
    return r.NightReport(
        since=UNTIL - DAY, until=UNTIL, clusters=("aurora",), headline=head, before=before,
        preruns=r.Preruns(
            passed=411, failed=58, inconclusive=37, stopped_jobs=58, gpus_never_started=611, gpu_hours=11.2,
            delayed_jobs=92, delay_s=412.0, delay_gpu_hours=84.3,
            saved=r.Estimate(gpu_hours=204.1, n=58, needed=20, formula="prerun-1"),
        ),
        caught=(
            r.CaughtRow(category="import_error", preruns=26, stopped_jobs=26, users=15, gpus_never_started=204,
                        reason="ModuleNotFoundError: No module named 'flash_attn' (train.py:14)"),
            r.CaughtRow(category="syntax_error", preruns=17, stopped_jobs=17, users=9, gpus_never_started=99,
                        reason="SyntaxError: '(' was never closed (model/attention.py, line 212)"),
            r.CaughtRow(category="gpu_oom", preruns=15, stopped_jobs=15, users=6, gpus_never_started=308,
                        reason="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB"),
        ),
        categories=tuple(map(_category, _CATEGORIES)),
        incidents=(
            r.IncidentRow(incident_id="storage-1", category="storage_unavailable", scope="/lustre/scratch",
                          began=UNTIL - 36_000, over_at=UNTIL - 32_400, jobs=31, users=12, gpu_hours=148.8),
        ),
        repeated=(
            r.Repeated(user="mlin", name="llama-70b-sft", category="nccl_error", attempts=4,
                       jobs=("8123", "8150", "8177", "8190"), gpu_hours=310.4,
                       advice="Run with NCCL_DEBUG=INFO; look at the first rank that stopped."),
            r.Repeated(user="okoye", name="vit-sweep", category="gpu_oom", attempts=12,
                       jobs=tuple(f"8201_{i}" for i in range(12)), gpu_hours=22.0, advice=""),
        ),
        repeated_users=(r.RepeatedUser(user="mlin", category="nccl_error", attempts=5, jobs=4, gpu_hours=322.0),),
        repeated_inputs=(
            r.RepeatedInput(path="/datasets/imagenet/train/shard-00417.tar", attempts=9, users=3,
                            categories=("incorrect_inputs",), gpu_hours=18.4, blocked=True),
            r.RepeatedInput(path="/home/okoye/data/tokens.bin", attempts=2, users=1, categories=("incorrect_inputs",),
                            gpu_hours=0.4, blocked=False),
        ),
        rules=(
            r.RuleRow(rule="retry", done=71, refused=2, waiting=1, advised=0, observed=0),
            r.RuleRow(rule="drain", done=1, advised=3),
        ),
        retries=r.Retries(jobs=74, completed=49, failed_again=16, unfinished=6, cancelled=3),
        agreement=(
            r.Agreement(rule="retry", agree=49, disagree=16, open=9),
            r.Agreement(rule="stop", agree=88, disagree=4, open=31),
        ),
        suspects=(
            r.SuspectNodes(nodes=("gpu017", "gpu018", "gpu019"), strikes=3, conclusive=True, causes=("xid_79",), jobs=3,
                           users=2, last_at=UNTIL - 7300,
                           text="NVRM: Xid (PCI:0000:3b:00): 79, pid=0, GPU has fallen off the bus."),
            r.SuspectNodes(nodes=("gpu101",), strikes=1, conclusive=False, causes=("xid_48", "ecc_dbe"), jobs=1,
                           users=1, last_at=UNTIL - 50_000, text="NVRM: Xid (PCI:0000:86:00): 48, DBE"),
        ),
        lemons=(
            r.LemonRow(nodes=("gpu022",), status="lemon", ratio=6.4, jobs=9, users=5,
                       why="9 jobs of 5 users were struck here in 28 days; the fleet's rate is 1.1",
                       command="scontrol update NodeName=gpu022 State=DRAIN Reason='slurmwrap: lemon, 6.4 times'"),
        ),
        drains=(
            r.OwnDrain(nodes=("gpu004",), since=UNTIL - 40_000, reason="slurmwrap: Xid 95, uncontained ECC error",
                       command="slurmwrap nodes repaired gpu004 --resume"),
        ),
        blocked=(
            r.Blocked(input=BlockedInput(digest="d1", path="/datasets/imagenet/train/shard-00417.tar", uid=-1,
                                         reason="truncated: tar ends in the middle of a member", at=UNTIL - 20_000,
                                         job_id=8166), user="", new=True),
            r.Blocked(input=BlockedInput(digest="d2", path="/scratch/mlin/checkpoints/last.pt", uid=4242,
                                         reason="zip archive without its central directory", at=UNTIL - 400_000,
                                         job_id=7011), user="mlin", new=False),
        ),
        to_do=_to_do(),
        counted=r.Counted(jobs=212, ettr=0.871),
        queueing=r.Queueing(
            runs=1120, fair_share_mean_s=1410.0, fair_share_p95_s=9200.0, fragmentation_mean_s=310.0,
            fragmentation_p95_s=4100.0, unknown_s=900.0, gpu_hours=2204.0,
            longest=(
                r.WaitedLongest(address="8044", user="petrov", gpus=256, total_s=61_000.0, fair_share_s=22_000.0,
                                fragmentation_s=39_000.0, waits=True),
                r.WaitedLongest(address="8101", user="mlin", gpus=128, total_s=40_000.0, fair_share_s=31_000.0,
                                fragmentation_s=9_000.0),
            ),
        ),
        savings=(
            r.Saving(what="prerun", formula="prerun-1", gpu_hours=204.1, low=121.0, high=318.5, n=58, needed=20),
            r.Saving(what="retry", formula="retry-1", gpu_hours=61.7, low=-8.0, high=120.4, n=49, needed=20,
                     spared=False),
            r.Saving(what="placement", formula="placement-2", gpu_hours=None, n=7, needed=20,
                     note="needs jobs that count their steps (gsub --count-steps) and ran near and far"),
            r.Saving(what="tuning", formula="tuning-1", gpu_hours=33.0, low=12.0, high=51.0, n=44, needed=20),
        ),
        wrong=r.Wrong(retries=65, retries_failed_again=16, preruns_passed=390, preruns_missed=11, refusals=58,
                      false_refusals=1),
        holdout=r.Holdout(share=0.05, held_out=61, control=1044, held_out_waste=0.91, control_waste=0.6,
                          difference=0.31, low=0.02, high=0.62),
        runtimes=_runtimes(), held=_held(),
        gpu_use=(
            r.GpuUseRow(least_gpus=1, most_gpus=1, runs=610, gpu_hours=2210.0, use=0.52, median_use=0.49,
                        use_fewest_nodes=0.52, use_alone=0.58, use_beside=0.51),
            r.GpuUseRow(least_gpus=5, most_gpus=8, runs=121, gpu_hours=6100.0, use=0.56, median_use=0.61,
                        use_fewest_nodes=0.59, use_more_nodes=0.43, use_alone=0.58, use_beside=0.47),
            r.GpuUseRow(least_gpus=17, most_gpus=None, runs=9, gpu_hours=3900.0, use=0.41, median_use=0.4,
                        use_fewest_nodes=0.41, use_alone=0.41),
        ),
        idle=(
            r.IdleRow(user="dsouza", name="jupyter", runs=6, jobs=("8011", "8012"), gpus=8, gpu_hours_idle=141.0,
                      gpu_util=0.004, no_process=True),
            r.IdleRow(user="haas", name="eval-loop", runs=2, jobs=("8088",), gpus=4, gpu_hours_idle=30.5, gpu_util=0.03,
                      no_process=False),
        ),
        requests=(
            r.RequestRow(user="okoye", name="vit-sweep", runs=48, cpus_asked=64, cpus_used=5.2, mem_mib_asked=512_000,
                         mem_mib_peak=44_000, cpu_hours_unused=1830.0, gib_hours_unused=9100.0),
            r.RequestRow(user="haas", name="eval-loop", runs=2, cpus_asked=32, cpus_used=None, mem_mib_asked=None,
                         mem_mib_peak=9000, cpu_hours_unused=0.0, gib_hours_unused=0.0),
        ),
        limits=r.TimeLimits(
            runs=812,
            used_share=0.183,
            gpu_hours_unused=48_120.0,
            jobs=(
                r.LimitRow(user="okoye", account="vision", name="vit-sweep", runs=48, limit_s=604_800,
                           median_run_s=9000, longest_run_s=12_800, used_share=0.015, fits_s=18_000,
                           gpu_hours_unused=31_100.0),
                r.LimitRow(user="haas", account="speech", name="eval-loop", runs=2, limit_s=86_400, median_run_s=300,
                           longest_run_s=410, used_share=0.003, fits_s=None, gpu_hours_unused=95.0),
            ),
            accounts=(
                r.AccountLimitRow(account="vision", runs=610, used_share=0.12, gpu_hours_unused=44_000.0),
                r.AccountLimitRow(account="speech", runs=202, used_share=0.41, gpu_hours_unused=4120.0),
            ),
        ),
        predictions=(
            r.PredictionRow(source="runs", runs=320, within_factor_2=0.912, within_p90=0.894, median_ratio=1.02),
            r.PredictionRow(source="user", runs=88, within_factor_2=0.568, within_p90=0.852, median_ratio=0.91),
        ),
        locality=(
            r.LocalityRow(where="one switch", runs=210, gpu_hours=4100.0, failed=17),
            r.LocalityRow(where="several switches", runs=31, gpu_hours=2104.0, failed=8),
            r.LocalityRow(where="not known", runs=4, gpu_hours=90.0, failed=0),
        ),
        large=(
            r.LargeJob(address="7998", user="petrov", name="moe-pretrain", gpus=256, runs=3, gpu_hours=3900.0,
                       ettr=0.914, counted=True),
            r.LargeJob(address="8044", user="mlin", name="llama-70b-sft", gpus=128, runs=4, gpu_hours=810.0, ettr=0.433,
                       counted=False),
        ),
        users=tuple(
            r.ShareRow(name=name, jobs=210 - 17 * i, attempts=230 - 18 * i, gpu_hours=2900.0 / (i + 1),
                       failed_attempts=31 - 2 * i, failed_gpu_hours=420.0 / (i + 1) ** 1.4,
                       cancelled_attempts=9 - i // 2, preruns=70 - 5 * i, stopped_jobs=8 - i // 2,
                       top_category=_CATEGORIES[i % 9][0])
            for i, name in enumerate(_USERS)
        ),
        accounts=(
            r.ShareRow(name="nlp", jobs=700, attempts=760, gpu_hours=7100.0, failed_attempts=92,
                       failed_gpu_hours=1100.0, cancelled_attempts=40, preruns=210, stopped_jobs=22,
                       top_category="gpu_hardware"),
            r.ShareRow(name="vision", jobs=798, attempts=842, gpu_hours=4740.5, failed_attempts=113,
                       failed_gpu_hours=688.2, cancelled_attempts=48, preruns=296, stopped_jobs=36,
                       top_category="traceback_from_crash"),
        ),
        notes=("GPU use was not measured on gpu[200-203]: no NVML there",),
    )  # fmt: skip


def empty() -> r.NightReport:
    """A night in which no job ended."""
    return r.NightReport(
        since=UNTIL - DAY, until=UNTIL, clusters=("aurora",), headline=r.Headline(),
        preruns=r.Preruns(saved=r.Estimate(gpu_hours=None, n=0, needed=20, formula="prerun-1")),
    )  # fmt: skip


def hostile(text: str = HOSTILE) -> r.NightReport:
    """The full night of all users, with `text` in every field whose text comes from users or the site."""
    return replace(_with(full(), lambda name, value: text if name in _CHOSEN else value), user="")


def own(text: str = "") -> r.NightReport:
    """The report that an ordinary user gets of their own jobs; `text` replaces text of users and the site."""
    use = r.UsageRow(
        name="vit-sweep", script="/home/ada/vit/train.sbatch", runs=48, gpu_hours=96.0, time_asked_s=7 * 86400,
        time_used_s=44.0, cpus_asked=64, cpus_used=5.2, mem_mib_asked=512_000, mem_mib_peak=44_000, gpus=8,
        gpu_util=0.71, gpus_unused=0, measured_by="the runs", change=("--time=0:10:00", "--mem=54G"),
    )  # fmt: skip
    little = r.UsageRow(
        name="eval", runs=1, gpu_hours=0.1, time_asked_s=None, time_used_s=3600.0, cpus_asked=4, cpus_used=None,
        mem_mib_asked=None, mem_mib_peak=None, gpus=1,
    )  # fmt: skip
    failed = r.ToDo(why="vit-sweep failed 2 times: check the path", command="slurmwrap why 8123")
    less = r.ToDo(why="vit-sweep: asked for 7 d, ran 44 s at most", command="gsub --time=0:10:00 x", advice=True)
    mine = replace(
        full(), own=True, user="ada", usage=(use, little), to_do=(failed, less), suspects=(), lemons=(), drains=()
    )
    return _with(mine, lambda name, value: text if name in _CHOSEN else value) if text else mine


_CHOSEN = frozenset({"name", "user", "path", "reason", "text", "scope", "advice", "jobs", "address", "nodes", "why",
                     "clusters", "command", "notes", "note", "causes", "script", "change"})  # fmt: skip


def _with(value: Any, change: Callable[[str, str], str], name: str = "") -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: _with(getattr(value, f.name), change, f.name) for f in fields(value)})
    if isinstance(value, tuple):
        return tuple(_with(one, change, name) for one in value)
    return change(name, value) if isinstance(value, str) else value
