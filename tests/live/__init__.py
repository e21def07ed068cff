"""Live views: what a wheel does now, as values, on the terminal and as a web page."""
