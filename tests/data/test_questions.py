"""Questions as samples: what is asked, what is right, what is cut."""

from pathlib import Path

import pytest
import torch

from fairseq_clusterformer.answers import TYPES
from fairseq_clusterformer.data.qa import QAData, QAWriter
from fairseq_clusterformer.data.questions import QuestionDataset
from fairseq_clusterformer.data.stored import load_dictionary
from tests.cli.qa_data import TITLE, write_questions
from tests.cli.qa_data import TYPES as WRITTEN
from tests.data.questions import NOTHING, TEXTS, example


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_questions(tmp_path_factory.mktemp("questions"))


def dataset(folder: Path, split: str = "train", **changes) -> QuestionDataset:
    options = {"max_positions": 1000, "max_question_positions": 20, **changes}
    return QuestionDataset(QAData(folder, split), load_dictionary(folder), split=split, **options)


def test_a_batch_says_what_the_folder_says(folder):
    data, dictionary = dataset(folder), load_dictionary(folder)
    order = data.ordered_indices()
    assert sorted(order) == list(range(len(WRITTEN)))
    assert (data.sizes[order][1:] >= data.sizes[order][:-1]).all()
    batch = data.collater([data[index] for index in order])
    inputs, target = batch["net_input"], batch["target"]
    assert batch["split"] == "train"
    assert batch["ntokens"] == data.data.sizes.sum()
    for row, index in enumerate(order):
        told, kept = data.data[index], int(data.sizes[index])
        asked = inputs["question_tokens"][row, :7].tolist()
        assert asked == [dictionary.bos(), *told.question.tolist(), dictionary.eos()]
        document = inputs["document_tokens"][row]
        assert torch.equal(document[:kept], told.document)
        assert (document[kept:] == dictionary.pad()).all()
        words = [dictionary[token] for token in document[:kept]]
        text = inputs["text_mask"][row]
        assert text[:kept].tolist() == [word not in ("<s>", TITLE) for word in words]
        assert not text[kept:].any()
        spans = [[first, last - 1] for first, last in told.answers.tolist()]
        nothing = [[-1, -1]] * (target["spans"].size(1) - len(spans))
        assert target["spans"][row].tolist() == spans + nothing
        (long,) = target["paragraphs"][row].nonzero(as_tuple=True)
        assert torch.equal(long, told.paragraph_starts[told.long_answers])
        types = [name for name, may in zip(TYPES, target["types"][row], strict=True) if may]
        assert types == [WRITTEN[index]]
    data.shuffle = True  # among those of one length
    orders = [data.ordered_indices() for _ in range(9)]
    assert all((data.sizes[each] == data.sizes[order]).all() for each in orders)
    assert len({tuple(each) for each in orders}) > 1
    secret = dataset(folder, "test")
    assert all(secret[index]["types"].all() for index in range(len(secret)))
    assert data.collater([]) == {}


def test_what_is_too_long_is_cut(folder):
    whole, data = dataset(folder), dataset(folder, max_positions=16, max_question_positions=6)
    longer = whole.sizes > 16
    assert 0 < longer.sum() < len(whole)
    lost = 0
    for index in range(len(whole)):
        before, sample = whole[index], data[index]
        assert sample["question"].tolist() == [*before["question"][:5].tolist(), 2]
        assert torch.equal(sample["document"], before["document"][:16])
        assert torch.equal(sample["text_mask"], before["text_mask"][:16])
        assert (sample["spans"] < 16).all()
        gone = any(before[k].any() and not sample[k].any() for k in ("spans", "paragraphs"))
        lost += gone
        # a question that lost its answer has none, and yet is not unanswerable
        assert torch.equal(sample["types"], before["types"] | gone)
    assert lost > 2
    assert data.cut() == (longer.sum(), lost, len(whole))
    assert whole.cut() == (0, 0, 0)


def test_a_span_that_is_cut_through_is_lost(tmp_path):
    with QAWriter(tmp_path, "train", vocab_size=100) as writer:
        answers = torch.tensor([[7, 9], [1, 2], [7, 9]])  # one place of two texts
        writer.write(example(answers=answers), TEXTS)
    write_questions(tmp_path / "other")
    (tmp_path / "other" / "dict.txt").rename(tmp_path / "dict.txt")
    data = dataset(tmp_path, max_positions=8)
    assert data[0]["spans"].tolist() == [[1, 1]]
    assert data[0]["paragraphs"].nonzero().tolist() == [[5]]
    assert dataset(tmp_path, max_positions=9)[0]["spans"].tolist() == [[1, 1], [7, 8]]


@pytest.mark.parametrize(
    ("changes", "texts", "types"),
    [
        ({}, ["Berlin"], {"short"}),
        ({"yes_no": "yes"}, ["Berlin"], {"short", "yes"}),  # annotators differ
        ({**NOTHING, "yes_no": "no"}, ["no"], {"no"}),
        ({**NOTHING}, ["Paris"], {"short"}),  # not found in the document
        ({**NOTHING, "long_answers": torch.tensor([1])}, [], {"long"}),
        ({**NOTHING, "answerable": False}, [], {"none"}),
        ({**NOTHING, "answerable": None}, [], set(TYPES)),
        ({**NOTHING}, [], set(TYPES)),
    ],
)
def test_types(changes, texts, types, tmp_path):
    write_questions(tmp_path)
    with QAWriter(tmp_path, "train", vocab_size=100) as writer:
        writer.write(example(**changes), TEXTS | {"texts": texts})
    (sample,) = dataset(tmp_path)
    assert {name for name, may in zip(TYPES, sample["types"], strict=True) if may} == types
