#!lua flags=allow-oom
-- A new worker, alive for its lease. ARGV: id, lease, its identity, its protocol, its queues. Returns 0 if the id was used
-- before.
local key = ns .. 'worker:' .. ARGV[1]
if redis.call('EXISTS', key) == 1 then return 0 end
redis.call('HSET', key, 'lease', ARGV[2], 'identity', ARGV[3], 'started_at', now, 'renewed_at', now, 'note', '')
redis.call('ZADD', ns .. 'alive', now + tonumber(ARGV[2]), ARGV[1])
redis.call('ZADD', ns .. 'protocols', ARGV[4], ARGV[1])
for i = 5, #ARGV do redis.call('ZADD', ns .. 'serves:' .. ARGV[i], now, ARGV[1]) end
return 1
