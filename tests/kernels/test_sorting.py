"""The counting sort against a general one."""

import pytest
import torch

from ..conftest import REPO_ROOT  # noqa: F401  sets TRITON_INTERPRET before Triton is imported

pytest.importorskip("triton", reason="triton is not installed")

from fairseq_clusterformer.kernels.triton import counting_sort


@pytest.mark.parametrize("impl", ["triton"])
@pytest.mark.parametrize(
    ("shape", "num_clusters"),
    [((1, 1, 1), 1), ((2, 1, 127), 5), ((2, 2, 128), 1), ((1, 3, 300), 300), ((3, 1, 257), 7)],
)
def test_equal_to_a_stable_sort(impl, shape, num_clusters):
    clusters = torch.randint(num_clusters, shape)
    codes = clusters * shape[-1] + torch.arange(shape[-1])
    expected_codes, expected_order = codes.sort(dim=-1)
    order, got = counting_sort(clusters, num_clusters)
    assert torch.equal(order, expected_order)
    assert torch.equal(got, expected_codes)
