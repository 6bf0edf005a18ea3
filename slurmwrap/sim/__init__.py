"""Trace-driven simulator: what a cluster would do with a load. Places and allocates by placement/.

    trace        a file, a dump of sacct or a generator's name → Load: the jobs
    run          Simulation → Outcome and Summary; where the rooms below meet
    queue        who is next: the papers' policies
    mechanism    how those who are next share CPUs and memory: the authors' own (reference_*), opt, production's graded

    rounds       the mode in which leases end, on clock and book (when, who, how far), pool and consolidate (whose GPUs,
                 where), sharing and speeds (how fast), skews (who must lie close together), critical (who must not
                 wait, with graded)
    backfill     the mode slurm: nothing is taken back; what slurmwrap does about jobs that wait, by its own functions
    placing      the bridge from there to production's place.plan()

    failures     failures at published rates, and what pre-run, retry and node exclusion save of them
    whatif       a site's own month, under plain Slurm and under slurmwrap

Records: job, cluster, outcome, measure (Summary), models (Synergy's).
"""
