#!/bin/bash
#SBATCH --job-name=ddp8
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:8
#SBATCH --cpus-per-task=16
#SBATCH --mem=64G
#SBATCH --time=8:00:00
#SBATCH --output=logs/%j.out
#SBATCH --error=logs/%j.err

export NCCL_DEBUG=WARN
export TORCH_NCCL_ASYNC_ERROR_HANDLING=1

torchrun --standalone --nnodes=1 --nproc_per_node=8 main.py --epochs 50 --batch-size 16 --output-dir runs/exp1
