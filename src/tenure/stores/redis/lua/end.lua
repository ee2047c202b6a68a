#!lua flags=allow-oom
-- processing → the state that `decide` gave, under the lease. ARGV: a worker to declare dead in the same step, or
-- nothing; its note then, or nothing to keep the one it has; then per end, as JSON: the lease, the charges the decision
-- is based on, the decision, what a suspended job waits for, and the key that the job pauses. Returns per end: 1
-- if it landed; 0 if not, or if its charges have changed and need a new decision. With a worker, either all ends land and are all its leases, or none lands.
local function suspend(e)
  for _, edge in ipairs(e.after or {}) do tie(e.id, edge[1], edge[2]) end
  if e.wait_for then
    redis.call('HSET', job(e.id), 'wait_for', e.wait_for)
    redis.call('ZADD', ns .. 'waitfor:' .. e.wait_for, 0, e.id)
  end
  if e.timeout then
    redis.call('HSET', job(e.id), 'wait_until', now + e.timeout)
    redis.call('ZADD', ns .. 'waits', now + e.timeout, e.id)
  end
end

-- For this long no job of a key is admitted: `give` stores the pause with what operators have set for the key.
local function pause(key, limit, delay)
  limited().know(key, limit)
  local name, til = ns .. 'key:' .. key, (now + delay) / 1000
  if til > (tonumber(redis.call('HGET', name, 'pause') or nil) or 0) then redis.call('HSET', name, 'pause', til) end
  limited().look({key})
end

local dead, note, ends, fits, seen = ARGV[1], ARGV[2], {}, {}, {}
for i = 3, #ARGV do
  local e = cjson.decode(ARGV[i])
  local f = redis.call('HMGET', job(e.id), 'state', 'attempt', 'worker_id', 'failures', 'crashes', 'crashes_total',
    'cancel_reason')
  local same = f[1] == 'processing' and tonumber(f[2]) == e.attempt and f[3] == e.worker
    and (tonumber(f[4]) or 0) == e.seen[1] and (tonumber(f[5]) or 0) == e.seen[2]
    and (tonumber(f[6]) or 0) == e.seen[3] and (f[7] or '') == (e.asked or '') and (not f[7]) == (not e.asked)
  if same and e.lost then -- a rescue: its owner is dead, or silent since the same time
    same = not redis.call('ZSCORE', ns .. 'alive', e.worker)
      or silent_since(e.id) == e.silent_since
  end
  ends[#ends + 1], fits[#fits + 1] = e, same and not seen[e.id] and 1 or 0
  seen[e.id] = true
end
if dead ~= '' then
  local all = redis.call('HLEN', ns .. 'processing:' .. dead) == #ends
  for _, fit in ipairs(fits) do all = all and fit == 1 end
  if not all then return {0} end
  declare(dead, 'crash')
  local key = ns .. 'worker:' .. dead
  if note ~= '' and redis.call('EXISTS', key) == 1 then redis.call('HSET', key, 'note', note) end
end
for n, e in ipairs(ends) do
  if fits[n] == 1 then
    local j = read(e.id)
    local started = redis.call('HGET', job(e.id), 'started_at')
    leave(e.id, j)
    j.solo = e.solo
    if e.delay then j.run_at = now + e.delay end
    redis.call('HSET', job(e.id), 'failures', e.failures, 'crashes', e.crashes, 'crashes_total', e.total,
      'solo', e.solo and '1' or '0', 'together', e.together, 'run_at', j.run_at)
    if e.result then
      redis.call('HSET', job(e.id), 'result', e.result)
    else
      redis.call('HSET', ns .. 'attempts:' .. e.id, e.attempt, cjson.encode({worker = e.worker, outcome = e.outcome,
        error = e.reason, evidence = e.evidence, started_at = started, ended_at = string.format('%.0f', now)}))
      redis.call('HDEL', job(e.id), 'worker_id', 'started_at', 'last_activity_at')
      if e.attempt > 101 then -- ATTEMPTS_KEPT of rules.py, and the first one
        redis.call('HDEL', ns .. 'attempts:' .. e.id, e.attempt - 100)
        redis.call('HDEL', ns .. 'log:' .. e.id, e.attempt - 100)
      end
    end
    if e.error then redis.call('HSET', job(e.id), 'error', e.error) end
    if e.message then redis.call('HSET', job(e.id), 'message', e.message) end
    if e.pause then pause(unpack(e.pause)) end
    if e.outcome == 'suspended' then
      enter(e.id, j, e.state)
      if e.state == 'waiting' then suspend(e) end
    else -- `decide` says that a job with limits waits, where `enter` makes it wait
      enter(e.id, j, e.state == 'waiting' and 'queued' or e.state)
    end
  end
end
if dead ~= '' then return {1} end
return fits
