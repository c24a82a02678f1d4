"""Readers of words: each part against a plain loop, and what BiDAF promises."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import log_softmax, pad

from fairseq_clusterformer.answers import TYPES, AnswerLogits
from fairseq_clusterformer.criterions.clusterformer_qa import span_nll, whole_words, with_slots
from xlqa.tests.word_readers import (
    CLOSE,
    assert_all_learn,
    assert_rows_alone,
    make,
    make_task,
    of_size,
    ragged,
    tokens,
)
from xlqa.word_reader import (
    ContextQueryAttention,
    Highway,
    LetterConvolution,
    WordReading,
)
from xlqa.words import Words


def some_words(spelt: Tensor, sizes: list[int]) -> Words:
    """Words with codes; 0 and 1 are the same but for their case."""
    padding = torch.arange(spelt.size(1)) >= torch.tensor(sizes).unsqueeze(1)
    codes = torch.stack([spelt, spelt.clamp(min=1)], dim=-1).masked_fill(padding.unsqueeze(-1), 0)
    return Words(*[spelt] * 3, padding=padding, pieces=spelt, letters=spelt, codes=codes)


def test_highway():
    """y = g * relu(A x + a) + (1 - g) * x with g = sigmoid(G x + b), layer by layer."""
    highway, x = Highway(4, 2).double(), torch.randn(3, 4).double()
    y = x
    for gate, transform in zip(highway.gates, highway.transforms, strict=True):
        opened = torch.sigmoid(y @ gate.weight.T + gate.bias)
        y = opened * (y @ transform.weight.T + transform.bias).relu() + (1 - opened) * y
    torch.testing.assert_close(highway(x), y, **CLOSE)


def test_letters():
    """max over letters of relu(w . three letters + b), and no letter behind a word counts."""
    layer = LetterConvolution(9, 5, 3, dropout=0.0).double()
    letters = torch.tensor([[3, 1, 4, 1, 5, 0, 0], [2, 0, 0, 0, 0, 0, 0], [0] * 7])
    with torch.no_grad():
        layer.convolution.bias += 0.3  # so that a convolution over padding alone would be seen
    three = pad(layer.embedding(letters), (0, 0, 1, 1)).unfold(1, 3, 1)  # [3, 7, 5, 3]
    found = torch.einsum("wpck,fck->wpf", three, layer.convolution.weight)
    found = (found + layer.convolution.bias).relu()
    rows = zip(found, letters.ne(0).sum(1).tolist(), strict=True)
    expected = torch.stack([row[:n].amax(0) if n else torch.zeros(3).double() for row, n in rows])
    torch.testing.assert_close(layer(letters.unsqueeze(0))[0], expected, **CLOSE)
    longer = torch.cat([letters, torch.zeros(3, 20, dtype=int)], dim=1)
    torch.testing.assert_close(layer(longer.unsqueeze(0))[0], expected, **CLOSE)


@pytest.mark.parametrize("matches", [False, True])
def test_context_query_attention(matches):
    """As XLQA writes it, row by row; with matches, also by whether words are spelt alike."""
    layer = ContextQueryAttention(3, matches=matches).double()
    lengths, asked = [5, 3], [2, 4]
    words, questions = (
        some_words(torch.randint(3, (2, most)), sizes)
        for most, sizes in ((5, lengths), (4, asked))
    )
    document, question = torch.randn(2, 5, 3).double(), torch.randn(2, 4, 3).double()
    if matches:
        layer.of_match.data = torch.randn(2).double()
    found = layer(document, question, words, questions)
    assert found.size(-1) == layer.width
    for row in range(2):
        c, q = document[row, : lengths[row]], question[row, : asked[row]]
        same = words.codes[row, : len(c), None] == questions.codes[row, : len(q)]
        s = (c @ layer.of_document.weight[0])[:, None] + q @ layer.of_question.weight[0]
        s = s + (c * layer.of_both) @ q.T + layer.bias
        if matches:
            s = s + same.double() @ layer.of_match
        a, b = s.softmax(1) @ q, s.softmax(1) @ (s.softmax(0).T @ c)
        expected = torch.cat([c, a, c * a, c * b, *[same.double().amax(1)] * matches], dim=1)
        torch.testing.assert_close(found[row, : len(c)], expected, **CLOSE)


class TestNoAnswer:
    """By hand: a document of ``<s>`` and two words, of which the first has two tokens."""

    def logits(self) -> AnswerLogits:
        model = make("bidaf")
        heads = model.heads
        task = make_task()
        index = {text: i for i, text in enumerate(task.symbol_texts)}
        document = torch.tensor([[0, index[" The"], index["re"], index[" ("], 1]])
        words = model.encoder.embedding.speller(document)
        states = torch.zeros(1, 3, 120).double()
        states[0, :, 0] = torch.tensor([2.0, 1.0, 4.0])
        states[0, :, 1] = torch.tensor([-1.0, 0.5, 3.0])
        with torch.no_grad():
            for parameter in heads.parameters():
                parameter.zero_()
            heads.begin.weight[0, 0] = heads.end.weight[0, 1] = heads.paragraph.weight[0, 0] = 1.0
            heads.others[0].bias.copy_(torch.tensor([-5.0, -6.0, -7.0]))
            heads.others[1].bias.fill_(-1.0)
        padding = document.eq(1)
        nothing = torch.zeros(1, 1, 1)
        reading = WordReading(nothing, nothing, padding, padding, [], words, states, states, [])
        return heads(reading, document.eq(0), document.ne(0))

    def test_logits(self):
        found, inf = self.logits(), math.inf
        assert found.start.tolist() == [[-inf, 1.0, -inf, 4.0, -inf]]
        assert found.end.tolist() == [[-inf, -inf, 0.5, 3.0, -inf]]
        assert found.paragraph.tolist() == [[2.0, -inf, -inf, -inf, -inf]]
        assert found.slots.tolist() == [[[-5.0, -6.0, -7.0, 2.0], [-1.0, -1.0, -1.0, -1.0]]]
        assert found.type.tolist() == [[4.0 + 3.0, -6.0, -7.0, -8.0, 2.0 - 1.0]]
        assert found.bounds[0, :4].tolist() == [[0, 0], [1, 2], [1, 2], [3, 3]]

    @pytest.mark.parametrize(
        ("spans", "type_", "place"),
        [
            ([[1, 2]], "short", (1, 0)),
            ([[2, 2]], "short", (1, 0)),  # a part of a word is the word
            ([[1, 1], [2, 2]], "short", (1, 0)),  # and counts once
            ([[-1, -1]], "none", (5, 5)),
            ([[-1, -1]], "yes", (2, 2)),
        ],
    )
    def test_loss(self, spans, type_, place):
        """- log p(start) - log p(end), each among words and slots."""
        logits = self.logits()
        types = torch.tensor([[name == type_ for name in TYPES]])
        given = whole_words(torch.tensor([spans]), logits.bounds)
        start, end, given = with_slots(logits, given, types)
        loss = span_nll(start, end, given, "joint")
        starts = torch.tensor([4.0, 1.0, -5.0, -6.0, -7.0, 2.0])
        ends = torch.tensor([0.5, 3.0, -1.0, -1.0, -1.0, -1.0])
        expected = -log_softmax(starts, 0)[place[0]] - log_softmax(ends, 0)[place[1]]
        assert loss.item() == pytest.approx(expected.item(), abs=1e-6)


def test_the_best_span_in_order_counts():
    """The likeliest start may come behind the likeliest end: then another pair is compared."""
    model = make("bidaf")
    question, document, *_ = ragged()
    logits = model(question, document)[0]
    for row in range(5):
        pairs = [
            (s + e).item()
            for i, s in enumerate(logits.start[row])
            for e in logits.end[row, i:]
            if s + e > -math.inf
        ]
        assert logits.type[row, 0].item() == pytest.approx(max(pairs, default=-math.inf))
    assert torch.equal(logits.type[:, 1:], logits.slots.sum(1))


@torch.no_grad()
@pytest.mark.parametrize("masked", [False, True])
def test_a_document_alone_is_a_document_in_any_batch(masked):
    question, document, *_ = ragged()
    mask = torch.rand(5, 40) < 0.8 if masked else document.ne(0)
    assert_rows_alone(make("bidaf", word_matches=masked), question, document, mask)


def test_every_parameter_learns():
    model = make("bidaf", dropout=0.2).train()
    question, document, *_ = ragged()
    logits, _ = model(question, document)
    sum(x[x > -math.inf].square().sum() for x in (*logits[:4], logits.slots)).backward()
    assert_all_learn(model)
    assert all(p.grad.any() for p in model.parameters() if p.requires_grad)


@torch.no_grad()
@pytest.mark.parametrize("subwords", [0, 6])
def test_words_are_what_is_read(subwords):
    """One word in one subword or in two is read alike, if subwords have no embeddings."""
    model = make("bidaf", subword_dim=subwords)
    texts = make_task().symbol_texts
    question, found = tokens(1, 3), []
    for way in (" The", "re", " ("), (" There", " ("):
        document = torch.tensor([[0, *map(texts.index, way)]])
        found.append(model(question, document)[0].slots)
    assert torch.equal(*found) == (subwords == 0)


@pytest.mark.parametrize(
    ("architecture", "width", "filters"),
    # linear 300 x 100; 2 highways of 100; LSTMs; w of attention; heads
    [("bidaf_reader_xlqa", 100, 0), ("bidaf_reader_xlqa_letters", 120, 20)],
)
def test_sizes_are_those_of_the_report(architecture, width, filters):
    """Counted from the sizes that XLQA's table 1 gives; but for vectors and the slots' heads."""
    model, _ = of_size(architecture)
    letters = model.encoder.embedding.speller.num_letters

    def lstm(inputs: int, layers: int) -> int:
        sizes = [inputs] + [200] * (layers - 1)
        return sum(2 * (4 * 100 * (size + 100) + 2 * 4 * 100) for size in sizes)

    counted = 300 * 100 + 2 * 2 * (width * width + width)
    counted += (letters * 64 + 3 * 64 * 20 + 20) if filters else 0
    counted += lstm(width, 1) + (3 * 200 + 1) + lstm(800, 2) + lstm(200, 1)
    counted += 2 * (10 * 100 + 1)
    counted += 300 + 2 * 3 * 1001 + 1001  # other words' vector; slots; paragraphs
    assert sum(p.numel() for p in model.parameters()) == counted
    assert round(counted / 1e6, 1) == (1.4 if not filters else 1.5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"word_dim": -1}, "--word-dim is -1; allowed: 0 or more"),
        ({"word_dim": 0, "subword_dim": 0}, "--subword-dim is 0; allowed: 1 or more, where"),
        ({"word_dim": 0, "word_vectors": "x"}, "--word-dim is 0; allowed: the width of --word"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        make("bidaf", **options)


def test_bad_input():
    document = tokens(1, 9)
    document[0, 3] = 1
    with pytest.raises(ValueError, match="document_tokens: padding before a token"):
        make("bidaf")(tokens(1, 3), document)
