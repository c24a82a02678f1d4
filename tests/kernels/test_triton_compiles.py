"""The Triton kernels compile for a GPU, and fit one: the interpreter takes more than that."""

import json
import os
import subprocess
import sys

import pytest

from ..conftest import REPO_ROOT

ATTENTION = {"_forward", "_backward_queries", "_backward_keys"}
OTHERS = {"_spans"}
SHARED = 227 * 1024  # bytes that a program may have on Hopper


@pytest.mark.matrix
def test_every_kernel_fits_hopper(tmp_path):
    pytest.importorskip("triton", reason="triton is not installed")
    environment = {n: v for n, v in os.environ.items() if n != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    command = [sys.executable, "-m", "tests.kernels.compile_for_hopper"]
    how = {"capture_output": True, "text": True, "cwd": REPO_ROOT}
    done = subprocess.run(command, env=environment, **how)
    assert done.returncode == 0, done.stderr[-3000:]
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert sorted(x["kernel"] for x in found) == sorted(ATTENTION | OTHERS)
    for x in found:
        assert x["local"] <= 64, x
        assert x["shared"] <= SHARED, x
        assert (x["kernel"] in ATTENTION) == (x["instruction"] == "wgmma"), x
