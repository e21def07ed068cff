"""The way of a message through the code, counted, with a budget for each step."""
