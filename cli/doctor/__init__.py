"""The parts of a report on one installation and one wheel, each of which survives the trouble of the others."""
