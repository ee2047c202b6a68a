#!lua flags=allow-oom
-- Forget workers that died long ago, the names of empty queues, flows whose jobs an older release has deleted, and the
-- keys under which jobs of an unserved queue were parked. ARGV: milliseconds that a dead worker is kept.
local before = '(' .. string.format('%.0f', now - tonumber(ARGV[1]))
for _, worker in ipairs(redis.call('ZRANGEBYSCORE', ns .. 'died', '-inf', before, 'LIMIT', 0, 200)) do
  local identity = redis.call('HGET', ns .. 'worker:' .. worker, 'identity')
  for _, queue in ipairs(identity and cjson.decode(identity).queues or {}) do
    redis.call('ZREM', ns .. 'serves:' .. queue, worker)
  end
  redis.call('UNLINK', ns .. 'worker:' .. worker)
  redis.call('ZREM', ns .. 'died', worker)
  redis.call('ZREM', ns .. 'protocols', worker)
end
for _, flow in ipairs(redis.call('ZRANDMEMBER', ns .. 'flows', 20)) do
  local members = ns .. 'members:' .. flow
  for _, id in ipairs(redis.call('ZRANGE', members, 0, 9)) do
    if redis.call('EXISTS', job(id)) == 0 then redis.call('ZREM', members, id) end
  end
  if redis.call('EXISTS', members, ns .. 'sealed') == 0 then -- jobs of sealed calls are still to come
    redis.call('ZREM', ns .. 'flows', flow)
    redis.call('HDEL', ns .. 'flow_names', flow)
  end
end
for _, queue in ipairs(redis.call('SRANDMEMBER', ns .. 'idle', 10)) do
  local keys = ns .. 'idle:' .. queue
  for _, key in ipairs(redis.call('SRANDMEMBER', keys, 20)) do
    local parked, lane_of = ns .. 'parked_of:' .. key, limited().lane_of
    if not redis.call('ZSCORE', parked, lane_of(queue)) and not redis.call('ZSCORE', parked, lane_of(queue, true)) then
      redis.call('SREM', keys, key)
    end
  end
  if redis.call('EXISTS', keys) == 0 then redis.call('SREM', ns .. 'idle', queue) end
end
if redis.call('EXISTS', ns .. 'waiting') == 0 then redis.call('UNLINK', ns .. 'waiting_of') end
forget_queues(redis.call('SRANDMEMBER', ns .. 'queues', 200))
