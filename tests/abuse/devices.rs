//! Devices, virtual functions and huge pages of others, also of guests that have come meanwhile.
