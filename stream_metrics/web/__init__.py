"""What the sidecar serves over HTTP. Knows nothing of the sidecar: it is given what to answer."""
