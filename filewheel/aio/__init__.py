"""The wheel and the keeper for programs that run on asyncio."""
