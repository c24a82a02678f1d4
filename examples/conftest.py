"""Examples are tested with what the tests of the package have: one thread, a seed, programs."""

from tests.conftest import (  # noqa: F401
    _fairseq_composes_once,
    _few_threads,
    _fixed_seed,
    logging_stays_as_it_was,
    run_cli,
)
