"""What every process that runs jobs does beside them: it renews its lease, and has its turn at the duties of a store.

The lease: holder.py, lifeline.py. The duties, rescue, promotion, ticks and pruning: duty.py, roster.py, maintenance.py.
"""
