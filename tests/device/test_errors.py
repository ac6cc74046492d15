"""Errors: each is a Python exception of PyTorch's type that says what to do, and none ends the process."""

import os
import stat

import pytest
import torch

from device.support import run


@pytest.mark.parametrize("call", [
    lambda a, b: a + b, lambda a, b: b + a, lambda a, b: torch.mm(a, b), lambda a, b: torch.cat([a, b]),
    lambda a, b: torch.where(a > 0, a, b), lambda a, b: a.mul_(b), lambda a, b: torch.nn.functional.linear(a, b),
    lambda a, b: torch.add(a, a, out=b), lambda a, b: torch.stack([b, a]), lambda a, b: torch.addmm(a, b, a),
    lambda a, b: b.mul_(a), lambda a, b: torch.equal(a, b), lambda a, b: a @ b,
])  # fmt: skip
def test_operands_on_two_devices(call):
    a, b = torch.ones(2, 2, device="tpu"), torch.ones(2, 2)
    with pytest.raises(RuntimeError, match=r"(?i)device|tpu"):
        call(a, b)
    assert (a + a).sum().item() == 8


def test_numbers_from_cpu_are_welcome():
    a = torch.ones(2, device="tpu")
    assert (a + torch.tensor(2.0)).tolist() == [3, 3] and (torch.tensor(2.0) * a).tolist() == [2, 2]
    assert (a > torch.tensor(0)).tolist() == [True, True]
    assert a.add_(torch.tensor(1)).tolist() == [2, 2]
    with pytest.raises(RuntimeError):
        torch.tensor(2.0).add_(a[0])


SHAPES = {
    "add": lambda d: torch.ones(2, 3, device=d) + torch.ones(4, device=d),
    "mm": lambda d: torch.mm(torch.ones(2, 3, device=d), torch.ones(2, 3, device=d)),
    "bmm": lambda d: torch.bmm(torch.ones(2, 3, 4, device=d), torch.ones(3, 4, 5, device=d)),
    "linear": lambda d: torch.nn.functional.linear(torch.ones(2, 3, device=d), torch.ones(4, 5, device=d)),
    "conv": lambda d: torch.nn.functional.conv2d(torch.ones(1, 2, 4, 4, device=d), torch.ones(1, 3, 2, 2, device=d)),
    "cat": lambda d: torch.cat([torch.ones(2, 3, device=d), torch.ones(2, 4, device=d)]),
    "stack": lambda d: torch.stack([torch.ones(2, device=d), torch.ones(3, device=d)]),
    "reshape": lambda d: torch.ones(6, device=d).reshape(4, 2),
    "expand": lambda d: torch.ones(2, device=d).expand(3),
    "dim": lambda d: torch.ones(2, device=d).sum(3),
    "softmax dim": lambda d: torch.softmax(torch.ones(2, device=d), 4),
    "dtype": lambda d: torch.mm(torch.ones(2, 2, device=d), torch.ones(2, 2, device=d, dtype=torch.float64)),
    "bitwise of float": lambda d: torch.ones(2, device=d) & 1,
    "mean of int": lambda d: torch.ones(2, device=d, dtype=torch.int64).mean(),
    "index type": lambda d: torch.ones(2, device=d)[torch.ones(1, device=d)],
    "mask shape": lambda d: torch.ones(2, device=d)[torch.ones(3, device=d, dtype=torch.bool)],
    "negative size": lambda d: torch.empty(-1, device=d),
    "max of nothing": lambda d: torch.empty(0, device=d).max(),
    "max of no rows": lambda d: torch.empty(0, 3, device=d).max(0),
    "min of no rows": lambda d: torch.empty(3, 0, device=d).min(-1),
    "median of no rows": lambda d: torch.empty(0, 3, device=d).median(0),
    "mode of no rows": lambda d: torch.empty(0, 3, device=d).mode(0),
    "gelu of int": lambda d: torch.nn.functional.gelu(torch.arange(3, device=d)),
    "softplus of int": lambda d: torch.nn.functional.softplus(torch.arange(3, device=d)),
    "softmax of int": lambda d: torch.arange(3, device=d).softmax(0),
    "log_softmax of int": lambda d: torch.arange(3, device=d).log_softmax(0),
    "std of int": lambda d: torch.arange(3, device=d).std(),
    "lerp of int": lambda d: torch.arange(3, device=d).lerp(torch.arange(3, device=d), 0.5),
    "multinomial": lambda d: torch.multinomial(torch.ones(2, device=d), 3),
    "indices that do not broadcast": lambda d: torch.ones(3, 4, device=d)[
        torch.tensor([0, 1], device=d), torch.tensor([0, 1, 2], device=d)
    ],
    "values for a mask": lambda d: torch.ones(3, device=d).index_put_(
        [torch.ones(3, dtype=torch.bool, device=d)], torch.ones(2, device=d)
    ),
    "cross entropy": lambda d: torch.nn.functional.cross_entropy(
        torch.ones(2, 3, device=d), torch.ones(3, device=d).long()
    ),
    "backward of a vector": lambda d: torch.ones(2, device=d, requires_grad=True).mul(2).backward(),
}


@pytest.mark.parametrize("name", SHAPES)
def test_the_type_is_that_of_cpu(name):
    with pytest.raises(Exception) as expected:
        SHAPES[name]("cpu")
    with pytest.raises(type(expected.value)) as got:
        SHAPES[name]("tpu")
    assert len(str(got.value)) > 10


@pytest.mark.parametrize("make", [
    lambda: torch.ones(2).to_mkldnn().to("tpu"), lambda: torch.empty(2, device="tpu", layout=torch._mkldnn),
    lambda: torch.ones(2, dtype=torch.complex32, device="tpu"),
    lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8).to("tpu"),
])  # fmt: skip
def test_what_is_not_supported_says_so(make):
    with pytest.raises((NotImplementedError, RuntimeError, TypeError)) as e:
        make()
    assert "segmentation" not in str(e.value).lower() and len(str(e.value)) > 10


# Symptom: allocation failure is `torch.OutOfMemoryError` that names the size.
def test_out_of_memory():
    before = torch.tpu.memory_stats()["num_ooms"]
    with pytest.raises(torch.OutOfMemoryError, match=r"fill_.*: tpu:0 is out of memory\. .*MiB are free"):
        torch.empty(2**46, dtype=torch.uint8, device="tpu").fill_(1)
    assert torch.tpu.memory_stats()["num_ooms"] > before
    with pytest.raises(torch.OutOfMemoryError, match="allocating 8796093022208 bytes"):
        torch.empty(2**41, device="tpu").add_(1)  # memory that was never written comes into being when it is read
    with pytest.raises(torch.OutOfMemoryError):
        torch.zeros(2**44, device="tpu").add_(1).cpu()
    assert torch.ones(2, device="tpu").tolist() == [1, 1]


# Symptom: indices are checked in programs that read what ran out of memory: each of their reports raised it anew, at
# as many later lines as there were reports.
def test_out_of_memory_is_raised_once_of_all_that_follows():
    column, index = torch.ones(2**18, 1, device="tpu"), torch.tensor([0, 1], device="tpu")
    scores = column @ column.T
    for _ in range(5):
        scores[index]
    del scores
    with pytest.raises(torch.OutOfMemoryError, match=r"a computation: tpu:0 is out of memory\."):
        torch.tpu.synchronize()
    assert torch.arange(3, device="tpu")[index].tolist() == [0, 1]


def test_no_tpu():
    out, _ = run(
        """
        import torch
        assert not torch.tpu.is_available() and torch.tpu.device_count() == 0
        assert not torch.accelerator.is_available()
        torch.manual_seed(0); torch.rand(2)
        for use in (lambda: torch.ones(2, device="tpu"), lambda: torch.ones(2).to("tpu"),
                    lambda: torch.nn.Linear(2, 2).to("tpu"), lambda: torch.UntypedStorage(3, device="tpu")):
            try:
                use()
            except RuntimeError as e:
                assert "no TPU is attached" in str(e) and "TORCH_TPU_PLATFORM" in str(e), e
            else:
                raise SystemExit("no error")
        print("alive")
        """,
        TORCH_TPU_PLATFORM="tpu",
    )
    assert out == "alive\n"


def test_an_unknown_platform():
    run(
        """
        import torch
        try:
            torch.ones(2, device="tpu")
        except RuntimeError as e:
            assert "unknown platform" in str(e) and "cpu" in str(e)
        else:
            raise SystemExit("no error")
        """,
        TORCH_TPU_PLATFORM="abacus",
    )


USE = """
    import torch, warnings
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        x = torch.ones(3, device="tpu")
        assert (x + 1).tolist() == [2, 2, 2] and (x * 3).tolist() == [3, 3, 3] and x.exp().sum().item() > 8
    said = [str(w.message) for w in said if "torch_tpu" in str(w.message)]
    print(len(said), *said, sep="\\n")
"""


def test_a_damaged_program_cache(tmp_path):
    assert run(USE, TORCH_TPU_CACHE_DIR=str(tmp_path / "c"))[0].startswith("0\n")
    files = [f for f in (tmp_path / "c").iterdir() if f.is_file()]
    assert files
    for i, f in enumerate(files):
        f.write_bytes([b"", f.read_bytes()[:100], b"x" * 500][i % 3])
    out, _ = run(USE, TORCH_TPU_CACHE_DIR=str(tmp_path / "c"))
    assert out.startswith("1\n") and "is damaged" in out
    assert run(USE, TORCH_TPU_CACHE_DIR=str(tmp_path / "c"))[0].startswith("0\n")


@pytest.mark.parametrize(
    "mode, words", [(0o770, "can be written by other users"), (0o707, "can be written by other users")]
)
def test_a_cache_that_others_can_write(tmp_path, mode, words):
    folder = tmp_path / "c"
    folder.mkdir()
    os.chmod(folder, mode)
    out, _ = run(USE, TORCH_TPU_CACHE_DIR=str(folder))
    assert out.startswith("1\n") and words in out and not list(folder.iterdir())
    assert stat.S_IMODE(folder.stat().st_mode) == mode


@pytest.mark.skipif(os.getuid() != 0, reason="giving a folder to another user takes root")
def test_a_cache_of_another_user(tmp_path):
    folder = tmp_path / "c"
    folder.mkdir(mode=0o700)
    os.chown(folder, 12345, 12345)
    out, _ = run(USE, TORCH_TPU_CACHE_DIR=str(folder))
    assert out.startswith("1\n") and "belongs to another user" in out and not list(folder.iterdir())


def test_a_cache_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    out, _ = run(USE, TORCH_TPU_CACHE_DIR=str(tmp_path / "file" / "c"))
    assert out.startswith("1\n") and "keeping them in memory only" in out


def test_a_host_tensor_indexed_by_a_device_tensor():
    with pytest.raises(RuntimeError, match="indices should be either on cpu or on the same device"):
        torch.arange(4.0)[torch.tensor([1], device="tpu")]


@pytest.mark.parametrize("name", ["cumsum_", "cumprod_"])
def test_a_type_is_refused_after_a_single_element_of_it_was_taken(name):
    getattr(torch.tensor(True, device="tpu"), name)(0)  # CPU does not look at the type of one element
    with pytest.raises(NotImplementedError, match="Bool"):
        getattr(torch.ones(3, 2, dtype=torch.bool, device="tpu"), name)(0)


def test_an_extremum_of_no_complex_numbers_is_empty():
    for device in ("cpu", "tpu"):
        x = torch.zeros(4, 0, dtype=torch.complex64, device=device)
        assert torch.amax(x, 0, keepdim=True).shape == torch.amin(x, -2, keepdim=True).shape == (1, 0)
