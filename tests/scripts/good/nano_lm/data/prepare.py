import os
import pickle

import numpy as np

d = os.path.join(os.path.dirname(__file__), "shakespeare")
text = "To be, or not to be, that is the question:\n" * 200
chars = sorted(set(text))
stoi = {c: i for i, c in enumerate(chars)}
ids = np.array([stoi[c] for c in text], dtype=np.uint16)
n = int(len(ids) * 0.9)
ids[:n].tofile(os.path.join(d, "train.bin"))
ids[n:].tofile(os.path.join(d, "val.bin"))
with open(os.path.join(d, "meta.pkl"), "wb") as f:
    pickle.dump({"vocab_size": len(chars), "stoi": stoi}, f)
