"""The files a release consists of: which facts each states, how it is hashed, and what can be wrong with it."""
