"""The functions that layers are made of, under torch's names; `import weft.nn.functional as F`."""

from weft.surface.namespaces import offer

offer(globals(), "nn.functional")
