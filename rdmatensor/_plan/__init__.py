"""What rdmatensor.plan is made of."""
