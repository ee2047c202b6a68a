#!lua flags=allow-oom
-- Stop or resume claims from a queue. ARGV: queue, 1 to stop. Returns 0 if nothing changed.
if ARGV[2] == '1' then return redis.call('HSETNX', ns .. 'paused', ARGV[1], now) end
ring('queued', ARGV[1])
return redis.call('HDEL', ns .. 'paused', ARGV[1])
