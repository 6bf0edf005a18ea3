import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from model import ModelArgs, Transformer
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def main(args):
    rank = int(os.environ["LOCAL_RANK"])
    world = int(os.environ["WORLD_SIZE"])
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    if kind == "cuda":
        torch.cuda.set_device(rank)
    dist.init_process_group(backend="nccl" if kind == "cuda" else "gloo")
    mesh = init_device_mesh(kind, (world,))
    torch.manual_seed(0)

    model_args = ModelArgs(n_layers=args.layers)
    model = Transformer(model_args).to(kind)
    kwargs = {"mesh": mesh}
    if args.mixed_precision:
        kwargs["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.layers:
        fully_shard(layer, **kwargs)
    fully_shard(model, **kwargs)

    optim = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(args.steps):
        tokens = torch.randint(0, model_args.vocab_size, (4, model_args.max_seq_len + 1), device=kind)
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.reshape(-1, model_args.vocab_size), tokens[:, 1:].reshape(-1))
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        optim.step()
        optim.zero_grad()
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.3f} norm {float(norm):.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="PyTorch FSDP2 example")
    parser.add_argument("--mixed-precision", action="store_true")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=1000)
    main(parser.parse_args())
