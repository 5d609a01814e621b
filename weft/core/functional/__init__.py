"""The functions that neural networks are made of; `weft.nn.functional` offers them."""
