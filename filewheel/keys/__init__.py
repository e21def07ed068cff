"""At most one message with a key: the index of keys and the rules by which a message takes one."""
