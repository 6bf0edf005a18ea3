#!/bin/sh
#SBATCH --job-name=vae
#SBATCH --gres=gpu:2
#SBATCH --mem=8G
#SBATCH --time=120
set -eu

here=$(pwd)
epochs=${EPOCHS:-15}
if [ ! -f "$here/vae.py" ]; then
    echo "no vae.py in $here" >&2
    exit 1
fi
run() {
    echo "+ $*"
    "$@"
}
run python3 vae.py --epochs "$epochs" --latent 4
