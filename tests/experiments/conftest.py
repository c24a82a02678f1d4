"""The data of the commands' tests, which grids train on."""

from tests.cli.conftest import byte_data, pair_data, sentences, stories  # noqa: F401  fixtures
