"""The grammar of specs, and the options of kinds: what is allowed, and what the refusal says."""

import re
from dataclasses import fields

import pytest

from fairseq_clusterformer.attention import (
    Kind,
    MultiheadAttention,
    OptionError,
    attention_kinds,
    parse_attention,
    parse_layer,
    register_attention,
)
from fairseq_clusterformer.attention.options import written


@pytest.mark.parametrize(
    ("spec", "layers"),
    [
        ("neural", "neural,neural,neural,neural,neural"),
        ("window*3,neural", "window,window,window,neural,window"),
        ("window+neural", ",".join(["window+neural"] * 5)),
        ("full, window+neural*2", "full,window+neural,window+neural,full,window+neural"),
        (
            "window(64)*2, window(64)+gated(clusters=32, gap=4)",
            "window(64),window(64),window(64)+gated(clusters=32,gap=4),window(64),window(64)",
        ),
        ("full()", "full(),full(),full(),full(),full()"),
    ],
)
def test_grammar(spec, layers):
    parsed = parse_attention(spec, num_layers=5, num_heads=4)
    assert written(parsed) == layers
    for heads in (heads for layer in parsed for heads in layer):
        assert heads.kind == heads.written.partition("(")[0]
        assert type(heads.options) is attention_kinds()[heads.kind].options


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("dense", "unknown kind 'dense'; allowed: " + ", ".join(attention_kinds())),
        ("window+", "'' is not a kind; allowed: KIND or KIND(OPTION=VALUE)"),
        ("", "'' is not a layer"),
        ("window*", "'window*' is not a layer"),
        ("window*0", "'window*0' repeats 0 times; allowed: 1"),
        ("window+neural+full", "4 heads do not divide among 3 kinds"),
        ("window(8", "'window(8' is not a layer"),
        ("window(8)(9)", "'window(8)(9)' is not a kind"),
        ("window(size=8)", "window has no option 'size'; allowed: window"),
        ("full(8)", "full has no option ''; allowed: none"),
        (
            "lsh(temperature=1)",
            "lsh has no option 'temperature'; allowed: window, sinks, clusters, gap, rule, rounds",
        ),
        ("window(wide)", "window is wide; allowed: a whole number"),
        ("gated(temperature=warm)", "temperature is warm; allowed: a number"),
        ("neural(own_centroids=2)", "own_centroids is 2; allowed: "),
        ("window(0)", "window: window is 0; allowed: 1 or more"),
        ("window*2,neural(clusters=0)", "neural: clusters is 0; allowed: 1 or more"),
    ],
)
def test_a_bad_spec_is_named(spec, message):
    expected = rf"^--encoder-attention is {re.escape(spec)}: .*{re.escape(message)}"
    with pytest.raises(ValueError, match=expected):
        parse_attention(spec, num_layers=2, num_heads=4, option="--encoder-attention")


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("window", {"attention_window": 0}, "window is 0; allowed: 1 or more"),
        ("kmeans", {"cluster_rule": "leaking-chunk"}, "rule is leaking-chunk; allowed: recent, c"),
        ("gated", {"temperature": 0.0}, "temperature is 0.0; allowed: above 0"),
        ("gated", {"exploration": 1.0}, "exploration is 1.0; allowed: 0 or more, below 1"),
        ("taught", {"scout_share": 1.1}, "scout_share is 1.1; allowed: above 0.0, up to 1.0"),
        ("kmeans", {"bank_size": 7}, "bank_size is 7; allowed: 8 or more, the clusters"),
    ],
)
def test_a_bad_option_is_named(kind, options, message):
    """As it stands in the dataclass, whatever it was given by."""
    with pytest.raises(OptionError, match=f"^{re.escape(message)}") as caught:
        parse_layer(kind, **options)
    assert caught.value.name == message.split()[0]
    assert message.startswith(f"{caught.value.name} {caught.value.text}"[: len(message)])


@pytest.mark.parametrize("kind", attention_kinds())
def test_every_option_has_a_default_that_is_allowed_and_help(kind):
    options = attention_kinds()[kind].options
    assert options() == parse_layer(kind)[0].options
    for item in fields(options):
        assert item.metadata["help"].strip(), item.name


def test_values_come_from_the_spec_then_from_the_defaults():
    spec = "window,neural(16,clusters=4),neural(gap=3),gated(window=none)"
    with pytest.raises(ValueError, match="window is none; allowed: a whole number"):
        parse_attention(spec, num_layers=4, num_heads=4)
    defaults = {"attention_window": 32, "num_clusters": 9, "cluster_temperature": 0.5}
    layers = parse_attention(
        "window,neural(16,clusters=4),neural(gap=3,temperature=none),lsh",
        num_layers=4,
        num_heads=4,
        defaults=defaults,
    )
    window, first, second, lsh = (heads.options for (heads,) in layers)
    assert (window.window, window.sinks, window.cache_positions) == (32, 0, False)
    assert (first.window, first.clusters, first.gap, first.temperature) == (16, 4, 0, 0.5)
    assert (second.window, second.clusters, second.gap, second.temperature) == (32, 9, 3, None)
    assert (lsh.window, lsh.clusters) == (32, 9)
    assert parse_layer("neural(own_centroids=False)")[0].options.own_centroids is False


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_heads": 4}, "the width of 10 do not divide among 4 heads; allowed: a number that"),
        ({"num_heads": 0}, "the width of 10 do not divide among 0 heads"),
        ({"kinds": "full+window+neural"}, "2 heads do not divide among 3 kinds of full+window+"),
        ({"kv_heads": 3}, "2 heads do not divide among 3 heads of keys and values"),
        ({"rotary": True}, "rotary positions with heads 5 wide; allowed: even"),
    ],
)
def test_a_layer_that_cannot_be(options, message):
    options = {"num_heads": 2, "kinds": "full", **options}
    with pytest.raises(ValueError, match=re.escape(message)):
        MultiheadAttention(10, options.pop("num_heads"), **options, causal=True)


def test_names_are_registered_once():
    with pytest.raises(ValueError, match="'full' is registered already"):
        register_attention("full")(Kind)
    for name in ("a+b", "a(b", "a b", ""):
        with pytest.raises(ValueError, match=re.escape(f"{name!r} is no name; allowed")):
            register_attention(name)(Kind)
        assert name not in attention_kinds()
