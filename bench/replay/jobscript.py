"""The job of the replays: a batch script that sleeps as long as training would take with its allocation.

It reads its CPUs (SLURM_CPUS_ON_NODE, from the credential by which slurmd starts it) and memory (SLURM_MEM_PER_NODE)
and looks up its speed among the measured points: the fastest point that has no more than its allocation. No Python is
started per job, so that dozens can run at once on a small machine. Each job writes what it found to a file, which is
compared with the controller's record afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from replay.tracefile import speed_lines

TUNED = """\
#!/bin/bash
#SBATCH --gres=gpu:1
#SBATCH --cpus-per-task=3
#SBATCH --mem=64000
#SBATCH --time=20
#SBATCH --output=/dev/null
# replay.sh MODEL SECONDS: SECONDS at 3 CPUs and 64000 MiB.
began=$EPOCHREALTIME
if [ "$SLURM_CPUS_PER_TASK" != "$SLURM_CPUS_ON_NODE" ]; then
    echo "$SLURM_JOB_ID: asked $SLURM_CPUS_PER_TASK, has $SLURM_CPUS_ON_NODE CPUs" >>odd
fi
speed=$(awk -v c="$SLURM_CPUS_ON_NODE" -v m="$SLURM_MEM_PER_NODE" \\
    '$1 <= c && $2 <= m && $3 > best { best = $3 } END { print best + 0 }' "speeds/$1")
seconds=$(awk -v w="$2" -v s="$speed" 'BEGIN { print (s > 0 ? w / s : 20 * w) }')
sleep "$seconds"
echo "$SLURM_CPUS_ON_NODE $SLURM_MEM_PER_NODE $speed $seconds $began $EPOCHREALTIME" >"done/$SLURM_JOB_ID"
"""


def lay_out(
    work: Path, script: str, owner: tuple[int, int], tables: Mapping[str, Sequence[tuple[int, int, float]]]
) -> None:
    """Write the script, the speeds and the directory for the jobs' results to the user's directory."""
    import os

    for name in ("speeds", "done"):
        (work / name).mkdir(exist_ok=True)
    for model, points in tables.items():
        (work / "speeds" / model).write_text(speed_lines(points), encoding="ascii")
    (work / "replay.sh").write_text(script, encoding="utf-8")
    for path in (work, *work.rglob("*")):
        os.chown(path, *owner)
