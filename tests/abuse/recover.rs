//! What `recover`, undo and a power cut do to what has come since.
