"""Read what is simulated: tables of jobs, dumps of sacct, generated loads. Text in, SimJobs out."""
