"""What a service has to prove: what is declared, recorded, signed and reviewed, and whether a pod's offer is taken."""
