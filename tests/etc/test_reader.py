"""The reader of structured documents: its inputs, its heads, and one document among others."""

from dataclasses import replace

import pytest
import torch
from fairseq.data import Dictionary
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fairseq_clusterformer.data.qa import Outline
from fairseq_clusterformer.etc import encoder as etc
from fairseq_clusterformer.etc import reader as places
from fairseq_clusterformer.etc.reader import DocumentStructure, ETCReader
from tests.etc.models import CLOSE, assert_all_have_gradients, build

PAD = 1
QUESTIONS = [[0, 9, 8, 7, 2], [0, 9, 2], [0, 6, 5, 2]]
DOCUMENTS = [
    [0, 10, 11, 12, 13, 0, 14, 15],
    [0, 20, 21],
    [0, 10, 11, 12, 0, 13, 14, 15, 16, 17, 0, 18],
]
OUTLINES = [
    Outline(sentences=torch.tensor([[1, 3], [3, 5], [6, 8]])),
    Outline(sentences=torch.tensor([[1, 3]])),
    Outline(
        sentences=torch.tensor([[1, 4], [5, 8], [8, 10], [11, 12]]),
        names=(torch.tensor([11]), torch.tensor([14, 15])),
        mentions=torch.tensor([[0, 2, 3], [1, 6, 8], [0, 11, 12]]),
    ),
]
OTHERS = [{"fixed_blocks": True, "block": 3}, {"clusters": 3}]


def model(**options) -> ETCReader:
    return build(ETCReader, **{"supporting_facts": True, **options})


def given(*rows: int, outlines: list[Outline] = OUTLINES, text_mask: Tensor | None = None) -> dict:
    """What the reader takes, of some of the rows above."""
    made, asked, structure = [], [], DocumentStructure()
    documents = [torch.tensor(DOCUMENTS[row]) for row in rows]
    for row, document in zip(rows, documents, strict=True):
        question, starts = torch.tensor(QUESTIONS[row]), document.eq(0).nonzero().flatten()
        of = structure.rows(question, starts, len(document), outlines[row], Dictionary())
        asked.append(of[0])
        made.append(of[1])
    return {
        "question_tokens": pad_sequence(asked, True, PAD),
        "document_tokens": pad_sequence(documents, True, PAD),
        "text_mask": text_mask,
        "structure": structure.batch(made, PAD),
    }


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[dict]:
    """What ETC's encoder is given: tokens, types, structure, words, global types."""
    calls, forward = [], etc.ETCEncoder.forward

    def spy(self, tokens, **given):
        calls.append({"tokens": tokens, **given})
        return forward(self, tokens, **given)

    monkeypatch.setattr(etc.ETCEncoder, "forward", spy)
    return calls


def test_the_long_input_is_the_question_and_then_the_document(seen: list[dict]) -> None:
    """Written out for the second row of a batch, where both are padded."""
    mask = torch.tensor([[False, *[True] * 7], [False, False, True, *[False] * 5]])
    model()(**given(0, 1, text_mask=mask))
    ((tokens, types, found, words, _),) = (call.values() for call in seen)
    assert tokens.tolist() == [
        [0, 9, 8, 7, 2, 0, 10, 11, 12, 13, 0, 14, 15],
        [0, 9, 2, 0, 20, 21, *[PAD] * 7],
    ]
    asked, title, text = places.IN_QUESTION, places.IN_TITLE, places.OF_TEXT
    assert types[0].tolist() == [*[asked] * 5, title, *[text] * 4, title, *[text] * 2]
    assert types[1, :6].tolist() == [asked, asked, asked, title, title, text]
    assert words[1].tolist() == [0, 9, 0, 0, *[PAD] * 5]
    assert found.spans[1, :4].tolist() == [[0, 0], [1, 2], [3, 6], [4, 6]]
    assert found.global_padding[1].tolist() == [*[False] * 4, *[True] * 5]
    assert found.long_padding[1].tolist() == [*[False] * 6, *[True] * 7]
    assert found.exempt.nonzero().tolist() == [[0, 0], [1, 0]]
    assert found.paragraphs[0].tolist() == [0, 1, 1, 1, 2, 2, 2, 3, 3]
    assert found.long_paragraphs[1].tolist() == [1, 2, 2, *[3] * 10]


@torch.no_grad()
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"hard_global": True},
        {"hard_global": True, "narrow_cls": True, "structure": "text"},
        {"hard_long": True},
        {"structure": "text"},
        {"structure": "flat", "hard_global": True},
        *OTHERS,
        {"clusters": 3, "same_cluster": 2},
    ],
)
def test_a_document_alone_is_a_document_in_any_batch(options: dict) -> None:
    built = model(**options)
    together, _ = built(**given(0, 1, 2))
    for row in range(3):
        alone, _ = built(**given(row))
        for name in ("start", "end", "paragraph", "type", "sentences", "candidates"):
            own, of_batch = getattr(alone, name), getattr(together, name)
            assert own is not None or name == "candidates"
            number = 0 if own is None else own.size(1)
            if number:
                torch.testing.assert_close(of_batch[row, :number], own[0], **CLOSE)
            assert (of_batch[row, number:] == -torch.inf).all()


def logits_and_states(built: ETCReader, *rows: int) -> tuple:
    """What it makes of some rows, and what its heads are given."""
    seen = []
    built.heads.register_forward_pre_hook(lambda _, given: seen.extend(given))
    return built(**given(*rows))[0], *seen


@torch.no_grad()
def test_heads_read_the_tokens_that_stand_for_their_parts() -> None:
    """The long tokens of a span, the global tokens of all else."""
    built = model()
    heads = built.heads
    logits, states, of_global, kinds, *_ = logits_and_states(built, 0, 2)
    spans = torch.stack([logits.start, logits.end], dim=-1)
    for row, document in enumerate(torch.tensor(DOCUMENTS[number]) for number in (0, 2)):
        own, types, first = of_global[row], kinds[row], document.eq(0)
        found = logits.paragraph[row, : len(document)]
        assert torch.equal(found.isfinite(), first)
        expected = heads.paragraph(own[types == places.OF_PARAGRAPH]).squeeze(1)
        torch.testing.assert_close(found[first], expected, **CLOSE)
        expected = heads.supporting(own[types == places.OF_SENTENCE]).squeeze(1)
        torch.testing.assert_close(logits.sentences[row, : len(expected)], expected, **CLOSE)
        found, expected = spans[row, : len(document)], heads.span(states[row, : len(document)])
        torch.testing.assert_close(found[~first], expected[~first], **CLOSE)
        assert (found[first] == -torch.inf).all()
    of_candidates = heads.candidate(of_global[1, :2]).squeeze(-1)
    torch.testing.assert_close(logits.candidates[1], of_candidates, **CLOSE)
    assert (logits.candidates[0] == -torch.inf).all()
    assert (logits.type[1] == 0).all()  # it has no token for all


@torch.no_grad()
@pytest.mark.parametrize("options", OTHERS)
def test_without_tokens_of_their_own_parts_are_read_at_their_first_long_token(options) -> None:
    built = model(**options)
    logits, states, *_ = logits_and_states(built, 0)
    for head, found, first in (
        (built.heads.supporting, logits.sentences[0], [1, 3, 6]),
        (built.heads.paragraph, logits.paragraph[0, [0, 5]], [0, 5]),
    ):
        torch.testing.assert_close(found, head(states[0, first]).squeeze(-1), **CLOSE)


def test_structures(seen: list[dict]) -> None:
    """What is linked, who sees all, and where paragraphs are apart."""
    for name in ("contexts", "text", "flat"):
        model(structure=name)(**given(0))
    contexts, text, flat = (call["structure"] for call in seen)
    assert contexts.long_paragraphs.tolist() == [[1, *[2] * 4, *[3] * 5, *[4] * 3]]
    assert contexts.paragraphs is not None
    assert text.paragraphs is text.long_paragraphs is None
    assert flat.paragraphs is flat.long_paragraphs is flat.links is None
    assert torch.equal(contexts.spans[0, 1:], text.spans[0, 1:])
    assert (contexts.spans[0, 0].tolist(), text.spans[0, 0].tolist()) == ([0, 0], [0, 1])
    assert contexts.exempt.tolist() == text.exempt.tolist() == [[True, *[False] * 8]]
    assert not flat.exempt.any()
    kinds = given(0)["structure"]["types"][0].tolist()
    for kind, before, after in zip(kinds, text.spans[0], flat.spans[0], strict=True):
        linked = kind in (places.OF_QUESTION, places.OF_SENTENCE)
        assert torch.equal(after, before if linked else torch.zeros_like(before))


@torch.no_grad()
def test_candidates_are_told_apart_by_their_words_and_mentions(seen: list[dict]) -> None:
    """Without mentions their words decide; what is linked to a candidate has another label."""
    without = replace(OUTLINES[2], mentions=torch.zeros(0, 3, dtype=torch.int64))
    for name in ("contexts", "flat"):
        built = model(structure=name)
        found = [
            built(**given(2, outlines=[None, None, outline]))[0].candidates[0]
            for outline in (OUTLINES[2], without)
        ]
        assert all(abs(first - second) > 1e-6 for first, second in found)
        assert torch.equal(*found) is (name == "flat")
    tokens, types, contexts, *_ = seen[0].values()
    assert tokens[0, :10].tolist() == [0, 6, 5, 2, 0, 11, 0, 14, 15, 0]
    assert types[0, 3:9].tolist() == [places.IN_QUESTION, *[places.IN_CANDIDATE] * 5]
    assert contexts.long_paragraphs[0, :10].tolist() == [1, 2, 2, 2, 3, 3, 4, 4, 4, 5]
    assert contexts.links.tolist() == [[[0, 11, 12], [1, 15, 17], [0, 20, 21]]]
    assert contexts.exempt[0].tolist() == [True] * 4 + [False] * 7


def test_a_reader_that_saw_no_candidates_says_so_once(caplog) -> None:
    learned, again, fresh = model(), model(), model()
    learned.train()(**given(2))
    again.load_state_dict(learned.state_dict())
    for reader in (again, fresh, fresh):
        reader(**given(2))
    assert caplog.text.count("never trained on candidates") == 1


@pytest.mark.parametrize(
    ("rows", "options"), [((0, 2), {}), ((0, 1), {}), ((0, 1), {"supporting_facts": False})]
)
def test_every_parameter_has_a_gradient(rows: tuple[int, int], options: dict) -> None:
    """The candidates' head too, where there is none, as workers that share a training expect; none
    says what supports an answer where it is not asked."""
    built = model(**options)
    logits, _ = built(**given(*rows))
    finite = [x[x.isfinite()].square().sum() for x in logits if x is not None]
    (sum(finite) + logits.type.sum()).backward()
    assert_all_have_gradients(built)
    assert (logits.sentences is None) is bool(options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"narrow_cls": True}, "--structure is contexts; allowed: text, and --hard-global, with"),
        ({"narrow_cls": True, "structure": "text"}, "--structure is text; allowed: text, and --h"),
        ({"structure": "text", "clusters": 4}, "--structure is text; allowed: contexts with --cl"),
        ({"clusters": 4, "fixed_blocks": True}, "--clusters is 4; allowed: 0 with --fixed-blocks"),
        ({"paragraphs_alone": True}, "--paragraphs-alone is given; allowed: without --supporting"),
    ],
)
def test_options_that_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        model(**options)
