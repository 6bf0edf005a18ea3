#!/bin/bash
set -euo pipefail
HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID MASTER_ADDR=127.0.0.1 MASTER_PORT=${MASTER_PORT:-29547}
LOG=$HERE/../logs/rank_${RANK}.log
mkdir -p $(dirname $LOG)
PYTHONPATH="$HERE/..:${PYTHONPATH:-}" python "$HERE/../timm_train.py" "$@" >> $LOG 2>&1
