#!lua flags=no-writes
-- The ids of all jobs in these states, if there are few enough. ARGV: the maximum, the earliest end of ended jobs
-- (-inf: any) and the latest, the queue of queued ones (empty: any), states. Returns nothing if there are more.
local most, since, til, queue, keys, total = tonumber(ARGV[1]), ARGV[2], ARGV[3], ARGV[4], {}, 0
for n = 5, #ARGV do
  local state = ARGV[n]
  if state == 'processing' then
    for _, worker in ipairs(redis.call('SMEMBERS', ns .. 'owners')) do
      keys[#keys + 1] = {'HKEYS', ns .. 'processing:' .. worker}
      total = total + redis.call('HLEN', ns .. 'processing:' .. worker)
    end
  elseif state == 'queued' then
    for _, name in ipairs(queue ~= '' and {queue} or redis.call('SMEMBERS', ns .. 'queues')) do
      for _, key in ipairs({lane_key(name, false), lane_key(name, true)}) do
        keys[#keys + 1] = {'ZRANGE', key, 0, -1}
        total = total + redis.call('ZCARD', key)
      end
    end
  else
    local from, to = since, til
    if state == 'scheduled' or state == 'waiting' then from, to = '-inf', '+inf' end
    keys[#keys + 1] = {'ZRANGEBYSCORE', ns .. state, from, to}
    total = total + redis.call('ZCOUNT', ns .. state, from, to)
  end
end
if total > most then return false end
local ids = {}
for _, key in ipairs(keys) do
  for _, id in ipairs(redis.call(unpack(key))) do ids[#ids + 1] = id end
end
return ids
