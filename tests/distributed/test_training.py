"""Training over several processes equals training in one: DDP, FSDP2, DTensor, tensor parallel."""

from .harness import run


def test_training_equals_one_process():
    run("on_ranks_training", "everything", timeout=400)
