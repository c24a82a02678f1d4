"""Long prompts, which decoders read in portions."""

import pytest
import torch

from fairseq_clusterformer.models import decoder as module
from fairseq_clusterformer.models.decoder import DecoderState, decode
from tests.models.small import letters, make_lm

PAD = 1
INDEX = "taught(clusters=3,index=4,probes=2,gap=3,sinks=2,summaries=4)"


@pytest.mark.parametrize("padding", [0, 7])
@pytest.mark.parametrize(
    "attention",
    [f"window(3,sinks=2)+{INDEX}", "neural(4,clusters=3)", "gated(clusters=3,index=4)", "full"],
)
@torch.no_grad()
def test_as_if_read_at_once(attention, padding, monkeypatch):
    decoder = make_lm(width=16, attention=attention).double().eval().decoder
    tokens = letters(2, 24)
    tokens[0, :padding] = PAD  # the first portion of this row is padding alone
    prompt, state = tokens[:, :-1], {}
    expected = [decoder(part, incremental_state=state)[0] for part in (prompt, tokens)]
    monkeypatch.setattr(module, "PROMPT_AT_ONCE", 5)
    portions, run, state = [], decoder.run, {}
    monkeypatch.setattr(decoder, "run", lambda x, *how: portions.append(len(x)) or run(x, *how))
    found = [decoder(part, incremental_state=state)[0] for part in (prompt, tokens)]
    assert portions == [23, 5, 5, 5, 5, 3, 1]
    features = decode(decoder, prompt, DecoderState())
    for some, all_at_once in zip(
        (*found, decoder.output_layer(features)), (*expected, expected[0]), strict=True
    ):
        real = tokens[:, -1:].ne(PAD) if some.size(1) == 1 else prompt.ne(PAD)
        torch.testing.assert_close(some[real], all_at_once[real], rtol=0, atol=1e-12)
