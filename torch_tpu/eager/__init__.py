"""What happens when an operator is called on device tensors: plans, views, in-place and out= forms, copies."""
