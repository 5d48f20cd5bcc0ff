"""Fetch what a URI names into a folder of a cache volume, before the server starts. Torch-free; runs as a program of its own.

``uris`` says what is named; a remote (``hub``, ``oci``, ``web``, ``bucket``) lists it and says where its bytes are; ``selection`` knows
what of it a server loads; ``transfer`` moves the bytes, ``store`` keeps them, ``lock`` shares one download between pods; ``fetcher``
puts these in order and ``program`` is the process. The rule: a folder stands under its final name only when every byte in it was read back
and is what the source says it is.
"""
