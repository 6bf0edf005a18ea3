#!/bin/bash
#SBATCH --gres=gpu:1
mkdir -p ckpt
n=0
until python train.py --dir ckpt; do n=$((n+1)); [ $n -ge 3 ] && exit 1; echo "retry $n" >> retries.txt; sleep 0.2; done
touch DONE
