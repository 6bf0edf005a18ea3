#!/usr/bin/env -S bash -eu
#SBATCH --job-name=xargs
#SBATCH --gres=gpu:4
#SBATCH --cpus-per-task=4
#SBATCH --mem=8G
#SBATCH --time=600
#  Kreuzvalidierung, fünf Teile (Umlaute: ä ö ü ß)
usage() { echo "usage: $0 [-n folds]" >&2; exit 2; }
folds=5
while getopts "n:" opt; do
    case $opt in
        n) folds=$OPTARG ;;
        *) usage ;;
    esac
done
seq 0 $((folds - 1)) | xargs -P 2 -I{} python -X dev -W ignore fold.py --fold {} --folds "$folds"
