"""What runs now, and how it ended: published by the keeper's process for readers in other processes."""
