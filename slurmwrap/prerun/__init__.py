"""The single-GPU trial of a job: static checks, launch shims, supervisor, Verdict."""
