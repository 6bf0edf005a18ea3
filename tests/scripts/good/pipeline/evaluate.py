import argparse
import json

import numpy as np
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--model", required=True)
parser.add_argument("--tokens", required=True)
args = parser.parse_args()
saved = torch.load(args.model)
tokens = torch.from_numpy(np.load(args.tokens))
emb, out = saved["state"]["emb.weight"], saved["state"]["out.weight"]
logits = emb[tokens[:-1]] @ out.T + saved["state"]["out.bias"]
nll = torch.nn.functional.cross_entropy(logits, tokens[1:])
print(json.dumps({"nll": nll.item(), "perplexity": nll.exp().item()}))
