"""What workers compare, average and tell each other while Keras' `fit` runs."""
