"""Kernels in Triton: CUDA, or any machine under Triton's interpreter (``TRITON_INTERPRET=1``)."""

from .attention import triton_attention

__all__ = ["triton_attention"]
