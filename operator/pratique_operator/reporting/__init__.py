"""What a person reads: status, conditions, events. Pure but for the posting of an event."""
