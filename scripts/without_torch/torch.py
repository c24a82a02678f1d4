"""Stands for torch while fairseq is built: leaves out the extensions that include torch's headers.

Layers that few use import these three: BASE layers, Levenshtein and insertion models, monotonic
attention. Compiling them takes minutes, and ties fairseq's wheel to one torch.
"""

import sys

from setuptools import Extension
from setuptools.command.build_ext import build_ext

# fairseq's setup.py has `from torch.utils import cpp_extension`
utils = cpp_extension = sys.modules["torch.utils"] = sys.modules[__name__]


class CppExtension(Extension):
    """One of the extensions that are left out."""


class BuildExtension(build_ext):
    """Builds the others, several at the same time."""

    def finalize_options(self):
        """Leaves out the extensions of torch."""
        built = self.distribution
        built.ext_modules = [e for e in built.ext_modules if not isinstance(e, CppExtension)]
        super().finalize_options()
        self.parallel = True
