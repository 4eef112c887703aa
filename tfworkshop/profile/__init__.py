"""`./workshop profile`: run an unedited TensorFlow program, and record some of its steps."""
