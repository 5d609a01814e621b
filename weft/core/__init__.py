"""What a user touches: Tensor, functions, creation, randomness, differentiation. Everything is built from `weft.ir` ops."""
