"""Puts slurmwrap onto a cluster and takes it off again: plan, install, check, uninstall."""
