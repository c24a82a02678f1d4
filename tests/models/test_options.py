"""Options of kinds as models have them."""

from dataclasses import dataclass

import pytest

from fairseq_clusterformer.attention import Options, option, options
from tests.models.small import make_lm


def test_a_kind_that_comes_after_the_models_is_refused(monkeypatch):
    """Or what a checkpoint says of its options would be lost."""

    @dataclass(frozen=True)
    class Late(Options):
        late: int = option(2, "a number")

    known = options.attention_kinds()["full"]._replace(options=Late)
    monkeypatch.setitem(options._KINDS, "late", known)
    with pytest.raises(ValueError, match="^--late is unknown to the models; allowed: a plug-in"):
        make_lm(attention="late")
