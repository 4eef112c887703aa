"""Slow trainings, each with a hidden cause. Imports `report` and `exercises`."""
