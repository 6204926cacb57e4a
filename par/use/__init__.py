"""What was learned, put to use: predict, ask what would become of a new task, export."""
