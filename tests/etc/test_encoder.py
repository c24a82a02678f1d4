"""ETC's encoder: sizes of the paper, lifting, blocks, and documents with hidden parts."""

from argparse import Namespace
from pathlib import Path

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.models.roberta import RobertaModel
from fairseq.models.roberta.model import base_architecture
from torch import Tensor
from transformers import AutoModel

from fairseq_clusterformer.corpora.binarize import symbol_dictionary
from fairseq_clusterformer.data.subwords import Subwords
from fairseq_clusterformer.etc import encoder as etc
from fairseq_clusterformer.etc.global_local import Structure
from fairseq_clusterformer.etc.masked_lm import ETCMaskedLM
from fairseq_clusterformer.models.clusterformer_masked_lm import ClusterformerMaskedLM
from fairseq_clusterformer.models.options import defaults_of
from tests.etc.models import (
    CLOSE,
    SIZES,
    assert_all_have_gradients,
    build,
    make_task,
    rows_of,
    write,
)
from tests.models.bert import folder_of

DENSE = {name: SIZES[name] for name in SIZES if name not in ("radius", "max_distance", "block")}


def model(**options) -> ETCMaskedLM:
    return build(ETCMaskedLM, make_task(words=20), **options)


def model_of_parts(**options) -> ETCMaskedLM:
    return build(ETCMaskedLM, make_task("<mask>", words=20, hides_parts=True), **options)


@pytest.mark.parametrize(("name", "millions"), [("base", 166), ("large", 539)])
def test_sizes_are_those_of_the_paper(name: str, millions: int) -> None:
    """Ainslie et al. 2020, section 4.1; by the vocabulary of BERT, without its head."""
    args = Namespace(**defaults_of(etc.ETCOptions) | etc.SIZES[name])
    with torch.device("meta"):
        encoder = etc.ETCEncoder(args, Dictionary())
    words = 30_522 * args.encoder_embed_dim - encoder.embed_tokens.weight.numel()
    total = sum(p.numel() for p in encoder.parameters()) + words
    assert abs(total / 1e6 - millions) < 1


def test_fixed_blocks() -> None:
    """Written out: 10 tokens in blocks of 4, a row of 5, and one of padding."""
    tokens = torch.full((3, 10), 5)
    tokens[1, 5:] = tokens[2] = 1
    found = etc.fixed_blocks(tokens, 4, 1)
    assert found.spans.squeeze(2).tolist() == [
        [[0, 4], [4, 8], [8, 10]],
        [[0, 4], [4, 5], [5, 5]],
        [[0, 0], [0, 0], [0, 0]],
    ]
    assert found.global_padding.int().tolist() == [[0, 0, 0], [0, 0, 1], [0, 1, 1]]


def roberta() -> RobertaModel:
    """Its task has one word more, <mask>."""
    args = Namespace(**DENSE, tokens_per_sample=64, max_positions=64)
    base_architecture(args)
    return RobertaModel.build_model(args, make_task("<mask>", words=20))


def dense(words: int = 20, **options) -> ClusterformerMaskedLM:
    options = {"no_token_positional_embeddings": True, "no_scale_embedding": True, **options}
    options = {"encoder_attention": "full", "layernorm_embedding": True, **options}
    args = Namespace(**{**DENSE, **options})
    return ClusterformerMaskedLM.build_model(args, make_task(words=words))


def read(lifted: ETCMaskedLM, tokens: Tensor) -> Tensor:
    """What it makes of tokens that see no global token, with labels and types of zeros."""
    anew = [p for n, p in lifted.encoder.named_parameters() if "label_" in n or "types" in n]
    assert len(anew) == 2 * SIZES["encoder_layers"] + 1
    for parameter in anew:
        assert parameter.any() or parameter.dim() == 3  # biases of labels begin as zeros
        torch.nn.init.zeros_(parameter)
    hidden, spans = torch.ones(2, 1, dtype=torch.bool), torch.zeros(2, 1, 2, dtype=torch.long)
    nothing = Structure(spans, tokens.size(1), global_padding=hidden, long_padding=tokens.eq(1))
    return lifted.encoder(tokens, nothing).of_long


@torch.no_grad()
@pytest.mark.parametrize("form", ["after", "before", "roberta"])
def test_lifted_is_dense(tmp_path: Path, form: str) -> None:
    """Equal to a dense encoder without positions, where the radius covers the text."""
    shared = {"encoder_normalize_before": form == "before"}
    given = (roberta() if form == "roberta" else dense(**shared)).eval()
    for parameter in given.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    path = write(tmp_path / "dense.pt", given.state_dict())
    lifted = model(radius=50, lift=str(path), **shared)
    lifted.load_initial_weights()
    stack = given.double().encoder
    if form == "roberta":
        stack = stack.sentence_encoder
        stack.embed_positions.weight.zero_()
    for layer in stack.layers:  # fairseq's takes it in float32
        layer.activation_fn = torch.nn.functional.gelu
    tokens = torch.randint(4, 24, (2, 30))
    tokens[1, 20:] = 1
    expected = stack(tokens)["encoder_out"][0].transpose(0, 1)
    torch.testing.assert_close(read(lifted, tokens)[tokens != 1], expected[tokens != 1], **CLOSE)


@torch.no_grad()
@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert"])
def test_lifted_from_a_folder(tmp_path: Path, family: str) -> None:
    """Equal to transformers' model without positions; its first type is in the words."""
    folder, task = folder_of(family, tmp_path / family), make_task()
    symbols = Subwords(folder / "tokenizer.json").symbols
    task.source_dictionary = symbol_dictionary(symbols)
    sizes = {"encoder_embed_dim": 16, "encoder_ffn_embed_dim": 32, "encoder_attention_heads": 2}
    lifted = build(ETCMaskedLM, task, **sizes, layer_norm_eps=1e-12, lift=str(folder), radius=50)
    lifted.load_initial_weights()
    theirs = AutoModel.from_pretrained(folder).eval().double()
    theirs.embeddings.position_embeddings.weight.zero_()
    tokens = torch.randint(4, 24, (2, 30))
    numbers = torch.tensor([symbols.index(s) for s in task.source_dictionary.symbols])
    expected = theirs(numbers[tokens]).last_hidden_state
    torch.testing.assert_close(read(lifted, tokens), expected, rtol=0, atol=1e-6)


def other_words(path: Path) -> dict[str, Tensor]:
    """RoBERTa's checkpoint says none: its dict.txt is looked at, if it is there."""
    words = make_task(words=20).source_dictionary
    words.symbols[6], words.symbols[7] = words.symbols[7], words.symbols[6]
    words.save(str(path / "dict.txt"))
    return roberta().state_dict()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (other_words, r"dict.txt is another dictionary \(word 6 is"),
        (lambda _: {"encoder.x": torch.zeros(1)}, "encoder.embed_tokens.weight"),
        (lambda _: dense(encoder_layers=3).state_dict(), "encoder.layers.2."),
        (lambda _: dense(encoder_normalize_before=True).state_dict(), "encoder.layer_norm."),
        (lambda _: dense(encoder_ffn_embed_dim=8).state_dict(), "encoder.layers.0.fc1.weight"),
        (lambda _: dense(21).state_dict(), "was trained with another dictionary"),
        (lambda _: model(num_labels=9).state_dict(), "its --max-distance is 3"),
    ],
)
def test_what_is_not_lifted_is_named(given, message: str, tmp_path: Path) -> None:
    path = write(tmp_path / "other.pt", given(tmp_path), max_distance=3)
    with pytest.raises(ValueError, match=f"--lift is .*other.pt: .*{message}.*; allowed: "):
        model(lift=str(path)).load_initial_weights()


@torch.no_grad()
@pytest.mark.parametrize("clusters", [0, 3, None])
def test_starts_from_another_of_its_kind(tmp_path: Path, clusters: int | None) -> None:
    """Centroids start anew where it has none. Tasks of pre-training add <mask> to the words, those
    of fine-tuning (None) do not."""
    given = model_of_parts()
    path = str(write(tmp_path / "etc.pt", given.state_dict()))
    again = model(lift=path) if clusters is None else model_of_parts(lift=path, clusters=clusters)
    own = again.encoder.state_dict().get("centroids", torch.zeros(0)).clone()
    again.load_initial_weights()
    found = again.encoder.state_dict()
    for name, tensor in given.encoder.state_dict().items():
        assert torch.equal(tensor[: len(found[name])], found[name]), name
    assert torch.equal(found.get("centroids", own), own)


def batch_of(lines: list[list[int]], **options) -> dict:
    """All of it in one row; no word is guessed."""
    data = rows_of(lines, 20, **{"mask_prob": 0, **options})
    assert len(data) == 1
    return data.collater([data[0]])["net_input"]


def test_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match="--same-cluster is 4, and --clusters 0; allowed: 0 with"):
        model(same_cluster=4)
    with pytest.raises(ValueError, match="--encoder-attention-heads is 5; allowed: a number that"):
        model(encoder_attention_heads=5)
    with pytest.raises(ValueError, match="padding stands before a token"):
        model()(torch.tensor([[1, 5, 6]]))
    task = make_task("<mask>", cfg=Namespace(parts="blocks"))
    with pytest.raises(ValueError, match="--clusters is 3, and --parts blocks; allowed: --parts"):
        build(ETCMaskedLM, task, clusters=3)


@torch.no_grad()
@pytest.mark.parametrize(
    "options", [{}, {"hard_global": True}, {"clusters": 3, "same_cluster": 2, "hard_global": True}]
)
def test_packed_documents_are_documents_alone(options: dict) -> None:
    built = model_of_parts(**options)
    built.contrast = None  # as where no parts are hidden
    more = {"hide_parts": 0, "parts": "none" if "clusters" in options else "sentences"}
    documents = [[[5, 6, 7], [8, 9]], [[10] * 4, [11], [12, 13]]]
    alone = [built(**batch_of(lines, **more))[0][0] for lines in documents]
    both = built(**batch_of([*documents[0], [], *documents[1]], **more))[0][0]
    torch.testing.assert_close(both, torch.cat(alone), **CLOSE)
    if "clusters" in options:
        plain = built(torch.tensor([[5, 6, 7, 8, 9]]))[0][0]
        torch.testing.assert_close(plain, alone[0], **CLOSE)


def test_a_hidden_part_is_expected_from_its_context_alone() -> None:
    """Its words are seen where it stands alone, and nowhere else; both are learned from."""
    built = model_of_parts()
    found = []
    for words in ([7, 8, 9], [14, 15, 16]):
        lines = [[5, 6], words, [10, 11]]
        drawn = (batch_of(lines, hide_parts=0.5, seed=seed) for seed in range(99))
        given = next(d for d in drawn if d["parts"]["hidden"].tolist() == [[False, True, False]])
        logits, extra = built(**given)
        found.append((logits, *extra["contrast"]))
    (logits, expected, actual), (others, again, other) = found
    torch.testing.assert_close(logits, others, **CLOSE)
    torch.testing.assert_close(expected, again, **CLOSE)
    assert not torch.allclose(actual, other)
    for states in (again, other):
        words = built.encoder.embed_tokens.weight
        (grad,) = torch.autograd.grad(states.sum(), words, retain_graph=True)
        assert grad.abs().sum() > 0


@pytest.mark.parametrize("options", [{}, {"clusters": 3}])
def test_every_parameter_has_a_gradient(options: dict) -> None:
    """Of the last layer's global tokens, too, which nothing reads, and of the maps of hidden
    parts where none is hidden."""
    built = model_of_parts(**options).train()
    if options:
        built.contrast = None
    parts = "none" if options else "sentences"
    logits, extra = built(**batch_of([[5, 6], [7]], parts=parts, hide_parts=0))
    sum(x.sum() for x in (logits, *extra.get("contrast", ()))).backward()
    assert_all_have_gradients(built)
