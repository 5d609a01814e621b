"""What tests of weft, and of backends for it, are made of: the reference, and strategies for random programs."""
