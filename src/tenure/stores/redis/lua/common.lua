-- What every script begins with. KEYS[1] is the prefix of all keys, and itself a key that is never made: while a
-- cluster moves our slot, a node refuses a script whose named key it does not find, before anything is done.
local ns = KEYS[1]
local BAND = 35184372088832 -- 2^45: a score is priority, then milliseconds, within the 53 bits of a double

local function job(id) return ns .. 'job:' .. id end
local function lane(queue, solo) return ns .. (solo and 'solo:' or 'ready:') .. queue end
local function score(rank, run_at) return rank * BAND + math.max(run_at, 0) end
local function count_scheduled(queue, by) redis.call('HINCRBY', ns .. 'scheduled_of', queue, by) end

-- Whom to wake when this is done: rings.lua sends it.
local rings = {}
local function ring(kind, queue) rings[kind .. ' ' .. queue] = {kind, queue} end

-- Everything of a job that moving it takes.
local function read(id)
  local f = redis.call('HMGET', job(id), 'state', 'queue', 'rank', 'run_at', 'solo', 'attempt', 'worker_id', 'unique')
  if not f[1] then return nil end
  return {state = f[1], queue = f[2], rank = tonumber(f[3]), run_at = tonumber(f[4]), solo = f[5] == '1',
          attempt = tonumber(f[6]) or 0, worker = f[7], unique = f[8]}
end

local function let_go(worker, ids)
  local held = ns .. 'processing:' .. worker
  redis.call('HDEL', held, unpack(ids))
  if redis.call('EXISTS', held) == 0 then redis.call('SREM', ns .. 'owners', worker) end
end

-- What claiming tells of a job that has a past or a limit in time, and how long it may be silent.
local function past(key, attempt)
  local f = redis.call('HMGET', key, 'failures', 'crashes', 'checkpoint', 'expires_at', 'stale_after')
  local late = attempt == '1' and f[4] and tonumber(f[4]) < now
  return {f[1] or '0', f[2] or '0', f[3], late and 1 or 0}, tonumber(f[5] or nil)
end

-- Since when its owner has said nothing.
local function silent_since(id)
  local f = redis.call('HMGET', job(id), 'last_activity_at', 'started_at')
  return tonumber(f[1] or f[2])
end

-- Out of the index of the state it is in.
local function leave(id, j)
  if j.state == 'queued' then
    redis.call('ZREM', lane(j.queue, j.solo), id)
  elseif j.state == 'processing' then
    redis.call('ZREM', ns .. 'stale', id)
    let_go(j.worker, {id})
  else
    redis.call('ZREM', ns .. j.state, id)
    if j.state == 'scheduled' then count_scheduled(j.queue, -1) end
  end
end

-- Into that of another. What has ended gives its unique key free.
local function enter(id, j, state)
  j.state = state
  redis.call('HSET', job(id), 'state', state)
  if state == 'queued' or state == 'scheduled' then redis.call('SADD', ns .. 'queues', j.queue) end
  if state == 'queued' then
    redis.call('ZADD', lane(j.queue, j.solo), score(j.rank, j.run_at), id)
    ring('queued', j.queue)
  elseif state == 'scheduled' then
    redis.call('ZADD', ns .. 'scheduled', j.run_at, id)
    count_scheduled(j.queue, 1)
    ring('due', j.queue)
  else
    redis.call('ZADD', ns .. state, now, id)
    if j.unique then redis.call('HDEL', ns .. 'unique', j.unique) end
  end
end

local function forget(id)
  redis.call('UNLINK', job(id), ns .. 'attempts:' .. id, ns .. 'once:' .. id)
  redis.call('ZREM', ns .. 'jobs', id)
end

-- What stands instead of a lease, for whoever was refused.
local function standing(id, attempt)
  local f = redis.call('HMGET', job(id), 'state', 'attempt', 'worker_id', 'result')
  return {f[1], tonumber(f[2] or 0), f[3], f[4], redis.call('HGET', ns .. 'attempts:' .. id, attempt)}
end

local function expired(before)
  return redis.call('ZRANGEBYSCORE', ns .. 'alive', '-inf', '(' .. string.format('%.0f', before), 'LIMIT', 0, 200)
end

-- Is this worker itself renewed so well that others' silence is their own?
local function credible(witness)
  if witness == '' then return true end
  local ends, lease = redis.call('ZSCORE', ns .. 'alive', witness), redis.call('HGET', ns .. 'worker:' .. witness, 'lease')
  return ends and lease and tonumber(ends) - now > tonumber(lease) / 3
end

local function declare(worker, death)
  if redis.call('ZREM', ns .. 'alive', worker) == 0 then return false end
  redis.call('HSET', ns .. 'worker:' .. worker, 'died_at', now, 'death', death)
  redis.call('ZADD', ns .. 'died', now, worker)
  return true
end

