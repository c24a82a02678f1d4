"""What is found in sections: its order, its probabilities, whole words and guesses."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from fairseq_clusterformer.answers import Answer
from fairseq_clusterformer.documents.found import (
    Ranking,
    SectionRead,
    Weights,
    ranked,
    sentence_around,
    whole_words,
)
from fairseq_clusterformer.documents.sources import Source
from tests.documents.sections import read_of, section_of

#: "none" is as likely as not to be the answer, by the span's softmax and by its own
EVEN = {"short": 0.5, "none": 0.5}


def read(name: str, types: dict[str, float], short: Sequence[Answer] = (), **more) -> SectionRead:
    """Of a document of one paragraph, a word of three characters and one of five."""
    characters = torch.tensor([[-1, 0, 4], [-1, 3, 8]])
    section = section_of(Source(name, name, ("One two.",)), characters)
    return read_of(section, types, short, **more)


def span(score: float) -> Answer:
    return Answer("One", score, 0, (0, 3), (1, 2))


def by_margin(name: str, margin: float, words: float = 0.0, **types: float) -> SectionRead:
    """A span that is so much likelier than "no answer"."""
    found = read(name, EVEN | types, [span(margin - 3.0)], none=-3.0)
    return replace(found, words=words)


def odds(margin: float):
    return pytest.approx(1 / (1 + math.exp(-margin)), abs=1e-6)


class TestShares:
    def test_one_section_keeps_the_probabilities_of_the_reader(self):
        types = {"short": 0.6, "yes": 0.1, "none": 0.3}
        ranking = ranked([read("x", types, [span(math.log(0.5)), Answer("yes", -2.3)])], 9)
        found = {each.text: each.probability for each in ranking}
        assert found == {"One": pytest.approx(0.5), "yes": pytest.approx(math.exp(-2.3))}
        assert ranking.no_answer == pytest.approx(0.3)
        assert ranking.found
        assert [each.found for each in ranking] == [True, False]
        assert ranking[0].around() == ("", "One", " two.")
        assert ranking[0].context == "One two."

    def test_a_short_file_does_not_win_by_being_short(self):
        """In it one span is as good as certain, by logits that are far below the right file's."""
        types = {"short": 0.8, "none": 0.2}
        reads = [
            read("short", types, [span(math.log(0.79))], evidence=3.0),
            read("right", types, [span(math.log(0.3))], evidence=9.0),
        ]
        ranking = ranked(reads, 2)
        assert [each.file for each in ranking] == ["right", "short"]
        assert ranking.no_answer == pytest.approx(0.2)
        # and a file that says by itself that nothing answers comes behind
        reads[1] = read("right", {"short": 1e-6, "none": 1.0}, [span(-15.0)], evidence=9.0)
        assert ranked(reads, 2)[0].file == "short"

    def test_probabilities_of_all_files_sum_to_one(self):
        noes = [0.1, 0.5, 0.999]
        reads = [
            read(each, {"short": 1 - no, "none": no}, [span(math.log1p(-no))], evidence=e)
            for each, no, e in zip("abc", noes, (1.0, 3.0, 2.0), strict=True)
        ]
        ranking = ranked(reads, 9, -math.inf)
        total = sum(each.probability for each in ranking if each.type == "short")
        assert total + ranking.no_answer == pytest.approx(1, abs=1e-5)
        empty = read("a", {"none": 1.0}, evidence=-math.inf)
        assert ranked([empty], 3).no_answer == pytest.approx(1, abs=1e-6)

    def test_answers_of_the_likeliest_type_come_first(self):
        """As it is scored: a span may be less likely than yes, and spans together likelier."""
        answers = [span(math.log(0.2)), Answer("yes", math.log(0.3))]
        types = {"short": 0.5, "yes": 0.3, "none": 0.2}
        found = ranked([read("x", types, answers, long=[(0, 0.0)])], 9)
        assert [each.type for each in found] == ["short", "yes", "long"]
        types = {"long": 0.5, "yes": 0.3, "none": 0.2}
        (first, *_) = ranked([read("x", types, answers, long=[(0, 0.0)])], 9)
        around = ("", "One two.", "")
        assert (first.type, first.text, first.around()) == ("long", "One two.", around)


class TestMargins:
    def test_files_are_in_the_order_of_margins(self):
        ranking = ranked([by_margin("a", -2.0), by_margin("b", 5.0), by_margin("c", 1.0)], 9)
        assert [each.file for each in ranking] == ["b", "c", "a"]
        assert [each.margin for each in ranking] == pytest.approx([5, 1, -2])
        assert [each.probability for each in ranking] == [odds(5), odds(1), odds(-2)]
        assert [each.found for each in ranking] == [True, True, False]
        assert ranking.no_answer == odds(-5)

    def test_yes_and_no_are_no_guesses_beside_spans(self):
        answers = [span(math.log(0.2)), Answer("yes", math.log(0.1)), Answer("no", math.log(0.3))]
        for short, texts in ((answers[:2], ["One"]), (answers, ["no", "One"])):
            found = ranked([read("x", {"none": 0.1}, short, none=math.log(0.1))], 9)
            assert [each.text for each in found] == texts

    @pytest.mark.parametrize(
        ("margin", "least", "verdict"),
        [
            (1.0, 0.0, ""),
            (1.0, 0.99, ""),
            (1.0, 1.01, "No answer here: the best margin is 1.00, and above 1.01 counts."),
            (-1.0, 0.0, "Most likely, no answer here (probability 0.731)."),
            (-1.0, -0.99, "Most likely, no answer here (probability 0.731)."),
            (-1.0, -1.01, ""),
        ],
    )
    def test_the_least_margin(self, margin, least, verdict):
        ranking = ranked([by_margin("x", margin)], 1, least)
        assert (ranking.verdict, ranking.found) == (verdict, not verdict)

    def test_marks_alone_are_no_answer(self):
        for text in (".", "(", "|"):
            found = by_margin("x", 9.0)
            found.section = replace(found.section, source=Source("x", "x", (text,)))
            assert not ranked([found], 9)
        assert not Ranking([], 0.0, -5).found

    def test_words_count_with_the_margin(self):
        reads = [by_margin("loud", 3.0), by_margin("right", 2.0, words=4.0)]
        assert ranked(reads, 1)[0].file == "right"
        assert ranked(reads, 1)[0].probability == odds(2)
        assert ranked(reads, 1, weights=Weights(words=0.2))[0].file == "loud"

    def test_no_answer_in_the_passage_counts(self):
        """As the logarithm of its probability in the passage alone."""
        reads = [by_margin("loud", 3.0), by_margin("right", 2.0, none=0.1)]
        first, plain = (ranked(reads, 9, weights=Weights(none=x))[0] for x in (-3.0, 0.0))
        assert (first.file, plain.file) == ("right", "loud")
        assert first.features["none"] == pytest.approx(math.log(0.1))

    def test_words_of_the_question_in_the_sentence_count(self):
        reads = [by_margin("loud", 3.0), by_margin("right", 2.0)]
        reads = [replace(x, asked=y) for x, y in zip(reads, ({"both"}, {"one", "z"}), strict=True)]
        first, plain = (ranked(reads, 9, weights=Weights(asked=x))[0] for x in (3.0, 0.0))
        assert (first.file, plain.file) == ("right", "loud")
        assert (first.features["asked"], plain.features["asked"]) == (0.5, 0)

    def test_an_answer_leads_before_the_best_other_text(self):
        """The same text elsewhere is no rival."""
        rival = read("x", EVEN, [Answer("two", -1.5, 0, (4, 7), (2, 3))], none=-3.0)
        reads = [by_margin("loud", 3.0), by_margin("same", 2.0), rival]
        found = ranked(reads, 9, weights=Weights(lead=2.0, threshold=0.5))
        assert [each.lead for each in found] == pytest.approx([1.5, 0.5, -1.5])
        assert found[0].probability == odds(3 + 2 * 1.5)
        assert ranked(reads[:2], 9)[0].lead == 10

    @pytest.mark.parametrize(
        ("threshold", "least", "verdict"),
        [
            (0.26, 0.0, ""),
            (0.28, 0.0, "No answer found: of guesses as weak as these, 27% are right."),
            (0.28, -0.2, ""),
        ],
    )
    def test_calibrated(self, threshold, least, verdict):
        """What is shown is the share of right answers; the best passages come anyway."""
        weights = Weights(1.0, 0.2, 2.0, bias=-4.0, threshold=threshold)
        reads = [by_margin("loud", 3.0), by_margin("right", 2.0, words=4.0)]
        ranking = ranked(reads, 2, least, weights)
        assert ranking[0].file == "loud"
        assert ranking[0].margin == pytest.approx(3 - 4, abs=1e-6)
        assert ranking[0].probability == odds(-1)
        assert (ranking.verdict, ranking.found) == (verdict, not verdict)


def test_a_piece_of_a_paragraph_answers_with_what_it_holds():
    """A long answer is no more than its section holds; a piece of blanks alone is none."""
    characters = torch.tensor([[-1, 3, 4, -1, 7], [-1, 3, 7, -1, 7]])
    section = section_of(Source("x", "x", ("One two.",) * 2), characters, (0, 3))
    (found,) = ranked([read_of(section, {"long": 1.0}, [], long=[(0, -1.0), (1, -0.5)])], 9)
    assert (found.text, found.characters, found.paragraph) == ("two", (4, 7), 0)


@pytest.mark.parametrize(
    ("text", "cut", "whole"),
    [
        ("King Rodrigues of 1,500 men", "Rodrigue", "Rodrigues"),
        ("King Rodrigues of 1,500 men", "of 1", "of 1,500"),
        ("Otto's horse", "Ott", "Otto"),
        ("by O'Brien, the 3rd", "Brien", "O'Brien"),
        ("the Franco-Prussian war", "Prussia", "Prussian"),
        ("$5 million.", "5 m", "$5 million"),
        ("it cost -\u20ac.5, no more", ".5", "-\u20ac.5"),
        ("A$5", "5", "5"),
        ("\u6771\u4eac\u306f\u65e5\u672c", "\u4eac", "\u4eac"),
        ("One two", "One two", "One two"),
        ("fell to -2 degrees", "2", "-2"),
        ("\u22122.5 to +3", "2.5", "\u22122.5"),
        ("-7 it was (-9 at night)", "9 at", "-9 at"),
        ("in 1914-18", "18", "18"),
        ("Smith (1966)", "(1966", "1966"),
        ("Smith (1966)", "1966)", "1966"),
        ("Smith (1966)", "(1966)", "(1966)"),
        ("Smith (1966)", "Smith (1966", "Smith (1966"),
        ('called "The Elm"', '"The Elm', "The Elm"),
        ("\u201cSo it is\u201d", "is\u201d", "is"),
        ("\u201c(Foo) is", "\u201c(Foo", "Foo"),
        # abbreviations keep their points, and end no sentence, which stands between bars
        ("He left. |It is in L.A. now.| So.", "L.A", "L.A."),
        ("Who? |Dr. King Jr. spoke.| So.", "King Jr", "King Jr."),
        ("So. |J. R. R. Tolkien wrote it.|", "Tolkien", "Tolkien"),
        ("|It fell.| Then he went.", "fell", "fell"),
    ],
)
def test_answers_are_whole_words(text, cut, whole):
    _, *sentence = text.split("|")
    text = text.replace("|", "")
    start = text.index(cut)
    start, end = whole_words(text, start, start + len(cut))
    assert text[start:end] == whole
    if sentence:
        assert text[slice(*sentence_around(text, start, end))].strip() == sentence[0]


def test_spans_that_become_the_same_words_are_one_answer():
    section = section_of(Source("x", "x", ("Rodrigues",)), torch.tensor([[-1, 0, 8], [-1, 8, 9]]))
    short = [Answer("Rodrigue", -1.0, 0, (0, 8), (1, 2)), Answer("s", -2.0, 0, (8, 9), (2, 3))]
    found = ranked([read_of(section, {"short": 0.6}, short)], 3)
    assert [each.text for each in found if each.type == "short"] == ["Rodrigues"]


def test_guesses_are_three_sentences_each_once():
    """Where no answer is found: no paragraph as a whole, and no sentence or text twice."""
    text = "One two. " * 2 + "Otto rules Ulm. " * 40 + "Ida rules."
    spans = [(0, 3), (4, 7), (9, 12), (18, 22), (len(text) - 10, len(text) - 7)]
    short = [
        Answer(text[a:b], -3.0 - i, 0, (a, b), (i + 1, i + 2)) for i, (a, b) in enumerate(spans)
    ]
    starts, ends = zip(*spans, strict=True)
    section = section_of(Source("x", "x", (text,)), torch.tensor([[-1, *starts], [-1, *ends]]))
    types = {"none": 0.9, "short": 0.1, "long": 0.09}
    found = ranked([read_of(section, types, short, long=[(0, 0.0)])], 9)
    assert not found.found
    assert [each.text for each in found] == ["One", "Otto", "Ida"]
    assert not any(each.found for each in found)
    assert all(0 < each.probability < 0.1 for each in found)
    (guess,) = ranked([read_of(section, types, [], long=[(0, 0.0)])], 9)
    assert (guess.type, guess.text, guess.context) == ("long", "One two.", "One two.")
