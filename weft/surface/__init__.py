"""Torch's surface as a table, and the loader that serves it. Imports nothing of weft."""
