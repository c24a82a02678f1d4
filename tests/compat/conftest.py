from tests.cli.conftest import byte_data  # noqa: F401  fixture
