"""The program gsub: the order of steps from a call to the job's submission, its pre-run and its release.

    gsub_script    the program `gsub`, as it is installed
    gsub_main      the command line; exec_sbatch passes on calls that are certainly meant for plain sbatch
    submit         one submission and all messages about it
    prepare        request + memory + snapshot        → PreparedJob    changes nothing outside the process
    send           PreparedJob                        → SubmitResult   submits the real job first, then its pre-run
    prerun_job     the program that runs in the pre-run's own Slurm job
    apply_verdict  the pre-run's Verdict, on the node → PrerunRecord: plan again, apply, release the job; or cancel it

The adapters are passed in as a SubmitContext. If any part of slurmwrap fails in `prepare`, the user's job is submitted
unchanged. This file imports nothing, so that exec_sbatch starts without that cost.
"""
