"""ETC's encoder: sizes of the paper, lifting, blocks, and training by fairseq's command."""

import re
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
import torch
from fairseq.data import Dictionary
from fairseq.models.roberta import RobertaModel
from fairseq.models.roberta.model import base_architecture
from torch import Tensor

from fairseq_clusterformer.etc import encoder as etc
from fairseq_clusterformer.etc.global_local import Structure
from fairseq_clusterformer.etc.masked_lm import ETCMaskedLM
from fairseq_clusterformer.etc.masked_parts import MaskedParts
from fairseq_clusterformer.models.clusterformer_masked_lm import ClusterformerMaskedLM
from fairseq_clusterformer.models.options import defaults_of

CLOSE = {"rtol": 0, "atol": 1e-12}
SIZES = {"encoder_layers": 2, "encoder_embed_dim": 12, "encoder_ffn_embed_dim": 20}
SIZES |= {"encoder_attention_heads": 3, "dropout": 0.0, "activation_fn": "gelu"}


def make_task(words: int = 20) -> Namespace:
    dictionary = Dictionary()
    for number in range(words):
        dictionary.add_symbol(f"word{number}")
    return Namespace(source_dictionary=dictionary, max_positions=lambda: 100)


def model(**options) -> ETCMaskedLM:
    args = Namespace(**{**SIZES, "radius": 5, "max_distance": 2, "block": 8, **options})
    return ETCMaskedLM.build_model(args, make_task()).double().eval()


def write(path: Path, tensors: dict[str, Tensor], max_distance: int = 2) -> None:
    """A checkpoint as fairseq writes it."""
    last = {"num_updates": 1, "lr_scheduler_state": {}, "optimizer_name": "x"}
    args = Namespace(arch="etc_masked_lm", max_distance=max_distance)
    state = {"model": tensors, "args": args, "optimizer_history": [last]}
    torch.save(state | {"extra_state": {"train_iterator": {"epoch": 1}}}, path)


@pytest.mark.parametrize(("name", "millions"), [("base", 166), ("large", 539)])
def test_sizes_are_those_of_the_paper(name: str, millions: int) -> None:
    """Ainslie et al. 2020, section 4.1; by the vocabulary of BERT, without its head."""
    args = Namespace()
    getattr(etc, name)(args)
    etc_args = Namespace(**{**defaults_of(etc.ETCOptions), **vars(args)})
    with torch.device("meta"):
        encoder = etc.ETCEncoder(etc_args, Dictionary())
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
    assert found.global_padding.tolist() == [
        [False] * 3,
        [False, False, True],
        [False, True, True],
    ]
    assert etc.fixed_blocks(tokens[:1], 4, 1).long_padding is None


@torch.no_grad()
@pytest.mark.parametrize("options", [{}, {"hard_global": True, "projections": "shared-kv"}])
def test_a_text_alone_is_a_text_in_any_batch(options: dict) -> None:
    built = model(**options)
    tokens = torch.randint(4, 24, (3, 40))
    tokens[1, 17:] = tokens[2, 1:] = 1
    together = built(tokens)[0]
    for row, length in enumerate((40, 17, 1)):
        alone = built(tokens[row : row + 1, :length])[0]
        torch.testing.assert_close(together[row, :length], alone[0], **CLOSE)


@torch.no_grad()
def test_global_tokens_carry_over_the_radius() -> None:
    """Two layers of radius 5 reach ten tokens; by global tokens, all."""
    built = model()
    tokens = torch.randint(4, 24, (1, 60))
    changed = tokens.clone()
    changed[0, 0] = 4 + (changed[0, 0] - 3) % 20
    moved = (built(tokens)[0] - built(changed)[0]).abs().amax(-1)[0]
    assert (moved > 1e-9).all()
    nothing = etc.Structure(
        torch.zeros(1, 1, 2, dtype=torch.long), 60, global_padding=torch.ones(1, 1).bool()
    )
    alone = [built.encoder(x, nothing).of_long for x in (tokens, changed)]
    moved = (alone[0] - alone[1]).abs().amax(-1)[0]
    assert (moved > 1e-9).tolist() == [place <= 10 for place in range(60)]


@torch.no_grad()
@pytest.mark.parametrize("before", [False, True])
def test_lifted_is_dense(tmp_path, before: bool) -> None:
    """Where the radius covers the text and no global token is seen: our dense encoder."""
    shared = {"encoder_normalize_before": before}
    dense_args = Namespace(
        **SIZES,
        **shared,
        encoder_attention="full",
        no_token_positional_embeddings=True,
        layernorm_embedding=True,
        no_scale_embedding=True,
    )
    dense = ClusterformerMaskedLM.build_model(dense_args, make_task()).eval()
    for parameter in dense.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    path = tmp_path / "dense.pt"
    write(path, dense.state_dict())
    lifted = model(radius=50, lift=str(path), **shared)
    given = {name: tensor.clone() for name, tensor in lifted.encoder.state_dict().items()}
    lifted.load_initial_weights()
    anew = {n: p for n, p in lifted.encoder.named_parameters() if "label_" in n or "types" in n}
    assert len(anew) == 2 * SIZES["encoder_layers"] + 1
    for name, parameter in anew.items():  # which the dense encoder does not have
        assert torch.equal(parameter, given[name])
        torch.nn.init.zeros_(parameter)
    dense.double()
    tokens = torch.randint(4, 24, (2, 30))
    tokens[1, 20:] = 1
    nothing = etc.Structure(
        torch.zeros(2, 1, 2, dtype=torch.long),
        30,
        global_padding=torch.ones(2, 1, dtype=torch.bool),
        long_padding=tokens.eq(1),
    )
    found = lifted.encoder(tokens, nothing).of_long
    expected = dense.encoder(tokens)["encoder_out"][0].transpose(0, 1)
    real = tokens.ne(1)
    torch.testing.assert_close(found[real], expected[real], **CLOSE)


def of_2019(given: dict[str, Tensor]) -> dict[str, Tensor]:
    """RoBERTa's parameters as they were released: other names, and q, k and v as one."""
    old = {}
    for name, tensor in given.items():
        if match := re.fullmatch(r"(.*self_attn\.)q_proj\.(weight|bias)", name):
            parts = [given[f"{match[1]}{x}_proj.{match[2]}"] for x in "qkv"]
            old[f"{match[1]}in_proj_{match[2]}"] = torch.cat(parts)
        elif not re.search(r"self_attn\.[kv]_proj|version$", name):
            old[name] = tensor
    return {
        re.sub("^encoder", "decoder", name).replace("layernorm_embedding", "emb_layer_norm"): t
        for name, t in old.items()
    }


@torch.no_grad()
@pytest.mark.parametrize("older", [False, True])
def test_lifted_from_roberta(tmp_path: Path, older: bool) -> None:
    """Equal to fairseq's RoBERTa without positions, whose task has one word more, <mask>."""
    args = Namespace(**SIZES, tokens_per_sample=64, max_positions=64)
    base_architecture(args)
    task = make_task()
    task.source_dictionary.add_symbol("<mask>")
    dense = RobertaModel.build_model(args, task).eval()
    for parameter in dense.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    given = dense.state_dict()
    write(tmp_path / "model.pt", of_2019(given) if older else given)
    lifted = model(radius=50, lift=str(tmp_path / "model.pt"))
    lifted.load_initial_weights()
    for name, parameter in lifted.encoder.named_parameters():
        if "label_" in name or "types" in name:
            torch.nn.init.zeros_(parameter)
    stack = dense.double().encoder.sentence_encoder
    stack.embed_positions.weight.zero_()
    tokens = torch.randint(4, 24, (2, 30))
    hidden = torch.ones(2, 1, dtype=torch.bool)
    nothing = Structure(torch.zeros(2, 1, 2, dtype=torch.long), 30, global_padding=hidden)
    found = lifted.encoder(tokens, nothing).of_long
    expected = stack(tokens)["encoder_out"][0].transpose(0, 1)
    torch.testing.assert_close(found, expected, **CLOSE)
    words = make_task().source_dictionary
    words.save(str(tmp_path / "dict.txt"))
    lifted.load_initial_weights()
    words.symbols[6], words.symbols[7] = words.symbols[7], words.symbols[6]
    words.save(str(tmp_path / "dict.txt"))
    with pytest.raises(
        ValueError, match=r"--lift is .*dict.txt is another dictionary \(word 6 is"
    ):
        lifted.load_initial_weights()


def test_activation_checkpoints_change_nothing() -> None:
    tokens = torch.randint(4, 24, (2, 30))
    gradients = []
    for saves in (False, True):
        torch.manual_seed(1)
        built = model(checkpoint_activations=saves).train()
        built(tokens)[0].square().sum().backward()
        gradients.append([p.grad for p in built.parameters()])
    for one, other in zip(*gradients, strict=True):
        assert (one is None) == (other is None)
        assert one is None or torch.equal(one, other)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block": 0}, "--block is 0; allowed: 1 or more"),
        ({"projections": "no"}, "--projections is no; allowed: separate, shared-kv, shared"),
        ({"radius": -1}, "--radius is -1; allowed: 0 or more"),
        ({"encoder_attention_heads": 0}, "--encoder-attention-heads is 0; allowed: 1 or more"),
        ({"encoder_embed_dim": 0}, "--encoder-embed-dim is 0; allowed: 1 or more"),
        ({"num_labels": -5}, "--num-labels is -5; allowed: 4 or more"),
        ({"max_distance": -1}, "--max-distance is -1; allowed: 0 or more"),
        ({"dropout": 2.0}, "--dropout is 2.0; allowed: 0 or more, up to 1"),
        ({"attention_dropout": 1.0}, "--attention-dropout is 1; allowed: 0 or more, and less"),
        (
            {"encoder_attention_heads": 5},
            "--encoder-attention-heads is 5; allowed: a number that divides --encoder-embed-dim",
        ),
        ({"same_cluster": 4}, "--same-cluster is 4, and --clusters 0; allowed: 0 without"),
        ({"same_cluster": -4}, "--same-cluster is -4; allowed: 0 or more"),
        (
            {"same_cluster": 4, "clusters": 3, "max_distance": 14},
            "--num-labels 32; allowed: 13 or less, or 33 labels",
        ),
    ],
)
def test_refuses(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        model(**options)


def test_what_does_not_fit_is_named(tmp_path) -> None:
    path = tmp_path / "other.pt"
    write(path, {"encoder.x": torch.zeros(1)})
    with pytest.raises(ValueError, match="other.pt: it has no embed_tokens.weight; allowed"):
        model(lift=str(path)).load_initial_weights()
    with pytest.raises(ValueError, match="padding stands before a token"):
        model()(torch.tensor([[1, 5, 6]]))
    structure = Structure(torch.zeros(1, 3, 2, dtype=torch.long), 4)
    message = "(2, 4) long and (1, 3) global tokens; allowed: (1, 4) and (1, 3), as the structure"
    with pytest.raises(ValueError, match=re.escape(message)):
        model().encoder(torch.full((2, 4), 5), structure)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"encoder_layers": 3}, "it also has layers.2"),
        ({"encoder_normalize_before": True}, "it also has layer_norm"),
    ],
)
def test_another_form_is_not_lifted(changes: dict, message: str, tmp_path) -> None:
    more = {"layernorm_embedding": True, "encoder_attention": "full"}
    dense_args = Namespace(**{**SIZES, **more, **changes})
    dense = ClusterformerMaskedLM.build_model(dense_args, make_task())
    write(tmp_path / "dense.pt", dense.state_dict())
    with pytest.raises(ValueError, match=f"dense.pt: {message}.*; allowed"):
        model(lift=str(tmp_path / "dense.pt")).load_initial_weights()
    other = ClusterformerMaskedLM.build_model(dense_args, make_task(21))
    write(tmp_path / "other.pt", other.state_dict())
    with pytest.raises(ValueError, match="other.pt: it was trained with another dictionary"):
        model(lift=str(tmp_path / "other.pt")).load_initial_weights()


def task_of_parts() -> Namespace:
    task = make_task()
    task.source_dictionary.add_symbol("<mask>")
    task.hides_parts = True
    return task


def batch_of(lines: list[list[int]], **options) -> dict:
    """All of it in one row; no word is guessed."""
    items = [torch.tensor([*line, 2]) for line in lines]
    data = MaskedParts(
        Lines(items),
        task_of_parts().source_dictionary,
        np.ones(30, bool),
        most=64,
        most_parts=16,
        guessed=0,
        **options,
    )
    assert len(data) == 1
    return data.collater([data[0]])["net_input"]


class Lines(list):
    """Items as fairseq's data sets have them."""

    @property
    def sizes(self) -> np.ndarray:
        return np.array([len(item) for item in self])


def model_of_parts(**options) -> ETCMaskedLM:
    args = Namespace(**{**SIZES, "radius": 5, "max_distance": 2, "block": 8, **options})
    return ETCMaskedLM.build_model(args, task_of_parts()).double().eval()


@torch.no_grad()
def test_starts_from_another_of_its_kind(tmp_path) -> None:
    given = model_of_parts()
    write(tmp_path / "etc.pt", given.state_dict())
    again = model_of_parts(lift=str(tmp_path / "etc.pt"))
    again.load_initial_weights()
    for name, tensor in given.encoder.state_dict().items():
        assert torch.equal(tensor, again.encoder.state_dict()[name]), name
    clustered = model_of_parts(lift=str(tmp_path / "etc.pt"), clusters=3)
    own = clustered.encoder.centroids.clone()
    clustered.load_initial_weights()
    assert torch.equal(clustered.encoder.centroids, own)


@torch.no_grad()
def test_fine_tuning_needs_no_mask(tmp_path: Path) -> None:
    """Tasks of pre-training add <mask> to the words, those of fine-tuning do not."""
    given = model_of_parts()
    write(tmp_path / "etc.pt", given.state_dict())
    tuned = model(lift=str(tmp_path / "etc.pt"))
    tuned.load_initial_weights()
    words = given.encoder.embed_tokens.weight
    assert torch.equal(tuned.encoder.embed_tokens.weight, words[:-1])
    assert words.size(0) == len(make_task().source_dictionary) + 1


def test_labels_of_other_distances_are_not_lifted(tmp_path) -> None:
    path = tmp_path / "etc.pt"
    write(path, model_of_parts().state_dict(), max_distance=3)
    with pytest.raises(ValueError, match="etc.pt: its --max-distance is 3; allowed: 2, as here"):
        model_of_parts(lift=str(path)).load_initial_weights()


@torch.no_grad()
@pytest.mark.parametrize("options", [{}, {"hard_global": True}])
def test_packed_documents_are_documents_alone(options: dict) -> None:
    built = model_of_parts(**options)
    documents = [[[5, 6, 7], [8, 9]], [[10] * 4, [11], [12, 13]]]
    alone = [built(**batch_of(lines, hidden_parts=0))[0][0] for lines in documents]
    both = built(**batch_of([*documents[0], [], *documents[1]], hidden_parts=0))[0][0]
    torch.testing.assert_close(both, torch.cat(alone), **CLOSE)


def test_a_hidden_part_is_expected_from_its_context_alone() -> None:
    """Its words are seen where it stands alone, and nowhere else; both are learned from."""
    built = model_of_parts()
    found = []
    for words in ([7, 8, 9], [14, 15, 16]):
        lines = [[5, 6], words, [10, 11]]
        drawn = (batch_of(lines, hidden_parts=0.5, seed=seed) for seed in range(99))
        given = next(d for d in drawn if d["parts"]["hidden"].tolist() == [[False, True, False]])
        logits, extra = built(**given)
        found.append((logits, *extra["contrast"]))
    (logits, expected, actual), (others, again, other) = found
    torch.testing.assert_close(logits, others, **CLOSE)
    torch.testing.assert_close(expected, again, **CLOSE)
    assert not torch.allclose(actual, other)
    for states in (again, other):
        (grad,) = torch.autograd.grad(
            states.sum(), built.encoder.embed_tokens.weight, retain_graph=True
        )
        assert grad.abs().sum() > 0


@torch.no_grad()
def test_hidden_parts_alone_are_batches_of_one() -> None:
    built = model_of_parts()
    parts = [[5, 6], [7, 8, 9], [10]]
    given = batch_of(parts, hidden_parts=1)["parts"]["alone"]
    for words, state in zip(parts, built._alone(given), strict=True):
        structure = Structure(torch.tensor([[[0, len(words)]]]), len(words))
        alone = built.encoder(torch.tensor([words]), structure).of_global[0, 0]
        torch.testing.assert_close(state, alone, **CLOSE)


@pytest.mark.parametrize("options", [{}, {"clusters": 3}])
def test_every_parameter_has_a_gradient(options: dict) -> None:
    """Of the last layer's global tokens, too, which nothing reads: workers expect it."""
    built = model_of_parts(**options).train()
    built.contrast = None
    none = {"parts": "none", "hidden_parts": 0} if options else {"hidden_parts": 0}
    built(**batch_of([[5, 6], [7]], **none))[0].sum().backward()
    assert [name for name, p in built.named_parameters() if p.grad is None] == []


def test_without_hidden_parts_the_maps_still_have_gradients() -> None:
    """As workers that exchange gradients need."""
    built = model_of_parts()
    _, extra = built(**batch_of([[5, 6], [7]], hidden_parts=0))
    sum(states.sum() for states in extra["contrast"]).backward()
    assert all(p.grad is not None for p in built.contrast.parameters())


@torch.no_grad()
def test_clusters_of_packed_documents_are_those_of_documents_alone() -> None:
    built = model_of_parts(clusters=3, same_cluster=2, hard_global=True)
    built.contrast = None  # as where no parts are hidden
    documents = [[[5, 6, 7], [8, 9]], [[10] * 4, [11], [12, 13]]]
    none = {"parts": "none", "hidden_parts": 0}
    alone = [built(**batch_of(lines, **none))[0][0] for lines in documents]
    both = built(**batch_of([*documents[0], [], *documents[1]], **none))[0][0]
    torch.testing.assert_close(both, torch.cat(alone), **CLOSE)
    torch.testing.assert_close(built(torch.tensor([[5, 6, 7, 8, 9]]))[0][0], alone[0], **CLOSE)


def test_clusters_and_parts_at_once() -> None:
    task = task_of_parts()
    task.cfg = Namespace(parts="sentences")
    args = Namespace(**SIZES, clusters=3)
    with pytest.raises(ValueError, match="--clusters is 3, and --parts sentences; allowed"):
        ETCMaskedLM.build_model(args, task)
    built = model_of_parts(clusters=3)
    with pytest.raises(ValueError, match="allowed: --parts none, or --clusters 0"):
        built(**batch_of([[5, 6], [7]], hidden_parts=0))
