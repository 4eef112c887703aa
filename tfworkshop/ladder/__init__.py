"""The stages: trained in turn, tabled, timed, scaled. Imports no other subject."""
