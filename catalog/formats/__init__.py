"""What the table formats look like on disk: pure functions, no ORM."""
