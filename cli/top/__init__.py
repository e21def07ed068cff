"""`top`: the wheel on a terminal, as it turns. `looker` reads it, `frame` draws it, `screen` and `keys` are the
terminal, `session` turns keys into acts.
"""
