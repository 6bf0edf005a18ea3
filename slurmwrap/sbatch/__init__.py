"""A job as asked: sbatch's options, the script, the JobRequest and the rewritten BatchScript. Pure."""
