"""Install slurmwrap on a cluster and remove it again: plan, install, check, uninstall."""
