"""What a GPU would see of a training step, found without one. Imports no other subject."""
