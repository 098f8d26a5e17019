"""What runs inside Spark: no Django, and nothing of ours is imported."""
