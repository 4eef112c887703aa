"""What `./workshop` calls; the stage scripts never import it."""
