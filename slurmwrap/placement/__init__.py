"""Where a job runs, and with how many CPUs and how much memory. Pure, on one snapshot; docs/placement.md tells it.

One job, when it is submitted or released (plan_placement.py goes through these in their order):

    planning_facts, slurm_options, model/placement_plan       records: what is known next to the snapshot, what is asked
                                                              meanwhile, what comes out
    resource_units, candidates, excluded_nodes                what the job takes; the nodes that matter to it; those
                                                              that are kept from it
    tuning_bounds, quota, tuning                              CPUs and memory that its profile justifies; what limits
                                                              leave of that; in its own unit
    node_ranking, locality, locality_delay                    how well a node suits; the best place now; how long that
                                                              is worth waiting for
    node_options, network_options, relaxation_levels          what of the place Slurm is asked for; how that is
                                                              loosened in time
    placement_remarks                                         the same in sentences

A job that waits: retune (from one plan to another), relaxation (level by level), fragmentation (what it waits for).

The whole queue (allocate.py): demand (records), throughput, allocation_options (what one job may be given),
free_capacity (what is left), and the policies proportional, synergy_tune and graded. In the simulator's rounds graded
is lease_rounds, on lease_options (what one job may be given then), assignment and rebalance; no Slurm ever sees it.
"""
