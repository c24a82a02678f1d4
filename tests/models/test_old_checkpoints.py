"""A checkpoint from before each kind had options of its own loads, and says what it said then.

``tests/checkpoints`` has it and what that version made of some tokens: ``NAME.pt.xz``, and in
``expected.npz`` tokens [B, N] and the first 40 logits of each [B, N, 40].
"""

import lzma
import shutil

import numpy as np
import pytest
import torch

from fairseq_clusterformer.attention.kind import Kind
from fairseq_clusterformer.checkpoints.load import load_checkpoint
from tests.conftest import REPO_ROOT

STORED = REPO_ROOT / "tests" / "checkpoints"
KINDS = {
    "masked_language_model": "Neural Window Lsh RoutingAttention KMeans Gated Strided",
}


@pytest.mark.parametrize("name", KINDS)
@torch.no_grad()
def test_logits_are_those_of_then(name, tmp_path):
    path = tmp_path / "checkpoint.pt"
    path.write_bytes(lzma.decompress((STORED / f"{name}.pt.xz").read_bytes()))
    shutil.copy(STORED / "dict.txt", tmp_path)
    model = load_checkpoint(path, data=tmp_path).model
    with np.load(STORED / "expected.npz") as expected:
        tokens, logits = (
            torch.from_numpy(expected[f"{name}.{of}"]) for of in ("tokens", "logits")
        )
    found = model(tokens)[0][..., : logits.size(-1)]
    real = tokens != 1
    torch.testing.assert_close(found[real], logits[real], rtol=0, atol=1e-5)
    routers = [module for module in model.modules() if isinstance(module, Kind)]
    assert {type(router).__name__ for router in routers} == set(KINDS[name].split())
