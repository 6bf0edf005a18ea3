"""Trace-driven simulator: what a cluster would do with a load. Placement and allocation are production's (placement/).

trace           a file, a dump of sacct or the name of a generator → Load: the jobs
run_simulation  one Simulation → SimOutcome and its measures
queue_policies  which job is next: the policies of the papers
mechanism       how the chosen jobs share CPUs and memory: Synergy's own (reference_mechanisms), the optimum,
                and production's `graded`, also in its variant for leases (lease_rounds)
engines         the two modes. rounds_engine: leases end, with job_table (state and progress of the jobs).
                backfill_engine: the mode slurm, in which a running job keeps what it has, and what slurmwrap does
                about pending jobs
consolidate, sim_throughput, model_skew    which job gets GPUs on which servers, how fast it runs, and which jobs need
                                           locality
placement_bridge                           from the mode slurm to production's plan_placement
failures        failures at published rates, and what pre-run, retry and node exclusion save of them
whatif          a site's own month, under plain Slurm and under slurmwrap
"""
