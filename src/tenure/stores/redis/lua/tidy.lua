#!lua flags=allow-oom
-- Forget workers that died long ago, and the names of empty queues. ARGV: milliseconds that a dead worker is kept.
local before = '(' .. string.format('%.0f', now - tonumber(ARGV[1]))
for _, worker in ipairs(redis.call('ZRANGEBYSCORE', ns .. 'died', '-inf', before, 'LIMIT', 0, 200)) do
  redis.call('UNLINK', ns .. 'worker:' .. worker)
  redis.call('ZREM', ns .. 'died', worker)
end
forget_queues(redis.call('SRANDMEMBER', ns .. 'queues', 200))
