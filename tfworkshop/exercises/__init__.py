"""A stage's change as a task, and what judges it. Imports `report`, to read a profile."""
