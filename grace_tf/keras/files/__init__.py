"""The files of Keras between workers: models with their compression state, backups, logs."""
