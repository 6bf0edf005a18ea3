"""Trace-driven simulator: what a cluster would do with a load. Places and allocates by placement/.

trace           a file, a dump of sacct or the name of a generator → Load: the jobs
run_simulation  one Simulation → SimOutcome and its measures
queue_policies  who is next: the policies of the papers
mechanism       how those who are next share CPUs and memory: Synergy's own (reference_mechanisms), the optimum,
                and production's `graded`, also in its form for leases (lease_rounds)
engines         the two modes. rounds_engine: leases end, with job_table (who, how far). backfill_engine: the mode
                slurm, where nothing is taken back from a running job, and what slurmwrap does about waiting jobs
consolidate, sim_throughput, model_skew    whose GPUs and where, how fast, and who must lie close together
placement_bridge                           from the mode slurm to production's plan_placement
failures        failures at published rates, and what pre-run, retry and node exclusion save of them
whatif          a site's own month, under plain Slurm and under slurmwrap
"""
