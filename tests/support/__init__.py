"""What tests share: a broker, its topics, and waiting. Imported as `support`; pytest finds it through `pythonpath`."""
