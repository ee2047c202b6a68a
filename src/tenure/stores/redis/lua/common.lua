-- The common head of all scripts. KEYS[1] is the prefix of all keys, and itself a key that is never created: while a
-- cluster migrates our slot, a node refuses a script whose named key it does not find, before it executes anything.
local ns = KEYS[1]
local BAND = 35184372088832 -- 2^45: a score is priority, then milliseconds, within the 53 bits of a double

local function job(id) return ns .. 'job:' .. id end
local function lane_key(queue, solo) return ns .. (solo and 'solo:' or 'ready:') .. queue end
local function score(rank, run_at) return rank * BAND + math.max(run_at, 0) end
local function count_scheduled(queue, by) redis.call('HINCRBY', ns .. 'scheduled_of', queue, by) end
local function count_waiting(queue, by) redis.call('HINCRBY', ns .. 'waiting_of', queue, by) end

-- The rings to send after the transition, by rings.lua.
local rings = {}
local function ring(kind, queue) rings[kind .. ' ' .. queue] = {kind, queue} end

-- What `admit` has to look at: a job, a shared signal, or the edges of a job that is gone (admit.lua). An ask that is
-- already there has yet to be answered, so it covers this one too.
local function ask(what)
  redis.call('ZADD', ns .. 'asks', 'NX', now, what)
  ring('due', '')
end

-- The same, but answered from the beginning: what a partial answer has seen of the job is no longer true.
local function ask_anew(id)
  redis.call('HDEL', ns .. 'asked', id)
  ask(id)
end

-- The fields of a job that its transitions need.
local function read(id)
  local f = redis.call('HMGET', job(id), 'state', 'queue', 'rank', 'run_at', 'solo', 'attempt', 'worker_id', 'unique',
    'linked', 'limits', 'parked')
  if not f[1] then return nil end
  return {state = f[1], queue = f[2], rank = tonumber(f[3]), run_at = tonumber(f[4]), solo = f[5] == '1',
          attempt = tonumber(f[6]) or 0, worker = f[7], unique = f[8], linked = f[9] == '1', limits = f[10],
          parked = f[11]}
end

-- The functions for jobs with limits, made when a script meets the first one. `text`: the keys of a job, as JSON of
-- {key, limit} each. Only these take and free places, so that none is lost: a job is parked under one of its keys while
-- it waits for them, and has a place of each while it is queued or processing (keys.lua gives them). `lane`: jobs that
-- are claimed one after another, those of a queue, or the suspects and isolated jobs of a queue.
local of_limits
local function limited()
  if of_limits then return of_limits end
  local looked, known, read_texts, rated, any_rated_key, turn = {}, {}, {}, {}, nil, nil
  local function lot(key, lane) return ns .. 'parked:' .. key .. '\0' .. lane end
  local function lane_of(queue, solo) return solo and queue .. '\0solo' or queue end

  local function keys_in(text)
    local found = read_texts[text] or cjson.decode(text)
    read_texts[text] = found
    return found
  end

  -- `give` has to look at these keys, after those asked for before. `quietly`: the caller looks itself.
  local function look(names, quietly)
    if not quietly then ring('due', '') end
    local asks = {}
    for n, key in ipairs(names) do
      if not looked[key] then
        looked[key] = true
        turn = turn or redis.call('HINCRBY', ns .. 'walk', 'key_asks', 1)
        asks[#asks + 1], asks[#asks + 2] = turn, key
      end
      if #asks == 2000 or #asks > 0 and n == #names then -- Lua can't unpack more than some 8,000
        redis.call('ZADD', ns .. 'key_asks', 'NX', unpack(asks))
        asks = {}
      end
    end
  end

  -- The key is looked at now.
  local function answer(key)
    looked[key] = nil
    redis.call('ZREM', ns .. 'key_asks', key)
  end

  local function know(key, limit)
    if known[key] == limit then return end
    known[key] = limit
    local name = ns .. 'key:' .. key
    local before = redis.call('HGET', name, 'limit')
    if before == limit then return end
    redis.call('HSET', name, 'limit', limit)
    redis.call('ZADD', ns .. 'keys', 0, key)
    redis.call('ZADD', ns .. 'keys_of:' .. limit, 0, key)
    if before then redis.call('ZREM', ns .. 'keys_of:' .. before, key) end -- it was renamed
  end

  local function park(id, j, key, limit, due)
    redis.call('HSET', job(id), 'parked', key)
    local lane = lane_of(j.queue, j.solo)
    redis.call('ZADD', lot(key, lane), score(j.rank, due), id)
    redis.call('ZADD', ns .. 'parked_of:' .. key, 0, lane)
    know(key, limit)
    look({key})
  end

  -- A job that would be queued waits under its first key. It keeps its turn, unless it is due anew; and it expires while
  -- it waits, if it has never begun.
  local function wait(id, j)
    local first, f = keys_in(j.limits)[1], redis.call('HMGET', job(id), 'due_at', 'expires_at')
    local due = tonumber(not j.anew and f[1] or j.run_at)
    redis.call('HSET', job(id), 'due_at', due)
    if f[2] and j.attempt == 0 then
      redis.call('HSET', job(id), 'wait_until', f[2])
      redis.call('ZADD', ns .. 'waits', f[2], id)
    end
    park(id, j, first[1], first[2], due)
  end

  local function unpark(id, key, lane)
    redis.call('ZREM', lot(key, lane), id)
    redis.call('HDEL', job(id), 'parked')
    if redis.call('EXISTS', lot(key, lane)) == 0 then redis.call('ZREM', ns .. 'parked_of:' .. key, lane) end
  end

  -- Collect, by name, what one command adds or removes for many jobs: most of a script's time is its Lua (measured), so
  -- it makes no table or text for each job.
  local function gather(into, name, each)
    local some = into[name]
    if not some then
      some = {}
      into[name] = some
    end
    some[#some + 1] = each
  end

  local function all(command, stem, names)
    for name, some in pairs(names) do redis.call(command, stem .. name, unpack(some)) end
  end

  -- Does the key have a rate, or its limit? Then begins are recorded.
  local function is_rated(key, limit)
    if rated[limit] == nil then rated[limit] = redis.call('SISMEMBER', ns .. 'rated', limit) == 1 end
    if any_rated_key == nil then any_rated_key = redis.call('EXISTS', ns .. 'rated_keys') == 1 end
    return rated[limit] or any_rated_key and redis.call('SISMEMBER', ns .. 'rated_keys', key) == 1
  end

  -- `jobs`: id, lane and text of each, in one list.
  local function begin(jobs)
    local begun, late = {}, {}
    for n = 1, #jobs, 3 do
      local id = jobs[n]
      for _, each in ipairs(keys_in(jobs[n + 2])) do
        local key = each[1]
        gather(begun, key, id)
        if is_rated(key, each[2]) then
          redis.call('RPUSH', ns .. 'begun:' .. key, now)
          look({key}, true) -- a begin makes no room
        end
      end
      gather(late, jobs[n + 1], id)
    end
    all('SREM', ns .. 'unbegun:', begun)
    all('ZREM', ns .. 'unbegun_of:', late)
  end

  local function free(jobs, quietly)
    local held, names, placed, late = {}, {}, {}, {}
    for n = 1, #jobs, 3 do
      local id = jobs[n]
      for _, each in ipairs(keys_in(jobs[n + 2])) do
        if not held[each[1]] then names[#names + 1] = each[1] end
        gather(held, each[1], id)
      end
      placed[#placed + 1] = id
      gather(late, jobs[n + 1], id)
    end
    all('ZREM', ns .. 'places:', held)
    all('SREM', ns .. 'unbegun:', held)
    all('ZREM', ns .. 'unbegun_of:', late)
    redis.call('HDEL', ns .. 'placed', unpack(placed))
    look(names, quietly)
  end

  of_limits = {lot = lot, lane_of = lane_of, keys_in = keys_in, look = look, answer = answer, know = know, park = park, wait = wait,
               unpark = unpark, gather = gather, begin = begin, free = free}
  return of_limits
end

local function release_leases(worker, ids)
  local held = ns .. 'processing:' .. worker
  redis.call('HDEL', held, unpack(ids))
  if redis.call('EXISTS', held) == 0 then redis.call('SREM', ns .. 'owners', worker) end
end

-- The fields that a claim returns for a job with earlier attempts or a time limit, its stale_after, and its keys. They are
-- the values of PAST, in `f` behind `at`.
local PAST = {'failures', 'crashes', 'checkpoint', 'expires_at', 'stale_after', 'linked', 'limits'}
local function past(attempt, f, at)
  local late = attempt == '1' and f[at + 4] and tonumber(f[at + 4]) < now
  return {f[at + 1] or '0', f[at + 2] or '0', f[at + 3], late and 1 or 0, f[at + 6] == '1' and 1 or 0, f[at + 7] and 1 or 0},
    tonumber(f[at + 5] or nil), f[at + 7]
end

-- The time of its owner's last report.
local function silent_since(id)
  local f = redis.call('HMGET', job(id), 'last_activity_at', 'started_at')
  return tonumber(f[1] or f[2])
end

-- A processing job that may be taken back: id, attempt, worker, why, since when it is silent; the identity of its
-- worker, and whether that owns other jobs; the job's charges.
local function to_take(id, worker, why, since)
  local f = redis.call('HMGET', job(id), 'attempt', 'facts', 'failures', 'crashes', 'crashes_total', 'cancel_reason',
    'solo', 'together', 'limits')
  return {id, tonumber(f[1]), worker, why, since, redis.call('HGET', ns .. 'worker:' .. worker, 'identity'),
    redis.call('HLEN', ns .. 'processing:' .. worker) > 1 and 1 or 0,
    f[2], f[3] or '0', f[4] or '0', f[5] or '0', f[6], f[7], f[8], f[9]}
end

-- A waiting job waits for no signal any more.
local function wake(id)
  local f = redis.call('HMGET', job(id), 'wait_for', 'wait_until')
  if f[1] then redis.call('ZREM', ns .. 'waitfor:' .. f[1], id) end
  if f[2] then redis.call('ZREM', ns .. 'waits', id) end
  if f[1] or f[2] then redis.call('HDEL', job(id), 'wait_for', 'wait_until') end
end

-- Remove the job from the index of its state.
local function leave(id, j)
  if j.state == 'queued' then
    redis.call('ZREM', lane_key(j.queue, j.solo), id)
  elseif j.state == 'processing' then
    redis.call('ZREM', ns .. 'stale', id)
    release_leases(j.worker, {id})
  else
    redis.call('ZREM', ns .. j.state, id)
    if j.state == 'scheduled' then count_scheduled(j.queue, -1) end
    if j.state == 'dead' and j.linked then redis.call('ZREM', ns .. 'holding', id) end
    if j.state == 'waiting' then
      redis.call('ZREM', ns .. 'waited', id)
      count_waiting(j.queue, -1)
      wake(id)
      if j.parked then
        limited().unpark(id, j.parked, limited().lane_of(j.queue, j.solo))
        if not j.admitted then limited().look({j.parked}) end -- it may have been the last reason to keep its key
        j.parked = nil
      end
    end
  end
  if j.limits and (j.state == 'queued' or j.state == 'processing') then
    limited().free({id, limited().lane_of(j.queue, j.solo), j.limits})
  end
end

-- Set a new state and add the job to its index. An ended job releases its unique key, and lets those that wait for it
-- know. A job with limits that is to be queued waits for its places, unless it is `admitted`.
local function enter(id, j, state)
  local parks = state == 'queued' and j.limits and not j.admitted
  if parks then state = 'waiting' end
  j.state = state
  redis.call('HSET', job(id), 'state', state)
  if state == 'queued' or state == 'scheduled' or state == 'waiting' then redis.call('SADD', ns .. 'queues', j.queue) end
  if state == 'queued' then
    redis.call('ZADD', lane_key(j.queue, j.solo), score(j.rank, j.run_at), id)
    ring('queued', j.queue)
  elseif state == 'scheduled' then
    redis.call('ZADD', ns .. 'scheduled', j.run_at, id)
    count_scheduled(j.queue, 1)
    ring('due', j.queue)
  elseif state == 'waiting' then
    redis.call('ZADD', ns .. 'waiting', 0, id)
    redis.call('ZADD', ns .. 'waited', j.run_at, id)
    count_waiting(j.queue, 1)
    if parks then limited().wait(id, j) else ask_anew(id) end
  else
    redis.call('ZADD', ns .. state, now, id)
    if j.unique then redis.call('HDEL', ns .. 'unique', j.unique) end
    if j.linked then
      if state == 'dead' then redis.call('ZADD', ns .. 'holding', now, id) end
      ask_anew(id)
    end
  end
end

-- Forget the names of those of these queues that have no job.
local function forget_queues(queues)
  for _, queue in ipairs(queues) do
    local later = tonumber(redis.call('HGET', ns .. 'scheduled_of', queue) or 0)
    if later == 0 then later = tonumber(redis.call('HGET', ns .. 'waiting_of', queue) or 0) end
    if later == 0 and redis.call('EXISTS', lane_key(queue, false), lane_key(queue, true)) == 0 then
      redis.call('SREM', ns .. 'queues', queue)
      redis.call('HDEL', ns .. 'scheduled_of', queue)
      redis.call('HDEL', ns .. 'waiting_of', queue)
    end
  end
end

-- What the store holds instead of a lease, for a refused write.
local function standing(id, attempt)
  local f = redis.call('HMGET', job(id), 'state', 'attempt', 'worker_id', 'result')
  return {f[1], tonumber(f[2] or 0), f[3], f[4], redis.call('HGET', ns .. 'attempts:' .. id, attempt)}
end

local function is_alive(worker)
  local ends = redis.call('ZSCORE', ns .. 'alive', worker)
  return ends and tonumber(ends) >= now
end

local function expired(before)
  return redis.call('ZRANGEBYSCORE', ns .. 'alive', '-inf', '(' .. string.format('%.0f', before), 'LIMIT', 0, 200)
end

-- Is the call in time, and its witness renewed recently enough that an expired lease proves the others dead?
local function credible(witness, by)
  if by ~= '' and now > tonumber(by) then return false end
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

-- nothing → queued, or scheduled when due later; processing if there is an owner, which must be alive; waiting if
-- `waits` names it, or if it has limits and is due. `args` from `first` to `last`: the number of groups, per group what
-- its jobs share (facts, queue, rank, solo, stale_after, limits), then per job: id, group, payload, when (empty: now; +delay; or an instant), unique, expires. Returns per job: 1 queued, 2
-- scheduled, 3 processing, 4 waiting, or the existing job, its state, and the id that was given. A job with the field `attempt`, even if it is 0, has more fields that
-- `claim` and `complete` have to read; most jobs have none.
local function enqueue(args, first, last, owner, waits)
  local groups, at = {}, first + 1
  for g = 1, tonumber(args[first]) do
    groups[g] = {facts = args[at], queue = args[at + 1], rank = tonumber(args[at + 2]), solo = args[at + 3] == '1',
                 stale = args[at + 4], limits = args[at + 5] ~= '' and args[at + 5], ready = {}, later = 0}
    at = at + 6
  end
  local answers, ids, later = {}, {}, {}
  for i = at, last, 6 do
    local id, group, payload, when, unique, expires = args[i], groups[tonumber(args[i + 1])], args[i + 2], args[i + 3],
      args[i + 4], args[i + 5]
    local holder = unique ~= '' and redis.call('HGET', ns .. 'unique', unique)
    local key = job(id)
    local stands = redis.call('HGET', key, 'state')
    if stands then
      answers[#answers + 1] = {id, stands, id}
    elseif holder then
      answers[#answers + 1] = {holder, redis.call('HGET', job(holder), 'state'), id}
    else
      local run_at = now
      if when ~= '' then run_at = when:sub(1, 1) == '+' and now + tonumber(when:sub(2)) or tonumber(when) end
      local state = owner and 'processing' or run_at > now and 'scheduled' or 'queued'
      local parks = group.limits and state == 'queued'
      if parks or waits and waits[id] then state = 'waiting' end
      redis.call('HSET', key, 'state', state, 'queue', group.queue, 'rank', group.rank, 'facts', group.facts,
        'payload', payload, 'run_at', run_at, 'enqueued_at', now)
      if group.solo then redis.call('HSET', key, 'solo', '1') end
      if group.stale ~= '' then redis.call('HSET', key, 'stale_after', group.stale, 'attempt', 0) end
      if expires ~= '' then redis.call('HSET', key, 'expires_at', run_at + tonumber(expires), 'attempt', 0) end
      if unique ~= '' then
        redis.call('HSET', key, 'unique', unique, 'attempt', 0)
        redis.call('HSET', ns .. 'unique', unique, id)
      end
      if group.limits then redis.call('HSET', key, 'limits', group.limits, 'attempt', 0) end
      ids[#ids + 1], ids[#ids + 2] = 0, id
      if state == 'queued' then
        group.ready[#group.ready + 1], group.ready[#group.ready + 2] = score(group.rank, run_at), id
        answers[#answers + 1] = 1
      elseif state == 'scheduled' then
        later[#later + 1], later[#later + 2] = run_at, id
        group.later = group.later + 1
        answers[#answers + 1] = 2
      elseif state == 'waiting' then
        if waits and waits[id] then
          redis.call('HSET', key, 'linked', '1', 'attempt', 0)
        else
          limited().wait(id, {queue = group.queue, rank = group.rank, solo = group.solo, run_at = run_at, attempt = 0,
            limits = group.limits})
        end
        redis.call('ZADD', ns .. 'waiting', 0, id)
        redis.call('ZADD', ns .. 'waited', run_at, id)
        count_waiting(group.queue, 1)
        answers[#answers + 1] = 4
      else
        redis.call('HSET', key, 'attempt', '1', 'worker_id', owner, 'started_at', now)
        redis.call('HSET', ns .. 'processing:' .. owner, id, '1+')
        redis.call('SADD', ns .. 'owners', owner)
        if group.stale ~= '' then redis.call('ZADD', ns .. 'stale', now + tonumber(group.stale), id) end
        answers[#answers + 1] = 3
      end
    end
  end
  if #ids > 0 then redis.call('ZADD', ns .. 'jobs', unpack(ids)) end
  if #later > 0 then redis.call('ZADD', ns .. 'scheduled', unpack(later)) end
  for _, group in ipairs(groups) do
    if #group.ready > 0 then
      redis.call('ZADD', lane_key(group.queue, group.solo), unpack(group.ready))
      ring('queued', group.queue)
    end
    if group.later > 0 then
      count_scheduled(group.queue, group.later)
      ring('due', group.queue)
    end
    redis.call('SADD', ns .. 'queues', group.queue)
  end
  return answers
end

-- The same for several blocks, in one step. ARGV from `at`: their number, then per block the number of its values, and
-- these. Returns the answers per job, and the index of the first value after the blocks.
local function enqueue_all(at, owner)
  local answers, left = {}, tonumber(ARGV[at])
  at = at + 1
  for _ = 1, left do
    local last = at + tonumber(ARGV[at])
    for _, answer in ipairs(enqueue(ARGV, at + 1, last, owner)) do answers[#answers + 1] = answer end
    at = last + 1
  end
  return answers, at
end

-- waiting, scheduled, queued → cancelled; processing: requested. Returns the new state.
local function cancel(id, reason)
  local j = read(id)
  if j and j.state == 'processing' then
    redis.call('HSETNX', job(id), 'cancel_reason', reason)
    ring('cancel', j.queue)
  elseif j and (j.state == 'waiting' or j.state == 'scheduled' or j.state == 'queued') then
    leave(id, j)
    redis.call('HSET', job(id), 'cancel_reason', reason, 'error', reason)
    enter(id, j, 'cancelled')
  end
  return j and j.state or false
end

-- The name of a tick is MS|CAUSE within its schedule, MS|CAUSE|SCHEDULE among all ticks.
local function split(run) return run:match('^(-?%d+|%a+)|(.*)$') end

local function write_tick(name, tick, body, open, job_id, decided_at)
  local run, at = tick .. '|' .. name, tick:match('^-?%d+')
  redis.call('HSET', ns .. 'tick:' .. name, tick, body)
  redis.call('ZADD', ns .. 'ticks:' .. name, at, tick)
  if open then
    redis.call('HSET', ns .. 'open', run, job_id)
    redis.call('ZADD', ns .. 'open:' .. name, at, tick)
    redis.call('ZREM', ns .. 'decided', run)
  else
    redis.call('HDEL', ns .. 'open', run)
    redis.call('ZREM', ns .. 'open:' .. name, tick)
    redis.call('ZADD', ns .. 'decided', decided_at, run)
  end
end

-- A note is stored as its expiry, = and its text. Returns the = and the text, unless it has expired.
local function note(stored)
  local ends, text = (stored or ''):match('^(-?%d*)(=.*)$')
  return text and (ends == '' or tonumber(ends) > now) and text
end

local function forget_note(key)
  redis.call('HDEL', ns .. 'notes', key)
  redis.call('ZREM', ns .. 'noted', key)
  redis.call('ZREM', ns .. 'fading', key)
end

