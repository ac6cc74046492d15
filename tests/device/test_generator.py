"""Random state: seeds, generators, saving and restoring, forking; and what a generator may be used for."""

import copy
import pickle

import pytest
import torch

DRAWS = {
    "rand": lambda **k: torch.rand(8, device="tpu", **k),
    "randn": lambda **k: torch.randn(8, device="tpu", **k),
    "randint": lambda **k: torch.randint(0, 1000, (8,), device="tpu", **k),
    "randperm": lambda **k: torch.randperm(64, device="tpu", **k),
    "normal": lambda **k: torch.normal(0.0, 1.0, (8,), device="tpu", **k),
    "normal_": lambda **k: torch.empty(8, device="tpu").normal_(**k),
    "uniform_": lambda **k: torch.empty(8, device="tpu").uniform_(**k),
    "exponential_": lambda **k: torch.empty(8, device="tpu").exponential_(**k),
    "bernoulli": lambda **k: torch.bernoulli(torch.full((64,), 0.5, device="tpu"), **k),
    "multinomial": lambda **k: torch.multinomial(torch.ones(50, device="tpu"), 20, **k),
    "random_": lambda **k: torch.empty(8, device="tpu", dtype=torch.int64).random_(**k),
}


# Symptom: `multinomial`, `dropout`, `randperm` follow the seed and differ from call to call.
@pytest.mark.parametrize("name", DRAWS)
def test_seeds_reproduce_and_draws_differ(name):
    draw = DRAWS[name]
    torch.manual_seed(3)
    first, second = draw().tolist(), draw().tolist()
    torch.manual_seed(3)
    assert [draw().tolist(), draw().tolist()] == [first, second] and first != second
    torch.manual_seed(4)
    assert draw().tolist() != first


@pytest.mark.parametrize("name", DRAWS)
def test_a_generator_has_a_stream_of_its_own(name):
    draw = DRAWS[name]
    g = torch.Generator(device="tpu").manual_seed(7)
    first = draw(generator=g).tolist()
    torch.manual_seed(1)
    state = torch.tpu.get_rng_state()
    again = draw(generator=torch.Generator(device="tpu").manual_seed(7)).tolist()
    assert again == first and torch.equal(torch.tpu.get_rng_state(), state)
    assert draw(generator=g).tolist() != first


@pytest.mark.parametrize("name", DRAWS)
def test_the_other_devices_generator_is_refused(name):
    with pytest.raises(RuntimeError, match="Expected a 'tpu' device type for generator but found 'cpu'"):
        DRAWS[name](generator=torch.Generator())


@pytest.mark.parametrize("draw", [
    lambda g: torch.rand(2, generator=g), lambda g: torch.randn(2, generator=g),
    lambda g: torch.randperm(3, generator=g),
    lambda g: torch.randint(0, 5, (2,), generator=g), lambda g: torch.empty(2).normal_(generator=g),
    lambda g: torch.empty(2).uniform_(generator=g), lambda g: torch.bernoulli(torch.ones(2), generator=g),
    lambda g: torch.multinomial(torch.ones(3), 1, generator=g), lambda g: torch.normal(0.0, 1.0, (2,), generator=g),
    lambda g: torch.empty(2).exponential_(generator=g), lambda g: torch.poisson(torch.ones(2), generator=g),
    lambda g: torch.normal(torch.zeros(2), torch.ones(2), generator=g),
    lambda g: torch.empty(2).bernoulli_(generator=g),
    lambda g: torch.empty(2).geometric_(0.5, generator=g), lambda g: torch.empty(2).cauchy_(generator=g),
    lambda g: torch.nn.init.normal_(torch.empty(2), generator=g),
])  # fmt: skip
def test_cpu_operators_refuse_a_tpu_generator(draw):
    draw(torch.Generator())
    with pytest.raises(RuntimeError, match="Expected a 'cpu' device type for generator but found 'tpu'"):
        draw(torch.Generator(device="tpu"))


def test_saved_state_continues_the_stream():
    g = torch.Generator(device="tpu").manual_seed(1)
    torch.rand(3, device="tpu", generator=g)
    state = g.get_state()
    first = torch.rand(3, device="tpu", generator=g)
    g.set_state(state)
    assert torch.equal(torch.rand(3, device="tpu", generator=g).cpu(), first.cpu())
    other = torch.Generator(device="tpu")
    other.set_state(state)
    assert torch.equal(torch.rand(3, device="tpu", generator=other).cpu(), first.cpu())
    assert state.device.type == "cpu" and state.dtype == torch.uint8


def test_the_default_generators_state():
    torch.tpu.manual_seed(5)
    assert torch.tpu.initial_seed() == 5
    state = torch.tpu.get_rng_state()
    first = torch.rand(3, device="tpu").tolist()
    for restore in (lambda: torch.tpu.set_rng_state(state), lambda: torch.tpu.set_rng_state(state, "tpu:0"),
                    lambda: torch.tpu.set_rng_state_all([state]), lambda: torch.tpu.manual_seed(5),
                    lambda: torch.tpu.manual_seed_all(5), lambda: torch.manual_seed(5)):  # fmt: skip
        restore()
        assert torch.rand(3, device="tpu").tolist() == first
    assert len(torch.tpu.get_rng_state_all()) == torch.tpu.device_count() == len(torch.tpu.default_generators)
    torch.tpu.default_generators[0].manual_seed(5)
    assert torch.rand(3, device="tpu").tolist() == first
    assert isinstance(torch.tpu.seed(), int)
    assert torch.rand(3, device="tpu").tolist() != first


def test_drawing_on_one_device_leaves_the_other_alone():
    torch.manual_seed(0)
    host = torch.rand(3)
    torch.manual_seed(0)
    torch.rand(100, device="tpu")
    assert torch.equal(torch.rand(3), host)


def test_fork_rng():
    torch.manual_seed(0)
    before = torch.rand(2, device="tpu").tolist()
    torch.manual_seed(0)
    with torch.random.fork_rng(devices=[0], device_type="tpu"):
        torch.manual_seed(99)
        torch.rand(5, device="tpu")
    assert torch.rand(2, device="tpu").tolist() == before
    torch.manual_seed(0)
    with torch.random.fork_rng(device_type="tpu"):
        torch.rand(5, device="tpu")
    assert torch.rand(2, device="tpu").tolist() == before


def test_generator_objects():
    g = torch.Generator(device="tpu")
    assert g.device == torch.device("tpu:0") and isinstance(g, torch.Generator)
    assert torch.Generator("tpu:0").device.index == 0 and torch.Generator().device.type == "cpu"
    assert torch.Generator(torch.device("tpu")).device.type == "tpu"
    assert g.manual_seed(3) is g and g.initial_seed() == 3 and isinstance(g.seed(), int)
    with pytest.raises(IndexError):
        torch.Generator(device="tpu:9")
    with pytest.raises(RuntimeError):
        torch.Generator(device="nonsense")
    assert isinstance(torch.default_generator, torch.Generator)


@pytest.mark.parametrize("duplicate", [
    lambda g: pickle.loads(pickle.dumps(g)), copy.deepcopy, lambda g: g.clone_state(),
], ids=["pickle", "deepcopy", "clone_state"])  # fmt: skip
def test_copies_continue_alike_and_apart(duplicate):
    g = torch.Generator(device="tpu").manual_seed(3)
    torch.rand(2, device="tpu", generator=g)
    other = duplicate(g)
    assert other.device == g.device and other.initial_seed() == 3
    first = torch.rand(4, device="tpu", generator=g).tolist()
    torch.rand(4, device="tpu", generator=g)
    assert torch.rand(4, device="tpu", generator=other).tolist() == first


def test_cpu_generators_are_as_they_were():
    g = torch.Generator().manual_seed(1)
    assert type(g) is torch._C.Generator
    a = torch.rand(3, generator=g)
    assert torch.equal(a, torch.rand(3, generator=torch.Generator().manual_seed(1)))
    b = pickle.loads(pickle.dumps(g))
    assert torch.equal(torch.rand(2, generator=b), torch.rand(2, generator=g))


def test_a_collected_generators_address_is_not_mistaken():
    for _ in range(50):
        torch.Generator(device="tpu")
        torch.rand(2, generator=torch.Generator())


def test_dropout_and_init_follow_the_seed():
    x = torch.ones(1000, device="tpu")
    torch.manual_seed(0)
    a, b = (torch.nn.functional.dropout(x, 0.3) for _ in range(2))
    torch.manual_seed(0)
    assert torch.equal(a.cpu(), torch.nn.functional.dropout(x, 0.3).cpu()) and not torch.equal(a.cpu(), b.cpu())
    assert 0.2 < (a == 0).float().mean().item() < 0.4 and abs(a.mean().item() - 1) < 0.1
    torch.manual_seed(0)
    w = torch.nn.Linear(20, 20, device="tpu").weight.tolist()
    torch.manual_seed(0)
    assert torch.nn.Linear(20, 20, device="tpu").weight.tolist() == w


def test_a_new_seed_compiles_nothing():
    torch.rand(17, device="tpu")
    made = torch.tpu.compiler.stats()["programs"]
    for seed in range(4):
        torch.manual_seed(seed)
        torch.rand(17, device="tpu")
    assert torch.tpu.compiler.stats()["programs"] == made
