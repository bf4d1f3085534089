"""Holds the parts of scripts/soak-serve.py, one module for each."""
