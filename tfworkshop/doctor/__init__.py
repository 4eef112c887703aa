"""What is wrong here, and what to type. Imports `environment`, whose plans it explains."""
