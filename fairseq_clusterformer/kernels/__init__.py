"""Ranged attention: softmax attention of each query slot over its range of key slots.

=============  ===============================================================
``reference``  a dense mask; any dtype, float64 for gradcheck; the specification
``blocks``     PyTorch, tiles of slots; CPU and CUDA; memory O(N) per head
``triton``     fused kernels; CUDA, and the CPU under Triton's interpreter
``cpu``        a fused kernel in C++, built on first use
=============  ===============================================================

The caller chooses one, or "auto". Each is a :class:`.kernel.Kernel`; one that cannot do what it is
asked raises and names one that can. None falls back to another.

Shape letters: B batch, H heads, G groups of them, N tokens, M key slots, E head width.
"""

from .attend import KERNELS, chosen, largest, ranged_attention  # noqa: F401
from .kernel import Layout, Listed, Own, attend_own, join, sort_by_cluster, times_seen  # noqa: F401
from .triton import WIDEST  # noqa: F401

IMPLEMENTATIONS = tuple(KERNELS)
