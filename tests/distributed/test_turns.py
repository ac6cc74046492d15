"""Which operations of a group are compared, and when a barrier knows of it; a store in this process stands for the
ranks' own."""

import dataclasses

import pytest

from torch_tpu.distributed import board, turns
from torch_tpu.distributed.group import Group
from torch_tpu.distributed.operation import Disagreement, in_order


class Store:
    def __init__(self):
        self.kept, self.asked = {}, 0

    def first(self, key, text, before=""):
        self.asked += 1
        if self.kept.get(key, "") == before:
            self.kept[key] = text
        return self.kept[key]

    def fail(self, message):
        self.failed = message


@dataclasses.dataclass
class Members:
    size: int
    rank: int = 0
    name: str = "0"
    timeout: float = 10.0

    @property
    def ranks(self):
        return list(range(self.size))

    @property
    def global_rank(self):
        return self.rank


@pytest.fixture
def store(monkeypatch):
    made = Store()
    monkeypatch.setattr(board, "_board", made)
    return made


def test_large_groups_compare_one_of_several():
    assert [turns.stride(n) for n in (2, 8, 9, 16, 17, 64, 256)] == [1, 1, 2, 2, 4, 8, 32]


@pytest.mark.parametrize("size", [2, 9, 256])
def test_another_operation_is_found_within_a_stride(store, size):
    """Each place in the store is taken several times, and the ranks agree; then one runs something else."""
    every = turns.stride(size)
    ranks = [turns.Turns(Members(size, rank)) for rank in range(3)]
    count = every * 200
    for number in range(1, count + 1):
        for rank in ranks:
            rank.next(number, "a sum").confirm()
    assert store.asked == 3 * 200
    with pytest.raises(Disagreement, match="rank 1 runs"):
        for number in range(count + 1, count + every + 1):
            ranks[0].next(number, "a sum").confirm()
            ranks[1].next(number, "a maximum" if number == count + 1 else "a sum").confirm()


def test_a_barrier_waits_for_comparisons_that_run_beside_the_device():
    group = object.__new__(Group)
    group.timeout = 10.0

    def differ():
        raise Disagreement("another")

    group._asked = [in_order(lambda: None), in_order(differ)]
    with pytest.raises(Disagreement, match="another"):
        group.settle()
    assert not group._asked
