"""Readers of words: each part against a plain loop, and what BiDAF and QANet promise."""

import math
from argparse import Namespace

import pytest
import torch
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from fairseq.modules import SinusoidalPositionalEmbedding
from torch import Tensor
from torch.nn.functional import pad

from fairseq_clusterformer.answers import AnswerLogits
from fairseq_clusterformer.attention import attention_kinds
from fairseq_clusterformer.corpora.binarize import symbol_dictionary
from xlqa import readers, word_reader

CLOSE = {"rtol": 0, "atol": 1e-12}
#: subwords, as sentencepiece has them: a blank begins a word
PIECES = " a| b|cd| The|re|ly| (|)| 19|50|s|.|-| |é| 東|京| x|yz| UN| There".split("|")
SIZES = {"encoder_embed_dim": 12, "word_dim": 5, "subword_dim": 6, "letter_dim": 4}
SIZES |= {"letter_filters": 4, "dropout": 0.0}
QANET = {"encoder_layers": 3, "encoder_ffn_embed_dim": 10, "encoder_attention_heads": 4}
QANET |= {"attention_window": 3, "num_clusters": 3, "attention_dropout": 0.0}
QANET |= {"kmeans_bank_size": 200, "kmeans_interval": 1}
MIXED = ("window+taught", "window*2,neural", "window(2),lsh+kmeans")
EVERY = (*attention_kinds(), *MIXED)


def make_task() -> Namespace:
    dictionary = symbol_dictionary([piece.replace(" ", "▁") for piece in PIECES])
    texts = [""] * dictionary.nspecial + PIECES
    return Namespace(source_dictionary=dictionary, symbol_texts=texts)


def make(name: str, **changes) -> word_reader.WordReader:
    """In float64 and evaluation; "bidaf" or "qanet"."""
    model, more = {"bidaf": (readers.BidafReader, {}), "qanet": (readers.QANetReader, QANET)}[name]
    args = Namespace(**{**SIZES, **more, **changes})
    built = model.build_model(args, make_task()).double().eval()
    words = ["There", "ab", "1950s", "(", "un", "xyz"]
    built.encoder.embedding.vectors.set(words, torch.randn(6, args.word_dim).double())
    return built


def tokens(*shape: int) -> Tensor:
    return torch.randint(4, 4 + len(PIECES), shape)


def ragged() -> tuple[Tensor, Tensor, list[int], list[int]]:
    """Questions and documents, padded behind, one of them ``<s>`` alone; and their lengths."""
    asked, lengths = [4, 1, 3, 7, 5], [23, 40, 5, 1, 12]
    question, document = tokens(5, 7), tokens(5, 40)
    document[:, 0] = document[1, 9] = 0
    for row in range(5):
        question[row, asked[row] :] = document[row, lengths[row] :] = 1
    return question, document, asked, lengths


def test_highway_and_letters():
    """y = g relu(A x + a) + (1 - g) x with g = sigmoid(G x + b); the maximum over a word's letters
    of relu(w . three letters + b)."""
    highway, x = word_reader.Highway(4, 2).double(), torch.randn(3, 4).double()
    y = x
    for gate, transform in zip(highway.gates, highway.transforms, strict=True):
        y = torch.sigmoid(gate(y)) * transform(y).relu() + (1 - torch.sigmoid(gate(y))) * y
    torch.testing.assert_close(highway(x), y, **CLOSE)
    layer = word_reader.LetterConvolution(9, 5, 3, dropout=0.0).double()
    letters = torch.tensor([[3, 1, 4, 1, 5, 0, 0], [2, 0, 0, 0, 0, 0, 0], [0] * 7])
    with torch.no_grad():
        layer.convolution.bias += 0.3  # so that a convolution over padding alone would be seen
    three = pad(layer.embedding(letters), (0, 0, 1, 1)).unfold(1, 3, 1)  # [3, 7, 5, 3]
    found = torch.einsum("wpck,fck->wpf", three, layer.convolution.weight)
    found = (found + layer.convolution.bias).relu()
    expected = [found[0, :5].amax(0), found[1, :1].amax(0), torch.zeros(3).double()]
    longer = torch.cat([letters, torch.zeros(3, 20, dtype=int)], dim=1)
    for given in (letters, longer):
        torch.testing.assert_close(layer(given[None])[0], torch.stack(expected), **CLOSE)


@pytest.mark.parametrize("matches", [False, True])
def test_context_query_attention(matches):
    """As XLQA writes it, row by row; with matches, also by whether words are spelt alike."""
    layer = word_reader.ContextQueryAttention(3, matches=matches).double()
    lengths, asked, spelt = [5, 3], [2, 4], []
    for sizes in (lengths, asked):
        codes = torch.randint(3, (2, max(sizes)))  # 0 and 1 are the same but for their case
        padding = torch.arange(max(sizes)) >= torch.tensor(sizes).unsqueeze(1)
        codes = torch.stack([codes, codes.clamp(min=1)], -1).masked_fill(padding[..., None], 0)
        spelt.append(word_reader.Words(*[padding] * 6, codes=codes))
    document, question = torch.randn(2, 5, 3).double(), torch.randn(2, 4, 3).double()
    if matches:
        layer.of_match.data = torch.randn(2).double()
    found = layer(document, question, *spelt)
    assert found.size(-1) == layer.width
    for row in range(2):
        c, q = document[row, : lengths[row]], question[row, : asked[row]]
        same = spelt[0].codes[row, : len(c), None] == spelt[1].codes[row, : len(q)]
        s = (c @ layer.of_document.weight[0])[:, None] + q @ layer.of_question.weight[0]
        s = s + (c * layer.of_both) @ q.T + layer.bias
        if matches:
            s = s + same.double() @ layer.of_match
        a, b = s.softmax(1) @ q, s.softmax(1) @ (s.softmax(0).T @ c)
        expected = torch.cat([c, a, c * a, c * b, *[same.double().amax(1)] * matches], dim=1)
        torch.testing.assert_close(found[row, : len(c)], expected, **CLOSE)


@torch.no_grad()
def heads_by_hand() -> AnswerLogits:
    """Of ``<s>`` and two words, of which the first has two tokens."""
    model, index = make("bidaf"), make_task().symbol_texts.index
    document = torch.tensor([[0, index(" The"), index("re"), index(" ("), 1]])
    states = pad(torch.tensor([[[2.0, -1.0], [1.0, 0.5], [4.0, 3.0]]]).double(), (0, 118))
    heads = model.heads
    for parameter in heads.parameters():
        parameter.zero_()
    heads.begin.weight[0, 0] = heads.end.weight[0, 1] = heads.paragraph.weight[0, 0] = 1.0
    heads.others[0].bias.copy_(torch.tensor([-5.0, -6.0, -7.0]))
    heads.others[1].bias.fill_(-1.0)
    words = model.encoder.embedding.speller(document)
    return heads(word_reader.Reading(words, states, states, []), document.eq(0), document.gt(1))


def test_no_answer_has_a_place_in_both_softmaxes():
    found, inf = heads_by_hand(), math.inf
    assert found.start.tolist() == [[-inf, 1.0, -inf, 4.0, -inf]]
    assert found.end.tolist() == [[-inf, -inf, 0.5, 3.0, -inf]]
    assert found.paragraph.tolist() == [[2.0, -inf, -inf, -inf, -inf]]
    assert found.slots.tolist() == [[[-5.0, -6.0, -7.0, 2.0], [-1.0, -1.0, -1.0, -1.0]]]
    assert found.type.tolist() == [[4.0 + 3.0, -6.0, -7.0, -8.0, 2.0 - 1.0]]
    assert found.bounds[0, :4].tolist() == [[0, 0], [1, 2], [1, 2], [3, 3]]


@torch.no_grad()
@pytest.mark.parametrize(
    ("name", "options"),
    [
        *(("bidaf", {"word_matches": matches}) for matches in (False, True)),
        *(("qanet", {"attention": attention, "word_matches": True}) for attention in EVERY),
        *(("qanet", {"attention": attention, "cluster_rule": "recent"}) for attention in MIXED),
    ],
)
def test_a_document_alone_is_a_document_in_any_batch(name, options):
    """With as much padding as there may be; and the best span in order counts."""
    model = make(name, **options)
    question, document, asked, lengths = ragged()
    mask = torch.rand(5, 40) < 0.8
    together, _ = model(question, document, mask)
    for row, (length, number) in enumerate(zip(lengths, asked, strict=True)):
        part = (slice(row, row + 1), slice(length))
        alone, _ = model(question[row : row + 1, :number], document[part], mask[part])
        for name in ("start", "end", "paragraph", "type", "slots"):
            mine, theirs = (getattr(x, name) for x in (together, alone))
            if name in ("start", "end", "paragraph"):
                assert (mine[row, length:] == -math.inf).all()
                mine = mine[:, :length]
            torch.testing.assert_close(mine[row], theirs[0], **CLOSE)
        sums = [s + e for i, s in enumerate(alone.start[0]) for e in alone.end[0, i:]]
        assert together.type[row, 0].item() == pytest.approx(max(sums).item())


@pytest.mark.parametrize(("name", "attention"), [("bidaf", ""), *(("qanet", a) for a in EVERY)])
def test_every_parameter_learns(name, attention):
    """Answers and clustering losses reach every parameter but the words' vectors."""
    more = {"attention": attention, "stochastic_depth": 0.2} if attention else {}
    model = make(name, dropout=0.2, **more).train()
    logits, extra = model(*ragged()[:2])
    losses = [x[x > -math.inf].square().sum() for x in (*logits[:4], logits.slots)]
    reports = extra["reports"]["encoder"]
    if attention:  # the first block of questions and documents, the others three times
        kinds = [len(model.encoder.layers[number].kinds) for number in [0, 0, *3 * [1, 2]]]
        assert len(reports) == sum(kinds)
    for report in reports:
        losses += [report.clustering_loss, report.sorting_loss, report.routing_loss]
    sum(loss for loss in losses if loss is not None).backward()
    for name, parameter in model.named_parameters():
        assert parameter.requires_grad == (not name.endswith("vectors.vectors"))
        assert not parameter.requires_grad or torch.isfinite(parameter.grad).all(), name
        assert attention or not parameter.requires_grad or parameter.grad.any(), name


def test_stochastic_depth(monkeypatch):
    """Rows are left out or scaled: 1 - l / L (1 - p) of sublayer l of L, in each pass anew."""
    x, change = torch.randn(2, 2000, 1, 2)
    out = readers.stochastic_depth(x, change, 0.8, training=True)
    left = (out == x).all(-1)
    torch.testing.assert_close(out[~left], (x + change / 0.8)[~left])
    assert 0.17 < left.float().mean() < 0.23
    assert torch.equal(readers.stochastic_depth(x, change, 0.3, training=False), x + change)
    seen = []
    monkeypatch.setattr(readers, "stochastic_depth", lambda x, change, p, _: seen.append(p) or x)
    make("qanet", stochastic_depth=0.2).train()(*ragged()[:2])
    first = [1 - 0.2 * i / 6 for i in range(1, 7)]
    model_encoder = [1 - 0.2 * i / 8 for i in range(1, 9)]
    assert seen == pytest.approx(2 * first + 3 * model_encoder)


@torch.no_grad()
@pytest.mark.parametrize("positions", [None, "rotary"])
def test_a_block_as_written(positions):
    """x + f(norm(x)), one after another; rotary positions take the place of sines."""
    block = make("qanet", positions=positions, encoder_embed_dim=16).encoder.layers[0]
    x, padding = torch.randn(1, 7, 16).double(), torch.zeros(1, 7, dtype=torch.bool)
    seen = []
    block.norms[0].register_forward_hook(lambda _, inputs, out: seen.append(inputs[0]))
    found, _ = block(x, padding, iter([1.0] * 6))
    sines = SinusoidalPositionalEmbedding.get_embedding(7, 16).double()
    assert sines[3, 8 + 2].item() == pytest.approx(math.cos(3 / 10_000 ** (2 / 7)), abs=1e-5)
    y = x[0] + (0 if positions else sines)
    torch.testing.assert_close(seen[0][0], y)
    if positions:
        return
    for norm, convolution in zip(block.norms, block.convolutions, strict=False):
        y = y + convolution(norm(y).unsqueeze(0), padding)[0]
    y = y + block.self_attn(block.norms[4](y).unsqueeze(0))[0][0]
    y = y + block.feed_forward(block.norms[5](y))
    torch.testing.assert_close(found[0], y, rtol=0, atol=1e-7)  # positions are float32


@torch.no_grad()
def test_three_passes_of_the_same_blocks():
    """Starts come of passes 1 and 2, ends of 1 and 3; K-Means learns from what entered in all."""
    model = make("qanet", attention="full,kmeans,full", kmeans_bank_size=500).train()
    clustering, seen = model.encoder.layers[1].self_attn.routers[0].clustering, []
    model.encoder.layers[-1].register_forward_hook(lambda _, inputs, out: seen.append(out[0]))
    model.encoder.left_out = 0.0
    model.set_num_updates(0)
    reading = model(*ragged()[:2])[1]["reading"]
    assert len(seen) == 3
    assert torch.equal(reading.begin, torch.cat([seen[0], seen[1]], dim=-1))
    assert torch.equal(reading.end, torch.cat([seen[0], seen[2]], dim=-1))
    assert len(clustering.bank.latest(1000)) == 3 * int((~reading.words.padding).sum())
    before = clustering.centroids.clone()
    model.set_num_updates(1)
    assert not torch.equal(before, clustering.centroids)


REPORTED = {"bidaf_reader_xlqa": 1.4, "bidaf_reader_xlqa_letters": 1.5}
REPORTED |= {"qanet_reader_xlqa": 1.3, "qanet_reader_xlqa_large": 5.0}


@pytest.mark.parametrize("name", REPORTED)
def test_sizes_are_those_of_the_report(name):
    """What XLQA's table 1 gives, in millions; vectors apart, of which there are none yet."""
    args = Namespace()
    ARCH_CONFIG_REGISTRY[name](args)
    model = ARCH_MODEL_REGISTRY[name].build_model(args, make_task())
    assert round(sum(p.numel() for p in model.parameters()) / 1e6, 1) == REPORTED[name]
    if "qanet" in name:  # the report's heads are 32 wide
        assert args.encoder_attention_heads * 32 == args.encoder_embed_dim


def test_bad_options_and_input():
    for name, options, message in (
        ("bidaf", {"word_dim": -1}, "--word-dim is -1; allowed: 0 or more"),
        ("bidaf", {"word_dim": 0, "subword_dim": 0}, "--subword-dim is 0; allowed: 1 or more"),
        ("bidaf", {"word_dim": 0, "word_vectors": "x"}, "--word-dim is 0; allowed: the width of"),
        ("qanet", {"attention": "dense"}, "--attention is dense: unknown kind 'dense'; allowed: "),
        ("qanet", {"positions": "learned"}, "--positions is learned; allowed: sinusoidal, rotary"),
        ("qanet", {"own_centroids": False, "attention": "neural"}, "allowed: centroids of its"),
        ("qanet", {"attention_sinks": 4}, "--attention-sinks is 4; allowed: in models with a dec"),
    ):
        with pytest.raises(ValueError, match=message):
            make(name, **options)
    for name in ("bidaf", "qanet"):
        with pytest.raises(ValueError, match="document_tokens: padding before a token"):
            make(name)(tokens(1, 3), torch.tensor([[5, 1, 5]]))
