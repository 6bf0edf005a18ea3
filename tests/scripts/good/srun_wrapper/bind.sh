#!/bin/bash
# one GPU and one part of the cores per task
export CUDA_VISIBLE_DEVICES=$SLURM_LOCALID
export RANK=$SLURM_PROCID LOCAL_RANK=0 WORLD_SIZE=$SLURM_NTASKS
exec "$@"
