from dataclasses import dataclass, field

import torch
from torch.utils.data import Dataset
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    HfArgumentParser,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)


@dataclass
class ModelArguments:
    n_layer: int = field(default=2)
    n_embd: int = field(default=32)
    n_head: int = field(default=2)
    block_size: int = field(default=16, metadata={"help": "tokens per sample"})


class Counting(Dataset):
    """Sequences that count upwards modulo the vocabulary."""

    def __init__(self, n, block_size, vocab):
        self.n, self.block_size, self.vocab = n, block_size, vocab

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        ids = (torch.arange(self.block_size) * (1 + i % 3) + i) % self.vocab
        return {"input_ids": ids, "labels": ids.clone()}


class Printer(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step % 20 == 0:
            print("step", state.global_step)


def main():
    parser = HfArgumentParser((ModelArguments, TrainingArguments))
    model_args, training_args = parser.parse_args_into_dataclasses()
    set_seed(training_args.seed)
    config = GPT2Config(
        vocab_size=64, n_positions=64, n_layer=model_args.n_layer, n_embd=model_args.n_embd, n_head=model_args.n_head
    )
    model = GPT2LMHeadModel(config)
    trainer = Trainer(
        model=model,
        args=training_args,
        train_dataset=Counting(4096, model_args.block_size, config.vocab_size),
        eval_dataset=Counting(64, model_args.block_size, config.vocab_size),
        callbacks=[Printer()],
    )
    trainer.train()
    trainer.save_model()


if __name__ == "__main__":
    main()
