"""With ``--user-dir``, fairseq imports each module here; this one registers all the others."""

from .. import plugin  # noqa: F401
