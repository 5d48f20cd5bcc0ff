"""A release on a desk: loaded, recorded and checked in one process, without a server."""
