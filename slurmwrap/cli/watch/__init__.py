"""`slurmwrap watch`: facts of a job, what they mean in words, and the lines on the screen."""
