#!lua flags=allow-oom
-- queued → processing under a fresh lease. ARGV: worker, limit, solo, then queue and want of each. Answers of each job:
-- id, attempt, facts, payload, failures, crashes, checkpoint, enqueued_at, expired.
local worker, room, solo = ARGV[1], tonumber(ARGV[2]), ARGV[3] == '1'
local ends = redis.call('ZSCORE', ns .. 'alive', worker)
if not ends or tonumber(ends) < now then return {} end
local answer, processing, held, stale = {}, {}, {}, {}
for i = 4, #ARGV, 2 do
  local queue, want = ARGV[i], math.min(tonumber(ARGV[i + 1]), room)
  if want > 0 and redis.call('HEXISTS', ns .. 'paused', queue) == 0 then
    local ids = redis.call('ZRANGE', lane(queue, solo), 0, want - 1)
    for _, id in ipairs(ids) do
      local f = redis.call('HMGET', job(id), 'facts', 'payload', 'attempt', 'failures', 'crashes', 'checkpoint',
        'enqueued_at', 'expires_at', 'stale_after')
      local attempt = (tonumber(f[3]) or 0) + 1
      redis.call('HSET', job(id), 'state', 'processing', 'attempt', attempt, 'worker_id', worker, 'started_at', now)
      if f[9] then stale[#stale + 1], stale[#stale + 2] = now + tonumber(f[9]), id end
      processing[#processing + 1], processing[#processing + 2] = now, id
      held[#held + 1] = id
      local late = attempt == 1 and f[8] and tonumber(f[8]) < now
      local n = #answer
      answer[n + 1], answer[n + 2], answer[n + 3], answer[n + 4] = id, attempt, f[1], f[2]
      answer[n + 5], answer[n + 6], answer[n + 7] = f[4] or '0', f[5] or '0', f[6]
      answer[n + 8], answer[n + 9] = f[7], late and 1 or 0
    end
    if #ids > 0 then
      redis.call('ZREMRANGEBYRANK', lane(queue, solo), 0, #ids - 1)
      count('processing', queue, #ids)
      room = room - #ids
    end
  end
end
if #held > 0 then
  redis.call('ZADD', ns .. 'processing', unpack(processing))
  redis.call('SADD', ns .. 'held:' .. worker, unpack(held))
  redis.call('SADD', ns .. 'holders', worker)
  if #stale > 0 then redis.call('ZADD', ns .. 'stale', unpack(stale)) end
end
return answer
