#!lua flags=no-writes
-- Per queue: name, when it was paused, counts of waiting, scheduled, queued, processing, and the wait of the oldest queued job.
local names, processing, answers = {}, {}, {}
for _, worker in ipairs(redis.call('SMEMBERS', ns .. 'owners')) do
  for _, id in ipairs(redis.call('HKEYS', ns .. 'processing:' .. worker)) do
    local queue = redis.call('HGET', job(id), 'queue')
    processing[queue] = (processing[queue] or 0) + 1
    names[queue] = true
  end
end
for _, name in ipairs(redis.call('SMEMBERS', ns .. 'queues')) do names[name] = true end
for _, name in ipairs(redis.call('HKEYS', ns .. 'paused')) do names[name] = true end
for name in pairs(names) do
  local queued, oldest = 0, nil
  for _, solo in ipairs({false, true}) do
    local key, from = lane_key(name, solo), '-inf'
    queued = queued + redis.call('ZCARD', key)
    while from do -- the first job of each priority
      local first = redis.call('ZRANGEBYSCORE', key, from, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
      from = nil
      if first[1] then
        local waits = tonumber(redis.call('HGET', job(first[1]), 'run_at'))
        oldest = math.min(oldest or waits, waits)
        from = string.format('%.0f', (math.floor(tonumber(first[2]) / BAND) + 1) * BAND)
      end
    end
  end
  answers[#answers + 1] = {name, redis.call('HGET', ns .. 'paused', name),
    tonumber(redis.call('HGET', ns .. 'waiting_of', name) or 0),
    tonumber(redis.call('HGET', ns .. 'scheduled_of', name) or 0), queued, processing[name] or 0, oldest and math.max(now - oldest, 0) or false}
end
return answers
