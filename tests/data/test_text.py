"""The text pipeline of translation data: text to subwords and back."""

import json

import pytest

from fairseq_clusterformer.data import formats
from fairseq_clusterformer.data.text import TextPipeline
from fairseq_clusterformer.errors import UserError

LANGUAGES = ("de", "en")


@pytest.mark.parametrize(
    ("options", "lang", "line", "tokens", "back"),
    [
        ({}, "en", "It's  a “two-year-old”.", "It 's a “ two-year-old ” .", None),
        ({"normalize_punctuation": True}, "de", "Er sagt: „Ja!“", 'Er sagt : " Ja ! "', None),
        ({"dash_splits": True}, "en", "two-year-old", "two @-@ year @-@ old", "two-year-old"),
        ({"escape": True}, "en", "B & C's [x]", "B &amp; C &apos;s &#91; x &#93;", "B & C's [x]"),
        ({"lowercase": True}, "de", "Ein Käse, groß.", "ein käse , groß .", "ein käse, groß."),
        ({"tokenizer": "none"}, "de", " Ein\u00a0 Käse,\tja. ", "Ein Käse,ja.", None),
    ],
)
def test_pipeline_there_and_back(tmp_path, options, lang, line, tokens, back):
    (tmp_path / "bpe.codes").write_text("#version: 0.2\no l\nol d</w>\n")
    formats.codes(tmp_path / "bpe.codes").save(str(tmp_path / "tokenizer.json"))
    text = TextPipeline(LANGUAGES, model=tmp_path / "tokenizer.json", **options)
    older = {"recipe": {**text.recipe(), "bpe_model": "bpe.codes"}}  # of an earlier version
    (tmp_path / "prepared.json").write_text(json.dumps(older))
    assert TextPipeline.from_folder(tmp_path).encode(line, lang) == text.encode(line, lang)
    if options == {"tokenizer": "none"}:
        tokens = "Ein Käse, ja."
    assert text.tokens(line, lang) == tokens
    assert text.words(text.encode(line, lang)) == tokens
    assert len(text.encode("x old", lang).split()) == 2
    if back:
        assert text.decode(text.encode(line, lang), lang) == back


def test_pipeline_refuses_what_it_cannot_do(tmp_path):
    with pytest.raises(UserError, match="no text pipeline in its prepared.json .*; allowed: "):
        TextPipeline.from_folder(tmp_path)
    recipe = TextPipeline().recipe()
    damaged = {"languages": [10**30, "en"], "lowercase": "no", "tokenizer": 1, "bpe": "x"}
    for name, value in damaged.items():
        (tmp_path / "prepared.json").write_text(json.dumps({"recipe": recipe | {name: value}}))
        with pytest.raises(UserError, match=rf"the data folder is {tmp_path}: "):
            TextPipeline.from_folder(tmp_path)
    with pytest.raises(UserError, match="the language is fr; allowed: de or en"):
        TextPipeline().tokens("Bonjour", "fr")
    with pytest.raises(UserError, match="tokenizer is perl; allowed: moses or none"):
        TextPipeline(tokenizer="perl")
    with pytest.raises(UserError, match="the subword model is None: no such file; allowed"):
        TextPipeline().encode("Hallo", "de")
