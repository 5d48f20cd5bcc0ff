"""The open-loop load driver as a program. The driver itself is installed with the command line (``pratique_cli.load``), where the review's
workload test uses it; what benchmarks add to it stands here."""
