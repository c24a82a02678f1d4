"""Which passages are read: by words and by sentence vectors, which those of transformers are."""

from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch

from fairseq_clusterformer.documents.passages import FILE, Index, Passages, SentenceEncoder
from fairseq_clusterformer.errors import UserError
from tests.documents.sections import sections_of
from tests.models.bert import folder_of

transformers = pytest.importorskip("transformers")


def test_both_ranks_count(caplog):
    """The first by one of them is read, though the other puts it last; of a section with several
    parts, the most similar one counts."""
    parts = sections_of("Otto rules Ulm.", "All is well.", "A monarch is there.", "Ulm, Ulm, Ulm.")
    encoder = mock.Mock()
    encoder.of_sections.return_value = [np.eye(3)[rows] for rows in ([0], [0], [0, 1], [0])]
    encoder.of_question.return_value = np.array([0.1, 0.9, 0.0])
    passages = Passages(parts, encoder)
    _, words, likeness = zip(*passages.likeliest("Who rules Ulm?", 9), strict=True)
    assert max(words) == words[0] > words[3] > words[1] == 0
    assert likeness == pytest.approx([0.1, 0.1, 0.9, 0.1], abs=1e-3)
    assert [place for place, *_ in passages.likeliest("Who rules Ulm?", 2)] == [0, 2]
    assert [place for place, *_ in Passages(parts).likeliest("Who rules Ulm?", 2)] == [0, 3]
    # in their order, not by relevance
    places, words, _ = zip(*Passages(parts).likeliest("Ulm?", 2), strict=True)
    assert places == (0, 3)
    assert words[0] < words[1]
    assert not caplog.records  # the library is quiet


class TestWords:
    TEXTS = ("Otto rules Ulm. Otto is old.", "All is well in Ulm.", "Ulm, Ulm: rulers rule.", "")
    ASKED = "Who is ruling Ulm, Ulm or Bree?"

    def test_what_has_no_word_of_a_question_scores_nothing(self):
        found = Passages(sections_of(*self.TEXTS)).by_words(self.ASKED)
        assert min(found[:3]) > found[3] == 0
        assert not Passages(sections_of("...", "\u4eac\u90fd")).by_words(self.ASKED).any()
        assert not Passages(sections_of("...", "")).by_words(self.ASKED).any()
        assert len(Passages([]).by_words(self.ASKED)) == 0

    @pytest.mark.parametrize(
        ("texts", "question", "most", "places"),
        [
            # letters are words where no blanks part them
            (
                ["\u6771\u4eac\u306f", "\u5927\u962a\u3067", "\u4eac\u90fd\u306b"],
                "\u5927\u962a?",
                1,
                [1],
            ),
            (["All is well."] * 40, "Quid?", 10, [*range(10)]),  # no known word
            (["Order 10048712.", "Order 10048713.", "No."], "Where is order 10048713?", 1, [1]),
            (["Ulm and Pisa.", "The buildings of Ulm.", "Ulm or Tyre."], "Who builds?", 1, [1]),
            (["Ulm and Pisa.", "The buildings of Ulm.", "Ulm or Tyre."], "TYRE", 1, [2]),
        ],
    )
    def test_the_likeliest(self, texts, question, most, places):
        found = Passages(sections_of(*texts)).likeliest(question, most)
        assert [place for place, *_ in found] == places


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_of("bert", tmp_path_factory.mktemp("encoder") / "bert")


def test_vectors_are_means_of_states(folder):
    """Alone as with others, of which some are longer; a long text has several."""
    encoder = SentenceEncoder(folder, Index(None))
    model = transformers.AutoModel.from_pretrained(folder).eval()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    texts = ["the cat sat", "a", "the cat sat on the mat " * 12]
    with torch.no_grad():
        ids = torch.tensor([[2, *tokenizer(texts[0], add_special_tokens=False).input_ids, 3]])
        ids[0, 0], ids[0, -1] = tokenizer.convert_tokens_to_ids(["[CLS]", "[SEP]"])
        expected = model(ids).last_hidden_state[0].mean(0)
    found = encoder.of_sections(sections_of(*texts))
    assert found[0][0] == pytest.approx((expected / expected.norm()).numpy(), abs=1e-5, rel=1e-5)
    assert encoder.of_question(texts[0]) == pytest.approx(found[0][0], abs=1e-5, rel=1e-5)
    assert [len(vectors) for vectors in found[:2]] == [1, 1]
    assert len(found[2]) > 1
    for vectors in found:
        assert np.linalg.norm(vectors, axis=1) == pytest.approx(1)


def test_folders_of_another_form(tmp_path):
    folder = folder_of("bert", tmp_path / "t5", model_type="t5")
    with pytest.raises(UserError, match=f"--encoder is {folder}: .* is t5; allowed: bert"):
        SentenceEncoder(folder, Index(None))
    (folder / "config.json").unlink()
    with pytest.raises(UserError, match="no config.json can be read"):
        SentenceEncoder(folder, Index(None))


class TestIndex:
    TEXTS = ("the cat sat", "a mat", "the cat sat on the mat " * 12)

    @pytest.fixture
    def made(self, monkeypatch) -> list:
        """Keys of what is written, two at once."""
        made, put = [], Index.put

        def write(self, values):
            values = [*values]
            made.extend(key for key, _ in values)
            put(self, values)

        monkeypatch.setattr(Index, "put", write)
        monkeypatch.setattr("fairseq_clusterformer.documents.passages._AT_ONCE", 2)
        return made

    def vectors(self, folder: Path, index: Path | None, *texts: str) -> np.ndarray:
        encoder = SentenceEncoder(folder, Index(index))
        return np.concatenate(encoder.of_sections(sections_of(*(texts or self.TEXTS))))

    def test_nothing_is_made_twice(self, folder, made, tmp_path):
        """But what has changed, and for another encoder."""
        kept = tmp_path / "index"
        without = self.vectors(folder, None)
        made.clear()
        for number in (3, 3, 4):
            texts = self.TEXTS if number == 3 else ("the mat", *self.TEXTS)
            assert (self.vectors(folder, kept, *texts)[-len(without) :] == without).all()
            assert len(made) == len({*made}) == number
        assert [path.name for path in kept.iterdir()] == [FILE]
        self.vectors(folder_of("bert", tmp_path / "other", layer_norm_eps=0.1), kept)
        assert len(made) == len({*made}) == 7

    def test_what_was_made_before_an_end_is_kept(self, folder, made, tmp_path, monkeypatch):
        """An interruption costs what was not written."""
        with monkeypatch.context() as patch:
            write = Index.put
            patch.setattr(Index, "put", lambda *given: 1 / (not made) and write(*given))
            with pytest.raises(ZeroDivisionError):
                self.vectors(folder, tmp_path)
        assert len(made) == 2
        self.vectors(folder, tmp_path)
        assert len(made) == len({*made}) == 3

    def test_what_is_no_index(self, folder, tmp_path):
        (tmp_path / "letter.txt").write_text("{}" * 4000)
        with pytest.raises(UserError, match="letter.txt: is a file; allowed: a new or empty fo"):
            Index(tmp_path / "letter.txt")
        with pytest.raises(UserError, match="holds letter.txt, and is no index; allowed"):
            Index(tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]
        (tmp_path / "letter.txt").rename(tmp_path / FILE)
        with pytest.raises(UserError, match=r"--index is .*: cannot be used \(file is not a data"):
            Index(tmp_path)
