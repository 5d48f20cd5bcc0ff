"""The gate: proves through this pod's own HTTP path that it is the approved release, before anybody else gets an answer."""
