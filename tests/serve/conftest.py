"""A desk with a reader that knows who rules a town."""

from pathlib import Path

import pytest

from fairseq_clusterformer.checkpoints.load import load_checkpoint
from fairseq_clusterformer.documents.read import Reader
from fairseq_clusterformer.serve import Desk
from tests.cli.towns import towns_data, towns_reader  # noqa: F401  fixtures


@pytest.fixture(scope="session")
def reader(towns_reader: Path) -> Reader:  # noqa: F811
    return Reader(load_checkpoint(towns_reader), device="cpu")


@pytest.fixture
def desk(reader: Reader) -> Desk:
    return Desk(reader)
