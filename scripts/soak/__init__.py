"""The parts of scripts/soak-serve.py, one module for each."""
