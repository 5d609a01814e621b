"""What a user touches: Tensor, functions, creation, randomness, differentiation. All of it from `weft.ir` ops."""
