#!lua flags=no-writes
-- How many jobs are scheduled, queued, processing, completed, dead, cancelled.
local queued = 0
for _, name in ipairs(redis.call('SMEMBERS', ns .. 'queues')) do
  queued = queued + redis.call('ZCARD', lane(name, false)) + redis.call('ZCARD', lane(name, true))
end
local answer = {queued}
for _, state in ipairs({'scheduled', 'processing', 'completed', 'dead', 'cancelled'}) do
  answer[#answer + 1] = redis.call('ZCARD', ns .. state)
end
return answer
