"""Published figures for comparison: of the papers, and of the authors' own simulators. Data only.

Sources. Synergy: Mohan et al., OSDI 2022, slides; its README for artefact evaluation (ae-readme.md); its simulator,
msr-fiddle/synergy at 1bb2bed6, `opt` by HiGHS. Tiresias: Gu et al., NSDI 2019; its simulator, SymbioticLab/Tiresias at
959f9b08, with two one-line fixes (gittins, random placement) that change nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One published figure, with the digits given there and in the unit of its row; "": none was published."""

    paper: str = ""
    authors: str = ""  # by the authors' own simulator


def _row(paper: str, authors: str) -> Figure:
    return Figure(paper=paper, authors=authors)


# (mechanism, measure) -> hours. FIFO, 4 servers of 8 GPUs, 24 CPUs, 500 GB, rounds of 300 s
STATIC100 = {
    ("proportional", "makespan_s"): _row("15.67", "15.25"),
    ("greedy", "makespan_s"): _row("", "12.33"),
    ("tune", "makespan_s"): _row("11.33", "11.00"),
    ("opt", "makespan_s"): _row("11.01", "10.58"),
    ("proportional", "mean_jct_s"): _row("", "5.631"),
    ("greedy", "mean_jct_s"): _row("", "5.494"),
    ("tune", "mean_jct_s"): _row("", "5.083"),
    ("opt", "mean_jct_s"): _row("", "4.662"),
    ("proportional", "p99_jct_s"): _row("", "12.94"),
    ("greedy", "p99_jct_s"): _row("", "11.76"),
    ("tune", "p99_jct_s"): _row("", "10.59"),
    ("opt", "p99_jct_s"): _row("", "10.09"),
}
# The same cluster, SRTF
DYNAMIC100 = {
    ("proportional", "mean_jct_s"): _row("4.52", "3.907"),
    ("greedy", "mean_jct_s"): _row("", "3.233"),
    ("tune", "mean_jct_s"): _row("3.19", "3.188"),
    ("opt", "mean_jct_s"): _row("3.06", "3.093"),
    ("proportional", "p99_jct_s"): _row("17.32", "14.19"),
    ("greedy", "p99_jct_s"): _row("", "11.58"),
    ("tune", "p99_jct_s"): _row("8.54", "10.27"),
    ("opt", "p99_jct_s"): _row("8.21", "10.26"),
    ("proportional", "makespan_s"): _row("", "19.50"),
    ("greedy", "makespan_s"): _row("", "13.92"),
    ("tune", "makespan_s"): _row("", "13.25"),
    ("opt", "makespan_s"): _row("", "12.92"),
}
# (policy, mechanism, measure) -> hours. 16 servers, jobs 4000-4999. "paper": the README's documented check
SINGLE9 = {
    ("fifo", "tune", "mean_jct_s"): _row("21.8766", "21.877"),
    ("fifo", "tune", "p99_jct_s"): _row("156.933028", "156.933"),
    ("fifo", "tune", "median_jct_s"): _row("", "10.83"),
    ("fifo", "proportional", "mean_jct_s"): _row("", "81.089"),
    ("fifo", "proportional", "p99_jct_s"): _row("", "214.61"),
    ("fifo", "proportional", "median_jct_s"): _row("", "70.70"),
    ("srtf", "tune", "mean_jct_s"): _row("", "16.603"),
    ("srtf", "tune", "p99_jct_s"): _row("", "182.17"),
    ("srtf", "tune", "median_jct_s"): _row("", "3.90"),
}
# proportional / tune on generator seeds 1 to 10 by the authors' simulator: FIFO makespan, SRTF mean JCT
SEEDS_STATIC = (1.053, 1.129, 1.161, 1.035, 1.040, 1.052, 1.085, 1.038, 1.156, 1.133)
SEEDS_DYNAMIC = (1.211, 1.209, 1.194, 1.177, 1.196, 1.206, 1.193, 1.185, 1.155, 1.202)

# name used there -> seconds: mean JCT on (60_job on 16 GPUs), and (mean, median, p95) on philly480 on 60 GPUs
TIRESIAS_60 = {
    "fifo": 200.8,
    "fifo, yarn": 219.2,
    "shortest": 192.1,
    "shortest-gpu": 195.9,
    "dlas-gpu": 190.7,
    "dlas-gpu-gittins": 219.1,
}
PHILLY480 = {
    "fifo": (15_665.0, 13_935.0, 45_479.0),
    "fifo, yarn": (22_025.0, 20_301.0, 55_098.0),
    "shortest": (6_697.0, 779.0, 33_480.0),
    "shortest-gpu": (6_156.0, 779.0, 33_489.0),
    "dlas-gpu": (6_728.0, 779.0, 39_322.0),
    "dlas-gpu-8": (6_575.0, 779.0, 39_939.0),
    "dlas-gpu-1": (7_127.0, 787.0, 51_153.0),
    "dlas-gpu-gittins": (6_585.0, 779.0, 44_296.0),
}
