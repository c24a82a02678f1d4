"""Options of kinds as models have them."""

from dataclasses import dataclass, fields

import pytest
from fairseq.models import MODEL_DATACLASS_REGISTRY

from fairseq_clusterformer.attention import Options, option, options
from tests.models.small import make_lm


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


def test_a_kind_that_comes_after_the_models_is_refused(monkeypatch):
    """Or what a checkpoint says of its options would be lost."""

    @dataclass(frozen=True)
    class Late(Options):
        late: int = option(2, "a number")

    known = options.registered("full")._replace(options=Late)
    monkeypatch.setitem(options._KINDS, "late", known)
    with pytest.raises(ValueError, match="^--late is unknown to the models; allowed: a plug-in"):
        make_lm(attention="late")
