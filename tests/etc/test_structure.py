"""The structure of documents: as it is written, what is refused, and its global tokens."""

from pathlib import Path

import pytest
import torch
from fairseq.data import Dictionary

from fairseq_clusterformer.data.qa import Outline, QAData, QAWriter
from fairseq_clusterformer.data.questions import QuestionDataset
from fairseq_clusterformer.etc import reader
from fairseq_clusterformer.etc.reader import DocumentStructure
from tests.data.questions import OUTLINE, TEXTS, example

ALL, ASKED, PARAGRAPH, SENTENCE, CANDIDATE = (
    getattr(reader, f"OF_{name}")
    for name in ("ALL", "QUESTION", "PARAGRAPH", "SENTENCE", "CANDIDATE")
)


def changed(**changes) -> Outline:
    return Outline(**{**vars(OUTLINE), **changes})


def write(folder: Path, *outlines: Outline) -> QAData:
    folder.mkdir(exist_ok=True)
    with QAWriter(folder, "train", vocab_size=100_000) as writer:
        for number, outline in enumerate(outlines):
            writer.write(example(outline=outline), TEXTS | {"id": f"q{number}"})
    return QAData(folder, "train")


def dataset(data: QAData, most: int = 0, **options) -> QuestionDataset:
    options = {"max_positions": 100, "max_question_positions": 20, **options}
    options["structure"] = DocumentStructure(most=most)
    return QuestionDataset(data, Dictionary(), split="train", **options)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("sentences", [[1, 6]], "1, 6"),
        ("sentences", [[3, 1]], "3, 1"),
        ("sentences", [[3, 5], [1, 3]], "1, 3"),
        ("supporting", [3], "3"),
        ("right", 2, "2"),
        ("mentions", [[2, 1, 2]], "2, 1, 2"),
        ("mentions", [[0, 5, 7]], "0, 5, 7"),
    ],
)
def test_a_bad_structure_is_named_with_file_and_question(
    tmp_path: Path, name: str, value: list | int, message: str
) -> None:
    value = torch.tensor(value) if isinstance(value, list) else value
    changes = {"supporting": None if name == "sentences" else OUTLINE.supporting, name: value}
    data = write(tmp_path, OUTLINE, changed(**changes))
    where = f"train.structure.idx: question 1 .id q1.: {name} is .*{message}.*; allowed: "
    with pytest.raises(ValueError, match=where):
        dataset(data).check_structure()


def test_sentences_may_share_a_token(tmp_path: Path) -> None:
    """A subword may begin with the blank that the sentence before ends with."""
    spans = torch.tensor([[1, 4], [3, 5], [7, 10]])
    assert dataset(write(tmp_path, changed(sentences=spans))).check_structure() == (1, 0, 0)


def test_parts_beyond_the_global_tokens_have_none_and_are_counted(tmp_path: Path) -> None:
    """The example has 2 candidates, 2 tokens of the question, 2 paragraphs and 3 sentences; its
    long answer is the second paragraph."""
    written = write(tmp_path, Outline(), OUTLINE)
    assert dataset(written, most=9).check_structure() == (1, 0, 0)
    assert dataset(written, most=9, max_positions=5).check_structure() == (0, 0, 0)
    kept = [CANDIDATE, CANDIDATE, ASKED, ASKED, PARAGRAPH, SENTENCE, SENTENCE, PARAGRAPH]
    for most, lost, long in ((8, 0, [5]), (7, 1, [])):
        data = dataset(written, most=most)
        assert data.check_structure() == (0, 1, lost)
        assert data[1]["globals"].types.tolist() == kept[:most]
        assert len(data[1]["outline"].sentences) == 2
        assert data[1]["outline"].supporting is None
        assert data[1]["paragraphs"].nonzero().flatten().tolist() == long
    assert data[1]["types"].tolist() == [True] * 5
    assert len(data[0]["globals"].types) == 5
    with pytest.raises(ValueError, match=r"\(id q1\): 4 global tokens of the question .* 3 or f"):
        dataset(written, most=4).check_structure()


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


def test_global_tokens_written_out(tmp_path: Path) -> None:
    """Of WikiHop: one for each candidate, which stands for its words behind the question and is
    linked to its mentions; the question's tokens; and for each paragraph one for it and one a
    sentence. Of HotpotQA: one for all in place of the candidates. Its last paragraph has no
    sentence."""
    hotpotqa = Outline(sentences=torch.tensor([[1, 3], [3, 5]]))
    data = dataset(write(tmp_path, OUTLINE, hotpotqa))
    batch = data.collater([data[0], data[1]])
    asked = [0, 70_000, 5, 2]
    questions = [[*asked, 0, 7, 0, 8, 9], [*asked, *[1] * 5]]  # 1: padding
    assert batch["net_input"]["question_tokens"].tolist() == questions
    found = {name: x.tolist() for name, x in batch["net_input"]["structure"].items()}
    parts = [PARAGRAPH, SENTENCE, SENTENCE, PARAGRAPH]
    assert found["types"][0] == [CANDIDATE, CANDIDATE, ASKED, ASKED, *parts, SENTENCE]
    assert found["types"][1][:7] == [ALL, ASKED, ASKED, *parts]
    assert found["words"] == [[0, 0, 70_000, 5, *[0] * 5], [0, 70_000, 5, *[0] * 4, 1, 1]]
    spans = [[4, 6], [6, 9], [1, 2], [2, 3], [9, 14], [10, 12], [12, 14], [14, 19], [16, 19]]
    assert found["spans"][0] == spans
    spans = [[0, 1], [1, 2], [2, 3], [4, 9], [5, 7], [7, 9], [9, 14], [0, 0], [0, 0]]
    assert found["spans"][1] == spans
    assert found["links"] == [[[1, 10, 11], [0, 12, 14], [1, 17, 18]], [[0, 0, 0]] * 3]
    assert found["paragraphs"][0] == [0, 1, 2, 2, 3, 3, 3, 4, 4]
    assert found["paragraphs"][1][:7] == [0, 1, 1, 2, 2, 2, 3]
    assert batch["target"]["supporting"].tolist() == [[0, 1, 1], [-1, -1, -1]]
    assert batch["target"]["candidate"].tolist() == [1, -1]
