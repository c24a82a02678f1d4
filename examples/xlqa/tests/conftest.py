"""Questions of every type, and towns with who rules them."""

from tests.cli.conftest import qa_data, towns_data, towns_reader  # noqa: F401  fixtures
