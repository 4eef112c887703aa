"""./workshop doctor: checks this machine and says how to fix what is wrong."""
