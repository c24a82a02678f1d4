"""Files of many forms to passages, and answers from them.

from fairseq_clusterformer import load
found = load("reader-en").answer("Who signed the treaty?", Path("letters"))
found.found, found[0].text, found[0].probability, found[0].file, found[0].place
"""
