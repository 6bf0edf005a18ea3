"""The program gsub: the order of steps from a call to the job's submission, its pre-run and its release.

    start          the program `gsub`, as it is installed
    gsub_main      the command line; exec_sbatch hands over calls that are plainly sbatch's
    submit         one submission, with everything that is said of it
    prepare        request + memory + snapshot        → Prepared   nothing outside has changed yet
    send           Prepared                           → Sent       the real job first, then its pre-run
    prerun_job     the pre-run's own Slurm job
    apply_verdict  the pre-run's Verdict, on the node → PrerunRecord: plan again, apply, release the job; or cancel it

Adapters are handed in as a Desk. Whatever of slurmwrap fails in `prepare` leaves the user's job unharmed: it is
submitted unchanged. Nothing is imported here: exec_sbatch must cost nothing.
"""
