"""What a wheel does now, as values: for the command line, the terminal and the web page.

Takes no lock and is no keeper: it reads through the same calls as any other reader.
"""
