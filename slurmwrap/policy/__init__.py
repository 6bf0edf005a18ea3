"""What to do about a failure: policy, ledger, strikes, blocked inputs. Pure."""
