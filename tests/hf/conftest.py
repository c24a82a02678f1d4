"""Our models are imported before anything of transformers: they put a torchaudio aside that torch
cannot load."""

import contextlib

with contextlib.suppress(ImportError):
    import fairseq_clusterformer.hf  # noqa: F401
