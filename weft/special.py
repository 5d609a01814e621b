"""Special functions under torch's names."""

from weft.surface.namespaces import offer

offer(globals(), "special")
