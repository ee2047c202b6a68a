"""What every process that runs jobs does besides: it renews its lease, and takes its turn at the duties of a store.

The lease: holder.py, lifeline.py. The duties, rescue, promotion, ticks and pruning: duty.py, roster.py, maintenance.py.
"""
