"""ETC (Ainslie et al. 2020): global tokens, its pre-training and readers."""
