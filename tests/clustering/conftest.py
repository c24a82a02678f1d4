import pytest

from fairseq_clusterformer.clustering import fuzzy


@pytest.fixture(params=[1, 1 << 20], ids=["many chunks", "one chunk"])
def chunks(request, monkeypatch):
    monkeypatch.setattr(fuzzy, "CHUNK_NUMBERS_CPU", request.param)
