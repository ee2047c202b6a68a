#!lua flags=allow-oom
-- queued → processing under a new lease. ARGV: worker, limit, solo, bytes, then queue and want per queue. It ends with
-- the job that reaches the bytes. Returns per job: id, attempt, facts, payload, enqueued_at, and the answer of `past`
-- for the few jobs that need it.
local worker, room, solo, bytes = ARGV[1], tonumber(ARGV[2]), ARGV[3] == '1', tonumber(ARGV[4])
if not is_alive(worker) or solo and redis.call('EXISTS', ns .. 'processing:' .. worker) == 1 then return {} end
-- The first of these suspects, no more than each may run with (`group_size` in lifecycle.py).
local function group(ids)
  local some, least = {}, 64
  for n, id in ipairs(ids) do
    least = math.min(least, tonumber(redis.call('HGET', job(id), 'together') or 1))
    if n > least then break end
    some[n] = id
  end
  return some
end
local answer, held, stale, begun, stamp, had_past = {}, {}, {}, {}, string.format('%.0f', now), false
for i = 5, #ARGV, 2 do
  local queue, want, taken = ARGV[i], math.min(tonumber(ARGV[i + 1]), room), 0
  if want > 0 and bytes > 0 and redis.call('HEXISTS', ns .. 'paused', queue) == 0 then
    local ids = redis.call('ZRANGE', lane_key(queue, solo), 0, want - 1)
    if solo then ids = group(ids) end
    for _, id in ipairs(ids) do
      local key = job(id)
      local f
      if had_past then -- so this one probably has one, too: one read instead of two
        f = redis.call('HMGET', key, 'facts', 'payload', 'enqueued_at', 'attempt', unpack(PAST))
      else
        f = redis.call('HMGET', key, 'facts', 'payload', 'enqueued_at', 'attempt')
      end
      local attempt = f[4] and string.format('%d', f[4] + 1) or '1'
      redis.call('HSET', key, 'state', 'processing', 'attempt', attempt, 'worker_id', worker, 'started_at', stamp)
      local earlier, hung, keys = false, false, false
      if f[4] then
        if had_past then
          earlier, hung, keys = past(attempt, f, 4)
        else
          earlier, hung, keys = past(attempt, redis.call('HMGET', key, unpack(PAST)), 0)
        end
      end
      had_past = f[4]
      if keys then begun[#begun + 1], begun[#begun + 2], begun[#begun + 3] = id, limited().lane_of(queue, solo), keys end
      if hung then stale[#stale + 1], stale[#stale + 2] = now + hung, id end
      held[#held + 1], held[#held + 2] = id, f[4] and attempt .. '+' or attempt
      local n = #answer
      answer[n + 1], answer[n + 2], answer[n + 3] = id, attempt, f[1]
      answer[n + 4], answer[n + 5], answer[n + 6] = f[2], f[3], earlier
      taken = taken + 1
      bytes = bytes - #f[2] - (earlier and earlier[3] and #earlier[3] or 0) - math.max(#f[1] - 1024, 0)
      if bytes <= 0 then break end
    end
    if taken > 0 then
      redis.call('ZREMRANGEBYRANK', lane_key(queue, solo), 0, taken - 1)
      room = room - taken
      if solo then break end -- a group is from one queue
    end
  end
end
if #begun > 0 then limited().begin(begun) end
if #held > 0 then
  redis.call('HSET', ns .. 'processing:' .. worker, unpack(held))
  redis.call('SADD', ns .. 'owners', worker)
  if #stale > 0 then redis.call('ZADD', ns .. 'stale', unpack(stale)) end
end
return answer
