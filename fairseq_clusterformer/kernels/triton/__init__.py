"""Kernels in Triton: CUDA, or any machine under Triton's interpreter (``TRITON_INTERPRET=1``)."""

from .backward import backward
from .forward import forward
from .sorting import counting_sort

__all__ = ["backward", "counting_sort", "forward"]
