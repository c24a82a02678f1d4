from tests.cli.conftest import qa_data, sentences, text_data  # noqa: F401  fixtures
