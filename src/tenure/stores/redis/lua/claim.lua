#!lua flags=allow-oom
-- queued → processing under a fresh lease. ARGV: worker, limit, solo, then queue and want of each. Answers of each job:
-- id, attempt, facts, payload, failures, crashes, checkpoint, enqueued_at, expired.
local worker, room, solo = ARGV[1], tonumber(ARGV[2]), ARGV[3] == '1'
local ends = redis.call('ZSCORE', ns .. 'alive', worker)
if not ends or tonumber(ends) < now then return {} end
local answer, held, stale = {}, {}, {}
for i = 4, #ARGV, 2 do
  local queue, want = ARGV[i], math.min(tonumber(ARGV[i + 1]), room)
  if want > 0 and redis.call('HEXISTS', ns .. 'paused', queue) == 0 then
    local ids = redis.call('ZRANGE', lane(queue, solo), 0, want - 1)
    for _, id in ipairs(ids) do
      local key = job(id)
      local f = redis.call('HMGET', key, 'facts', 'payload', 'enqueued_at', 'attempt', 'more')
      local attempt = f[4] and tonumber(f[4]) + 1 or 1
      redis.call('HSET', key, 'state', 'processing', 'attempt', attempt, 'worker_id', worker, 'started_at', now)
      local failures, crashes, checkpoint, late = '0', '0', false, 0
      if f[5] then -- few have it: a past, or a limit in time
        local m = redis.call('HMGET', key, 'failures', 'crashes', 'checkpoint', 'expires_at', 'stale_after')
        failures, crashes, checkpoint = m[1] or '0', m[2] or '0', m[3]
        if attempt == 1 and m[4] and tonumber(m[4]) < now then late = 1 end
        if m[5] then stale[#stale + 1], stale[#stale + 2] = now + tonumber(m[5]), id end
      end
      held[#held + 1] = id
      local n = #answer
      answer[n + 1], answer[n + 2], answer[n + 3], answer[n + 4], answer[n + 5] = id, attempt, f[1], f[2], failures
      answer[n + 6], answer[n + 7], answer[n + 8], answer[n + 9] = crashes, checkpoint, f[3], late
    end
    if #ids > 0 then
      redis.call('ZREMRANGEBYRANK', lane(queue, solo), 0, #ids - 1)
      room = room - #ids
    end
  end
end
if #held > 0 then
  redis.call('SADD', ns .. 'processing:' .. worker, unpack(held))
  redis.call('SADD', ns .. 'owners', worker)
  if #stale > 0 then redis.call('ZADD', ns .. 'stale', unpack(stale)) end
end
return answer
