#!lua flags=allow-oom
-- Forget workers that died long ago, and the names of empty queues. ARGV: milliseconds that a dead worker is kept.
local before = '(' .. string.format('%.0f', now - tonumber(ARGV[1]))
for _, worker in ipairs(redis.call('ZRANGEBYSCORE', ns .. 'died', '-inf', before, 'LIMIT', 0, 200)) do
  redis.call('UNLINK', ns .. 'worker:' .. worker)
  redis.call('ZREM', ns .. 'died', worker)
end
for _, queue in ipairs(redis.call('SRANDMEMBER', ns .. 'queues', 200)) do
  local scheduled = tonumber(redis.call('HGET', ns .. 'scheduled_of', queue) or 0)
  if scheduled == 0 and redis.call('EXISTS', lane(queue, false), lane(queue, true)) == 0 then
    redis.call('SREM', ns .. 'queues', queue)
    redis.call('HDEL', ns .. 'scheduled_of', queue)
  end
end
