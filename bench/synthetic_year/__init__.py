"""A database as a cluster would have filled it: what fails, of what and when at published rates.

`fill(path, days=…, jobs_per_day=…, seed=…, until=…)` makes the file by the store's own rows and, where it is longer
than the retention, by the store's own pruning. Which job fails of what and after how long is drawn by
slurmwrap/sim/failures (Philly's table 7); nodes fail at the rate of Kokolis et al. What no one published is in
site.Rates, marked as assumed.
"""

from synthetic_year.fill import fill
from synthetic_year.site import Rates, Site, site_of

__all__ = ["Rates", "Site", "fill", "site_of"]
