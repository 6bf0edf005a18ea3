"""Compress constants of slurmwrap that are times of a job and no settings, in all Python programs of a replay's lab."""

import os

from slurmwrap.placement import locality

locality.LEAST_LOSS_S /= float(os.environ["REPLAY_SCALE"])
