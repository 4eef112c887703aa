"""A Python that fits, a venv, Horovod's build. Imports no other subject.

Standard library only: this runs before anything is installed. Python 3.6 can read logged,
package_index and python_install, which get a newer one.
"""
