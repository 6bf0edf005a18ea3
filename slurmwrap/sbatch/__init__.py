"""sbatch's options and batch scripts: parse them into a JobRequest and render the rewritten BatchScript. Pure."""
