#!lua flags=no-writes
-- The store's clock.
return now
