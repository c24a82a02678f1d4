"""Dense models made sparse, and other libraries' dense models as ours."""
