#!lua flags=no-writes
-- The number of queued jobs that must run alone. ARGV: queues.
local waiting = 0
for _, queue in ipairs(ARGV) do
  if redis.call('HEXISTS', ns .. 'paused', queue) == 0 then waiting = waiting + redis.call('ZCARD', lane(queue, true)) end
end
return waiting
