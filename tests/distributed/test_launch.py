"""What libtpu is told from a launcher's variables: worked out with no TPU."""

import pytest

from torch_tpu.runtime import launch
from torch_tpu.runtime.launch import Launch, tpu_variables


def ranks(world, local, **environment):
    return [tpu_variables(Launch(r, world, r % local, local), environment) for r in range(world)]


def test_one_host_of_four_chips():
    found = ranks(4, 4)
    assert {v["TPU_PROCESS_BOUNDS"] for v in found} == {"2,2,1"}
    assert {v["TPU_CHIPS_PER_PROCESS_BOUNDS"] for v in found} == {"1,1,1"}
    assert [v["TPU_VISIBLE_CHIPS"] for v in found] == ["0", "1", "2", "3"]
    assert [v["CLOUD_TPU_TASK_ID"] for v in found] == ["0", "1", "2", "3"]
    assert [v["TPU_PROCESS_PORT"] for v in found] == ["8476", "8477", "8478", "8479"]
    assert {v["TPU_PROCESS_ADDRESSES"] for v in found} == {
        "127.0.0.1:8476,127.0.0.1:8477,127.0.0.1:8478,127.0.0.1:8479"
    }


def test_one_host_of_eight_chips():
    assert ranks(8, 8)[0]["TPU_PROCESS_BOUNDS"] == "2,4,1"


def test_four_hosts_of_four_chips():
    """A process's number counts over the slice, x first; its rank counts host by host."""
    found = ranks(16, 4, TPU_WORKER_HOSTNAMES="a,b,c,d", TPU_HOST_BOUNDS="2,2,1")
    assert {v["TPU_PROCESS_BOUNDS"] for v in found} == {"4,4,1"}
    tasks = [int(v["CLOUD_TPU_TASK_ID"]) for v in found]
    assert tasks == [0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15]
    (addresses,) = {v["TPU_PROCESS_ADDRESSES"] for v in found}
    for rank, task in enumerate(tasks):
        assert addresses.split(",")[task] == f"{'abcd'[rank // 4]}:{8476 + rank % 4}"


def test_chips_of_a_host_that_lie_otherwise():
    assert ranks(4, 4, TPU_CHIPS_PER_HOST_BOUNDS="1,4,1")[0]["TPU_PROCESS_BOUNDS"] == "1,4,1"


def test_a_users_own_setting_wins():
    assert ranks(4, 4, TPU_PROCESS_BOUNDS="1,1,4", TPU_VISIBLE_CHIPS="2")[0] == {}


@pytest.mark.parametrize(
    ("world", "local", "environment", "words"),
    [
        (3, 3, {}, "3 processes on a host"),
        (8, 4, {}, "TPU_WORKER_HOSTNAMES names 0"),
        (8, 4, {"TPU_WORKER_HOSTNAMES": "a,b"}, "TPU_HOST_BOUNDS does not say"),
        (8, 4, {"TPU_WORKER_HOSTNAMES": "a,b", "TPU_HOST_BOUNDS": "2,2,1"}, "are not 2 hosts"),
        (8, 4, {"TPU_WORKER_HOSTNAMES": "a,b", "TPU_HOST_BOUNDS": "two"}, "expected two or three sizes"),
        (4, 4, {"TPU_CHIPS_PER_HOST_BOUNDS": "2,4,1"}, "4 processes on a host"),
    ],
)
def test_what_does_not_fit_is_said(world, local, environment, words):
    with pytest.raises(ValueError, match=words):
        ranks(world, local, **environment)


def test_what_a_launcher_says():
    torchrun = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
    assert launch.current(torchrun) == Launch(5, 8, 1, 4)
    assert not Launch(5, 8, 1, 4).one_host
    assert launch.current({}) is None
    assert launch.current({**torchrun, "RANK": "0", "WORLD_SIZE": "1"}) is None  # alone, with all chips of the host


def test_variables_of_other_launchers(monkeypatch):
    from torch_tpu.distributed import launching

    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    for name in names:
        monkeypatch.setenv(name, "x")  # so that what is set below is taken back
        monkeypatch.delenv(name)
    monkeypatch.setattr(launching.platform, "started", lambda: False)
    with pytest.raises(RuntimeError, match="nothing says which process this is"):
        launching.set_tpu_launch_env()
    monkeypatch.setenv("SLURM_PROCID", "5")
    monkeypatch.setenv("SLURM_NTASKS", "8")
    launching.set_tpu_launch_env(nnodes=2, nproc_per_node=4)
    import os

    assert [os.environ.get(n) for n in names] == ["5", "8", "1", "4", None, "29500"]
    launch.forget()


def test_local_rank_is_another_name_of_the_one_device(monkeypatch):
    launch.forget()
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert [launch.resolve(i) for i in range(4)] == [0, 1, 2, 0]
    launch.forget()
    monkeypatch.undo()
    assert launch.resolve(3) == 3
    launch.forget()


def test_module_as_a_launcher():
    from torch_tpu.distributed.__main__ import arguments

    assert arguments(["a.py", "--x"], 4) == ["--standalone", "--nproc-per-node=4", "a.py", "--x"]
    assert arguments(["--nproc-per-node", "2", "a.py"], 4) == ["--nproc-per-node", "2", "a.py"]
    assert arguments(["--nnodes=2", "--rdzv-endpoint=h:1", "a.py", "--nproc-per-node=3"], 4)[0] == "--nproc-per-node=4"
