"""Runs an artifact with JAX and numpy alone: ``python run_with_jax.py model.tpu inputs.npz outputs.npz``.

The same as in docs/export.md. Inputs are ``input_0``, ...; ``key`` if the model draws random numbers.
"""

import json
import sys
import zipfile

import jax
import ml_dtypes  # comes with JAX
import numpy as np
from jax import export

jax.config.update("jax_enable_x64", True)  # for models with int64 or float64
archive = zipfile.ZipFile(sys.argv[1])
manifest = json.loads(archive.read("manifest.json"))
raw = archive.read("weights.safetensors")
start = 8 + int.from_bytes(raw[:8], "little")
weights = {}
for w in manifest["weights"]:
    dtype = np.dtype(getattr(ml_dtypes, w["dtype"], None) or w["dtype"])
    part = raw[start + w["start"] : start + w["end"]]
    weights[w["name"]] = np.frombuffer(part, dtype).reshape(w["shape"])
entry = next(p for p in manifest["programs"] if p["platform"] == "cpu")
program = export.deserialize(bytearray(archive.read(entry["file"])))

given = np.load(sys.argv[2])
inputs = [given[f"input_{i}"] for i in range(sum(k.startswith("input_") for k in given))]
result = program.call(weights, inputs, *([given["key"]] if "key" in given else []))
assert "torch" not in sys.modules and not any(m.startswith("torch") for m in sys.modules)
found = {f"output_{i}": np.asarray(x) for i, x in enumerate(result["outputs"])}
found |= {f"weight {name}": np.asarray(x) for name, x in result.get("weights", {}).items()}
np.savez(sys.argv[3], **found)
