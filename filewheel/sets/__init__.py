"""Sets of wheels: copies of a primary on other disks and machines, and the act that makes one of them the primary."""
