#!lua flags=no-writes
-- The numbers of jobs that are queued, processing, waiting, scheduled, completed, dead, cancelled.
local queued = 0
for _, name in ipairs(redis.call('SMEMBERS', ns .. 'queues')) do
  queued = queued + redis.call('ZCARD', lane_key(name, false)) + redis.call('ZCARD', lane_key(name, true))
end
local processing = 0
for _, worker in ipairs(redis.call('SMEMBERS', ns .. 'owners')) do
  processing = processing + redis.call('HLEN', ns .. 'processing:' .. worker)
end
local answer = {queued, processing}
for _, state in ipairs({'waiting', 'scheduled', 'completed', 'dead', 'cancelled'}) do
  answer[#answer + 1] = redis.call('ZCARD', ns .. state)
end
return answer
