"""Decide where a job runs and how many CPUs and how much memory it asks for. Pure: works on one snapshot of the
cluster.

docs/placement.md describes the method.

One job, when it is submitted or released (plan_placement.py calls these modules in this order):

    resource_units, candidates            what the job takes from each node; the nodes that can run it
    tuning_bounds, quota, tuning          CPUs and memory that the job's profile justifies, within the limits of QOS and
                                          association, in the unit that the user chose
    node_ranking, locality                excluded nodes, how well a node suits the job, the best nodes now, and how
                                          long the job waits for locality
    slurm_options, plan_placement         sbatch options, the levels in which they are relaxed, and the reasons

A pending job: retune (the updates from one plan to the next), relaxation (level by level), fragmentation (whether the
job waits because free GPUs are scattered).

The whole queue (allocate.py): demand (records), throughput (speed by CPUs and memory), allocation_options (what one job
may be given), free_capacity (what is left), and the policies proportional, tune and graded. The simulator's rounds use
a variant of graded: sim/mechanism/lease_rounds.py.
"""
