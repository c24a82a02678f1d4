"""BiDAF and QANet, readers of words, as the report XLQA has them."""
