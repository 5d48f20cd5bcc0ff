"""The command line: releases, services and the processes, for people and for scripts."""
