"""Every collective on tpu tensors of several processes against gloo on CPU tensors."""

from .harness import run


def test_group_without_a_named_backend():
    run("on_ranks", "default_group")


def test_every_collective():
    run("on_ranks", "everything", timeout=300)


def test_group_is_made_again(tmp_path):
    run("on_ranks", "again", str(tmp_path / "store"))


def test_device_used_before_the_group_is_made():
    run("on_ranks", "device_used_before", timeout=300)
