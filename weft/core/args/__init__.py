"""What a user passes becomes operands, axes, sizes, dtypes and modes, checked. Imports no other room."""
