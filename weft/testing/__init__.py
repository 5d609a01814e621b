"""What tests of weft, and of backends for it, are made of: the reference, strategies, the conformance suite."""
