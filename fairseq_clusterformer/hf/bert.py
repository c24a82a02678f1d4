"""A reader that looks at one window at a time, as transformers' own ``BertForQuestionAnswering``.

A row is ``[CLS] question [SEP] [CLS] document``, as the reader has it; the exported tokenizer
makes it of a pair. Up to ``--window-size`` tokens of the document, its logits are the reader's.
"No answer" starts and ends at the row's first token. What BERT's head has no place for is left
out: "yes", "no" and whole paragraphs as answers.
"""

from transformers import BertConfig, BertForQuestionAnswering

from fairseq_clusterformer.families import ACTIVATIONS, FAMILIES
from fairseq_clusterformer.models.clusterformer_reader import ClusterformerReader
from fairseq_clusterformer.tasks.clusterformer_qa import ClusterformerQATask


def is_bert(model: ClusterformerReader) -> bool:
    """Whether a reader's layers are all alike, and its "no answer" is a span, as BERT has it."""
    args = model.args
    plain = args.embedding_scale == 1 and not args.encoder_normalize_before
    return plain and args.shared_softmax and not model.encoder.cluster_layers


def longest(model: ClusterformerReader, task: ClusterformerQATask) -> int:
    """Tokens of the longest question of a training with a whole window behind it."""
    args = model.args
    return min(args.window_positions, task.cfg.max_question_positions + args.window_size)


def as_bert(model: ClusterformerReader) -> BertForQuestionAnswering:
    """The same model by transformers' class; see `is_bert`."""
    args, family = model.args, FAMILIES["bert"]
    named = {name: ours for ours, name in family.options.items() if isinstance(name, str)}
    sizes = {name: getattr(args, ours) for name, ours in named.items()}
    theirs = {ours: name for name, ours in reversed(ACTIVATIONS.items())}
    sizes["hidden_act"] = theirs.get(sizes["hidden_act"], sizes["hidden_act"])
    found = BertForQuestionAnswering(
        BertConfig(
            **sizes,
            vocab_size=len(model.encoder.dictionary),
            hidden_dropout_prob=args.dropout,
            attention_probs_dropout_prob=args.attention_dropout,
            pad_token_id=model.encoder.padding_idx,
        )
    )
    own, state = model.state_dict(), found.state_dict()
    words = {"word": own["encoder.embed_tokens.weight"]}
    words["position"] = own["encoder.embed_positions.weight"][2:]  # fairseq's padding is in front
    types = own.get("encoder.embed_types.weight")
    words["token_type"] = words["word"].new_zeros(2, 1) if types is None else types
    new = {f"bert.embeddings.{name}_embeddings.weight": table for name, table in words.items()}
    new |= {name: own[ours] for name in state if (ours := family.named(name))}
    found.load_state_dict({name: t.expand_as(state[name]) for name, t in new.items()})
    return found.eval()
