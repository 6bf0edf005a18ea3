MAX_CHAIN=5
TRAIN_ARGS=(--data corpus.bin --dim 16 --lr 1e-3)
