"""Isolation of a trial: keep its writes out of the user's files, and decide where it may write."""
