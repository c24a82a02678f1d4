import pytest

from fairseq_clusterformer.attention import (
    AttentionConfig,
    MultiheadAttention,
    Router,
    attention_kinds,
    parse_attention,
    register_attention,
)


@pytest.mark.parametrize(
    ("spec", "layers"),
    [
        ("neural", [("neural",)] * 5),
        (
            "window*3,neural",
            [("window",), ("window",), ("window",), ("neural",), ("window",)],
        ),
        ("window+neural", [("window", "neural")] * 5),
        (
            "full, window+neural*2",
            [
                ("full",),
                ("window", "neural"),
                ("window", "neural"),
                ("full",),
                ("window", "neural"),
            ],
        ),
        ("window*9", [("window",)] * 5),
    ],
)
def test_grammar(spec, layers):
    assert parse_attention(spec, num_layers=5, num_heads=4) == layers


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("dense", "unknown kind 'dense'; allowed: " + ", ".join(attention_kinds())),
        ("window+", "unknown kind ''"),
        ("", "'' is not a layer"),
        ("window,,neural", "'' is not a layer"),
        ("window*", "'window[*]' is not a layer"),
        ("window*0", "'window[*]0' repeats 0 times; allowed: 1"),
        ("window*-1", "'window[*]-1' is not a layer"),
        ("window+neural+full", "4 heads do not divide among the 3 kinds"),
    ],
)
def test_a_bad_spec_is_named(spec, message):
    with pytest.raises(ValueError, match=f"^--encoder-attention is .*{message}"):
        parse_attention(spec, num_layers=2, num_heads=4, option="--encoder-attention")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": 0}, "--attention-window is 0; allowed: 1 or more"),
        ({"num_clusters": 0}, "--num-clusters is 0; allowed: 1 or more"),
        ({"cluster_rule": "all"}, "--cluster-rule is all; allowed: recent, chunk"),
        ({"cluster_similarity": "l2"}, "--cluster-similarity is l2; allowed: dot"),
        ({"cluster_temperature": 0.0}, "--cluster-temperature is 0.0; allowed: above 0"),
        ({"cluster_exploration": 1.0}, "--cluster-exploration is 1.0; allowed: 0 or more, below"),
        ({"cluster_exploration": -0.1}, "--cluster-exploration is -0.1; allowed: 0 or more"),
        ({"cluster_normalizer": "no"}, "--cluster-normalizer is no; allowed: average"),
    ],
)
def test_a_bad_option_is_named(options, message):
    with pytest.raises(ValueError, match=message):
        AttentionConfig(**options)


def test_heads_that_do_not_divide():
    with pytest.raises(ValueError, match="width of 10 does not divide among 4 heads"):
        MultiheadAttention(10, 4, kinds=("full",), config=AttentionConfig(), causal=True)


def test_names_are_registered_once():
    with pytest.raises(ValueError, match="'full' is registered already"):
        register_attention("full")(Router)
    with pytest.raises(ValueError, match="'a[+]b': a name has none of"):
        register_attention("a+b")(Router)
    assert "a+b" not in attention_kinds()
