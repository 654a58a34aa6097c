//! What is said of isolation, nodes and memory, and changes that come back.
