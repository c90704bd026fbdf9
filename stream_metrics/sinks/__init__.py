"""Outside systems fed from the output topic: one file each, its library imported only when it is used."""
