"""What looks the same becomes the same tokens, and offsets stay those of the original."""

import random
import unicodedata
from unicodedata import normalize

import pytest

from fairseq_clusterformer.corpora.binarize import count_words
from fairseq_clusterformer.corpora.classification import split_words
from fairseq_clusterformer.corpora.files import read_lines
from fairseq_clusterformer.data.characters import composed, form_of, with_places
from fairseq_clusterformer.data.coding import TextCoding
from fairseq_clusterformer.data.subwords import load_prepared
from fairseq_clusterformer.data.text import TextPipeline
from tests.conftest import REPO_ROOT

#: letters and marks that compose, reorder, expand, or are in one form already
ALPHABET = (
    "aeq DZ.1é\u0301\u0323\u0327\u0345ﬁﬃ５²½Åﷺ한"
    "\u1112\u1161\u11ab\u0915\u093c\U0001d400\u0f71\u0f72\u0f73\u0f75\u0f81\u0f74"
    "か\u3099\u309a\uff9e\u0344\u09c7\u09be\u0dd9\u0dcf\u0dca\u1dfa"
)


@pytest.mark.parametrize("form", ["NFC", "NFKC"])
def test_the_form_and_the_place_of_each_character(form):
    draw = random.Random(1)
    changed = 0
    for _ in range(2000):
        text = "".join(draw.choices(ALPHABET, k=draw.randint(0, 12)))
        found = with_places(text, form)
        if found is None:
            assert unicodedata.is_normalized(form, text)
            continue
        changed += 1
        whole, starts, ends = found
        assert whole == normalize(form, text)
        assert len(whole) == len(starts) == len(ends)
        assert (starts[1:] >= starts[:-1]).all()
        assert (ends[1:] >= ends[:-1]).all()
        for start, end in {*zip(starts.tolist(), ends.tolist(), strict=True)}:
            own = [c for c, s in zip(whole, starts, strict=True) if s == start]
            assert normalize(form, text[start:end]) == "".join(own)
    assert changed > 300


SHIPPED = REPO_ROOT / "fairseq_clusterformer" / "trained"
TEXT = "Zwei Männer überqueren die Straße. Café, naïve Ångström: 한국어."


def test_decomposed_text_has_the_tokens_of_composed_text(tmp_path):
    apart = normalize("NFD", TEXT)
    pipeline = TextPipeline.from_folder(SHIPPED / "multi30k-de-en")
    assert pipeline.encode(apart, "de") == pipeline.encode(TEXT, "de")
    coding = TextCoding.from_folder(SHIPPED / "books-en")
    assert coding.encode(apart).tolist() == coding.encode(TEXT).tolist()
    (tmp_path / "text").write_text(apart + "\n", encoding="utf-8")
    (item,) = coding.items(tmp_path / "text")
    assert item.tolist()[:-1] == coding.encode(TEXT).tolist()
    how = {"tokenised": False, "max_length": None}
    assert split_words(apart, **how) == split_words(TEXT, **how)
    assert count_words([tmp_path / "text"]).keys() >= set(TEXT.split())
    assert list(read_lines(tmp_path / "text")) == [TEXT]
    assert len(TextCoding.from_folder(SHIPPED / "python-code").encode(normalize("NFD", "é"))) == 3
    assert form_of(tmp_path) == "NFC"  # of an older folder, which does not say it
    (tmp_path / "prepared.json").write_text('{"recipe": {"unicode": "none"}}')
    assert composed("e\u0301", form_of(tmp_path)) == "e\u0301"


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("an eﬀect of ５ oﬃces", "an effect of 5 offices"),
        (normalize("NFD", "Das Café von Ömer"), "Das Café von Ömer"),
    ],
)
def test_a_document_is_read_in_plain_letters_and_answers_are_its_own(text, plain):
    pieces = load_prepared(SHIPPED / "reader-en")
    found, wanted = pieces.encode(text), pieces.encode(plain)
    assert found.ids.tolist() == wanted.ids.tolist()
    assert (found.starts[0], found.ends[-1]) == (0, len(text))
    for number in range(len(found)):
        own = text[found.starts[number] : found.ends[number]]
        same = plain[wanted.starts[number] : wanted.ends[number]].strip()
        assert normalize("NFKC", own).strip()[:1] in same + own
    word = text.split()[-1]
    first, last = found.cover(text.index(word), len(text))
    assert text[found.starts[first] : found.ends[last - 1]].strip() == word
