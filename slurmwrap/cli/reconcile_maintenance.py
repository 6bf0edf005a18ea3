"""Maintenance between the passes of the reconciler: prune and rewrite the database, write the metrics file.

An error here must not end the reconciler: each is printed once, and again only after the step has worked in between.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from shutil import disk_usage

from slurmwrap.cli.metrics import LastPass
from slurmwrap.config.load_config import Config
from slurmwrap.errors import SlurmwrapError, StoreError
from slurmwrap.reconcile import PassSummary
from slurmwrap.store import retention
from slurmwrap.store.database import Database

PRUNE_EVERY_S = 3600.0
# Longest time for one call in seconds: the remaining rows are pruned by the next call.
PRUNE_FOR_S = 5.0
_REWRITE_EVERY_S = 7 * 86_400.0
# Hours of the local time in which the file may be rewritten.
_NIGHT = range(1, 5)


class ReconcilerMaintenance:
    """Prunes the database and writes the metrics file after a pass. `now` is in Unix seconds."""

    def __init__(self, database: Path, config: Config, *, site: bool, say: Callable[[str], None]) -> None:
        self._path, self._config, self._site, self._say = database, config, site, say
        self._pruned_at = self._written_at = float("-inf")
        self._said: dict[str, str] = {}

    def after(self, summary: PassSummary, now: float) -> None:
        """Prune and write metrics where they are due."""
        if not 0 <= now - self._pruned_at < PRUNE_EVERY_S:
            self._try("prune", lambda: self._prune(now))
            self._pruned_at = now
        wanted = self._config.metrics.textfile and self._site
        if wanted and not 0 <= now - self._written_at < self._config.metrics.every_s:
            self._try("metrics", lambda: self._write(summary, now))
            self._written_at = now

    def _try(self, what: str, work: Callable[[], None]) -> None:
        try:
            work()
            self._said.pop(what, None)
        except (SlurmwrapError, OSError) as error:
            if self._said.get(what) != str(error):
                self._say(f"{what}: {error}" + (f" ({error.hint})" if isinstance(error, SlurmwrapError) else ""))
            self._said[what] = str(error)

    def _prune(self, now: float) -> None:
        window, kept = self._config.nodes.window_days, self._config.retention
        retention.prune(self._path, kept, now, window_d=window, short_digests=self._site, for_s=PRUNE_FOR_S)
        if self._site and datetime.fromtimestamp(now).hour in _NIGHT:
            self._rewrite(now)

    def _rewrite(self, now: float) -> None:
        """Rewrite the database file once a week, at night.

        Pruning leaves half-empty pages; only a rewrite fills them. Readers continue meanwhile; this process is the only
        writer. StoreError where the disk has less than twice the file's size free.
        """
        if now - retention.get_rewrite_time(self._path) < _REWRITE_EVERY_S:
            return
        size = self._path.stat().st_size
        if disk_usage(self._path.parent).free < 2 * size:
            raise StoreError(
                f"{self._path} cannot be rewritten: that needs twice its {size / 1e9:.1f} GB of free space",
                hint="free some space, or set lower limits in [retention]",
            )
        retention.rewrite(self._path, now)

    def _write(self, summary: PassSummary, now: float) -> None:
        from slurmwrap.cli.metrics import collect_families, text_of, write_textfile

        newest = LastPass(at=now, seconds=summary.took_s, errors=len(summary.errors))
        with Database.open(self._path, readonly=True) as database:
            text = text_of(collect_families(database, self._config, now, newest))
        write_textfile(Path(self._config.metrics.textfile), text)
