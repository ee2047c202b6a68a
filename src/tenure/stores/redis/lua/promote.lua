#!lua flags=allow-oom
-- scheduled and due → queued, or waiting if it has limits, in order of run_at. ARGV: limit. Returns the milliseconds
-- until the next one is due, or nothing; how many wait now; then per queued job: its queue, its id, and the message if
-- its last attempt ended in a crash, or nothing.
local due = redis.call('ZRANGEBYSCORE', ns .. 'scheduled', '-inf', now, 'LIMIT', 0, ARGV[1])
local answer, lanes, counts = {false, 0}, {}, {}
for _, id in ipairs(due) do
  local f = redis.call('HMGET', job(id), 'queue', 'rank', 'run_at', 'solo', 'crashes_total', 'attempt', 'message',
    'limits')
  if f[8] then
    local j = {queue = f[1], rank = tonumber(f[2]), run_at = tonumber(f[3]), solo = f[4] == '1', attempt = tonumber(f[6]),
               limits = f[8], anew = true}
    count_scheduled(f[1], -1)
    enter(id, j, 'queued')
    answer[2] = answer[2] + 1
  else
    redis.call('HSET', job(id), 'state', 'queued')
    local key = lane_key(f[1], f[4] == '1')
    local entries = lanes[key] or {}
    lanes[key] = entries
    entries[#entries + 1], entries[#entries + 2] = score(tonumber(f[2]), tonumber(f[3])), id
    counts[f[1]] = (counts[f[1]] or 0) + 1
    local message = false
    if (tonumber(f[5]) or 0) > 0 then
      local last = redis.call('HGET', ns .. 'attempts:' .. id, f[6])
      if last and cjson.decode(last).outcome == 'crashed' then message = f[7] end
    end
    local n = #answer
    answer[n + 1], answer[n + 2], answer[n + 3] = f[1], id, message
  end
end
if #due > 0 then
  redis.call('ZREMRANGEBYRANK', ns .. 'scheduled', 0, #due - 1)
  for key, entries in pairs(lanes) do redis.call('ZADD', key, unpack(entries)) end
  for queue, number in pairs(counts) do
    count_scheduled(queue, -number)
    ring('queued', queue)
  end
end
local first = redis.call('ZRANGE', ns .. 'scheduled', 0, 0, 'WITHSCORES')
if first[1] then answer[1] = math.max(tonumber(first[2]) - now, 0) end
return answer
