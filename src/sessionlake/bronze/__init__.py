"""The bronze layer: copies every message of Kafka, archives or Kinesis into `bronze.messages` exactly once."""
