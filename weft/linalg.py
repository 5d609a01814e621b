"""Linear algebra under torch's names. Factorizations run through LAPACK on the host, at the call."""

from weft.surface.namespaces import offer

offer(globals(), "linalg")
