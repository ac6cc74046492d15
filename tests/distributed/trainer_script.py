"""A Trainer script as a GPU user has it; ``test_launchers`` runs it alone, by torchrun and by ``accelerate launch``.

Arguments: the folder for results, rows of a process and step.
"""

import os
import sys

import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments


class Rows(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        return {"x": torch.randn(6, generator=g), "labels": torch.randn(1, generator=g)}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x, labels):
        y = self.layers(x)
        return {"loss": (y - labels).square().mean(), "logits": y}


if __name__ == "__main__":
    folder, rows = sys.argv[1], int(sys.argv[2])
    arguments = TrainingArguments(
        output_dir=folder, per_device_train_batch_size=rows, max_steps=3, learning_rate=0.05, report_to=[],
        save_strategy="no", logging_strategy="no", disable_tqdm=True, seed=0, optim="sgd", remove_unused_columns=False,
        max_grad_norm=0.0, lr_scheduler_type="constant",
    )  # fmt: skip
    model = Model()
    trainer = Trainer(model=model, args=arguments, train_dataset=Rows())
    trainer.train()
    assert next(model.parameters()).device.type == "tpu"
    assert arguments.world_size == int(os.environ.get("WORLD_SIZE", "1"))
    if arguments.process_index == 0:
        torch.save({k: v.cpu() for k, v in model.state_dict().items()}, os.path.join(folder, "state.pt"))
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
