"""What transformers asks of every model: a line per check, for each of our classes."""

import copy

import pytest
import torch

pytest.importorskip("fairseq_clusterformer.hf", exc_type=ImportError)

import transformers  # noqa: E402
from transformers import (  # noqa: E402
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
)

from tests.hf.small import (  # noqa: E402
    EOS,
    VOCABULARY,
    assert_same_tensors,
    config,
    language_model,
    padded,
    saved_again,
    tokens,
)

CLASSES = {
    AutoModelForCausalLM: "clusterformer_lm_tiny",
    AutoModelForSeq2SeqLM: "clusterformer_tiny",
    AutoModelForMaskedLM: "clusterformer_masked_lm_tiny",
    AutoModelForSequenceClassification: "clusterformer_classifier_tiny",
    AutoModel: "clusterformer_masked_lm_tiny",
}


@pytest.fixture(params=CLASSES, ids=lambda auto: auto.__name__)
def auto(request: pytest.FixtureRequest) -> type:
    return request.param


def make(auto: type, **options: object):
    return auto.from_config(config(CLASSES[auto], **options)).eval()


def inputs(auto: type, rows: int = 3, length: int = 11) -> dict:
    given = {"input_ids": tokens(rows, length)}
    if auto is AutoModelForSeq2SeqLM:
        given["decoder_input_ids"] = tokens(rows, 7)
        given["decoder_input_ids"][:, 0] = EOS
    return given


def with_labels(auto: type) -> dict:
    given = inputs(auto)
    if auto is AutoModelForSequenceClassification:
        return given | {"labels": torch.tensor([0, 1, 1])}
    return given | {"labels": given["decoder_input_ids" if len(given) > 1 else "input_ids"]}


def test_saved_and_loaded(auto, tmp_path):
    """Tied weights stay tied."""
    model, given = make(auto), inputs(auto)
    again = saved_again(model, tmp_path, auto)
    assert type(again) is type(model)
    assert_same_tensors(model, again)
    assert torch.equal(model(**given)[0], again(**given)[0])
    names = len(list(again.named_parameters(remove_duplicate=False)))
    tied = {AutoModelForSeq2SeqLM: 2, AutoModelForSequenceClassification: 0}.get(auto, 1)
    assert names - len(list(again.parameters())) == tied


def test_embeddings_resized(auto, tmp_path):
    model, given = make(auto), inputs(auto)
    before = model(**given)[0]
    model.resize_token_embeddings(VOCABULARY + 6)
    assert model.config.vocab_size == VOCABULARY + 6
    assert model.get_input_embeddings().weight.shape[0] == VOCABULARY + 6
    for change in (lambda m: m, lambda m: saved_again(m, tmp_path, auto)):
        model = change(model)
        after = model(**given)[0]
        if auto not in (AutoModel, AutoModelForSequenceClassification):
            assert after.shape[-1] == VOCABULARY + 6
            after = after[..., :VOCABULARY]
        torch.testing.assert_close(after, before)
    given["input_ids"][:, 3] = VOCABULARY + 5  # a new word can be read
    model(**given)


def test_gradient_checkpointing_changes_no_gradient(auto):
    if auto is AutoModel:
        pytest.skip("it has no loss")
    plain, given = make(auto, dropout=0.0, classifier_dropout=0.0).train(), with_labels(auto)
    model = copy.deepcopy(plain)
    model.activation_checkpointing_enable()
    assert model.is_activation_checkpointing
    for each in (plain, model):
        torch.manual_seed(3)
        each(**given).loss.backward()
    for (name, one), other in zip(plain.named_parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(other.grad, one.grad, msg=name)
    model.activation_checkpointing_disable()
    assert not model.is_activation_checkpointing


REFUSED = {
    "output_attentions": (True, "True: .* never makes a matrix of weights; allowed: False"),
    "inputs_embeds": (torch.zeros(3, 11, 32), "given; allowed: input_ids"),
    "head_mask": (torch.tensor([1.0, 0.0]), "given"),
    "token_type_ids": (torch.tensor([[0] * 5 + [1] * 6] * 3), "are others|is given"),
    "position_ids": (torch.arange(11).flip(0)[None], "count neither"),
    "cu_seq_lens_q": (torch.tensor([0, 11]), "given"),
    "attention_masks": (torch.ones(3, 11), "given"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_read_is_refused(auto, case):
    name, (value, problem) = case.split()[-1], REFUSED[case]
    with pytest.raises(ValueError, match=f"{name}.* ({problem}).*") as error:
        make(auto)(**inputs(auto), **{name: value})
    assert "; allowed: " in str(error.value)


def test_what_says_nothing_new_is_taken(auto):
    """Positions from 0 in each row, one type of tokens, a mask of no head, and None."""
    model, given = make(auto), inputs(auto)
    ids, mask = padded([tokens(1, length)[0] for length in (9, 4, 11)], "left")
    given |= {"input_ids": ids, "attention_mask": mask}
    plain = {"position_ids": (mask.cumsum(1) - 1).clamp(min=0), "token_type_ids": 0 * ids}
    plain |= {"head_mask": torch.ones(2, 4), "seq_idx": None}
    assert torch.equal(model(**given, **plain)[0], model(**given)[0])


def test_a_joined_pairs_types_are_the_tokenizers():
    kind = AutoModelForSequenceClassification
    options = config("clusterformer_classifier_tiny")
    options.form = "joined"
    model, ids = kind.from_config(options).eval(), tokens(1, 9)
    ids[0, [0, 4, 8]] = torch.tensor([0, EOS, EOS])
    types = (torch.arange(9) > 4).long()[None]
    assert torch.equal(model(ids, token_type_ids=types)[0], model(ids)[0])
    with pytest.raises(ValueError, match="token_type_ids are others .*; allowed: "):
        model(ids, token_type_ids=1 - types)
    with pytest.raises(ValueError, match="position_ids say that rows hold several documents"):
        model(ids, position_ids=torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4, 5]]))


def test_hidden_states(auto):
    out = make(auto)(**inputs(auto), output_hidden_states=True)
    states = out.decoder_hidden_states if auto is AutoModelForSeq2SeqLM else out.hidden_states
    assert len(states) == 3
    assert {(len(state), state.shape[-1]) for state in states} == {(3, 32)}
    found = make(auto)(**inputs(auto), return_dict=False)
    assert isinstance(found, tuple)
    assert found[0].shape == out[0].shape


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_batch_is_its_rows_alone(auto, side):
    model = make(auto)
    rows = [tokens(1, length)[0] for length in (9, 4, 6)]
    ids, mask = padded(rows, side)
    other = inputs(auto)
    del other["input_ids"]
    together = model(input_ids=ids, attention_mask=mask, **other)[0]
    for i, row in enumerate(rows):
        others = {name: t[i : i + 1] for name, t in other.items()}
        alone = model(input_ids=row[None], **others)[0]
        real = mask[i].bool() if together.dim() > 2 and not other else slice(None)
        torch.testing.assert_close(together[i][real], alone[0], rtol=1e-5, atol=1e-5)


def test_half_precision(auto, tmp_path):
    model, given = make(auto), inputs(auto)
    model.save_pretrained(tmp_path)
    half = auto.from_pretrained(tmp_path, dtype=torch.bfloat16).eval()
    assert half.dtype == torch.bfloat16
    out = half(**given)[0]
    assert out.isfinite().all()
    assert (out.float() - model(**given)[0]).abs().mean() < 0.1


def test_another_class_or_architecture_is_one_line(tmp_path):
    language_model().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="allowed in ClusterformerForMaskedLM: one of") as error:
        AutoModelForMaskedLM.from_pretrained(tmp_path)
    assert len(str(error.value).splitlines()) == 1
    with pytest.raises(ValueError, match="architecture is nothing; allowed: clusterformer"):
        transformers.AutoConfig.for_model("clusterformer", architecture="nothing")


def test_a_classifier_from_a_masked_language_model(tmp_path):
    """The encoder is kept, the classifier starts anew with fairseq's initial values."""
    masked = make(AutoModelForMaskedLM)
    masked.save_pretrained(tmp_path / "masked")
    found = AutoModelForSequenceClassification.from_pretrained(tmp_path / "masked", num_labels=5)
    for name, tensor in masked.model.encoder.state_dict().items():
        assert torch.equal(found.model.encoder.state_dict()[name], tensor), name
    last = found.model.classifier[4]
    assert last.weight.shape == (5, 32)
    assert last.weight.std() > 0.01
    assert found.config.architecture == "clusterformer_classifier"
    again = saved_again(found, tmp_path / "found", AutoModelForSequenceClassification)
    assert_same_tensors(found, again)
