"""``torch-tpu info``: platform, devices, versions, program cache, and what a real TPU would need."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
from typing import Any

VARIABLES = (
    "TORCH_TPU_PLATFORM", "TORCH_TPU_LAUNCH_BLOCKING", "TORCH_TPU_DEFER_AND_FUSE", "TORCH_TPU_CACHE_DIR",
    "TORCH_TPU_CACHE_LIMIT_MB", "TORCH_TPU_PERSISTENT_CACHE", "TORCH_TPU_NUM_CPU_DEVICES", "JAX_PLATFORMS", "XLA_FLAGS",
)  # fmt: skip


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("info", help="platform, devices, versions, cache, what is missing for a TPU")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def missing_for_tpu() -> list[str]:
    """What keeps this machine from running on a TPU, each with what to do; empty if nothing does."""
    from torch_tpu.runtime import platform

    out = []
    if not platform.tpu_attached():
        out.append("no TPU is attached: run on a TPU VM (a v5e, v5p or v6e machine of Google Cloud)")
    if importlib.util.find_spec("libtpu") is None:
        out.append("libtpu is not installed: pip install 'torch-tpu[tpu]'")
    if os.environ.get("TORCH_TPU_PLATFORM", "") in ("cpu", "cuda"):
        out.append(f"TORCH_TPU_PLATFORM={os.environ['TORCH_TPU_PLATFORM']} is set: unset it")
    return out


def gather() -> dict[str, Any]:
    """All that ``info`` prints, as one object."""
    import torch_tpu
    from torch_tpu.runtime import platform
    from torch_tpu.runtime.cache_dir import CacheDirectory

    try:
        name, devices = platform.start()
        error = None
    except RuntimeError as e:
        name, devices, error = "none", (), str(e)
    directory = CacheDirectory()
    programs, size = directory.size()
    return {
        "platform": name,
        "error": error,
        "devices": [
            {
                "index": i,
                "name": torch_tpu.get_device_name(i),
                "memory_bytes": torch_tpu.mem_get_info(i)[1],
            }
            for i in range(len(devices))
        ],
        "versions": {n: version(n) for n in ("torch-tpu", "torch", "jax", "jaxlib", "libtpu", "transformers")},
        "cache": {"directory": str(directory.path), "programs": programs, "bytes": size},
        "variables": {v: os.environ[v] for v in VARIABLES if v in os.environ},
        "missing_for_tpu": missing_for_tpu() if name != "tpu" else [],
    }


def run(args: argparse.Namespace) -> int:
    found = gather()
    if args.json:
        print(json.dumps(found, indent=2))
        return 0 if found["error"] is None else 1
    print(f"platform   {found['platform']}" + (" (XLA:CPU: no TPU is used)" if found["platform"] == "cpu" else ""))
    if found["error"]:
        print(f"error      {found['error']}")
    for d in found["devices"]:
        print(f"device     tpu:{d['index']}  {d['name']}, {d['memory_bytes'] / 2**30:.1f} GiB")
    print("versions   " + ", ".join(f"{n} {v or 'not installed'}" for n, v in found["versions"].items()))
    c = found["cache"]
    print(f"cache      {c['directory']}: {c['programs']} programs, {c['bytes'] / 2**20:.1f} MiB")
    for name, value in found["variables"].items():
        print(f"variable   {name}={value}")
    for line in found["missing_for_tpu"]:
        print(f"for a TPU  {line}")
    return 0 if found["error"] is None else 1
