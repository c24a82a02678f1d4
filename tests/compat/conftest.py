from tests.cli.conftest import (  # noqa: F401  fixtures
    byte_data,
    parallel_data,
    parallel_text,
    qa_data,
    text_data,
)
