"""A profile: read, judged, shown as text and as a page. Imports no other subject."""
