"""The cluster that end-to-end tests run on: a kind cluster made from Debian packages and Go modules, no registry.

Run it as `python -m e2e.cluster up` from the root of the repository. Standard library only, because it runs before
the project's own environment exists.
"""
