"""What `stream-metrics demo` shows: a simulated run, an embedded broker, and the view of the results."""
