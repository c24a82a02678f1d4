"""Documents that share a row, positions, and shared keys of language models."""

import math

import pytest
import torch
from fairseq.modules import LearnedPositionalEmbedding, SinusoidalPositionalEmbedding

from fairseq_clusterformer.models.clusterformer_lm import ClusterformerLanguageModel
from fairseq_clusterformer.models.decoder import DecoderState, decode
from fairseq_clusterformer.models.options import POSITIONS
from tests.models.small import letters, make_lm

LENGTHS = (9, 1, 7)
EOS = 2


def make_model(**options) -> ClusterformerLanguageModel:
    """In float64 and evaluation."""
    spec = "window(3)+neural(4,clusters=3),gated(4,clusters=3,gap=2)"
    return make_lm(**{"width": 16, "attention": spec, **options}).double().eval()


def texts() -> list[torch.Tensor]:
    """As fairseq hands them to a model: an end-of-sentence symbol in front of each."""
    found = [letters(1, length + 1) for length in LENGTHS]
    for text in found:
        text[:, 0] = EOS
    return found


@pytest.mark.parametrize(
    ("attention", "problem"),
    [
        ("taught(routing_convolution=4)", "Taught .*: routing_convolution=0 and summaries=0"),
        ("taught(routing_convolution=0,summaries=8)", "Taught .*_convolution=0 and summaries=0"),
        ("neural(normalizer=running)", "Neural .*: normalizer=average"),
    ],
)
def test_documents_that_would_see_each_other_are_refused(attention, problem):
    with pytest.raises(ValueError, match=f"--separate-documents is given, and .* {problem}"):
        make_model(separate_documents=True, attention=attention)


@pytest.mark.parametrize("positions", [None, *POSITIONS])
@pytest.mark.parametrize("short_convolution", [0, 3])
@torch.no_grad()
def test_documents_of_a_row_are_as_if_alone(positions, short_convolution):
    options = {"positions": positions, "short_convolution": short_convolution}
    model = make_model(separate_documents=True, **options)
    given = texts()
    row = torch.cat(given, dim=1)
    alone = torch.cat([model(text)[0] for text in given], dim=1)
    torch.testing.assert_close(model(row)[0], alone, rtol=0, atol=1e-12)
    state: dict = {}
    steps = [
        model.decoder(row[:, : t + 1], incremental_state=state)[0] for t in range(row.size(1))
    ]
    torch.testing.assert_close(torch.cat(steps, dim=1), alone, rtol=0, atol=1e-12)
    cache = DecoderState()  # some tokens at a time, which begin and end within documents
    features = [decode(model.decoder, part, cache) for part in row.split([4, 9, 2, 5], dim=1)]
    found = model.decoder.output_layer(torch.cat(features, dim=1))
    torch.testing.assert_close(found, alone, rtol=0, atol=1e-12)
    together = make_model(**options)
    together.load_state_dict(model.state_dict())
    assert not torch.allclose(together(row)[0], alone, atol=1e-3)


@torch.no_grad()
def test_what_stands_for_positions():
    for name, kind in (
        (None, SinusoidalPositionalEmbedding),  # fairseq's default
        ("sinusoidal", SinusoidalPositionalEmbedding),
        ("learned", LearnedPositionalEmbedding),
        ("rotary", type(None)),
    ):
        assert isinstance(make_model(positions=name).decoder.embed_positions, kind)
    tokens = letters(1, 12)
    swapped = tokens.clone()
    swapped[0, [1, 2]] = tokens[0, [2, 1]]
    for positions, knows in (("rotary", True), ("relative", True), ("none", False)):
        model = make_model(positions=positions, attention="full", decoder_layers=1)
        same = torch.allclose(model(tokens)[0][:, -1], model(swapped)[0][:, -1], atol=1e-9)
        assert same != knows


def test_scaling_slows_what_turns_slowly():
    """As Llama 3 has it: of pairs that turn 31.8, 3.18, 0.32 and 0.03 times in 200 tokens, the
    first as before, the last two by the factor, and the second in between."""
    how = {"positions": "rotary", "decoder_head_dim": 8, "rotary_scaling": "4,1,4,200"}
    found = make_model(**how).decoder.layers[0].self_attn.rotary.rates
    kept = (200 / (2 * math.pi * 10) - 1) / 3
    assert found == pytest.approx([1.0, kept + (1 - kept) / 4, 0.25, 0.25])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"positions": "relative", "decoder_attention_heads": 1}, "embed-dim, not 325"),
        ({"positions": "rotary"}, "with an even width of heads, not 65"),
        ({"rotary_scaling": "8,1,4,32"}, "is 8,1,4,32; allowed: with --positions rotary"),
        ({"positions": "absolute"}, "--positions is absolute; allowed: learned, sinusoidal"),
    ],
)
def test_refuses(options, message):
    small = {"width": 325, "decoder_attention_heads": 5, "attention": "window"}
    with pytest.raises(ValueError, match=message):
        make_model(**{**small, **options})
