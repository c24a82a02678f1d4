"""Kernels in Triton: CUDA, or any machine under Triton's interpreter (``TRITON_INTERPRET=1``)."""

from .attention import triton_attention
from .decode import triton_step
from .sorting import counting_sort

__all__ = ["counting_sort", "triton_attention", "triton_step"]
