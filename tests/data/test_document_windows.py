"""Documents in windows: what each holds, and the answers of all of them."""

import math
from pathlib import Path

import pytest
import torch
from fairseq.data import Dictionary

from fairseq_clusterformer.answers import TYPES, Answer, Answers
from fairseq_clusterformer.data.qa import Example, Outline, QAData, QAWriter
from fairseq_clusterformer.data.questions import QuestionDataset, WindowData, WindowedQuestions

# <s> a b c d e f g <s> h i: two paragraphs of one letter a token
TEXTS = ["abcdefg", "hi"]
DOCUMENT = torch.tensor([0, *range(10, 17), 0, 17, 18])
PLACES = [-1, *range(7), -1, 0, 1]
CHARACTERS = torch.tensor([PLACES, [place + (place >= 0) for place in PLACES]])


def write(folder: Path, answers: list, long: list, **more) -> QAData:
    given = {"answerable": True, "yes_no": None, **more}
    example = Example(
        question=torch.tensor([30]),
        document=DOCUMENT,
        characters=CHARACTERS,
        paragraph_starts=torch.tensor([0, 8]),
        answers=torch.tensor(answers, dtype=torch.int64).view(-1, 2),
        long_answers=torch.tensor(long, dtype=torch.int64),
        outline=Outline(torch.tensor([[1, 4], [4, 8], [9, 11]])),
        **given,
    )
    line = {"id": "q", "question": "?", "paragraphs": [["", text] for text in TEXTS]}
    with QAWriter(folder, "train", vocab_size=100) as writer:
        for _ in range(2):
            writer.write(example, line | {"answers": [], "texts": ["f"]})
    return QAData(folder, "train")


def test_windows_written_out(tmp_path):
    """Of 5 tokens, 3 apart: the second and the third begin within a paragraph."""
    data = WindowData(write(tmp_path, [[6, 7]], [1]), 5, 3)
    assert len(data) == 2 * 4
    assert data.numbers.tolist() == [0] * 4 + [1] * 4
    assert data.sizes.tolist() == [5, 5, 5, 3] * 2
    rows = [data[index] for index in range(4)]
    assert [row.document.tolist() for row in rows] == [
        [0, 10, 11, 12, 13],
        [0, 12, 13, 14, 15],
        [0, 15, 16, 0, 17],
        [0, 17, 18],
    ]
    assert [row.paragraph_starts.tolist() for row in rows] == [[0], [0], [0, 3], [0]]
    assert [row.answers.tolist() for row in rows] == [[], [[4, 5]], [[1, 2]], []]
    assert [row.long_answers.tolist() for row in rows] == [[], [], [1], []]
    assert [row.answerable for row in rows] == [False, True, True, False]
    sentences = [row.outline.sentences.tolist() for row in rows]
    assert sentences == [[[1, 4], [4, 5]], [[1, 2], [2, 5]], [[1, 3], [4, 5]], [[1, 3]]]
    shown = [data.document(index) for index in range(4)]
    assert [found.texts for found in shown] == [TEXTS[:1], TEXTS[:1], TEXTS, TEXTS[1:]]
    assert [shown[1].answer(4, 5).text, shown[2].answer(4, 5).text] == ["f", "h"]
    assert shown[3].answer(1, 3).text == "hi"


def test_windows_of_a_document_that_fits_and_of_no_answer(tmp_path):
    whole = write(tmp_path, [[6, 7]], [])
    data = WindowData(whole, 11, 5)
    assert torch.equal(data[1].document, DOCUMENT)
    assert (len(data), data[0].answers.tolist()) == (2, [[6, 7]])
    some = WindowData(whole, 5, 3, share=0)
    assert [row.answers.tolist() for row in (some[0], some[1])] == [[[4, 5]], [[1, 2]]]
    assert (len(some), some.dropped, some.lost) == (4, 4, 0)
    assert WindowData(write(tmp_path, [[2, 8]], []), 5, 3).lost == 2


def test_a_sample_has_all_windows_of_a_question(tmp_path):
    """Those that hold the answer have its type, not those where its paragraph begins alone."""
    data = WindowData(write(tmp_path, [[6, 7]], [0]), 5, 3)
    options = {"split": "train", "max_positions": 5, "max_question_positions": 9}
    questions = WindowedQuestions(QuestionDataset(data, Dictionary(), **options))
    assert (len(questions), questions.sizes.tolist()) == (2, [18, 18])
    batch = questions.collater([questions[1], questions[0]])
    assert batch["id"].tolist() == [4, 5, 6, 7, 0, 1, 2, 3]
    short, none = ([kind == place for kind in range(5)] for place in (0, 4))
    assert batch["target"]["types"][:4].tolist() == [none, short, short, none]
    assert batch["net_input"]["document_tokens"].shape == (8, 5)


def test_a_window_with_the_long_answer_alone(tmp_path):
    """The short one stands in another window: it is no answer that was not found."""
    data = WindowData(write(tmp_path, [[1, 2]], [1]), 8, 5)
    options = {"split": "train", "max_positions": 8, "max_question_positions": 9}
    questions = QuestionDataset(data, Dictionary(), **options)
    assert [row.long_answers.tolist() for row in (data[0], data[1])] == [[], [1]]
    types = [dict(zip(TYPES, questions[i]["types"].tolist(), strict=True)) for i in range(2)]
    assert [[name for name, is_right in of.items() if is_right] for of in types] == [
        ["short"],
        ["long"],
    ]


def test_the_window_that_is_surest_answers(tmp_path):
    """Beside "no answer" of its own; in tokens and paragraphs of the document."""
    data = WindowData(write(tmp_path, [[6, 7]], [1]), 5, 3)

    def answers(none: float, score: float, place: tuple) -> Answers:
        types = {"short": 1 - none, "yes": 0.0, "no": 0.0, "long": 0.0, "none": none}
        return Answers(types, [Answer("x", score, 0, (0, 1), place)], [(0, score)])

    found = [answers(0.5, -1.0, (1, 2)), answers(0.9, -0.1, (2, 3)), answers(0.1, -2.0, (4, 5))]
    ((number, best),) = data.questions([0, 1, 2], found)
    assert (number, best.short[0].tokens, best.short[0].paragraph) == (0, (9, 10), 0)
    assert best.best_margin == pytest.approx(-2 - math.log(0.1))
    (_, first), (other, last) = data.questions([3, 4], [found[0], found[1]])
    assert (first.short[0].paragraph, first.long[0][0], first.short[0].tokens) == (1, 1, (9, 10))
    assert (other, last.short[0].tokens) == (1, (2, 3))
