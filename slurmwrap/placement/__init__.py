"""Where a job runs, and with how many CPUs and how much memory. Pure, on one snapshot; docs/placement.md describes it.

One job, when it is submitted or released (plan_placement.py calls these in this order):

    resource_units, candidates            what the job takes; the nodes that matter to it
    tuning_bounds, quota, tuning          CPUs and memory that its profile justifies, within the limits, in its own unit
    node_ranking, locality                excluded nodes, how well a node suits, the best place now, and how long the
                                          job waits for it
    slurm_options, plan_placement         what Slurm is asked for, how that is relaxed in time, and the reasons

A job that waits: retune (from one plan to another), relaxation (level by level), fragmentation (what it waits for).

The whole queue (allocate.py): demand (records), throughput, allocation_options (what one job may be given),
free_capacity (what is left), and the policies proportional, tune and graded. The simulator's rounds have a form of
graded of their own: sim/mechanism/lease_rounds.py.
"""
