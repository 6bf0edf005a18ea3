#!/usr/bin/env bash
#SBATCH -J mingpt -N1 -G1
set -eu
trap 'echo "failed at line $LINENO" >> failures.log' ERR
log() { echo "[$(date +%F)] $*" | tee -a run.log; }
run_one() {
    local seed=$1; shift
    log "seed $seed"
    mkdir -p "runs/seed_$seed"
    python train.py --seed "$seed" --work-dir "runs/seed_$seed" "$@" 2>&1 | tee "runs/seed_$seed/train.log"
}
git rev-parse HEAD > commit.txt 2>/dev/null || true
for s in 1 2 3; do run_one $s --max-iters 4; done
log done
exit $?
