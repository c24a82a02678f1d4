"""Using trained models."""

#: of each task, the class that uses its models, imported when asked for; a plug-in may add its own
CLASSES = {
    "language_modeling": "fairseq_clusterformer.use.language_model:LanguageModel",
    "translation": "fairseq_clusterformer.use.translate:Translator",
    "clusterformer_qa": "fairseq_clusterformer.documents.read:Reader",
    "clusterformer_sentence": "fairseq_clusterformer.use.classify:Classifier",
    "etc_masked_lm": "fairseq_clusterformer.use.base:DocumentModel",
    "masked_lm": "fairseq_clusterformer.use.base:MaskedLanguageModel",
    "clusterformer_masked_lm": "fairseq_clusterformer.use.base:MaskedLanguageModel",
}
