#!/bin/bash
#SBATCH -J redirect
#SBATCH --gres=gpu:2
#SBATCH --mem=4000
#SBATCH -t 20

export PYTHONUNBUFFERED=1
srun -n1 python3 < fit.py
