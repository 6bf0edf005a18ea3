"""What is replayed: tables of jobs, sacct's dumps, generated loads. Text in, SimJobs out."""
