"""Where a job runs, and with how many CPUs and how much memory. Pure, on one snapshot; docs/placement.md tells it.

One job, when it is submitted or let go (place.py goes through these in their order):

    outlook, asked, plan        records: what is known beside the snapshot, what is asked meanwhile, what comes out
    need, field, avoid          what the job takes; the nodes that matter to it; those that are kept from it
    bounds, quota, tuned        CPUs and memory that its profile justifies; what limits leave of that; in its own unit
    score, locality, skew       how well a node suits; the best place now; how long that is worth waiting for
    servers, network, levels    what of the place Slurm is asked for; how that is loosened in time
    remarks                     the same in sentences

A job that waits: retune (from one plan to another), relax (level by level), fragments (what it waits for).

The whole queue (allocate.py): claim (records), speeds, rungs (what one job may be given), room (what is left),
and the policies proportional, synergy_tune and graded. In the simulator's rounds graded is graded_rounds, on menu (what
one job may be given then), seating and exchange; no Slurm ever sees it.
"""
