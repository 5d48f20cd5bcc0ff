"""The gate: proves through this pod's own HTTP path that it is the release it has to be, before anybody else gets an answer."""
