"""A message waits: slot and lap files, the deal from journals into them, and windows of ids out of them."""
