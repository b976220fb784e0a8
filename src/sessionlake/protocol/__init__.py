"""The capture protocol: message types, reasons for quarantine, and decoding into Arrow columns. Pure: no I/O."""
