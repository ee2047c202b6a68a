#!lua flags=allow-oom
-- Extend the lease of each worker that is not dead. ARGV: id, note and memory (empty: not reported) per worker.
-- Returns those that are alive.
local living = {}
for i = 1, #ARGV, 3 do
  if redis.call('ZSCORE', ns .. 'alive', ARGV[i]) then
    local key = ns .. 'worker:' .. ARGV[i]
    redis.call('ZADD', ns .. 'alive', now + tonumber(redis.call('HGET', key, 'lease')), ARGV[i])
    redis.call('HSET', key, 'renewed_at', now, 'note', ARGV[i + 1])
    if ARGV[i + 2] ~= '' then redis.call('HSET', key, 'memory', ARGV[i + 2]) end
    living[#living + 1] = ARGV[i]
  end
end
return living
