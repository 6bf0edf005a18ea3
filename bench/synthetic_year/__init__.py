"""Generate a database as a cluster would have filled it; causes, times and rates of failures are published ones.

`fill(path, days=…, jobs_per_day=…, seed=…, until=…)` makes the file with the store's own rows and, if it is longer
than the retention, the store's own pruning. slurmwrap/sim/failures (Philly's table 7) draws which job fails, of which
cause and after how long; nodes fail at the rate of Kokolis et al. Rates that no one has published are in site.Rates,
marked as assumed.
"""

from synthetic_year.fill import fill
from synthetic_year.site import Rates, Site, site_of

__all__ = ["Rates", "Site", "fill", "site_of"]
