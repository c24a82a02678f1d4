"""Examples are tested with what the tests of the package have: one thread, a seed, programs."""

from tests.cli.conftest import no_update, qa_data, towns_data, towns_reader  # noqa: F401
from tests.conftest import _fast, _fixed_seed, logging_stays_as_it_was, run_cli  # noqa: F401
