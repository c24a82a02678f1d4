"""Files of many forms to passages, and answers from them."""
