"""The structure of documents: as it is written, what is refused, and its global tokens."""

from pathlib import Path

import pytest
import torch
from fairseq.data import Dictionary

from fairseq_clusterformer.data.qa import QAData, QAWriter
from fairseq_clusterformer.data.questions import QuestionDataset, with_names
from fairseq_clusterformer.data.structure import Outline
from fairseq_clusterformer.etc import global_tokens
from fairseq_clusterformer.etc.global_tokens import DocumentStructure
from tests.data.questions import CHARACTERS, TEXTS, example

# of the example: <s> and a text of 4 tokens, <s>, a title and a text of 3
OUTLINE = Outline(
    sentences=torch.tensor([[1, 3], [3, 5], [7, 10]]),
    supporting=torch.tensor([1, 2]),
    names=(torch.tensor([7]), torch.tensor([8, 9])),
    right=1,
    mentions=torch.tensor([[1, 1, 2], [0, 3, 5], [1, 8, 9]]),
)
STARTS, LENGTH = torch.tensor([0, 5]), 10


def changed(**changes) -> Outline:
    return Outline(**{**vars(OUTLINE), **changes})


def same(found: Outline, written: Outline) -> bool:
    return found.item().tolist() == written.item().tolist()


def write(folder: Path, split: str, *outlines: Outline | None) -> None:
    folder.mkdir(exist_ok=True)
    with QAWriter(folder, split, vocab_size=100_000) as writer:
        for number, outline in enumerate(outlines):
            writer.add(example(), CHARACTERS, TEXTS | {"id": f"q{number}"}, outline)


def dataset(folder: Path, most: int = 0, **options) -> QuestionDataset:
    options = {"max_positions": 100, "max_question_positions": 20, **options}
    options["structure"] = DocumentStructure(most=most)
    return QuestionDataset(QAData(folder, "train"), Dictionary(), split="train", **options)


def test_an_item_written_out() -> None:
    assert OUTLINE.item().tolist() == [
        *(3, 2, 2, 1, 3),
        *(1, 3, 3, 5, 7, 10),
        *(1, 2),
        *(1, 1, 2, 0, 3, 5, 1, 8, 9),
        *(1, 2, 7, 8, 9),
    ]
    assert Outline().item().tolist() == [0, -1, 0, -1, 0]


@pytest.mark.parametrize(
    "outline",
    [OUTLINE, Outline(), changed(supporting=torch.tensor([], dtype=int)), changed(right=None)],
)
def test_what_is_written_is_read(tmp_path: Path, outline: Outline) -> None:
    write(tmp_path, "train", outline)
    found = QAData(tmp_path, "train").outline(0)
    assert same(found, outline)
    assert (found.supporting is None) is (outline.supporting is None)
    assert found.sentences.dtype == torch.int64


def test_folders_are_joined(tmp_path: Path) -> None:
    write(tmp_path / "new", "train", OUTLINE, Outline())
    write(tmp_path / "old", "train", None, None)
    assert same(QAData(tmp_path / "old", "train").outline(1), Outline())
    with QAWriter(tmp_path, "train", vocab_size=100_000) as writer:
        for name in ("old", "new"):
            writer.append(tmp_path / name, "train")
    joined = QAData(tmp_path, "train")
    expected = [Outline(), Outline(), OUTLINE, Outline()]
    assert len(joined) == 4
    assert all(same(joined.outline(i), each) for i, each in enumerate(expected))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sentences": torch.tensor([[1, 6]])}, r"sentence 0 is tokens \[1, 6\]; allowed: within"),
        ({"sentences": torch.tensor([[1, 3], [7, 11]])}, r"sentence 1 is tokens \[7, 11\]"),
        ({"sentences": torch.tensor([[3, 1]])}, r"sentence 0 is tokens \[3, 1\]"),
        ({"sentences": torch.tensor([[3, 5], [1, 3]])}, "sentences are not in their order"),
        ({"supporting": torch.tensor([3])}, "supporting sentences 3; allowed: of 3"),
        ({"right": 2}, "candidate 2 is right; allowed: of 2"),
        ({"mentions": torch.tensor([[2, 1, 2]])}, r"a mention is \[2, 1, 2\]; allowed: one of 2"),
        ({"mentions": torch.tensor([[0, 1, 1]])}, r"a mention is \[0, 1, 1\]"),
        (
            {"mentions": torch.tensor([[0, 3, 7]])},
            r"a mention is \[0, 3, 7\]; allowed: within one",
        ),
        (
            {"mentions": torch.tensor([[0, 5, 7]])},
            r"a mention is \[0, 5, 7\]; allowed: within one",
        ),
    ],
)
def test_a_bad_structure_is_named_with_file_and_question(
    tmp_path: Path, changes: dict, message: str
) -> None:
    changes = {"supporting": None, **changes} if "sentences" in changes else changes
    write(tmp_path, "train", OUTLINE, changed(**changes))
    with pytest.raises(ValueError, match=f"train.structure.idx: question 1 .id q1.: {message}"):
        dataset(tmp_path).check_structure()


def test_sentences_may_share_a_token(tmp_path: Path) -> None:
    """A subword may begin with the blank that the sentence before ends with."""
    write(tmp_path, "train", changed(sentences=torch.tensor([[1, 4], [3, 5], [7, 10]])))
    assert dataset(tmp_path).check_structure() == (1, 0, 0)


def test_candidates_without_words_are_of_an_earlier_version() -> None:
    with pytest.raises(
        ValueError, match="2 candidates without their words, .* again with --force"
    ):
        Outline.of(torch.from_numpy(OUTLINE.item()[:-5]))


def test_a_candidate_without_a_mention_can_be_right(tmp_path: Path) -> None:
    """Its words stand behind the question."""
    write(tmp_path, "train", changed(right=0, mentions=torch.tensor([[1, 1, 2]])))
    data = dataset(tmp_path)
    assert data.check_structure() == (1, 0, 0)
    batch = data.collater([data[0]])
    assert batch["net_input"]["question_tokens"].tolist() == [[0, 70_000, 5, 2, 0, 7, 0, 8, 9]]
    assert batch["target"]["candidate"].tolist() == [0]


def test_parts_beyond_the_global_tokens_have_none_and_are_counted(tmp_path: Path) -> None:
    """The example has 2 candidates, 2 tokens of the question, 2 paragraphs and 3 sentences; its
    long answer is the second paragraph."""
    write(tmp_path, "train", Outline(), OUTLINE)
    assert dataset(tmp_path, most=9).check_structure() == (1, 0, 0)
    assert dataset(tmp_path, most=9, max_positions=5).check_structure() == (0, 0, 0)
    data = dataset(tmp_path, most=8)
    assert data.check_structure() == (0, 1, 0)
    sample = data[1]
    kept = [CANDIDATE, CANDIDATE, ASKED, ASKED, PARAGRAPH, SENTENCE, SENTENCE, PARAGRAPH]
    assert sample["globals"].types.tolist() == kept
    assert (len(sample["outline"].sentences), sample["paragraphs"].tolist()) == (2, [5])
    assert sample["outline"].supporting is None
    data = dataset(tmp_path, most=7)
    assert data.check_structure() == (0, 1, 1)
    assert data[1]["globals"].types.tolist() == kept[:7]
    assert (data[1]["paragraphs"].tolist(), data[1]["types"].tolist()) == ([], [True] * 5)
    assert len(data[0]["globals"].types) == 5
    with pytest.raises(
        ValueError, match=r"\(id q1\): 4 global tokens of the question .* 3 or few"
    ):
        dataset(tmp_path, most=4).check_structure()


def test_what_is_cut() -> None:
    """After 8 tokens of 10: a sentence ends there, and what stands in the rest is gone."""
    found = OUTLINE.within(8)
    assert found.sentences.tolist() == [[1, 3], [3, 5], [7, 8]]
    assert found.supporting.tolist() == [1, 2]
    assert found.mentions.tolist() == [[1, 1, 2], [0, 3, 5]]
    found = OUTLINE.within(7)
    assert found.sentences.tolist() == [[1, 3], [3, 5]]
    assert (found.supporting, found.right) == (None, 1)
    assert OUTLINE.within(9).mentions.tolist() == OUTLINE.mentions.tolist()  # the last ends there


QUESTION = torch.tensor([0, 70, 71, 2])
ALL, ASKED, PARAGRAPH, SENTENCE, CANDIDATE = (
    global_tokens.OF_ALL,
    global_tokens.OF_QUESTION,
    global_tokens.OF_PARAGRAPH,
    global_tokens.OF_SENTENCE,
    global_tokens.OF_CANDIDATE,
)


def test_global_tokens_of_hotpotqa_written_out() -> None:
    """All, the question's tokens, and for each paragraph one for it and one a sentence."""
    outline = Outline(sentences=OUTLINE.sentences)
    found = DocumentStructure().rows(QUESTION, STARTS, LENGTH, outline, Dictionary())
    assert found.words.tolist() == [0, 70, 71, 0, 0, 0, 0, 0]
    expected = [ALL, ASKED, ASKED, PARAGRAPH, SENTENCE, SENTENCE, PARAGRAPH, SENTENCE]
    assert found.types.tolist() == expected
    assert found.spans.tolist() == [
        [0, 1],
        *([1, 2], [2, 3]),
        *([4, 9], [5, 7], [7, 9]),
        *([9, 14], [11, 14]),
    ]
    assert found.paragraphs.tolist() == [0, 1, 1, 2, 2, 2, 3, 3]


def test_global_tokens_of_wikihop_written_out() -> None:
    """One for each candidate, in place of the one for all, which stands for its words behind the
    question and is linked to its mentions."""
    asked = with_names(QUESTION, OUTLINE.names, Dictionary())
    assert asked.tolist() == [*QUESTION.tolist(), 0, 7, 0, 8, 9]
    found = DocumentStructure().rows(asked, STARTS, LENGTH, OUTLINE, Dictionary())
    assert found.words.tolist() == [0, 0, 70, 71, 0, 0, 0, 0, 0]
    assert found.types.tolist()[:4] == [CANDIDATE, CANDIDATE, ASKED, ASKED]
    assert found.spans.tolist()[:5] == [[4, 6], [6, 9], [1, 2], [2, 3], [9, 14]]
    assert found.links.tolist() == [[1, 10, 11], [0, 12, 14], [1, 17, 18]]
    assert found.paragraphs.tolist() == [0, 1, 2, 2, 3, 3, 3, 4, 4]


def test_a_batch_of_both(tmp_path: Path) -> None:
    write(tmp_path, "train", OUTLINE, Outline(sentences=torch.tensor([[1, 5]])))
    data = dataset(tmp_path)
    batch = data.collater([data[0], data[1]])
    found = batch["net_input"]["structure"]
    assert found["words"].tolist()[1] == [0, 70_000, 5, 0, 0, 0, 1, 1, 1]  # 1: padding
    assert found["spans"][1, 3:].tolist() == [[4, 9], [5, 9], [9, 14], *[[0, 0]] * 3]
    assert found["links"][:, :2].tolist() == [[[1, 10, 11], [0, 12, 14]], [[0, 0, 0]] * 2]
    assert batch["target"]["supporting"].tolist() == [[0, 1, 1], [-1, -1, -1]]
    assert batch["target"]["candidate"].tolist() == [1, -1]
