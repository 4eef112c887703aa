"""Slow trainings, each with a hidden cause. Imports `report`, `xray` and `exercises`."""
