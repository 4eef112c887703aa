"""What `./workshop` calls, a folder for each subject; the stage scripts never import it.

Imports point one way: the command line (__main__) -> a subject (a folder) -> what several subjects
share (the modules beside this one). tests/test_style.py holds them to it.
"""
