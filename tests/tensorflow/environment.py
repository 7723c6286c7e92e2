"""What programs with TensorFlow run in."""

ENVIRONMENT = {
    "HOROVOD_DYNAMIC_PROCESS_SETS": "1",
    "TF_USE_LEGACY_KERAS": "1",  # Horovod does not reduce what Keras 3 trains
    "TF_CPP_MIN_LOG_LEVEL": "2",
}
