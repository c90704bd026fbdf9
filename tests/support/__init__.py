"""What tests share: a broker, its topics, and waiting. Imported as `support`, which pytest finds through `pythonpath`."""
