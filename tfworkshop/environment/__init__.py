"""The environment: set_up.sh makes it, horovod_build.py adds Horovod. Imports no other subject."""
