"""The embedded default backend: LLVM machine code for this host, run on all its cores."""
