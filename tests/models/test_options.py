"""Options of kinds as models have them."""

from dataclasses import fields

import pytest
from fairseq.models import MODEL_DATACLASS_REGISTRY


@pytest.mark.parametrize(
    ("model", "clusters"),
    [("clusterformer_lm", 8), ("clusterformer", 3), ("clusterformer_reader", 64)],
)
def test_an_option_has_a_default_by_side(model, clusters):
    options = {item.name: item for item in fields(MODEL_DATACLASS_REGISTRY[model])}
    assert options["num_clusters"].default == clusters
    assert options["num_clusters"].metadata["range"].at_least == 1
    assert options["hash_rounds"].default == 2
    # An encoder's centroids go from layer to layer; others have no such option.
    assert ("own_centroids" in options) == (model == "clusterformer")
