"""A Python that fits, a venv, Horovod's build. Standard library only; imports no other subject."""
